"""Memory as kernels take it."""

from __future__ import annotations

import numpy as np
import pytest

from snowmelt.kernels.slices import StringSlices, view_bytes
from snowmelt.select.kernels.strings import compare_strings


@pytest.mark.parametrize("memory", [b"", b"a", bytearray(b"ab"), memoryview(b"abc")[1:]])
def test_a_view_has_the_bytes_of_its_memory_and_one_type(
    memory: bytearray | bytes | memoryview[int],
) -> None:
    view = view_bytes(memory)
    assert view.tobytes() == bytes(memory)
    assert view.flags.writeable
    assert view.flags.c_contiguous


def test_a_view_keeps_its_memory() -> None:
    view = view_bytes(bytes([7]) * 1_000_000)
    assert int(view.min()) == int(view.max()) == 7


def test_read_only_texts_are_compared_by_the_same_compiled_code() -> None:
    ends = np.array([2], np.int32)
    texts = StringSlices(view_bytes(b"ab"), np.zeros(1, np.int32), ends, np.zeros(1, np.uint8))
    assert compare_strings(texts, b"ac").tolist() == [-1]
