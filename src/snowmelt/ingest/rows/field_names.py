"""Fields of a body's first row, and the columns that their names match.

The other rows are assumed to have the same fields. Field names match columns case-insensitively
by default, or exactly with CASE_SENSITIVE.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from snowmelt.schema.types import Column, LogicalType, quote_name, to_internal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from snowmelt.schema.types import TableSchema

_ARROW_TYPES_OF_NULL = {
    LogicalType.FIXED: pa.int64(),
    LogicalType.REAL: pa.float64(),
    LogicalType.BOOLEAN: pa.bool_(),
}
_ARROW_TYPES_OF_SCALARS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}


_PLACEHOLDER_COLUMN = Column("VALUE", LogicalType.TEXT, 1)


class BodyField(NamedTuple):
    """A field: name in the body, type of its values, column, and first value.

    `column_name` is the name that the converter uses for the column.
    """

    name: str
    type: pa.DataType
    column: Column
    first_value: object
    column_name: str


def parse_scalar_fields(line: bytes, schema: TableSchema) -> list[BodyField] | None:
    """Return the fields of a row of scalars, or None for other rows or unknown columns."""
    try:
        row = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    found: list[BodyField] = []
    spelled = map_case_insensitive_names(schema)
    for name, value in row.items():
        meant = spelled.get(name.upper(), name)
        column = schema.column(to_internal_name(meant)) if name else None
        if column is None:
            return None
        kind = (
            _ARROW_TYPES_OF_NULL.get(column.kind, pa.string())
            if value is None
            else _ARROW_TYPES_OF_SCALARS.get(type(value))
        )
        if kind is None:
            return None
        if column.kind is LogicalType.REAL and kind == pa.int64():
            kind = pa.float64()
        found.append(BodyField(name, kind, column, value, meant))
    names = [field.column.name for field in found]
    return found if found and len(set(names)) == len(names) else None


def parse_any_fields(line: bytes) -> list[BodyField] | None:
    """Return the fields of a row of any values, or None if a value's type is ambiguous."""
    try:
        row = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    found = [
        BodyField(name, _infer_arrow_type(value), _PLACEHOLDER_COLUMN, value, name)
        for name, value in row.items()
    ]
    return found if found and all(field.type is not None for field in found) else None


def _infer_arrow_type(value: object) -> pa.DataType | None:
    if isinstance(value, dict):
        types = {name: _infer_arrow_type(each) for name, each in value.items()}
        return pa.struct(types.items()) if types and None not in types.values() else None
    if isinstance(value, list):
        types_within = {_infer_arrow_type(each) for each in value}
        (only,) = types_within if len(types_within) == 1 else (None,)
        return None if only is None else pa.list_(only)
    return pa.string() if value is None else _ARROW_TYPES_OF_SCALARS.get(type(value))


if TYPE_CHECKING:
    Row = Mapping[str, object]


def resolve_field_case(rows: Sequence[Row], schema: TableSchema) -> Sequence[Row]:
    """Rename fields to match columns case-insensitively, the default of MATCH_BY_COLUMN_NAME.

    Field `city` matches column CITY, as an unquoted identifier does. If there is no column CITY, it
    also matches "City", unless another column has this name in another case. Of two fields for one
    column, the last one applies.
    """
    names = map_case_insensitive_names(schema)
    if not names:
        return rows
    return [_rename_fields(row, names) if isinstance(row, dict) else row for row in rows]


def map_case_insensitive_names(schema: TableSchema) -> Mapping[str, str]:
    """Map upper-case field names to columns whose names have lower-case letters."""
    uppers = Counter(column.name.upper() for column in schema.columns)
    return {
        column.name.upper(): quote_name(column.name)
        for column in schema.columns
        if column.name.upper() != column.name and uppers[column.name.upper()] == 1
    }


def quote_field_names(rows: Sequence[Row]) -> Sequence[Row]:
    """Quote field names so that they match columns exactly, as with CASE_SENSITIVE."""
    return [
        {quote_name(key): value for key, value in row.items()} if isinstance(row, dict) else row
        for row in rows
    ]


def _rename_fields(row: Row, names: Mapping[str, str]) -> Row:
    return {names.get(key.upper(), key): value for key, value in row.items()}
