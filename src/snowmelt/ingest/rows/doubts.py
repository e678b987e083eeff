"""Values for BINARY columns that are refused, since their client may mean base64 by them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from snowmelt.schema.refusals import wrong_value
from snowmelt.schema.types import Kind, internal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from snowmelt.errors import InvalidValue
    from snowmelt.schema.types import Column, TableSchema

# Standard base64, as the SDK writes it. What is none can only be digits, or is refused anyway.
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_REASON = (
    "its client was made when bytes were still written as base64 here, and by this text it may mean"
    " that; make the client anew, which then writes digits"
)


def binaries(schema: TableSchema) -> list[Column]:
    """Return the columns that it matters for."""
    return [column for column in schema.columns if column.kind is Kind.BINARY]


def has_none(table: pa.Table, schema: TableSchema) -> bool:
    """Tell whether rows in chunk form have no value in any of these columns."""
    return all(
        table.column(column.name).null_count == table.num_rows for column in binaries(schema)
    )


def doubtful(
    rows: Sequence[object], schema: TableSchema, *, computed: bool
) -> dict[int, InvalidValue]:
    """Return rows that hold such a value, by their number.

    Args:
        rows: Their fields as they go to the converter.
        schema: The table's columns.
        computed: A pipe has made them of others: no value shows any more what it was made of.
    """
    columns = {column.name: column for column in binaries(schema)}
    found: dict[int, InvalidValue] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            continue
        for key, value in row.items():
            if value is None or not isinstance(key, str):
                continue
            column = columns.get(internal_name(key))
            if column is not None and (computed or _may_be_base64(value)):
                found[number] = wrong_value(column, number, _REASON)
                break
    return found


def _may_be_base64(value: object) -> bool:
    return isinstance(value, str) and value != "" and _BASE64.fullmatch(value) is not None
