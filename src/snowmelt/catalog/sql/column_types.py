"""Parser of column types in DDL, with Snowflake's names, synonyms and defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.catalog.sql.lexer import TokenKind
from snowmelt.schema.types import MAX_BINARY_BYTES, MAX_TEXT_BYTES, Column, LogicalType

MAX_PRECISION = 38
MAX_SCALE = 37
MAX_FRACTION_DIGITS = 9
_BYTES_PER_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type: the fields of `schema.types.Column` that it determines."""

    kind: LogicalType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    byte_length: int | None = None

    def to_column(self, name: str, ordinal: int = 0) -> Column:
        """Create a nullable column of this type."""
        settled = {each: getattr(self, each) for each in self.__dataclass_fields__}
        return Column(name, ordinal=ordinal, **settled)


_TypeParser: TypeAlias = Callable[["TokenCursor"], ColumnType]


def parse_column_type(cursor: TokenCursor) -> ColumnType:
    """Parse a column type."""
    token = cursor.current
    if token.kind is not TokenKind.WORD:
        raise cursor.make_error(
            "Expected a type here, such as NUMBER(10,2), VARCHAR or TIMESTAMP_NTZ"
        )
    if token.text in _UNSUPPORTED_TYPES:
        raise cursor.make_error(f"{token.text} is not supported: {_UNSUPPORTED_TYPES[token.text]}")
    reader = _TYPE_PARSERS.get(token.text)
    if reader is None:
        raise cursor.make_error(f"{token.source_text} is not a type. {_SUPPORTED_TYPES_TEXT}")
    cursor.advance()
    column_type = reader(cursor)
    if cursor.is_next("("):
        raise cursor.make_error(
            f"Typed {token.text} is not supported: write {token.text}, which accepts any JSON"
            if token.text in {"ARRAY", "OBJECT"}
            else f"{token.text} takes no further parameters. Omit them"
        )
    return column_type


def _parse_fixed(cursor: TokenCursor) -> ColumnType:
    precision, scale = MAX_PRECISION, 0
    if cursor.accept("("):
        precision = cursor.parse_integer("the precision", 1, MAX_PRECISION)
        if cursor.accept(","):
            scale = cursor.parse_integer("the scale", 0, min(precision, MAX_SCALE))
        cursor.expect(")")
    return ColumnType(LogicalType.FIXED, precision=precision, scale=scale)


def _text_parser(default_length: int) -> _TypeParser:
    def read(cursor: TokenCursor) -> ColumnType:
        cursor.accept("VARYING")
        varying = cursor.is_next("(") or default_length == MAX_TEXT_BYTES
        length = _parse_optional_parameter(cursor, "the length", 1, MAX_TEXT_BYTES)
        if length is None:
            length = MAX_TEXT_BYTES if varying else default_length
        byte_length = min(length * _BYTES_PER_CHARACTER, MAX_TEXT_BYTES)
        return ColumnType(LogicalType.TEXT, length=length, byte_length=byte_length)

    return read


def _parse_character(cursor: TokenCursor) -> ColumnType:
    """Parse CHAR, whose default length is 1; CHAR VARYING is VARCHAR."""
    return _text_parser(MAX_TEXT_BYTES if cursor.is_next("VARYING") else 1)(cursor)


def _parse_binary(cursor: TokenCursor) -> ColumnType:
    length = _parse_optional_parameter(cursor, "the length", 1, MAX_BINARY_BYTES)
    return ColumnType(
        LogicalType.BINARY, byte_length=MAX_BINARY_BYTES if length is None else length
    )


def _parse_double(cursor: TokenCursor) -> ColumnType:
    cursor.accept("PRECISION")
    return ColumnType(LogicalType.REAL)


def _fractional_time_parser(kind: LogicalType) -> _TypeParser:
    def read(cursor: TokenCursor) -> ColumnType:
        scale = _parse_optional_parameter(cursor, "the scale", 0, MAX_FRACTION_DIGITS)
        return ColumnType(kind, scale=MAX_FRACTION_DIGITS if scale is None else scale)

    return read


def _parse_timestamp(cursor: TokenCursor) -> ColumnType:
    """Parse a timestamp type. TIMESTAMP is TIMESTAMP_NTZ, as in Snowflake's default."""
    bare = _fractional_time_parser(LogicalType.TIMESTAMP_NTZ)(cursor)
    kind = LogicalType.TIMESTAMP_NTZ
    if cursor.accept("WITH", "LOCAL", "TIME", "ZONE"):
        kind = LogicalType.TIMESTAMP_LTZ
    elif cursor.accept("WITH", "TIME", "ZONE"):
        kind = LogicalType.TIMESTAMP_TZ
    else:
        cursor.accept("WITHOUT", "TIME", "ZONE")
    scale = _parse_optional_parameter(cursor, "the scale", 0, MAX_FRACTION_DIGITS)
    return ColumnType(kind, scale=bare.scale if scale is None else scale)


def _plain_type_parser(kind: LogicalType, **parameters: int) -> _TypeParser:
    return lambda _cursor: ColumnType(kind, **parameters)


def _parse_optional_parameter(
    cursor: TokenCursor, label: str, minimum: int, maximum: int
) -> int | None:
    if not cursor.accept("("):
        return None
    value = cursor.parse_integer(label, minimum, maximum)
    cursor.expect(")")
    return value


_TYPE_PARSERS: dict[str, _TypeParser] = {
    **dict.fromkeys(("NUMBER", "DECIMAL", "DEC", "NUMERIC"), _parse_fixed),
    **dict.fromkeys(
        ("INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT"),
        _plain_type_parser(LogicalType.FIXED, precision=MAX_PRECISION, scale=0),
    ),
    **dict.fromkeys(("FLOAT", "FLOAT4", "FLOAT8", "REAL"), _plain_type_parser(LogicalType.REAL)),
    "DOUBLE": _parse_double,
    **dict.fromkeys(("BOOLEAN", "BOOL"), _plain_type_parser(LogicalType.BOOLEAN)),
    **dict.fromkeys(
        ("VARCHAR", "STRING", "TEXT", "NVARCHAR", "NVARCHAR2"), _text_parser(MAX_TEXT_BYTES)
    ),
    **dict.fromkeys(("CHAR", "CHARACTER", "NCHAR"), _parse_character),
    **dict.fromkeys(("BINARY", "VARBINARY"), _parse_binary),
    "DATE": _plain_type_parser(LogicalType.DATE),
    "TIME": _fractional_time_parser(LogicalType.TIME),
    "TIMESTAMP": _parse_timestamp,
    "DATETIME": _fractional_time_parser(LogicalType.TIMESTAMP_NTZ),
    **{
        word: _fractional_time_parser(LogicalType[f"TIMESTAMP_{zone}"])
        for zone in ("NTZ", "LTZ", "TZ")
        for word in (f"TIMESTAMP_{zone}", f"TIMESTAMP{zone}")
    },
    **{word: _plain_type_parser(LogicalType[word]) for word in ("VARIANT", "ARRAY", "OBJECT")},
}
_SUPPORTED_TYPES_TEXT = (
    "Supported types: NUMBER, FLOAT, BOOLEAN, VARCHAR, BINARY, DATE, TIME, TIMESTAMP_NTZ, TIMESTAMP_LTZ, "
    "TIMESTAMP_TZ, VARIANT, ARRAY and OBJECT"
)
_UNSUPPORTED_TYPES = {
    "GEOGRAPHY": "rows of this type cannot be streamed. Store WKT or GeoJSON in VARCHAR or OBJECT",
    "GEOMETRY": "rows of this type cannot be streamed. Store WKT or GeoJSON in VARCHAR or OBJECT",
    "VECTOR": "rows of this type cannot be streamed. Store the numbers in ARRAY",
    "MAP": "use OBJECT, whose keys are strings",
    "STRUCT": "use OBJECT",
    "DECFLOAT": "use NUMBER(38,s), or FLOAT if rounding is acceptable",
    "UUID": "use VARCHAR(36), or BINARY(16)",
    "FILE": "store the path of the file in VARCHAR",
    "INTERVAL": "store a number of seconds or days in NUMBER",
    "JSON": "use VARIANT",
    "BLOB": "use BINARY",
    "CLOB": "use VARCHAR",
    "ENUM": "use VARCHAR",
    "XML": "use VARCHAR",
}
