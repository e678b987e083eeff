"""Columns as Arrow arrays, and what libraries return as lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from snowmelt.functions.wire import exact
from snowmelt.schema.types import SEMI_STRUCTURED, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from snowmelt.functions.types import SqlType

_MOST_DIGITS_OF_INT64 = 18


def arrow_type(sql_type: SqlType) -> pa.DataType:
    """Return the Arrow type of a column.

    NUMBER of up to 18 digits without fraction is int64, any other decimal128; VARIANT, ARRAY and
    OBJECT are JSON text.
    """
    import pyarrow as pa

    kind = sql_type.kind
    if kind is Kind.FIXED:
        precision, scale = sql_type.precision or 38, sql_type.scale or 0
        if scale == 0 and precision <= _MOST_DIGITS_OF_INT64:
            return pa.int64()
        return pa.decimal128(precision, scale)
    if kind in SEMI_STRUCTURED:
        return pa.string()
    return {
        Kind.REAL: pa.float64(),
        Kind.TEXT: pa.string(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.BINARY: pa.binary(),
        Kind.DATE: pa.date32(),
        Kind.TIME: pa.time64("us"),
        Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
        Kind.TIMESTAMP_LTZ: pa.timestamp("us", "UTC"),
        Kind.TIMESTAMP_TZ: pa.timestamp("us", "UTC"),
    }[kind]


def as_column(values: Sequence[Any], sql_type: SqlType) -> pa.Array:
    """Return values of a type as an Arrow array."""
    import pyarrow as pa

    if sql_type.kind in SEMI_STRUCTURED:
        values = [None if value is None else exact.write(value).decode() for value in values]
    return pa.array(values, arrow_type(sql_type))


def as_values(column: Any) -> list[Any]:
    """Return the values of an Arrow or NumPy array, a Polars or pandas series, or an iterable."""
    for name in ("to_pylist", "to_list", "tolist"):
        method = getattr(column, name, None)
        if method is not None:
            return list(method())
    return list(column)


def from_json_texts(values: Sequence[Any]) -> list[Any]:
    """Return JSON texts as JSON, checked, so that a broken one does not break the whole reply.

    Raises:
        NotJson: A text is not JSON.
    """
    found: list[Any] = []
    for value in values:
        if isinstance(value, str):
            exact.parse(value.encode())
            found.append(msgspec.Raw(value.encode()))
        else:
            found.append(value)
    return found
