"""Tables of a user, from whatever library, and their rows where a row is wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from snowmelt.errors import InvalidRow
from snowmelt.schema.arrow_values import python_values
from snowmelt.schema.refusals import type_name

if TYPE_CHECKING:
    Row = dict[str, object]

# From this size on a piece is converted and encoded as fast as all in one; joined, rows would be
# there twice.
_PIECE_ROWS = 8_192
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def table_from(given: object) -> pa.Table:
    """Return the table of anything that offers Arrow's C stream or array interface.

    The index of a pandas data frame is left out unless it has a name.

    Raises:
        TypeError: The object offers neither.
        InvalidRow: What it offers is not valid Arrow, or has two columns of the very same name.
    """
    try:
        table = _read(given)
        table.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRow(reason=f"the data is not valid Arrow: {error}") from error
    if b"pandas" in (table.schema.metadata or {}):
        index = [name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)]
        table = table.drop_columns(index) if index else table
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRow(reason=f"the data has more than one column named {', '.join(twice)}")
    return table


def _read(given: Any) -> pa.Table:
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatchReader):
        return given.read_all()
    if hasattr(given, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(given).read_all()
    if hasattr(given, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(given)])
    raise TypeError(
        f"insert_arrow takes an object with __arrow_c_stream__, such as a pyarrow.Table or a data "
        f"frame of pandas, Polars or DuckDB; not {type_name(given)}"
    )


def pieced(table: pa.Table) -> pa.Table:
    """Return the rows in pieces that are not small, mostly the table as it is."""
    pieces = max((column.num_chunks for column in table.columns), default=0)
    return table if pieces * _PIECE_ROWS <= table.num_rows else table.combine_chunks()


class ArrowRows(Sequence["Row"]):
    """The rows of a table as the dicts that `insert_rows` would be given, made when asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return _rows(self._table)[index]
        return _rows(self._table.slice(index, 1))[0]


def _rows(table: pa.Table) -> list[Row]:
    if not table.num_columns:
        return [{} for _ in range(table.num_rows)]
    columns = [
        [value for chunk in column.chunks for value in python_values(chunk)]
        for column in table.columns
    ]
    names = table.column_names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
