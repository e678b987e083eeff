"""Columns with their types, wire metadata and errors; table names; compatibility modes.

Names follow SQL: an internal name is folded to upper case unless it is quoted. A compatibility mode
selects the rules for values without one obvious meaning (Streaming v1, §5.4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict
from zoneinfo import ZoneInfo

from snowmelt.errors import InvalidRow, InvalidValue, Unsupported

_PLAIN_IDENTIFIER = re.compile(r"[A-Z_][A-Z0-9_$]*\Z")


class LogicalType(StrEnum):
    """Logical types (Streaming v1, §4). The value is the type's name in the wire format."""

    FIXED = "FIXED"
    REAL = "REAL"
    BOOLEAN = "BOOLEAN"
    TEXT = "TEXT"
    BINARY = "BINARY"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP_NTZ = "TIMESTAMP_NTZ"
    TIMESTAMP_LTZ = "TIMESTAMP_LTZ"
    TIMESTAMP_TZ = "TIMESTAMP_TZ"
    VARIANT = "VARIANT"
    ARRAY = "ARRAY"
    OBJECT = "OBJECT"


TIMESTAMP_TYPES = frozenset(
    {LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ}
)
SEMI_STRUCTURED_TYPES = frozenset({LogicalType.VARIANT, LogicalType.ARRAY, LogicalType.OBJECT})

# Reserved words of Snowflake, which must be quoted if used as names.
# fmt: off
RESERVED_WORDS = frozenset({
    "ALL", "ALTER", "AND", "ANY", "AS", "BETWEEN", "BY", "CASE", "CAST", "CHECK", "COLUMN",
    "CONSTRAINT", "CREATE", "CROSS", "CURRENT", "DELETE", "DISTINCT", "DROP", "ELSE", "EXISTS",
    "FALSE", "FOLLOWING", "FOR", "FROM", "FULL", "GRANT", "GROUP", "HAVING", "ILIKE", "IN",
    "INNER", "INSERT", "INTERSECT", "INTO", "IS", "JOIN", "LATERAL", "LEFT", "LIKE", "MINUS",
    "NATURAL", "NOT", "NULL", "OF", "ON", "OR", "ORDER", "QUALIFY", "REVOKE", "RIGHT", "RLIKE",
    "SELECT", "SET", "SOME", "TABLE", "THEN", "TO", "TRUE", "UNION", "UNIQUE", "UPDATE", "USING",
    "VALUES", "WHEN", "WHERE", "WITH",
})
# fmt: on

_PHYSICAL_TYPES = {LogicalType.BOOLEAN: "SB1", LogicalType.REAL: "DOUBLE", LogicalType.DATE: "SB4"}

MAX_TEXT_BYTES = 16 * 1024 * 1024
MAX_BINARY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    `name` is the internal name (unquoted; upper-case unless it was quoted). `ordinal` (from 1) is never
    reused within a table's incarnation and is also the Parquet and Iceberg field ID. `precision` and
    `scale` are set for FIXED, `scale` (0–9) for TIME and timestamps, `length` (characters) for TEXT,
    `byte_length` for TEXT and BINARY. `default` is the text of the value of rows that lack the column, or
    CURRENT_TIMESTAMP in a timestamp column.
    """

    name: str
    kind: LogicalType
    ordinal: int
    nullable: bool = True
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    byte_length: int | None = None
    default: str | None = None

    @property
    def display_name(self) -> str:
        """Name in SQL and in the wire format, quoted if folding would change it."""
        return to_display_name(self.name)

    @property
    def physical_type(self) -> str:
        """Physical type in the wire format (Streaming v1, §4)."""
        match self.kind:
            case LogicalType.FIXED:
                for limit, name in ((2, "SB1"), (4, "SB2"), (9, "SB4"), (18, "SB8")):
                    if (self.precision or 38) <= limit:
                        return name
                return "SB16"
            case LogicalType.TIME:
                return "SB4" if (self.scale or 0) <= 4 else "SB8"
            case LogicalType.TIMESTAMP_NTZ | LogicalType.TIMESTAMP_LTZ:
                return "SB8" if (self.scale or 0) <= 6 else "SB16"
            case LogicalType.TIMESTAMP_TZ:
                # Not decimal(18): at scale 3, the packed value of a year after 3903 has 19 digits.
                return "SB8" if (self.scale or 0) <= 2 else "SB16"
            case _:
                return _PHYSICAL_TYPES.get(self.kind, "LOB")

    @property
    def default_sql(self) -> str | None:
        """The default value in SQL, such as `'new'`, `5` or `CURRENT_TIMESTAMP()`; None without one."""
        if self.default is None or self.kind in {LogicalType.FIXED, LogicalType.REAL}:
            return self.default
        if self.kind is LogicalType.BOOLEAN:
            return self.default.upper()
        if self.kind in TIMESTAMP_TYPES and self.default == "CURRENT_TIMESTAMP":
            return "CURRENT_TIMESTAMP()"
        return quote_literal(self.default)

    @property
    def sql_type(self) -> str:
        """The type in DDL, such as `NUMBER(38,0)`."""
        match self.kind:
            case LogicalType.FIXED:
                return f"NUMBER({self.precision},{self.scale})"
            case LogicalType.REAL:
                return "FLOAT"
            case LogicalType.TEXT:
                return f"VARCHAR({self.length})"
            case LogicalType.BINARY:
                return f"BINARY({self.byte_length})"
            case (
                LogicalType.TIME
                | LogicalType.TIMESTAMP_NTZ
                | LogicalType.TIMESTAMP_LTZ
                | LogicalType.TIMESTAMP_TZ
            ):
                return f"{self.kind}({self.scale})"
            case _:
                return str(self.kind)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns of one version of a table, in ordinal order. `version` counts from 1."""

    version: int
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column | None:
        """Return the column of this internal name, or None."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """Internal names of a table and its database and schema."""

    database: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(self.display_name)

    @property
    def display_name(self) -> tuple[str, str, str]:
        """Database, schema and table as written in SQL and in the wire format."""
        return (
            to_display_name(self.database),
            to_display_name(self.schema),
            to_display_name(self.table),
        )


def to_internal_name(text: str) -> str:
    r"""Return the internal name of an identifier as a user writes it (Streaming v1, §5.1).

    A name in `"…"` keeps its contents, with doubled quotes replaced by single ones. In any other
    name, `\ ` becomes a space, and letters become upper case.
    """
    if len(text) >= 2 and text[0] == '"' and text[-1] == '"':
        return text[1:-1].replace('""', '"')
    return text.replace("\\ ", " ").upper()


def to_display_name(name: str) -> str:
    """Return an internal name as written in SQL: quoted if folding would change it."""
    return (
        name if _PLAIN_IDENTIFIER.match(name) and name not in RESERVED_WORDS else quote_name(name)
    )


def quote_name(name: str) -> str:
    """Return an internal name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote a string as a literal that Snowmelt, Snowflake and Spark parse identically."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


# --- Rules for ambiguous values (Streaming v1, §5.4).
DEFAULT_ZONE = "UTC"
"""Zone of timestamps without one, unless a session, channel or setting specifies another."""


class TimestampTextFormat(StrEnum):
    """Accepted text formats of dates, times and timestamps."""

    JAVA = "java"
    AUTO = "auto"
    VERTICA = "vertica"


class Compatibility(StrEnum):
    """Rules for ambiguous values.

    SNOWFLAKE converts every value exactly as Snowflake's classic Java client does. STRICT parses
    dates and times by Snowflake's automatic detection, does not convert a TIMESTAMP_NTZ through a
    zone, and rejects ambiguous values. COPY is STRICT with Vertica's formats of dates and times.
    SDK_ROWS is STRICT for rows of the official SDK. Because that SDK writes bytes as text, it
    rejects text that may be bytes.
    """

    SNOWFLAKE = "snowflake"
    STRICT = "strict"
    SDK_ROWS = "sdk_rows"
    COPY = "copy"

    @property
    def default_zone(self) -> ZoneInfo:
        """Zone of timestamps without one, if the channel sets no other."""
        # The zone is built into the Java client. It is not a session setting.
        return ZoneInfo("America/Los_Angeles" if self is Compatibility.SNOWFLAKE else DEFAULT_ZONE)

    @property
    def timestamp_format(self) -> TimestampTextFormat:
        """Text formats of dates and times."""
        return _TIMESTAMP_FORMATS[self]

    @property
    def is_java(self) -> bool:
        """True for the rules of the Java client."""
        return self is Compatibility.SNOWFLAKE


_TIMESTAMP_FORMATS = {
    Compatibility.SNOWFLAKE: TimestampTextFormat.JAVA,
    Compatibility.STRICT: TimestampTextFormat.AUTO,
    Compatibility.SDK_ROWS: TimestampTextFormat.AUTO,
    Compatibility.COPY: TimestampTextFormat.VERTICA,
}


# --- Errors for rejected values: the messages of streaming v1, §5.3, with Python type names.

StoredValue = int | float | bool | str | bytes | None
"""A value in the form stored in a chunk: unscaled integers, days, text, bytes."""


_PREFIX = "The given row cannot be converted to the internal format"


def wrong_type_error(value: object, column: Column, row_index: int, allowed: str) -> InvalidRow:
    """Return the error for a value whose Python type the column does not accept."""
    text = (
        f"{_PREFIX}: Object of type {python_type_name(value)} cannot be ingested into column "
        f"{column.display_name} of type {column.sql_type}, rowIndex:{row_index}. "
        f"Allowed Python types: {allowed}"
    )
    return InvalidRow(text, column=column.display_name, row_index=row_index)


def wrong_value_error(column: Column, row_index: int, reason: str) -> InvalidValue:
    """Return the error for a value that its column cannot hold."""
    text = (
        f"{_PREFIX} due to invalid value: Value cannot be ingested into column "
        f"{column.display_name} of type {column.sql_type}, rowIndex:{row_index}, reason: {reason}"
    )
    return InvalidValue(text, column=column.display_name, row_index=row_index, reason=reason)


def number_range_error(column: Column, row_index: int, digits: int, value: str) -> InvalidRow:
    """Return the error for a number with more than `digits` digits before the point."""
    text = (
        f"{_PREFIX}: Number out of representable exclusive range of (-1e{digits}..1e{digits}), "
        f"rowIndex:{row_index}, column:{column.display_name}, value:{value}"
    )
    return InvalidRow(text, column=column.display_name, row_index=row_index)


def year_range_error(column: Column, row_index: int, value: str) -> InvalidValue:
    """Return the error for a date or timestamp outside the years that its type can hold."""
    what = "Date" if column.kind == "DATE" else "Timestamp"
    reason = f"{what} out of representable inclusive range of years between 1 and 9999"
    text = (
        f"{_PREFIX} due to invalid value: {reason}, rowIndex:{row_index}, "
        f"column:{column.display_name}, value:{value}"
    )
    return InvalidValue(text, column=column.display_name, row_index=row_index, reason=reason)


def null_value_error(column: Column, row_index: int) -> InvalidRow:
    """Return the error for a value that is null after conversion in a NOT NULL column."""
    text = (
        f"{_PREFIX}: Passed null to non nullable field {column.display_name}, rowIndex:{row_index}"
    )
    return InvalidRow(text, column=column.display_name, row_index=row_index)


def python_type_name(value: object) -> str:
    """Return the Python name of a value's type."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


# --- Conversion of columns to and from `table_columns` (Streaming v1, §2.2, §4).


class ColumnFields(TypedDict):
    """One entry of `table_columns`."""

    name: str
    type: str
    logical_type: str
    physical_type: str
    ordinal: int
    nullable: bool
    precision: int | None
    scale: int | None
    byte_length: int | None
    length: int | None
    collation: str | None
    default: str | None


def column_to_fields(column: Column) -> ColumnFields:
    """Return the entry of a column in the response to opening a channel."""
    timed = column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES
    byte_length = MAX_TEXT_BYTES if column.kind in SEMI_STRUCTURED_TYPES else column.byte_length
    if column.kind is LogicalType.TEXT and byte_length is None:
        byte_length = min(4 * (column.length or 0), MAX_TEXT_BYTES)
    return ColumnFields(
        name=column.display_name,
        type=column.sql_type,
        logical_type=str(column.kind),
        physical_type=column.physical_type,
        ordinal=column.ordinal,
        nullable=column.nullable,
        precision=0 if timed else column.precision,
        scale=column.scale,
        byte_length=byte_length,
        length=column.byte_length if column.kind is LogicalType.BINARY else column.length,
        collation=None,
        default=column.default,
    )


def column_from_fields(fields: Mapping[str, object]) -> Column:
    """Return the column of an entry in the response to opening a channel.

    Raises:
        Unsupported: If its type, physical type or collation is not supported for writing.
    """
    name = str(fields["name"])
    logical = str(fields["logical_type"]).upper()
    if fields.get("collation") is not None:
        raise Unsupported(what=f"column {name} with a collation", instead="drop the collation")
    if logical not in LogicalType.__members__:
        raise Unsupported(what=f"column {name} of type {logical}", instead="leave it out")
    kind = LogicalType(logical)
    timed = kind is LogicalType.TIME or kind in TIMESTAMP_TYPES
    sized = kind in {LogicalType.TEXT, LogicalType.BINARY}
    column = Column(
        name=to_internal_name(name),
        kind=kind,
        ordinal=_require_int(fields, "ordinal", name),
        nullable=bool(fields.get("nullable", True)),
        precision=_require_int(fields, "precision", name) if kind is LogicalType.FIXED else None,
        scale=_require_int(fields, "scale", name) if timed or kind is LogicalType.FIXED else None,
        length=_require_int(fields, "length", name) if kind is LogicalType.TEXT else None,
        byte_length=_require_int(fields, "byte_length", name) if sized else None,
        default=None if fields.get("default") is None else str(fields["default"]),
    )
    physical = str(fields["physical_type"]).upper()
    if column.physical_type != "LOB" and physical != column.physical_type:
        raise Unsupported(
            what=f"column {name} of type {column.sql_type} stored as {physical}",
            instead=f"store it as {column.physical_type}",
        )
    return column


def _require_int(fields: Mapping[str, object], key: str, name: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int):
        raise Unsupported(what=f"column {name} without {key}", instead="send it")
    return value
