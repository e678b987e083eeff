"""How delimited text is written: what separates fields and records, quotes, escapes and NULL."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.load.parsed import ColumnOptions, Target

_LAST_ASCII = 127
DEFAULT_MAX_RECORD = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FieldDialect:
    """The marks of one field; `quote` and `escape` are empty where there is none.

    `null` is what a field says, without quotes around it, to be NULL.
    """

    delimiter: bytes = b"|"
    quote: bytes = b""
    escape: bytes = b"\\"
    null: bytes = b""


@dataclass(frozen=True, slots=True)
class Dialect:
    r"""How records are written; `max_record` in bytes.

    `terminator` is empty for a line end, `\n` or `\r\n`. `blank_lines` are records of one empty
    field or, if false, nothing at all. `own` are the marks of those fields that have others.
    """

    usual: FieldDialect = field(default_factory=FieldDialect)
    terminator: bytes = b""
    blank_lines: bool = True
    max_record: int = DEFAULT_MAX_RECORD
    own: tuple[tuple[int, FieldDialect], ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether the terminator ends as it begins, so that it might be found shifted."""
        ends = self.terminator
        return any(ends.endswith(ends[:size]) for size in range(1, len(ends)))

    @property
    def own_nulls(self) -> dict[int, bytes] | None:
        """What says NULL where it is not as usual, by field; None if other marks differ, too."""
        alike = all(marks == replace(self.usual, null=marks.null) for _, marks in self.own)
        return {place: marks.null for place, marks in self.own} if alike else None

    def for_columns(self, target: Target) -> Dialect:
        """Return the dialect with the marks that columns of a target have for themselves.

        Raises:
            LoadRefused: Such marks cannot be told apart.
        """
        own = []
        for place, column in enumerate(target.schema.columns):
            options = target.options.get(column.name)
            marks = None if options is None else _own(self.usual, options, column.display_name)
            if marks is not None and marks != self.usual:
                own.append((place, marks))
        return replace(self, own=tuple(own)) if own else self

    def at(self, places: Sequence[int | None]) -> Dialect:
        """Return the dialect with the marks of columns at the places of their fields."""
        moved = [(places[column], marks) for column, marks in self.own]
        return replace(
            self, own=tuple((place, marks) for place, marks in moved if place is not None)
        )


def _own(usual: FieldDialect, options: ColumnOptions, name: str) -> FieldDialect:
    what = f"column {name}"
    delimiter, quote, escape = options.delimiter, options.enclosed_by, options.escape
    return check(
        FieldDialect(
            usual.delimiter if delimiter is None else mark("DELIMITER", delimiter, what=what),
            usual.quote
            if quote is None
            else mark("ENCLOSED BY", quote, what=what, may_be_empty=True),
            usual.escape
            if escape is None
            else mark("ESCAPE", escape, what=what, may_be_empty=True),
            usual.null if options.null is None else options.null.encode(),
        ),
        what=what,
    )


def mark(name: str, value: str, *, what: str, may_be_empty: bool = False) -> bytes:
    """Return a mark of one ASCII character as a byte.

    Raises:
        LoadRefused: It is longer, or not ASCII.
    """
    if len(value) != 1 or ord(value) > _LAST_ASCII:
        if may_be_empty and not value:
            return b""
        raise LoadRefused(what=what, reason=f"{name} is one ASCII character, not {value!r}")
    return value.encode()


def check(dialect: FieldDialect, *, what: str) -> FieldDialect:
    """Return the dialect if its marks can be told apart.

    Raises:
        LoadRefused: Two of them are the same, or one ends records.
    """
    if dialect.delimiter in {dialect.quote, dialect.escape, dialect.null}:
        raise LoadRefused(
            what=what,
            reason="the delimiter must differ from the quote, the escape and the NULL text",
        )
    if {dialect.delimiter, dialect.quote, dialect.escape} & {b"\n", b"\r"}:
        raise LoadRefused(what=what, reason="the delimiter, quote and escape cannot be a line end")
    return dialect
