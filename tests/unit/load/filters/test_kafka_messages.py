"""Messages with their lengths become one stream of bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused
from snowmelt.load.filters import definition
from snowmelt.load.phase_protocols import RecordFilter
from support.phases import built

batches = st.lists(st.lists(st.binary(max_size=9), max_size=5), max_size=4)


def joined(name: str, lists: list[list[bytes]], **parameters: Any) -> bytes:
    made = built(definition(name), parameters)
    assert isinstance(made, RecordFilter)
    assert made.ends_records
    # A slice, as a batch of a larger one is.
    arrays = [pa.array([b"skip", *each, b"skip"], pa.binary())[1:-1] for each in lists]
    return b"".join(made.run_records(iter(arrays)))


@given(lists=batches, delimiter=st.text(min_size=1, max_size=4))
def test_delimiters_are_appended_or_put_between(lists: list[list[bytes]], delimiter: str) -> None:
    messages, end = [each for batch in lists for each in batch], delimiter.encode()
    appended = joined("KafkaInsertDelimiters", lists, delimiter=delimiter)
    assert appended == b"".join(each + end for each in messages)
    between = joined("kafkaInsertDelimeters", lists, delimiter=delimiter, mode="Between")
    assert between == end.join(messages)


@given(lists=batches)
def test_lengths_stand_before_messages(lists: list[list[bytes]]) -> None:
    messages = [each for batch in lists for each in batch]
    found = joined("KafkaInsertLengths", lists)
    assert found == b"".join(len(each).to_bytes(4, "big") + each for each in messages)


def test_the_manuals_example() -> None:
    assert joined("KafkaInsertLengths", [[b"x" * 100]])[:4] == b"\x00\x00\x00\x64"


@pytest.mark.parametrize("given", [{"delimiter": ""}, {"delimiter": ",", "mode": "before"}, {}])
def test_no_delimiter_or_another_mode_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(LoadRefused):
        built(definition("KafkaInsertDelimiters"), given)
