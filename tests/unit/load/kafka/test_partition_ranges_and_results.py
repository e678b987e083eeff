"""Streams are written as Vertica writes them."""

from __future__ import annotations

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.kafka.partition_ranges_and_results import (
    EARLIEST_OFFSET,
    SAVED_OFFSET,
    PartitionRange,
    parse_partition_ranges,
)


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("t|0|0", [PartitionRange("t", 0, 0)]),
        (
            "t|0|5|9, u.x-y|12|-2",
            [PartitionRange("t", 0, 5, 9), PartitionRange("u.x-y", 12, EARLIEST_OFFSET)],
        ),
        ("t|3|-3", [PartitionRange("t", 3, SAVED_OFFSET)]),
        ("t|*|-3", [PartitionRange("t", None, SAVED_OFFSET)]),
        ("t", [PartitionRange("t", None, EARLIEST_OFFSET)]),
        ("t|1", [PartitionRange("t", 1, EARLIEST_OFFSET)]),
        ("t|0|7|7", [PartitionRange("t", 0, 7, 7)]),
    ],
)
def test_what_is_written_is_what_is_read(text: str, streams: list[PartitionRange]) -> None:
    assert list(parse_partition_ranges(text)) == streams
    assert list(parse_partition_ranges(",".join(map(str, streams)))) == streams


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected topic"),
        ("|0|0", "expected topic"),
        ("t|0|0|1|2", "expected topic"),
        ("t|x|0", "must be integers"),
        ("t|0|*", "must be integers"),
        ("t|0|-1", "start must be an offset, -2 "),
        ("t|-1|0", "start must be an offset"),
        ("t|0|9|5", "ends before it starts"),
        ("t|0|-2|-5", "ends before it starts"),
        ("t|0|0,t|0|5", "partition 0 of t is given twice"),
        ("t|0|0,t", "of t is given twice"),
    ],
)
def test_what_is_written_otherwise_is_refused(text: str, reason: str) -> None:
    with pytest.raises(LoadRefused, match=reason):
        parse_partition_ranges(text)
