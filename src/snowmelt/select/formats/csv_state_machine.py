"""Reference CSV parser: a byte-by-byte state machine in pure Python.

It is the specification of the compiled tokenizer, and tests compare the two. It also unquotes
single fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.kernels.csv_tokenizer import CsvRules


@dataclass(frozen=True, slots=True)
class CsvField:
    """Field: its position with quotes and escapes, its value, and True if it contains quotes."""

    start: int
    end: int
    value: bytes
    quoted: bool
    # True if the bytes at [start, end) are the value, except for at most one enclosing pair of
    # quotes.
    is_plain: bool


@dataclass(frozen=True, slots=True)
class CsvRecord:
    """Record without its delimiter. `next_start` is the position of the next record."""

    start: int
    end: int
    next_start: int
    fields: tuple[CsvField, ...]
    # True if a quote is still open at the end of the record.
    has_open_quote: bool
    # False if the record delimiter is missing, which is possible only at the object's end.
    has_delimiter: bool


def parse_records(data: bytes, rules: CsvRules, offset: int = 0) -> Iterator[CsvRecord]:
    """Yield the records from `offset` on, without comments and, if `skips_blank`, without blank lines."""
    while offset < len(data):
        if rules.comment and data.startswith(rules.comment, offset):
            end = data.find(rules.record, offset)
            offset = len(data) if end < 0 else end + len(rules.record)
            continue
        record = _parse_record(data, rules, offset)
        offset = record.next_start
        if not (rules.skips_blank and record.has_delimiter and record.start == record.end):
            yield record


def unquote_field(raw: bytes, rules: CsvRules) -> bytes:
    """Return the value of a field. Removes the quotes and escapes that are syntax."""
    value, *_ = _parse_field(raw, rules, 0, is_whole_field=True)
    return bytes(value)


def _parse_record(data: bytes, rules: CsvRules, offset: int) -> CsvRecord:
    start = offset
    fields: list[CsvField] = []
    while True:
        value, end, quoted, inside = _parse_field(data, rules, offset, is_whole_field=False)
        raw = data[offset:end]
        plain = raw == value or raw == rules.quote + value + rules.quote
        fields.append(CsvField(offset, end, bytes(value), quoted, plain))
        delimiter = _record_delimiter_length(data, rules, end, in_quotes=inside)
        if delimiter or end >= len(data):
            closed = delimiter > 0
            return CsvRecord(start, end, end + delimiter, tuple(fields), inside, closed)
        offset = end + len(rules.field)


def _record_delimiter_length(data: bytes, rules: CsvRules, offset: int, *, in_quotes: bool) -> int:
    """Return the length of the record delimiter at a position, or 0 if there is none."""
    if in_quotes and rules.quoted_records:
        return 0
    if data.startswith(rules.record, offset):
        return len(rules.record)
    if (
        rules.drops_return
        and data[offset : offset + 1] == b"\r"
        and data.startswith(rules.record, offset + 1)
    ):
        return 1 + len(rules.record)
    return 0


def _parse_field(
    data: bytes, rules: CsvRules, offset: int, *, is_whole_field: bool
) -> tuple[bytearray, int, bool, bool]:
    """Parse one field up to its delimiter, or all of `data` as one field.

    Returns:
        The value, the end position, True if the field contains quotes, and True if one is still open.
    """
    value = bytearray()
    start = offset
    inside = quoted = False
    while offset < len(data):
        if not is_whole_field and _record_delimiter_length(data, rules, offset, in_quotes=inside):
            break
        step, text, toggled = _parse_quote_or_escape(
            data,
            rules,
            offset,
            in_quotes=inside,
            is_first_byte=offset == start,
            is_whole_field=is_whole_field,
        )
        if step:
            quoted |= toggled
            inside ^= toggled
        elif not is_whole_field and not inside and data.startswith(rules.field, offset):
            break
        else:
            step, text = 1, data[offset : offset + 1]
        value += text
        offset += step
    return value, offset, quoted, inside


def _parse_quote_or_escape(
    data: bytes,
    rules: CsvRules,
    offset: int,
    *,
    in_quotes: bool,
    is_first_byte: bool,
    is_whole_field: bool,
) -> tuple[int, bytes, bool]:
    """Parse a quote or an escape with its operand.

    Returns:
        The number of bytes consumed (0 if there is neither), their value, and True if a quote toggled.
    """
    quote = rules.quote
    if rules.escape and data.startswith(rules.escape, offset):
        step, text = _parse_escape(
            data, rules, offset, in_quotes=in_quotes, is_whole_field=is_whole_field
        )
        if step:
            return step, text, False
    if not quote or not data.startswith(quote, offset):
        return 0, b"", False
    if in_quotes and rules.doubles and data.startswith(quote, offset + len(quote)):
        return 2 * len(quote), quote, False
    if in_quotes or rules.quotes_anywhere or is_first_byte:
        return len(quote), quote if rules.keeps_quotes else b"", True
    return 0, b"", False


def _parse_escape(
    data: bytes, rules: CsvRules, offset: int, *, in_quotes: bool, is_whole_field: bool
) -> tuple[int, bytes]:
    """Parse an escape with the bytes it escapes. Return the number of bytes consumed and their value."""
    after = offset + len(rules.escape)
    if rules.escapes_anywhere:
        if not is_whole_field and _record_delimiter_length(data, rules, after, in_quotes=in_quotes):
            return len(rules.escape), b""
        text = data[after : after + 1]
        return len(rules.escape) + len(text), text
    if in_quotes:
        for text in (rules.escape, rules.quote):
            if data.startswith(text, after):
                return len(rules.escape) + len(text), text
    return 0, b""
