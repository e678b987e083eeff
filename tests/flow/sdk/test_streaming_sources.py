"""`stream` loads a source through a channel exactly once, and detects a source that went backwards."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import snowmelt
from snowmelt.client.line_source import LineSource, parse_json_row
from snowmelt.clock import SystemClock
from snowmelt.errors import ChannelFenced, ConfigurationError, InvalidRow, SourceWentBackwards
from snowmelt.loaders.file_tail import FileTail, TailOptions, TailProgress
from support.sdk_table import LATE, T


def numbered(first: int, last: int) -> list[Any]:
    return [{"id": number, "name": f"row {number}"} for number in range(first, last)]


def by_id(row: Mapping[str, Any]) -> Any:
    return row["id"]


def test_an_iterable_goes_on_behind_what_is_committed(connect: Any, ids: Any) -> None:
    first = connect(max_client_lag=LATE).open_channel("c", table=T)
    done = snowmelt.stream(numbered(8, 12), first, position=by_id, batch_rows=3)
    assert (done.inserted, done.token) == (4, "11")
    first.insert_row({"id": 99}, "99")  # Not committed when the client dies.
    second = connect().open_channel("c", table=T)
    done = snowmelt.stream(iter(numbered(8, 110)), second, position=by_id, batch_rows=50)
    assert (done.inserted, done.token) == (98, "109")
    assert ids() == list(range(8, 110))
    assert snowmelt.stream([], second, position=by_id).inserted == 0
    with pytest.raises(ConfigurationError, match="position"):
        snowmelt.stream(numbered(0, 1), second)


def test_a_source_that_went_backwards_is_a_choice(connect: Any, ids: Any) -> None:
    channel = connect().open_channel("c", table=T)
    snowmelt.stream(numbered(0, 10), channel, position=by_id)
    with pytest.raises(
        SourceWentBackwards, match="Source position 4 is before the committed position 9"
    ):
        snowmelt.stream(numbered(0, 5), channel, position=by_id)
    again = snowmelt.stream(numbered(0, 5), channel, position=by_id, on_backwards="skip")
    assert again.inserted == 0
    again = snowmelt.stream(numbered(0, 5), channel, position=by_id, on_backwards="restart")
    assert (again.inserted, again.token) == (5, "4")
    assert channel.latest_committed_offset_token() == "4"
    mixed = [*numbered(5, 8), *numbered(6, 10)]
    with pytest.raises(SourceWentBackwards, match="position 6"):
        snowmelt.stream(mixed, channel, position=by_id)
    done = snowmelt.stream(mixed, channel, position=by_id, on_backwards="skip")
    assert (done.inserted, done.skipped) == (5, 2)
    assert sorted(ids()) == sorted([*range(10), *range(10)])


def test_refused_rows_count_as_done_or_stop_it(connect: Any, ids: Any) -> None:
    client = connect()
    bad: list[dict[str, object]] = [{"id": 1}, {"id": "x"}, {"id": 3}]
    places = itertools.count()
    strict = client.open_channel("strict", table=T)
    with pytest.raises(InvalidRow):
        snowmelt.stream(bad, strict, position=lambda _: next(places))
    refused = []
    lenient = client.open_channel("lenient", table=T, on_error="continue")
    done = snowmelt.stream(
        bad,
        lenient,
        position=lambda _: next(places),
        on_refused=lambda position, error: refused.append((position, error.row_index)),
    )
    assert (done.inserted, done.refused) == (2, 1)
    assert refused == [("4", 1)]
    assert ids() == [1, 3]


def test_a_batch_that_is_skipped_is_refused_as_a_whole(connect: Any, ids: Any) -> None:
    channel = connect().open_channel("skips", table=T, on_error="skip_batch")
    rows = [{"id": 1}, {"id": 2}, {"id": 3, "nope": 1}, {"id": 4}, {"id": 5}]
    told = []
    done = snowmelt.stream(
        rows, channel, position=by_id, batch_rows=2, on_refused=lambda place, _: told.append(place)
    )
    assert (done.inserted, done.refused, done.token) == (3, 2, "5")
    assert (told, sorted(ids())) == (["3"], [1, 2, 5])


def test_resume_says_where_to_go_on_and_mends_what_may_be_mended(connect: Any, ids: Any) -> None:
    client = connect(max_client_lag=LATE)
    channel = client.open_channel("c", table=T)
    assert channel.resume() is None
    channel.insert_rows(numbered(0, 3), "2")
    assert channel.resume() == "2"
    connect().drop_channel("c", table=T)
    channel.insert_rows(numbered(3, 5), "4")
    assert channel.resume() is None, "the token went with the channel"
    channel.insert_rows(numbered(5, 6), "5")
    assert channel.resume() == "5"
    connect().open_channel("c", table=T)
    with pytest.raises(ChannelFenced):
        channel.resume()
    assert ids() == [0, 1, 2, 5]


def test_a_file_of_lines_is_read_to_its_last_whole_line(
    connect: Any, ids: Any, tmp_path: Path
) -> None:
    path = tmp_path / "messages_1.log"
    path.write_bytes(b'{"id": 1}\n\n{"id": 2}\nnonsense\n{"id": 3')
    refused = []
    lines = LineSource(path, parse_json_row, lambda *each: refused.append(each))
    channel = connect().open_channel("c", table=T)
    assert snowmelt.stream(lines, channel).token == "messages_1.log:3"
    assert refused == [("messages_1.log:4", b"nonsense", refused[0][2])]
    with path.open("ab") as file:
        file.write(b'0}\n{"id": 31}\n')
    assert snowmelt.stream(lines, channel).token == "messages_1.log:6"
    again = LineSource(path, parse_json_row, lambda *_: None)
    assert again.file_identity == lines.file_identity
    assert snowmelt.stream(again, channel).inserted == 0
    with path.open("r+b") as file:
        file.truncate(20)
    with pytest.raises(SourceWentBackwards, match=r"messages_1\.log"):
        snowmelt.stream(lines, channel)
    lines.close()
    again.close()
    assert ids() == [1, 2, 30, 31]


def test_what_takes_the_place_of_a_file_that_was_read_is_not_removed(
    connect: Any, ids: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.log"
    path.write_text('{"id": 1}\n')
    told = itertools.count()

    def rotate(_: TailProgress) -> None:
        # After the last listing of files, before they are deleted.
        if next(told) == 1:
            path.rename(tmp_path / "a.log.1")
            path.write_text('{"id": 2}\n')

    options = TailOptions(
        patterns=[str(path)], table=T, make_parser=lambda: parse_json_row, once=True, delete=True
    )
    for _ in range(2):
        tail = FileTail(options, connect(), SystemClock(), lambda _: None)
        tail.run(threading.Event(), rotate)
    assert sorted(ids()) == [1, 2]
    assert not path.exists()
