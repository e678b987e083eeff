"""Signatures of external functions: arguments and SQL types, and their text in DDL and headers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    TIMESTAMP_TYPES,
    LogicalType,
    to_display_name,
)

MAX_PRECISION = 38
MAX_FRACTION_DIGITS = 9

_TYPE_PATTERN = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_ ]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*\Z"
)
_BASE_NAMES = {
    LogicalType.FIXED: "NUMBER",
    LogicalType.REAL: "FLOAT",
    LogicalType.TEXT: "VARCHAR",
}


@dataclass(frozen=True, slots=True)
class SqlType:
    """A SQL type. NUMBER has `precision` and `scale`, times `scale`. `length` is in characters."""

    kind: LogicalType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    @property
    def base_name(self) -> str:
        """Name of the type without parameters, as in signature headers."""
        return _BASE_NAMES.get(self.kind, str(self.kind))

    def format_with_parameters(self, text_length: int = MAX_TEXT_BYTES) -> str:
        """Return the type with its parameters, as in return-type headers.

        Args:
            text_length: Length in characters to write for a VARCHAR without a length.
        """
        if self.kind is LogicalType.FIXED:
            return f"NUMBER({self.precision},{self.scale})"
        if self.kind is LogicalType.TEXT:
            return f"VARCHAR({self.length or text_length})"
        if self.kind is LogicalType.BINARY:
            return f"BINARY({self.length or MAX_BINARY_BYTES})"
        if self.kind is LogicalType.TIME or self.kind in TIMESTAMP_TYPES:
            return f"{self.kind}({self.scale})"
        return self.base_name

    @property
    def ddl(self) -> str:
        """The type as in CREATE statements, without parameters that have default values."""
        if self.kind in {LogicalType.TEXT, LogicalType.BINARY} and self.length is None:
            return self.base_name
        if (
            self.kind is LogicalType.TIME or self.kind in TIMESTAMP_TYPES
        ) and self.scale == MAX_FRACTION_DIGITS:
            return self.base_name
        return self.format_with_parameters()

    @property
    def is_integer(self) -> bool:
        """True if the values of the type are integers."""
        return self.kind is LogicalType.FIXED and self.scale == 0


_INTEGER_TYPE = SqlType(LogicalType.FIXED, precision=MAX_PRECISION, scale=0)
_TYPES_BY_NAME: dict[str, SqlType] = {
    **dict.fromkeys(("NUMBER", "DECIMAL", "DEC", "NUMERIC"), _INTEGER_TYPE),
    **dict.fromkeys(("INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT"), _INTEGER_TYPE),
    **dict.fromkeys(
        ("FLOAT", "FLOAT4", "FLOAT8", "REAL", "DOUBLE", "DOUBLE PRECISION"),
        SqlType(LogicalType.REAL),
    ),
    **dict.fromkeys(("BOOLEAN", "BOOL"), SqlType(LogicalType.BOOLEAN)),
    **dict.fromkeys(("VARCHAR", "STRING", "TEXT", "NVARCHAR"), SqlType(LogicalType.TEXT)),
    **dict.fromkeys(("CHAR", "CHARACTER"), SqlType(LogicalType.TEXT, length=1)),
    **dict.fromkeys(("BINARY", "VARBINARY"), SqlType(LogicalType.BINARY)),
    "DATE": SqlType(LogicalType.DATE),
    "TIME": SqlType(LogicalType.TIME, scale=MAX_FRACTION_DIGITS),
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP_NTZ", "DATETIME"),
        SqlType(LogicalType.TIMESTAMP_NTZ, scale=MAX_FRACTION_DIGITS),
    ),
    "TIMESTAMP_LTZ": SqlType(LogicalType.TIMESTAMP_LTZ, scale=MAX_FRACTION_DIGITS),
    "TIMESTAMP_TZ": SqlType(LogicalType.TIMESTAMP_TZ, scale=MAX_FRACTION_DIGITS),
    "VARIANT": SqlType(LogicalType.VARIANT),
    "ARRAY": SqlType(LogicalType.ARRAY),
    "OBJECT": SqlType(LogicalType.OBJECT),
}
_PRECISION_TYPE_NAMES = frozenset({"NUMBER", "DECIMAL", "DEC", "NUMERIC"})


@lru_cache(maxsize=512)
def parse_sql_type_text(text: str) -> SqlType:
    """Parse a type such as `NUMBER(10,2)` or `varchar`.

    Raises:
        DeclarationInvalid: If the text is not a type that can be sent, or has invalid parameters.
    """
    match = _TYPE_PATTERN.match(text)
    name = " ".join(match[1].upper().split()) if match else ""
    if name in {"GEOGRAPHY", "GEOMETRY"}:
        raise DeclarationInvalid(reason=f"{name} cannot be sent to a service")
    if match is None or name not in _TYPES_BY_NAME:
        raise DeclarationInvalid(reason=f"{text!r} is not a type that can be sent to a service")
    first, second = (None if digits is None else int(digits) for digits in match.group(2, 3))
    found = _TYPES_BY_NAME[name]
    if first is None:
        return found
    if name in _PRECISION_TYPE_NAMES:
        scale = second or 0
        if not 1 <= first <= MAX_PRECISION or scale > first:
            raise DeclarationInvalid(
                reason=f"{text!r} needs a precision of 1 to {MAX_PRECISION} and a scale of 0 to the"
                " precision"
            )
        return SqlType(LogicalType.FIXED, precision=first, scale=scale)
    if second is None and found.kind in {LogicalType.TEXT, LogicalType.BINARY} and first > 0:
        return replace(found, length=first)
    timed = found.kind is LogicalType.TIME or found.kind in TIMESTAMP_TYPES
    if second is None and timed and first <= MAX_FRACTION_DIGITS:
        return replace(found, scale=first)
    raise DeclarationInvalid(reason=f"{text!r} has parameters that {name} does not accept")


@dataclass(frozen=True, slots=True)
class HeaderStyle:
    """Format of a signature in headers. The defaults are those of the published format.

    Newer engines send the name in upper case, and the length 134217728 for a VARCHAR without a
    length.
    """

    upper_name: bool = False
    text_length: int = MAX_TEXT_BYTES


@dataclass(frozen=True, slots=True)
class FunctionArgument:
    """One argument. `nullable` is True if the function accepts NULL for it.

    `default` is the value if a call omits the argument: a constant as SQL text (`7`, `TRUE`, `NULL`,
    or `'x'` with backslashes and quotes doubled). None: the argument is required.
    """

    name: str
    type: SqlType
    nullable: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """Name, arguments and result of an external function."""

    name: str
    arguments: tuple[FunctionArgument, ...]
    returns: SqlType

    @property
    def min_arguments(self) -> int:
        """Minimum number of arguments of a call. Arguments with defaults come last."""
        return sum(each.default is None for each in self.arguments)

    @property
    def is_strict(self) -> bool:
        """True if a row with any NULL is not sent, and its result is NULL."""
        return bool(self.arguments) and not any(each.nullable for each in self.arguments)

    def format_header_name(self, style: HeaderStyle) -> str:
        """Return the name in the form of the function name header."""
        return self.name.upper() if style.upper_name else self.name

    def format_arguments(self) -> str:
        """Return the arguments in the form of the signature header: `(N NUMBER, S VARCHAR)`."""
        listed = ", ".join(f"{each.name.upper()} {each.type.base_name}" for each in self.arguments)
        return f"({listed})"

    def format_return_type(self, style: HeaderStyle) -> str:
        """Return the result type in the form of the return-type header."""
        return self.returns.format_with_parameters(style.text_length)

    def format_ddl(self) -> str:
        """Return `NAME(ARGUMENTS)` and `RETURNS TYPE` on two lines, as in a CREATE statement."""
        return f"{self.name}({self.format_arguments_ddl()})\nRETURNS {self.returns.ddl}"

    def format_arguments_ddl(self) -> str:
        """Return the arguments as in a CREATE statement, without parentheses."""
        return ", ".join(
            f"{to_display_name(each.name.upper())} {each.type.ddl}"
            + (f" DEFAULT {each.default}" if each.default is not None else "")
            for each in self.arguments
        )


@lru_cache(maxsize=1024)
def parse_arguments(text: str) -> tuple[tuple[str, SqlType], ...] | None:
    """Return the names and types that a signature header lists, or None if it cannot be parsed.

    A name may contain blanks and commas, so the header is only a hint. Parsing never raises an error.
    """
    inner = text.strip()
    if not (inner.startswith("(") and inner.endswith(")")):
        return None
    inner = inner[1:-1].strip()
    if not inner:
        return ()
    found = []
    # Split only at commas outside parentheses, because types may have parameters.
    pieces, depth, start = [], 0, 0
    for at, sign in enumerate(inner):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            pieces.append(inner[start:at])
            start = at + 1
    for piece in [*pieces, inner[start:]]:
        name, _, type_text = piece.strip().rpartition(" ")
        try:
            found.append((name, parse_sql_type_text(type_text)))
        except DeclarationInvalid:
            return None
    return tuple(found)
