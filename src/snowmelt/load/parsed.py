"""What a parser is asked for and what it hands on: columns of good rows, and rejected records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from snowmelt.schema.types import TableSchema


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """What a load says of one column; None means as the statement or the parser says.

    `format` is a date format, or HEX, OCTAL or BITSTRING for binary columns. `trim` is the
    character taken off both ends. Of a text that is too long, `enforce_length` rejects the row;
    otherwise it is cut.
    """

    delimiter: str | None = None
    enclosed_by: str | None = None
    escape: str | None = None
    null: str | None = None
    trim: str | None = None
    format: str | None = None
    enforce_length: bool | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The columns that a parser has to fill, in order, and what the load says of each.

    `schema` holds the parsed columns, those that are not stored among them; its columns are
    found by name in formats that have names, and by position in those that have none.
    `options` is keyed by internal column name.
    """

    schema: TableSchema
    options: Mapping[str, ColumnOptions] = field(default_factory=dict)
    enforce_length: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """One record that did not become a row.

    `record` counts from 1 in its portion, `offset` is where it begins among the bytes that the
    parser was given; `column` is the one that is to blame, if it is one.
    """

    record: int
    offset: int
    data: bytes
    reason: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of some consecutive records.

    `rows` is in native form (`snowmelt.schema.native`) of the target's schema, good rows only
    and in order; `records` counts good and rejected ones together (`records == rows + rejects`).
    """

    rows: pa.Table
    rejects: tuple[Rejected, ...]
    records: int
