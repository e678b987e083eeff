"""Split of VALUES whose rows differ in type into one query per combination of types.

Spark first converts the values of a column to one common type, which can change them. For example,
in a column with the DOUBLE 1e0, the integer 9007199254740993 becomes 9007199254740992.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import types as st

from snowmelt.catalog.sql.cursor import is_at_end
from snowmelt.spark.sql.cursor import SparkCursor

# For a number, the digits before and after the point. Otherwise, the name of the type. None is the
# type of NULL, which fits every type.
ValueType = tuple[int, int] | str | None

_MAX_DIGITS = 38
_NUMBER = re.compile(r"-?(\d*)(?:\.(\d*))?")
_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_DATE = re.compile(r"DATE\s*'[^'\\]*'", re.IGNORECASE)
_INTEGER_DIGITS: dict[type[st.DataType], int] = {
    st.ByteType: 3,
    st.ShortType: 5,
    st.IntegerType: 10,
    st.LongType: 19,
}


def split_by_types(query: str, describe: Callable[[str], st.StructType]) -> list[str]:
    """Return queries that together have the rows of `query`.

    Splits a query that consists of VALUES, and returns any other query unchanged. In each result, a
    column has one type, or numeric types whose common type holds all digits.

    Args:
        query: The text of the query.
        describe: Returns the columns of a query.
    """
    rows = _parse_rows(query)
    if len(rows) < 2 or len({len(values) for values in rows}) > 1:
        return [query]
    columns = [_widen_numbers(column) for column in zip(*_find_types(rows, describe), strict=True)]
    found: dict[tuple[ValueType, ...], list[str]] = {}
    for values, *key in zip(rows, *columns, strict=True):
        found.setdefault(tuple(key), []).append(f"({', '.join(values)})")
    return [query] if len(found) == 1 else [f"VALUES {', '.join(each)}" for each in found.values()]


def _parse_rows(query: str) -> list[list[str]]:
    """Return the texts of the values by row, or an empty list if the query is not only VALUES."""
    cursor = SparkCursor(query)
    if not cursor.accept("VALUES"):
        return []
    rows = []
    while True:
        rows.append(cursor.read_list() if cursor.is_next("(") else [cursor.read_until(",")])
        if not cursor.accept(","):
            return rows if is_at_end(cursor) else []


def _find_types(
    rows: Sequence[Sequence[str]], describe: Callable[[str], st.StructType]
) -> list[list[ValueType]]:
    types: dict[str, ValueType] = {}
    unknown: list[str] = []
    # Spark takes milliseconds to analyze a value, so request only the types that are not evident.
    for text in {text: None for values in rows for text in values}:
        try:
            types[text] = _read_literal_type(text)
        except _NotLiteral:
            unknown.append(text)
    if unknown:
        fields = describe(f"SELECT {', '.join(unknown)}").fields
        kinds = [_to_value_type(field.dataType) for field in fields]
        types |= zip(unknown, kinds, strict=True)
    return [[types[text] for text in values] for values in rows]


class _NotLiteral(Exception):
    """Raised if only Spark can determine the type."""


def _read_literal_type(text: str) -> ValueType:
    upper = text.upper()
    if upper == "NULL":
        return None
    if upper in {"TRUE", "FALSE"}:
        return "boolean"
    if _STRING.fullmatch(text):
        return "string"
    if _DATE.fullmatch(text):
        return "date"
    number = _NUMBER.fullmatch(text)
    if number is None or text in {"", "-", ".", "-."}:
        raise _NotLiteral
    whole, fraction = number.groups()
    if fraction is None:
        return max(len(whole), _INTEGER_DIGITS[st.IntegerType]), 0
    return len(whole.lstrip("0")), len(fraction)


def _to_value_type(kind: st.DataType) -> ValueType:
    if isinstance(kind, st.NullType):
        return None
    if isinstance(kind, st.DecimalType):
        return kind.precision - kind.scale, kind.scale
    if type(kind) in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[type(kind)], 0
    return kind.simpleString()


def _widen_numbers(column: Iterable[ValueType]) -> list[ValueType]:
    """Return the types, with all numeric types replaced by their common type if it holds all digits."""
    types = list(column)
    numbers = [each for each in types if isinstance(each, tuple)]
    if numbers:
        common = max(whole for whole, _ in numbers), max(scale for _, scale in numbers)
        if sum(common) <= _MAX_DIGITS:
            types = [common if isinstance(each, tuple) else each for each in types]
    known = {each for each in types if each is not None}
    if len(known) == 1:
        types = [*known] * len(types)
    return types
