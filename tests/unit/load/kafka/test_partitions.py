"""Streams are written as Vertica writes them."""

from __future__ import annotations

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.kafka.partitions import EARLIEST, SAVED, Stream, parse_streams


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("t|0|0", [Stream("t", 0, 0)]),
        ("t|0|5|9, u.x-y|12|-2", [Stream("t", 0, 5, 9), Stream("u.x-y", 12, EARLIEST)]),
        ("t|3|-3", [Stream("t", 3, SAVED)]),
        ("t|*|-3", [Stream("t", None, SAVED)]),
        ("t", [Stream("t", None, EARLIEST)]),
        ("t|1", [Stream("t", 1, EARLIEST)]),
        ("t|0|7|7", [Stream("t", 0, 7, 7)]),
    ],
)
def test_what_is_written_is_what_is_read(text, streams):
    assert list(parse_streams(text)) == streams
    assert list(parse_streams(",".join(map(str, streams)))) == streams


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is written topic"),
        ("|0|0", "it is written topic"),
        ("t|0|0|1|2", "it is written topic"),
        ("t|x|0", "whole numbers"),
        ("t|0|*", "whole numbers"),
        ("t|0|-1", "start is an offset, -2 "),
        ("t|-1|0", "start is an offset"),
        ("t|0|9|5", "ends before it starts"),
        ("t|0|-2|-5", "ends before it starts"),
        ("t|0|0,t|0|5", "partition 0 of t is there twice"),
        ("t|0|0,t", "of t is there twice"),
    ],
)
def test_what_is_written_otherwise_is_refused(text, reason):
    with pytest.raises(LoadRefused, match=reason):
        parse_streams(text)
