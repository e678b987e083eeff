"""Columns as Arrow arrays, and what libraries return as lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from snowmelt.functions.wire import exact
from snowmelt.schema.types import SEMI_STRUCTURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from snowmelt.functions.types import SqlType


def arrow_type(sql_type: SqlType) -> pa.DataType:
    """Return the Arrow type of a column; instants are UTC."""
    from snowmelt.functions.calling.forms import arrow_form

    return arrow_form(sql_type)


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
