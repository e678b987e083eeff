"""Errors for rejected values: the messages of streaming v1, §5.3, with Python type names."""

from __future__ import annotations

from snowmelt.errors import InvalidRow, InvalidValue
from snowmelt.schema.types import Column

StoredValue = int | float | bool | str | bytes | None
"""A value as a chunk stores it: unscaled integers, days, text, bytes."""


_PREFIX = "The given row cannot be converted to the internal format"


def wrong_type_error(value: object, column: Column, row_index: int, allowed: str) -> InvalidRow:
    """Return the error for a value whose Python type the column does not take."""
    text = (
        f"{_PREFIX}: Object of type {python_type_name(value)} cannot be ingested into column "
        f"{column.display_name} of type {column.sql_type}, rowIndex:{row_index}. "
        f"Allowed Python types: {allowed}"
    )
    return InvalidRow(text, column=column.display_name, row_index=row_index)


def wrong_value_error(column: Column, row_index: int, reason: str) -> InvalidValue:
    """Return the error for a value that its column cannot hold."""
    text = (
        f"{_PREFIX} due to invalid value: Value cannot be ingested into column "
        f"{column.display_name} of type {column.sql_type}, rowIndex:{row_index}, reason: {reason}"
    )
    return InvalidValue(text, column=column.display_name, row_index=row_index, reason=reason)


def number_range_error(column: Column, row_index: int, digits: int, value: str) -> InvalidRow:
    """Return the error for a number with more than `digits` digits before the point."""
    text = (
        f"{_PREFIX}: Number out of representable exclusive range of (-1e{digits}..1e{digits}), "
        f"rowIndex:{row_index}, column:{column.display_name}, value:{value}"
    )
    return InvalidRow(text, column=column.display_name, row_index=row_index)


def year_range_error(column: Column, row_index: int, value: str) -> InvalidValue:
    """Return the error for a date or timestamp outside the years that its type can hold."""
    what = "Date" if column.kind == "DATE" else "Timestamp"
    reason = f"{what} out of representable inclusive range of years between 1 and 9999"
    text = (
        f"{_PREFIX} due to invalid value: {reason}, rowIndex:{row_index}, "
        f"column:{column.display_name}, value:{value}"
    )
    return InvalidValue(text, column=column.display_name, row_index=row_index, reason=reason)


def null_value_error(column: Column, row_index: int) -> InvalidRow:
    """Return the error for a value that turns out to be null in a column that forbids it."""
    text = (
        f"{_PREFIX}: Passed null to non nullable field {column.display_name}, rowIndex:{row_index}"
    )
    return InvalidRow(text, column=column.display_name, row_index=row_index)


def python_type_name(value: object) -> str:
    """Return the name of a value's type as Python programmers write it."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
