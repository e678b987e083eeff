"""Which columns rows have that a table lacks, and of which types: what evolving it asks for."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from snowmelt.schema.likenesses import likeness
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from snowmelt.schema.types import TableSchema

Given: TypeAlias = "list[Mapping[str, object]] | pa.Table"

# A NUMBER's scale stays for ever, so that it had better not be that of the first few values.
_LEAST_SCALE, _MOST_SCALE = 9, 30
_TEXT = "VARCHAR"
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "BOOLEAN"),
    ((int, np.integer), "NUMBER(38,0)"),
    ((float, np.floating), "FLOAT"),
    (str, _TEXT),
    ((bytes, bytearray, memoryview), "BINARY"),
    (dt.date, "DATE"),
    (dt.time, "TIME(9)"),
    ((Mapping, list, tuple, set, frozenset, deque, np.ndarray), "VARIANT"),
)


def new_columns(given: Given, schema: TableSchema) -> dict[str, str]:
    """Return internal names and types, as DDL writes them, of columns that the table lacks.

    Values of several kinds make a FLOAT, a timestamp or a VARIANT; only NULLs make a VARCHAR.
    """
    known = {column.name for column in schema.columns}
    if isinstance(given, pa.Table):
        fields = ((internal_name(field.name), field.type) for field in given.schema)
        return {name: _arrow_type(kind) for name, kind in fields if name not in known}
    found: dict[str, str | None] = {}
    for key, value in _items(given):
        name = internal_name(key)
        if name not in known:
            found[name] = _joined(found.get(name), _type_of(likeness(value)))
    return {name: kind or _TEXT for name, kind in found.items()}


def left_out(given: Given, schema: TableSchema) -> list[str]:
    """Return the internal names of NOT NULL columns in which some rows have nothing."""
    required = {column.name for column in schema.columns if not column.nullable}
    if isinstance(given, pa.Table):
        filled = {
            internal_name(name)
            for name, values in zip(given.column_names, given.columns, strict=True)
            if not values.null_count
        }
        return sorted(required - filled)
    free: set[str] = set()
    rows: Iterable[object] = given
    for row in rows:
        if isinstance(row, Mapping):
            filled = {
                internal_name(key)
                for key, value in row.items()
                if isinstance(key, str) and likeness(value) is not None
            }
            free |= required - filled
    return sorted(free)


def _items(rows: Iterable[object]) -> Iterable[tuple[str, object]]:
    return (
        (key, value)
        for row in rows
        if isinstance(row, Mapping)
        for key, value in row.items()
        if isinstance(key, str)
    )


def _type_of(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) else 0
        return f"NUMBER(38,{min(max(scale, _LEAST_SCALE), _MOST_SCALE)})"
    if isinstance(value, dt.datetime):
        return "TIMESTAMP_NTZ(9)" if value.tzinfo is None else "TIMESTAMP_TZ(9)"
    if is_dataclass(value):
        return "VARIANT"
    return next((text for kind, text in _KINDS if isinstance(value, kind)), _TEXT)


def _joined(one: str | None, other: str | None) -> str | None:
    """Return the type that takes values of both."""
    if one is None or other is None or one == other:
        return one or other
    both = {one, other}
    if all(each == "FLOAT" or each.startswith("NUMBER") for each in both):
        return "FLOAT" if "FLOAT" in both else max(both, key=_scale)
    if both == {"DATE", "TIMESTAMP_NTZ(9)"}:
        return "TIMESTAMP_NTZ(9)"
    return "VARIANT"


def _scale(number: str) -> int:
    return int(number.rpartition(",")[2].rstrip(")"))


def _arrow_type(kind: pa.DataType) -> str:
    is_a = pa.types
    if is_a.is_dictionary(kind):
        return _arrow_type(kind.value_type)
    if is_a.is_decimal(kind):
        return f"NUMBER(38,{min(max(kind.scale, 0), 37)})"
    if is_a.is_timestamp(kind):
        return "TIMESTAMP_NTZ(9)" if kind.tz is None else "TIMESTAMP_TZ(9)"
    for matches, text in (
        (is_a.is_boolean, "BOOLEAN"),
        (is_a.is_integer, "NUMBER(38,0)"),
        (is_a.is_floating, "FLOAT"),
        (is_a.is_date, "DATE"),
        (is_a.is_time, "TIME(9)"),
        (is_a.is_nested, "VARIANT"),
    ):
        if matches(kind):
            return text
    binary = is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind)
    return "BINARY" if binary else _TEXT
