"""Column types as DDL writes them: Snowflake's names, synonyms and defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.schema.types import MAX_BINARY_BYTES, MAX_TEXT_BYTES, LogicalType

if TYPE_CHECKING:
    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.lexer import Token

MAX_PRECISION = 38
MAX_SCALE = 37
MAX_FRACTION_DIGITS = 9
_BYTES_PER_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type without the column: the fields of `schema.types.Column` that it settles."""

    kind: LogicalType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    byte_length: int | None = None


_Reader: TypeAlias = Callable[["Cursor"], ColumnType]


def read_type(cursor: Cursor) -> ColumnType:
    """Go past a type and return it.

    Raises:
        StatementError: If it is no type, one that is not supported, or has wrong parameters.
    """
    token = cursor.token
    if token.kind is not TokenKind.WORD:
        raise cursor.error("Expected a type here, such as NUMBER(10,2), VARCHAR or TIMESTAMP_NTZ")
    if token.text in _REFUSED:
        raise cursor.error(f"{token.text} is not supported: {_REFUSED[token.text]}")
    reader = _READERS.get(token.text)
    if reader is None:
        raise cursor.error(f"{token.written} is not a type; {_TYPES_THERE_ARE}")
    cursor.take()
    column_type = reader(cursor)
    _no_parameters(cursor, token)
    return column_type


def _no_parameters(cursor: Cursor, of: Token) -> None:
    if not cursor.ahead("("):
        return
    if of.text in {"ARRAY", "OBJECT"}:
        raise cursor.error(
            f"Typed {of.text} is not supported: write {of.text} alone, it holds any JSON"
        )
    raise cursor.error(f"{of.text} takes no (more) parameters: leave the parentheses out")


def _fixed(cursor: Cursor) -> ColumnType:
    precision, scale = MAX_PRECISION, 0
    if cursor.accept("("):
        precision = cursor.integer("the precision", 1, MAX_PRECISION)
        if cursor.accept(","):
            scale = cursor.integer("the scale", 0, min(precision, MAX_SCALE))
        cursor.expect(")")
    return ColumnType(LogicalType.FIXED, precision=precision, scale=scale)


def _integer(_cursor: Cursor) -> ColumnType:
    return ColumnType(LogicalType.FIXED, precision=MAX_PRECISION, scale=0)


def _text(default: int) -> _Reader:
    def read(cursor: Cursor) -> ColumnType:
        cursor.accept("VARYING")
        varying = cursor.ahead("(") or default == MAX_TEXT_BYTES
        length = _one_parameter(cursor, "the length", 1, MAX_TEXT_BYTES)
        if length is None:
            length = MAX_TEXT_BYTES if varying else default
        byte_length = min(length * _BYTES_PER_CHARACTER, MAX_TEXT_BYTES)
        return ColumnType(LogicalType.TEXT, length=length, byte_length=byte_length)

    return read


def _character(cursor: Cursor) -> ColumnType:
    """CHAR is one character, CHAR VARYING as long as VARCHAR."""
    return _text(MAX_TEXT_BYTES if cursor.ahead("VARYING") else 1)(cursor)


def _binary(cursor: Cursor) -> ColumnType:
    length = _one_parameter(cursor, "the length", 1, MAX_BINARY_BYTES)
    return ColumnType(
        LogicalType.BINARY, byte_length=MAX_BINARY_BYTES if length is None else length
    )


def _double(cursor: Cursor) -> ColumnType:
    cursor.accept("PRECISION")
    return ColumnType(LogicalType.REAL)


def _with_fraction(kind: LogicalType) -> _Reader:
    def read(cursor: Cursor) -> ColumnType:
        scale = _one_parameter(cursor, "the scale", 0, MAX_FRACTION_DIGITS)
        return ColumnType(kind, scale=MAX_FRACTION_DIGITS if scale is None else scale)

    return read


def _timestamp(cursor: Cursor) -> ColumnType:
    """TIMESTAMP alone is without time zone, as Snowflake's default."""
    bare = _with_fraction(LogicalType.TIMESTAMP_NTZ)(cursor)
    kind = LogicalType.TIMESTAMP_NTZ
    if cursor.accept("WITH", "LOCAL", "TIME", "ZONE"):
        kind = LogicalType.TIMESTAMP_LTZ
    elif cursor.accept("WITH", "TIME", "ZONE"):
        kind = LogicalType.TIMESTAMP_TZ
    else:
        cursor.accept("WITHOUT", "TIME", "ZONE")
    scale = _one_parameter(cursor, "the scale", 0, MAX_FRACTION_DIGITS)
    return ColumnType(kind, scale=bare.scale if scale is None else scale)


def _plain(kind: LogicalType) -> _Reader:
    return lambda _cursor: ColumnType(kind)


def _one_parameter(cursor: Cursor, what: str, least: int, most: int) -> int | None:
    if not cursor.accept("("):
        return None
    value = cursor.integer(what, least, most)
    cursor.expect(")")
    return value


_READERS: dict[str, _Reader] = {
    **dict.fromkeys(("NUMBER", "DECIMAL", "DEC", "NUMERIC"), _fixed),
    **dict.fromkeys(("INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT"), _integer),
    **dict.fromkeys(("FLOAT", "FLOAT4", "FLOAT8", "REAL"), _plain(LogicalType.REAL)),
    "DOUBLE": _double,
    **dict.fromkeys(("BOOLEAN", "BOOL"), _plain(LogicalType.BOOLEAN)),
    **dict.fromkeys(("VARCHAR", "STRING", "TEXT", "NVARCHAR", "NVARCHAR2"), _text(MAX_TEXT_BYTES)),
    **dict.fromkeys(("CHAR", "CHARACTER", "NCHAR"), _character),
    **dict.fromkeys(("BINARY", "VARBINARY"), _binary),
    "DATE": _plain(LogicalType.DATE),
    "TIME": _with_fraction(LogicalType.TIME),
    "TIMESTAMP": _timestamp,
    **dict.fromkeys(
        ("TIMESTAMP_NTZ", "TIMESTAMPNTZ", "DATETIME"), _with_fraction(LogicalType.TIMESTAMP_NTZ)
    ),
    **dict.fromkeys(("TIMESTAMP_LTZ", "TIMESTAMPLTZ"), _with_fraction(LogicalType.TIMESTAMP_LTZ)),
    **dict.fromkeys(("TIMESTAMP_TZ", "TIMESTAMPTZ"), _with_fraction(LogicalType.TIMESTAMP_TZ)),
    "VARIANT": _plain(LogicalType.VARIANT),
    "ARRAY": _plain(LogicalType.ARRAY),
    "OBJECT": _plain(LogicalType.OBJECT),
}
_TYPES_THERE_ARE = (
    "there are NUMBER, FLOAT, BOOLEAN, VARCHAR, BINARY, DATE, TIME, TIMESTAMP_NTZ, TIMESTAMP_LTZ, "
    "TIMESTAMP_TZ, VARIANT, ARRAY and OBJECT"
)
_REFUSED = {
    "GEOGRAPHY": "rows of this type cannot be streamed; keep WKT or GeoJSON in VARCHAR or OBJECT",
    "GEOMETRY": "rows of this type cannot be streamed; keep WKT or GeoJSON in VARCHAR or OBJECT",
    "VECTOR": "rows of this type cannot be streamed; keep the numbers in ARRAY",
    "MAP": "use OBJECT, whose keys are texts",
    "STRUCT": "use OBJECT",
    "DECFLOAT": "use NUMBER(38,s), or FLOAT where rounding is no harm",
    "UUID": "use VARCHAR(36), or BINARY(16)",
    "FILE": "keep the file's path in VARCHAR",
    "INTERVAL": "keep a number of seconds or days in NUMBER",
    "JSON": "use VARIANT",
    "BLOB": "use BINARY",
    "CLOB": "use VARCHAR",
    "ENUM": "use VARCHAR",
    "XML": "use VARCHAR",
}
