"""Which columns rows have that a table lacks, and of which types: what evolving it asks for."""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from snowmelt.schema.conversion.arrow_values import MORE_THAN_STORED, has_nulls
from snowmelt.schema.conversion.foreign_types import has_clock, likeness
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from snowmelt.schema.types import TableSchema

Given: TypeAlias = "list[Mapping[str, object]] | pa.Table"

# A NUMBER's scale stays for ever, so that it had better not be that of the first few values.
_LEAST_SCALE, _MOST_SCALE = 9, 30
_TEXT = "VARCHAR"
# NUL, and the halves of a character that UTF-8 does not have.
_NO_NAME = re.compile("[\0\ud800-\udfff]")
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

    Keys that no column can have, such as the empty one, are left out.
    Values of several kinds make what takes them all: a FLOAT, a VARCHAR, a timestamp, else a
    VARIANT, which takes texts only if they are JSON. Only NULLs make a VARCHAR.
    """
    known = {column.name for column in schema.columns}
    if isinstance(given, pa.Table):
        fields = ((internal_name(field.name), field.type) for field in given.schema)
        return {
            name: _arrow_type(kind) for name, kind in fields if name not in known and _is_name(name)
        }
    found: dict[str, set[str]] = {}
    for key, value in _items(given):
        name = internal_name(key)
        if name not in known and _is_name(name):
            found.setdefault(name, set()).update(_types_of(value))
    return {name: _joined(kinds) for name, kinds in found.items()}


def left_out(given: Given, schema: TableSchema) -> list[str]:
    """Return the internal names of NOT NULL columns in which some rows have nothing."""
    required = {column.name for column in schema.columns if not column.nullable}
    if isinstance(given, pa.Table):
        filled = {
            internal_name(name)
            for name, values in zip(given.column_names, given.columns, strict=True)
            if not any(map(has_nulls, values.chunks))
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


def _is_name(name: str) -> bool:
    return name != "" and _NO_NAME.search(name) is None


def _types_of(value: object) -> Iterator[str]:
    """Yield the type of a value, nothing for what is NULL."""
    plain = likeness(value)
    if isinstance(value, np.datetime64) and plain is not None:
        yield "TIMESTAMP_NTZ(9)" if has_clock(value) else "DATE"
    elif isinstance(plain, Decimal):
        exponent = plain.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) else 0
        yield f"NUMBER(38,{min(max(scale, _LEAST_SCALE), _MOST_SCALE)})"
    elif isinstance(plain, dt.datetime):
        yield "TIMESTAMP_NTZ(9)" if plain.tzinfo is None else "TIMESTAMP_TZ(9)"
    elif is_dataclass(plain):
        yield "VARIANT"
    elif plain is not None:
        yield next((text for kind, text in _KINDS if isinstance(plain, kind)), _TEXT)


def _joined(kinds: set[str]) -> str:
    """Return the type that takes values of all these, as far as there is one."""
    others = kinds - {_TEXT}
    numbers = {each for each in others if each == "FLOAT" or each.startswith("NUMBER")}
    if others <= numbers | {"BOOLEAN"} and kinds != others:
        return _TEXT
    if len(others) == 1:
        # Its texts may be read as such values; a VARIANT would take still fewer of them.
        return others.pop()
    if others and others == numbers:
        return "FLOAT" if "FLOAT" in others else max(others, key=_scale)
    if others == {"DATE", "TIMESTAMP_NTZ(9)"}:
        return "TIMESTAMP_NTZ(9)"
    return "VARIANT" if others else _TEXT


def _scale(number: str) -> int:
    return int(number.rpartition(",")[2].rstrip(")"))


def _arrow_type(kind: pa.DataType) -> str:
    is_a = pa.types
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in MORE_THAN_STORED:
        return _arrow_type(kind.storage_type)
    if is_a.is_dictionary(kind) or is_a.is_run_end_encoded(kind):
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
    binary = (is_a.is_binary, is_a.is_large_binary, is_a.is_binary_view, is_a.is_fixed_size_binary)
    return "BINARY" if any(matches(kind) for matches in binary) else _TEXT
