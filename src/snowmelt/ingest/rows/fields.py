"""The fields of a body's first row: what the other rows are taken to have as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from snowmelt.ingest.rows.spellings import spellings
from snowmelt.schema.types import Column, Kind, internal_name

if TYPE_CHECKING:
    from snowmelt.schema.types import TableSchema

_GUESSES = {Kind.FIXED: pa.int64(), Kind.REAL: pa.float64(), Kind.BOOLEAN: pa.bool_()}
_SCALARS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}


_NO_COLUMN = Column("VALUE", Kind.TEXT, 1)


class Field(NamedTuple):
    """A field's name as it came, the type of its values, its column, and the first value.

    `meant` is the name by which a converter finds the column.
    """

    name: str
    type: pa.DataType
    column: Column
    first: object
    meant: str


def fields_of(line: bytes, schema: TableSchema) -> list[Field] | None:
    """Return the fields of a row of scalars; None where it is none, or has other columns."""
    try:
        row = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError):
        return None
    found: list[Field] = []
    spelled = spellings(schema)
    for name, value in row.items():
        meant = spelled.get(name.upper(), name)
        column = schema.column(internal_name(meant)) if name else None
        if column is None:
            return None
        kind = (
            _GUESSES.get(column.kind, pa.string()) if value is None else _SCALARS.get(type(value))
        )
        if kind is None:
            return None
        if column.kind is Kind.REAL and kind == pa.int64():
            kind = pa.float64()
        found.append(Field(name, kind, column, value, meant))
    names = [field.column.name for field in found]
    return found if found and len(set(names)) == len(names) else None


def any_fields_of(line: bytes) -> list[Field] | None:
    """Return the fields of a row of any values; None where a type does not say what they are."""
    try:
        row = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError):
        return None
    found = [Field(name, _type_of(value), _NO_COLUMN, value, name) for name, value in row.items()]
    return found if found and all(field.type is not None for field in found) else None


def _type_of(value: object) -> pa.DataType | None:
    if isinstance(value, dict):
        types = {name: _type_of(each) for name, each in value.items()}
        return pa.struct(types.items()) if types and None not in types.values() else None
    if isinstance(value, list):
        types_within = {_type_of(each) for each in value}
        (only,) = types_within if len(types_within) == 1 else (None,)
        return None if only is None else pa.list_(only)
    return pa.string() if value is None else _SCALARS.get(type(value))
