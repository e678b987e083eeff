"""Columns of a table as `table_columns` of an open channel's answer, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from snowmelt.schema.metadata import column_fields, column_from_fields
from snowmelt.wire.streaming import ColumnMetadata

if TYPE_CHECKING:
    from snowmelt.schema.types import Column


def to_wire(column: Column) -> ColumnMetadata:
    """Return a column as the wire describes it."""
    return ColumnMetadata(**column_fields(column))


def from_wire(sent: ColumnMetadata) -> Column:
    """Return the column that the wire describes.

    Raises:
        Unsupported: A type, physical type or collation that cannot be written.
    """
    return column_from_fields(msgspec.structs.asdict(sent))
