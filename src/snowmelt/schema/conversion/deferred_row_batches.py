"""Batches of rows that were checked and packed, and become a table at a flush.

The fixed cost of a call is then paid once per flush, and much of the conversion runs in a thread
that does not need the interpreter's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.packed_input_columns import concatenate_to_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.schema.conversion.column_converter import ColumnConverter
    from snowmelt.schema.conversion.packed_input_columns import CompactColumn
    from snowmelt.schema.types import TableSchema


class PackedRowsForm(Protocol):
    """What rows were packed for: one version of a table."""

    schema: TableSchema

    def make_converters(self) -> list[ColumnConverter]:
        """Return converters that no other thread uses."""


class DeferredRows:
    """Rows of one or more calls that were only packed; `size_bytes` is an estimate."""

    __slots__ = ("columns", "form", "rows", "size_bytes")

    def __init__(
        self,
        form: PackedRowsForm,
        columns: list[list[CompactColumn | pa.Array | pa.ChunkedArray]],
        rows: int,
        size_bytes: int,
    ) -> None:
        self.form = form
        self.columns = columns
        self.rows = rows
        self.size_bytes = size_bytes

    def try_extend(self, other: object) -> bool:
        """Append the rows of a later call if they are of the same form."""
        if not (isinstance(other, DeferredRows) and other.form is self.form):
            return False
        for own, more in zip(self.columns, other.columns, strict=True):
            own += more
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        return True

    def to_table(self) -> pa.Table:
        """Return them in chunk form; any thread may call it."""
        arrays = []
        for pieces, converter in zip(self.columns, self.form.make_converters(), strict=True):
            made = concatenate_to_arrays(pieces, converter)
            arrays.append(made[0] if len(made) == 1 else _to_chunked_array(made))
        return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(self.form.schema))


def _to_chunked_array(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
    chunks: list[pa.Array] = []
    for array in arrays:
        chunks += array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return pa.chunked_array(chunks)
