"""The rules of CSV in plain Python, byte by byte: what the compiled tokenizer must equal.

Tests compare the tokenizer with it, single fields that need cleaning go through it, and it reads
everything where numba is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.select.formats.csv_dialect import CsvRules

_RETURN = 0x0D


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field lies with its quotes and escapes, what it says, whether quotes were seen."""

    start: int
    end: int
    value: bytes
    quoted: bool
    # The bytes at [start, end) are the value, or they are after one pair of quotes around them.
    plain: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One record without its delimiter; `next` is where the following one begins."""

    start: int
    end: int
    next: int
    fields: tuple[Field, ...]
    # A quote was open where the record ended.
    open: bool
    # The record delimiter was seen: False for the last one of an object that lacks it.
    closed: bool


def records(data: bytes, rules: CsvRules, at: int = 0) -> Iterator[Record]:
    """Yield the records from `at` on; comments and, where they do not count, blank lines are none."""
    while at < len(data):
        if rules.comment and data.startswith(rules.comment, at):
            end = data.find(rules.record, at)
            at = len(data) if end < 0 else end + len(rules.record)
            continue
        record = _record(data, rules, at)
        at = record.next
        if not (rules.skips_blank and record.closed and record.start == record.end):
            yield record


def clean(raw: bytes, rules: CsvRules) -> bytes:
    """Return what a field says: its bytes without quotes and escapes that do not belong to it."""
    value, *_ = _field(raw, rules, 0, whole=True)
    return bytes(value)


def _record(data: bytes, rules: CsvRules, at: int) -> Record:
    start = at
    fields: list[Field] = []
    while True:
        value, end, quoted, inside = _field(data, rules, at, whole=False)
        raw = data[at:end]
        plain = raw == value or raw == rules.quote + value + rules.quote
        fields.append(Field(at, end, bytes(value), quoted, plain))
        delimiter = _record_end(data, rules, end, inside=inside)
        if delimiter or end >= len(data):
            closed = delimiter > 0
            return Record(start, end, end + delimiter, tuple(fields), inside, closed)
        at = end + len(rules.field)


def _record_end(data: bytes, rules: CsvRules, at: int, *, inside: bool) -> int:
    """Return the length of the record delimiter at a place, zero where there is none."""
    if inside and rules.quoted_records:
        return 0
    if data.startswith(rules.record, at):
        return len(rules.record)
    if rules.drops_return and data[at : at + 1] == b"\r" and data.startswith(rules.record, at + 1):
        return 1 + len(rules.record)
    return 0


def _field(
    data: bytes, rules: CsvRules, at: int, *, whole: bool
) -> tuple[bytearray, int, bool, bool]:
    """Read one field up to its delimiter, or all of `data` as one field.

    Returns:
        What it says, where it ends, whether quotes were seen and whether one is still open.
    """
    value = bytearray()
    start = at
    inside = quoted = False
    while at < len(data):
        if not whole and _record_end(data, rules, at, inside=inside):
            break
        step, text, toggled = _mark(data, rules, at, inside=inside, first=at == start, whole=whole)
        if step:
            quoted |= toggled
            inside ^= toggled
        elif not whole and not inside and data.startswith(rules.field, at):
            break
        else:
            step, text = 1, data[at : at + 1]
        value += text
        at += step
    return value, at, quoted, inside


def _mark(
    data: bytes, rules: CsvRules, at: int, *, inside: bool, first: bool, whole: bool
) -> tuple[int, bytes, bool]:
    """Read a quote or an escape with what it acts on.

    Returns:
        How many bytes it takes (zero: there is none), what they say, whether a quote toggled.
    """
    quote = rules.quote
    if rules.escape and data.startswith(rules.escape, at):
        step, text = _escaped(data, rules, at, inside=inside, whole=whole)
        if step:
            return step, text, False
    if not quote or not data.startswith(quote, at):
        return 0, b"", False
    if inside and rules.doubles and data.startswith(quote, at + len(quote)):
        return 2 * len(quote), quote, False
    if inside or rules.quotes_anywhere or first:
        return len(quote), quote if rules.keeps_quotes else b"", True
    return 0, b"", False


def _escaped(
    data: bytes, rules: CsvRules, at: int, *, inside: bool, whole: bool
) -> tuple[int, bytes]:
    """Read an escape with what it makes literal: how many bytes, and what they say."""
    after = at + len(rules.escape)
    if rules.escapes_anywhere:
        if not whole and _record_end(data, rules, after, inside=inside):
            return len(rules.escape), b""
        text = data[after : after + 1]
        return len(rules.escape) + len(text), text
    if inside:
        for text in (rules.escape, rules.quote):
            if data.startswith(text, after):
                return len(rules.escape) + len(text), text
    return 0, b""
