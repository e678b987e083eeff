"""Bounds of one native column, from a native file with only this column."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.table.column_bounds import ColumnBounds, count_nans, read_column_bounds


def find_bounds(array: pa.ChunkedArray) -> ColumnBounds:
    """Write a column to a native file and read its bounds."""
    file = io.BytesIO()
    pq.write_table(pa.table({"column": array}), file, store_decimal_as_integer=True)
    return read_column_bounds(pq.read_metadata(file), 0, array.type, count_nans(array))
