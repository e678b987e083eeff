"""Texts are replaced wherever the pieces end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused
from snowmelt.load.filters import definition
from snowmelt.load.phase_protocols import ByteReader
from support.phases import built

texts = st.text("ab\r\n", max_size=40)


def filtered(name: str, data: bytes, size: int, **parameters: Any) -> bytes:
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(built(definition(name), parameters).run(ByteReader(pieces)))


@given(
    text=texts, pattern=st.text("ab\n", min_size=1, max_size=5), new=texts, size=st.integers(1, 9)
)
@example(text="aaaaaaa", pattern="aa", new="b", size=3)
@example(text="abababab", pattern="aba", new="ab", size=2)
def test_search_and_replace_is_that_of_the_whole(
    text: str, pattern: str, new: str, size: int
) -> None:
    found = filtered("SearchAndReplace", text.encode(), size, pattern=pattern, replace_with=new)
    assert found == text.encode().replace(pattern.encode(), new.encode())


@given(text=texts, size=st.integers(1, 9), end=st.sampled_from(["LF", "crlf", "CR"]))
def test_line_ends_become_alike(text: str, size: int, end: Any) -> None:
    wanted = {"LF": "\n", "crlf": "\r\n", "CR": "\r"}[end]
    whole = text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", wanted)
    assert filtered("LineEndings", text.encode(), size, to=end) == whole.encode()


def test_texts_of_more_than_a_byte_and_patterns_as_long_as_allowed() -> None:
    assert (
        filtered("SearchAndReplace", "Größe".encode(), 1, pattern="ö", replace_with="oe")
        == b"Groe" + "ße".encode()
    )
    data = b"x" * 2_500 + b"y"
    found = filtered("SearchAndReplace", data, 700, pattern="x" * 1_000, replace_with="")
    assert found == b"x" * 500 + b"y"


@pytest.mark.parametrize("pattern", ["", "x" * 1_001])
def test_a_pattern_has_1_to_1000_bytes(pattern: str) -> None:
    with pytest.raises(LoadRefused, match="1 to 1000 bytes"):
        built(definition("SearchAndReplace"), {"pattern": pattern, "replace_with": "a"})


def test_an_unknown_line_end_is_refused() -> None:
    with pytest.raises(LoadRefused, match="LF, CRLF or CR"):
        built(definition("LineEndings"), {"to": "NL"})
