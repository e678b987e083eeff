"""Lines of growing files: identity, positions, and what is not read yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from snowmelt.client.line_source import (
    CsvLineParser,
    LineSource,
    make_decoding_parser,
    make_text_parser,
)
from snowmelt.errors import SourceWentBackwards


@contextlib.contextmanager
def opened(path: Path, *, header_lines: int = 0) -> Iterator[LineSource]:
    lines = LineSource(path, make_text_parser("line"), lambda *_: None, header_lines=header_lines)
    with contextlib.closing(lines):
        yield lines


def identity(path: Path, *, header_lines: int = 0) -> str | None:
    with opened(path, header_lines=header_lines) as lines:
        return lines.file_identity


def test_lines_of_a_block_are_unread_until_they_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\nsecond\nthird\npart")
    with opened(path) as lines:
        found = lines.positions()
        assert lines.unread_bytes == 23
        assert next(found)[0] == "a.log:1"
        assert lines.unread_bytes == 17
        assert [position for position, _ in found] == ["a.log:2", "a.log:3"]
        assert lines.unread_bytes == len(b"part")


def test_lines_that_were_read_are_unread_even_after_truncation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\nsecond\n")
    with opened(path) as lines:
        found = lines.positions()
        next(found)
        path.write_bytes(b"")
        assert lines.has_unread_lines
        assert [row for _, row in found] == [{"line": "second"}]
        assert not lines.has_unread_lines


def test_an_overwritten_file_ends_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\nsecond\n")
    with opened(path) as lines:
        assert len(list(lines.positions())) == 2
        path.write_bytes(b"")
        assert list(lines.positions()) == []
        path.write_bytes(b"other\n")
        assert list(lines.positions()) == []


def test_a_file_that_lost_its_last_lines_is_counted_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\nsecond\nthird\n")
    with opened(path) as lines:
        assert len(list(lines.positions())) == 3
        path.write_bytes(b"first\n")
        with pytest.raises(SourceWentBackwards, match=r"a\.log:1 is before .* a\.log:3"):
            list(lines.positions())
        path.write_bytes(b"first\nsecond line\nthird line\nfourth line\n")
        assert list(lines.positions()) == [("a.log:4", {"line": "fourth line"})]


@pytest.mark.parametrize("header_bytes", [10, 3_900, 4_096, 9_000])
def test_the_first_line_after_a_header_of_any_length_identifies_a_file(
    tmp_path: Path, header_bytes: int
) -> None:
    path = tmp_path / "a.csv"
    header = b"h" * header_bytes + b"\n"
    first, second = b"1" * 300, b"2" * 300
    path.write_bytes(header + first)
    assert identity(path, header_lines=1) is None
    path.write_bytes(header + first + b"\n")
    before = identity(path, header_lines=1)
    path.write_bytes(header + first + b"\nmore\n")
    assert identity(path, header_lines=1) == before
    path.write_bytes(header + second + b"\n")
    assert identity(path, header_lines=1) != before


def test_a_long_first_line_identifies_a_file_before_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 4_095)
    assert identity(path) is None
    path.write_bytes(b"x" * 4_096)
    before = identity(path)
    assert before is not None
    path.write_bytes(b"x" * 5_000 + b"\nmore\n")
    assert identity(path) == before


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b'"id,name', "it is not CSV"),
        (b"id,na\xefme", "it is not utf-8"),
        (b"id,name,id", "the header contains the column 'id' twice"),
    ],
)
def test_no_line_replaces_a_header_that_is_invalid(
    tmp_path: Path, header: bytes, reason: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(header + b"\n1,first\n\n2,second\n")
    rejected: list[tuple[str, str]] = []
    lines = LineSource(
        path,
        make_decoding_parser(CsvLineParser(None, header_lines=1), "utf-8"),
        lambda position, _, why: rejected.append((position, why)),
        header_lines=1,
    )
    with contextlib.closing(lines):
        assert list(lines.positions()) == []
    assert rejected[0][0] == "a.csv:1"
    assert rejected[0][1].startswith(reason)
    assert rejected[1:] == [
        ("a.csv:2", "the header line is invalid"),
        ("a.csv:4", "the header line is invalid"),
    ]
