"""Dialects of delimited text, and the exact record reader that follows them byte by byte.

A dialect defines the delimiter, record terminator, quote, escape and NULL text. A field that starts
with a quote ends at the next quote that is neither doubled nor escaped. A delimiter or the end of
the record must follow it. A quote elsewhere is text. A character after an escape is literal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import ColumnOptions, ParseTarget

UTF8_BOM = b"\xef\xbb\xbf"
_MAX_ASCII = 127
DEFAULT_MAX_RECORD_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FieldDialect:
    """Format characters of one field. `quote` and `escape` are empty if not used.

    An unquoted field equal to `null`, or to one of `more_nulls`, is NULL.
    """

    delimiter: bytes = b"|"
    quote: bytes = b""
    escape: bytes = b"\\"
    null: bytes = b""
    more_nulls: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class DelimitedDialect:
    r"""Format of the records.

    An empty `terminator` means a line end, `\n` or `\r\n`. With `keeps_blank_lines`, a blank line
    is a record with one empty field; otherwise it is skipped. `field_overrides` has the format of
    each field that differs from the others, by field index.
    """

    default_field: FieldDialect = field(default_factory=FieldDialect)
    terminator: bytes = b""
    keeps_blank_lines: bool = True
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    field_overrides: tuple[tuple[int, FieldDialect], ...] = ()

    @property
    def is_terminator_self_overlapping(self) -> bool:
        """True if a prefix of the terminator is also its suffix, so that a search can match too early."""
        ends = self.terminator
        return any(ends.endswith(ends[:size]) for size in range(1, len(ends)))

    @property
    def null_overrides(self) -> dict[int, bytes] | None:
        """NULL texts by field index, for the fields that override the default NULL text.

        None if a field also overrides another format character.
        """
        alike = all(
            marks == replace(self.default_field, null=marks.null)
            for _, marks in self.field_overrides
        )
        return {place: marks.null for place, marks in self.field_overrides} if alike else None

    def with_column_options(self, target: ParseTarget) -> DelimitedDialect:
        """Return the dialect with the overrides of the target's columns.

        Raises:
            LoadRefused: If a column's options are invalid, or two format characters conflict.
        """
        own = []
        for place, column in enumerate(target.schema.columns):
            options = target.options.get(column.name)
            marks = (
                None
                if options is None
                else _make_column_dialect(self.default_field, options, column.display_name)
            )
            if marks is not None and marks != self.default_field:
                own.append((place, marks))
        return replace(self, field_overrides=tuple(own)) if own else self

    def with_overrides_at(self, field_indexes: Sequence[int | None]) -> DelimitedDialect:
        """Return the dialect with the overrides moved from column indexes to field indexes."""
        moved = [(field_indexes[column], marks) for column, marks in self.field_overrides]
        return replace(
            self,
            field_overrides=tuple((place, marks) for place, marks in moved if place is not None),
        )


def _make_column_dialect(
    default_field: FieldDialect, options: ColumnOptions, name: str
) -> FieldDialect:
    what = f"column {name}"
    delimiter, quote, escape = options.delimiter, options.enclosed_by, options.escape
    return check_field_dialect(
        FieldDialect(
            default_field.delimiter
            if delimiter is None
            else parse_format_character("DELIMITER", delimiter, label=what),
            default_field.quote
            if quote is None
            else parse_format_character("ENCLOSED BY", quote, label=what, may_be_empty=True),
            default_field.escape
            if escape is None
            else parse_format_character("ESCAPE", escape, label=what, may_be_empty=True),
            default_field.null if options.null is None else options.null.encode(),
            default_field.more_nulls if options.null is None else (),
        ),
        label=what,
    )


def parse_format_character(
    name: str, value: str, *, label: str, may_be_empty: bool = False
) -> bytes:
    """Return a format character as one ASCII byte, or empty if `may_be_empty`.

    Raises:
        LoadRefused: If the value is not one ASCII character.
    """
    if len(value) != 1 or ord(value) > _MAX_ASCII:
        if may_be_empty and not value:
            return b""
        raise LoadRefused(what=label, reason=f"{name} must be one ASCII character, got {value!r}")
    return value.encode()


def check_field_dialect(dialect: FieldDialect, *, label: str) -> FieldDialect:
    """Return the dialect, after checking that its format characters do not conflict.

    Raises:
        LoadRefused: If the delimiter equals the quote, the escape or the NULL text, or if one of
            the format characters is a line end.
    """
    if dialect.delimiter in {dialect.quote, dialect.escape, dialect.null, *dialect.more_nulls}:
        raise LoadRefused(
            what=label,
            reason="the delimiter must differ from the quote, the escape and the NULL text",
        )
    if {dialect.delimiter, dialect.quote, dialect.escape} & {b"\n", b"\r"}:
        raise LoadRefused(what=label, reason="the delimiter, quote and escape cannot be a line end")
    return dialect


# --- Exact record reader, the reference for the compiled scanner.

TEXT_AFTER_QUOTE = (
    "expected a delimiter or the end of the record after the closing quote of field {}"
)
UNCLOSED_QUOTE = "the quote that opens field {} is not closed"


@dataclass(slots=True)
class DelimitedRecord:
    """One record: its fields (None for NULL), its end and the start of the next record.

    `problem` is the reason if the record cannot be read.
    """

    fields: list[bytes | None]
    end: int
    next_start: int
    problem: str | None = None


class DelimitedRecordReader:
    """Reader of one record at a time."""

    def __init__(self, dialect: DelimitedDialect) -> None:
        self._dialect = dialect
        self._default_patterns = _FieldPatterns(dialect.default_field, dialect.terminator)
        self._field_patterns = {
            place: _FieldPatterns(own, dialect.terminator) for place, own in dialect.field_overrides
        }
        end = re.escape(dialect.terminator) if dialect.terminator else rb"\r?\n"
        self._terminator = re.compile(end)
        own = dict(dialect.field_overrides)
        marks = [dialect.default_field, *own.values()]
        self._nulls = {place: marked.null for place, marked in own.items()}
        self._hiding = {mark for marked in marks for mark in (marked.quote, marked.escape) if mark}
        self._splits = (
            len({marked.delimiter for marked in marks}) == 1
            and dialect.default_field.delimiter not in dialect.terminator
        )

    def read_record(self, data: bytes, start: int, *, is_last: bool) -> DelimitedRecord | None:
        """Return the record at `start`, or None if it is incomplete and more data may follow."""
        split = self._split_plain_record(data, start) if self._splits else None
        return split or self._read_exactly(data, start, is_last=is_last)

    def _read_exactly(self, data: bytes, at: int, *, is_last: bool) -> DelimitedRecord | None:
        start = at
        fields: list[bytes | None] = []
        while True:
            marks = (
                self._field_patterns.get(len(fields), self._default_patterns)
                if self._field_patterns
                else self._default_patterns
            )
            quoted = bool(marks.quote) and data.startswith(marks.quote, at)
            end = marks.find_field_end(data, at, is_quoted=quoted)
            if end is None:
                return self._reject_unclosed_quote(data, start, len(fields), is_last=is_last)
            if quoted:
                fields.append(marks.decode_quoted(data[at + 1 : end - 1]))
                if not (ended := self._check_field_end(data, end, marks, is_last=is_last)):
                    if ended is None:
                        return None
                    return self._make_rejected_record(
                        data, start, TEXT_AFTER_QUOTE.format(len(fields)), is_last=is_last
                    )
            else:
                if end == len(data) and not is_last:
                    return None
                fields.append(marks.decode_unquoted(data[at:end]))
            if data.startswith(marks.delimiter, end):
                at = end + 1
                continue
            terminator = self._terminator.match(data, end)
            if terminator is None and not is_last:
                return None
            after = end if terminator is None else terminator.end()
            return DelimitedRecord(fields, end, after)

    def _split_plain_record(self, data: bytes, start: int) -> DelimitedRecord | None:
        """Return a record without quotes and escapes. Return None if it has any, or no end."""
        found = self._terminator.search(data, start)
        if found is None:
            return None
        record = data[start : found.start()]
        for mark in self._hiding:
            if mark in record:
                return None
        usual, nulls = self._dialect.default_field, self._nulls
        fields: list[bytes | None] = [
            None if text == (nulls.get(place, usual.null) if nulls else usual.null) else text
            for place, text in enumerate(record.split(usual.delimiter))
        ]
        if usual.more_nulls:
            fields = [None if each in usual.more_nulls else each for each in fields]
        return DelimitedRecord(fields, found.start(), found.end())

    def find_terminator(self, data: bytes, start: int) -> tuple[int, int] | None:
        """Return the range of the first record terminator at or after `start`, ignoring quotes."""
        found = self._terminator.search(data, start)
        return None if found is None else found.span()

    def _check_field_end(
        self, data: bytes, end: int, patterns: _FieldPatterns, *, is_last: bool
    ) -> bool | None:
        """Return True if a field may end here, or None if the decision needs more data."""
        if data.startswith(patterns.delimiter, end) or self._terminator.match(data, end):
            return True
        rest = len(data) - end
        longest = len(self._dialect.terminator) or 2
        if rest == 0:
            return True if is_last else None
        return None if rest < longest and not is_last else False

    def _reject_unclosed_quote(
        self, data: bytes, start: int, field_index: int, *, is_last: bool
    ) -> DelimitedRecord | None:
        """Reject a record with an unclosed quote. The next record starts after its first line."""
        if not is_last and len(data) - start < self._dialect.max_record_bytes:
            return None
        return self._make_rejected_record(
            data, start, UNCLOSED_QUOTE.format(field_index + 1), is_last=is_last
        )

    def _make_rejected_record(
        self, data: bytes, start: int, problem: str, *, is_last: bool
    ) -> DelimitedRecord | None:
        found = self.find_terminator(data, start)
        if found is None:
            return DelimitedRecord([], len(data), len(data), problem) if is_last else None
        return DelimitedRecord([], *found, problem)


# Maximum repetitions in one match. The regex engine keeps state for each repetition.
_MAX_REPEATS = 10_000
_REPEAT_SUFFIX = b"){0,%d}" % _MAX_REPEATS


def _match_repeatedly(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    """Return the end of a run of consecutive matches."""
    while True:
        found = pattern.match(data, position)
        end = position if found is None else found.end()
        # A repetition has at least one byte, so a shorter match did not reach the limit.
        if end - position < _MAX_REPEATS:
            return end
        position = end


class _FieldPatterns:
    """Regular expressions for one field."""

    def __init__(self, dialect: FieldDialect, terminator: bytes) -> None:
        self.delimiter = dialect.delimiter
        self.quote = dialect.quote
        self._escape = dialect.escape if dialect.escape != dialect.quote else b""
        self._nulls = {dialect.null, *dialect.more_nulls}
        stops = re.escape(dialect.delimiter)
        end = re.escape(terminator) if terminator else rb"\r?\n"
        first_of_end = re.escape(terminator[:1]) if terminator else rb"\r\n"
        escape = re.escape(self._escape)
        escaped = rb"|" + escape + rb"(?:.|\Z)" if escape else b""
        # Python before 3.11.5 matches too much with possessive quantifiers.
        self._plain = re.compile(
            rb"(?:[^"
            + stops
            + escape
            + first_of_end
            + rb"]+|(?!"
            + end
            + rb"|"
            + stops
            + rb")"
            + (rb"[^" + escape + rb"]" if escape else rb".")
            + escaped
            + _REPEAT_SUFFIX,
            re.DOTALL,
        )
        quote = re.escape(self.quote)
        inside = rb"(?:[^" + quote + escape + rb"]+|" + quote + quote + escaped + _REPEAT_SUFFIX
        self._quoted = re.compile(inside if quote else b"", re.DOTALL)
        self._escapes = re.compile(escape + rb"(.)", re.DOTALL) if escape else None
        kept = ([quote + quote] if quote else []) + ([escape + b"."] if escape else [])
        self._inside = re.compile(b"|".join(kept) or b"(?!)", re.DOTALL)

    def find_field_end(self, data: bytes, start: int, *, is_quoted: bool) -> int | None:
        """Return the end of a field, including its quotes, or None if its quote is not closed."""
        if not is_quoted:
            return _match_repeatedly(self._plain, data, start)
        end = _match_repeatedly(self._quoted, data, start + len(self.quote))
        return end + len(self.quote) if data.startswith(self.quote, end) else None

    def decode_unquoted(self, raw: bytes) -> bytes | None:
        """Return the value of an unquoted field, or None for NULL."""
        if raw in self._nulls:
            return None
        if self._escapes is not None and self._escape in raw:
            return self._escapes.sub(rb"\1", raw)
        return raw

    def decode_quoted(self, raw: bytes) -> bytes:
        """Return the value between quotes."""
        if self.quote not in raw and (not self._escape or self._escape not in raw):
            return raw
        return self._inside.sub(lambda match: match[0][1:], raw)
