"""The syntax tree of a COPY statement: picklable data, with no name resolved yet.

`is_copy_statement` recognizes COPY statements. It is cheap, because every statement is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.catalog.sql.cursor import ObjectName
from snowmelt.catalog.sql.lexer import SourcePosition
from snowmelt.schema.types import Column

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.load.phase_protocols import ColumnOptions

# A name that speaks of secrets or settings, and the text behind it; too much is better than less.
_SECRET_PARAMETER = re.compile(
    r"(\b\w*(?:secret|password|token|credential|conf)\w*\s*=\s*)E?'(?:[^'\\]|''|\\.)*'?",
    re.IGNORECASE | re.DOTALL,
)

ParameterValue: TypeAlias = "str | int | float | bool | dt.timedelta | None"


class InputCompression(StrEnum):
    """How a path's bytes are compressed; the value is the word of the statement.

    It is also the name of the filter that undoes it, but for UNCOMPRESSED.
    """

    UNCOMPRESSED = "UNCOMPRESSED"
    BZIP = "BZIP"
    GZIP = "GZIP"
    ZSTD = "ZSTD"
    LZ4 = "LZ4"
    XZ = "XZ"


@dataclass(frozen=True, slots=True)
class PhaseCall:
    """A source, filter or parser by name, as it was written, with its parameters."""

    name: str
    parameters: Mapping[str, ParameterValue]
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class InputPath:
    """One path or glob; None as `compression` leaves it to the name's ending."""

    path: str
    compression: InputCompression | None
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class StandardInput:
    """STDIN of the process that runs the statement."""

    compression: InputCompression | None
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """A column of the table that is parsed; `name` is internal."""

    name: str
    options: ColumnOptions
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class FillerColumn:
    """A column that is parsed for expressions and not stored; its ordinal means nothing."""

    column: Column
    options: ColumnOptions
    position: SourcePosition

    @property
    def name(self) -> str:
        """Its internal name."""
        return self.column.name


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column of the table that is computed from parsed ones; `sql` as it was written."""

    name: str
    sql: str
    position: SourcePosition


ColumnListItem: TypeAlias = ParsedColumn | FillerColumn | ComputedColumn
CopyInputs: TypeAlias = tuple[InputPath, ...] | StandardInput | PhaseCall


@dataclass(frozen=True, slots=True)
class RejectOptions:
    """Where rejected records go: raw to one file, reasons to another, or both to a table.

    An existing file is replaced only with `data_overwrite` or `exceptions_overwrite`.
    """

    data_path: str | None = None
    exceptions_path: str | None = None
    table: ObjectName | None = None
    data_overwrite: bool = False
    exceptions_overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatement:
    """One COPY. `text` is the statement as it was written.

    `items` is None where no column list was given: all columns of the table, in order.
    `column_options` (by internal name) come from COLUMN OPTION and from the list together.
    `parsing` holds the options of the statement that are parameters of the parser, by the
    parser's names: delimiter, enclosed_by, escape, no_escape, null, record_terminator, skip,
    skip_bytes, trailing_nullcols, trim, colsizes, collection_delimiter, collection_open,
    collection_close, collection_enclose, collection_null_element; only those that were given.
    `reject_max` 0 is without limit; otherwise the load fails when so many are rejected.
    """

    table: ObjectName
    items: tuple[ColumnListItem, ...] | None
    inputs: CopyInputs
    text: str
    column_options: Mapping[str, ColumnOptions] = field(default_factory=dict)
    filters: tuple[PhaseCall, ...] = ()
    parser: PhaseCall | None = None
    parsing: Mapping[str, ParameterValue] = field(default_factory=dict)
    rejects: RejectOptions = field(default_factory=RejectOptions)
    reject_max: int = 0
    abort_on_error: bool = False
    error_tolerance: bool = False
    enforce_length: bool = False
    no_commit: bool = False
    stream_name: str | None = None
    force: bool = False
    local: bool = False

    def to_redacted_text(self) -> str:
        """Return the text for others to read: values of parameters that may be secret are cut."""
        return _SECRET_PARAMETER.sub(r"\1'…'", self.text)

    def compute_reject_limit(self) -> int | None:
        """Return how many rejects make the load fail, None for no limit."""
        if self.abort_on_error:
            return 1
        return self.reject_max or None


# --- Which statements are COPY; light, because every statement is asked.

_COPY_PATTERN = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*COPY\b", re.IGNORECASE | re.DOTALL)


def is_copy_statement(sql: str) -> bool:
    """Tell whether a statement is a COPY."""
    return _COPY_PATTERN.match(sql) is not None
