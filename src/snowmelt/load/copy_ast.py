"""The syntax tree of a COPY statement: picklable data with unresolved names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from snowmelt.catalog.sql.cursor import ObjectName
from snowmelt.catalog.sql.lexer import SourcePosition, is_copy_statement, is_infer_schema
from snowmelt.schema.types import Column

if TYPE_CHECKING:
    import datetime as dt
    from decimal import Decimal

    from snowmelt.load.phase_protocols import ColumnOptions

# Matches a parameter whose name suggests a secret or settings, with its value. Also matches some
# parameters that are not secret.
_SECRET_PARAMETER = re.compile(
    r"(\b\w*(?:secret|password|token|credential|conf)\w*\s*=\s*)E?'(?:[^'\\]|''|\\.)*'?",
    re.IGNORECASE | re.DOTALL,
)

# Values of VALIDATION_MODE besides RETURN_n_ROWS.
ValidationMode: TypeAlias = Literal["RETURN_ERRORS", "RETURN_ALL_ERRORS"]

VALIDATION_COLUMNS = (
    "error",
    "file",
    "row_number",
    "byte_offset",
    "column_name",
    "rejected_record",
)

ParameterValue: TypeAlias = "str | int | Decimal | bool | dt.timedelta | None"


class InputCompression(StrEnum):
    """Compression of a path. Except for UNCOMPRESSED, the values are names of filters."""

    UNCOMPRESSED = "UNCOMPRESSED"
    BZIP = "BZIP"
    GZIP = "GZIP"
    ZSTD = "ZSTD"
    LZ4 = "LZ4"
    XZ = "XZ"


@dataclass(frozen=True, slots=True)
class PhaseCall:
    """A source, filter or parser with its parameters. `name` is as written."""

    name: str
    parameters: Mapping[str, ParameterValue]
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class InputPath:
    """One path or glob. If `compression` is None, the file name determines it.

    With `is_prefix`, the input is every file whose path starts with `path` and fully matches the
    regular expression `pattern`.
    """

    path: str
    compression: InputCompression | None
    position: SourcePosition
    is_prefix: bool = False
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class StandardInput:
    """STDIN of the process that runs the statement."""

    compression: InputCompression | None
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """A parsed column of the table. `name` is its internal name."""

    name: str
    options: ColumnOptions
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class FillerColumn:
    """A parsed column that only expressions use (FILLER). Its ordinal is not used."""

    column: Column
    options: ColumnOptions
    position: SourcePosition

    @property
    def name(self) -> str:
        """Internal name."""
        return self.column.name


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column that is computed from parsed columns. `sql` is the expression as written."""

    name: str
    sql: str
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class CopySelection:
    """The SELECT of a COPY INTO: the fields that its expressions use, and the expressions.

    Fields are VARCHAR columns for the parser. `expressions` are SQL with their positions.
    """

    fields: tuple[str, ...]
    expressions: tuple[tuple[str, SourcePosition], ...]


ColumnListItem: TypeAlias = ParsedColumn | FillerColumn | ComputedColumn
CopyInputs: TypeAlias = tuple[InputPath, ...] | StandardInput | PhaseCall


@dataclass(frozen=True, slots=True)
class RejectOptions:
    """Destination of rejected records: two files (raw data and reasons), or a table for both.

    An existing file is replaced only with `data_overwrite` or `exceptions_overwrite`.
    """

    data_path: str | None = None
    exceptions_path: str | None = None
    table: ObjectName | None = None
    data_overwrite: bool = False
    exceptions_overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatement:
    """One COPY statement.

    Attributes:
        items: The column list. None: all columns of the table, in order.
        text: The statement as written.
        column_options: Options from the column list and COLUMN OPTION, by internal column name.
        parsing: Options of the statement that become parameters of the parser, by parameter name.
        reject_max: Number of rejects at which the load fails. 0: no limit.
        binary_format: Format of binary columns without an option of their own.
        purge: Delete files after they were loaded without rejects.
        partition_columns: Columns whose values are in the names of folders, `column=value`.
        metadata: Columns about the file. Without a column list, they are not parsed.
        selection: Expressions instead of parsed columns, by position.
        file_reject_max: Number of rejects at which a file is left out. Requires `error_tolerance`.
        validation: Validate the files instead of loading them: an error mode, or the number of rows to
            return.
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
    file_reject_max: int | None = None
    abort_on_error: bool = False
    error_tolerance: bool = False
    enforce_length: bool = False
    no_commit: bool = False
    binary_format: str | None = None
    purge: bool = False
    partition_columns: tuple[str, ...] = ()
    metadata: tuple[ComputedColumn, ...] = ()
    selection: CopySelection | None = None
    validation: ValidationMode | int | None = None
    stream_name: str | None = None
    force: bool = False
    local: bool = False

    def to_redacted_text(self) -> str:
        """Return the statement without values of parameters that may be secret."""
        return _SECRET_PARAMETER.sub(r"\1'…'", self.text)

    def for_arriving_files(self) -> CopyStatement:
        """Return the statement for batches of arriving files. Limits of rejects apply per file."""
        return replace(
            self,
            error_tolerance=True,
            file_reject_max=self.compute_reject_limit() or self.file_reject_max,
            reject_max=0,
            abort_on_error=False,
        )

    def compute_reject_limit(self) -> int | None:
        """Return the number of rejects at which the load fails, or None for no limit."""
        if self.abort_on_error:
            return 1
        return self.reject_max or None


def is_file_statement(sql: str) -> bool:
    """Return True if a statement is a COPY or calls INFER_SCHEMA."""
    return is_copy_statement(sql) or is_infer_schema(sql)
