"""`SELECT *`: records copied from the input where they stay the same, else written as columns."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from snowmelt.select.execution.block_executor import NamedRow
from snowmelt.select.execution.serializer import CsvWriter, JsonWriter, interleaved
from snowmelt.select.formats.csv_reader import CsvBatch
from snowmelt.select.formats.json_lines import LinesBatch
from snowmelt.select.kernels.json import copy_objects
from snowmelt.select.kernels.output import gather_rows
from snowmelt.select.vectors import EMPTY_NULL, UNCLEAN, Slices, text_vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from snowmelt.select.execution.block_executor import Passed
    from snowmelt.select.execution.serializer import RecordWriter
    from snowmelt.select.formats.csv_dialect import CsvRules
    from snowmelt.select.vectors import Batch, Mask, Rows, Vector

# Fewer records are written one by one.
_WORTH_COLUMNS = 32


@runtime_checkable
class ColumnarBatch(Protocol):
    """Records that have the same fields, each of them a column."""

    def every_column(self) -> tuple[tuple[str, ...], list[Vector]] | None:
        """Return names and values of all fields; None if the evaluator has to read some."""


class WholeRecords:
    """Writes all fields of the records that pass."""

    def __init__(
        self, writer: RecordWriter, rules: CsvRules | None, names: Sequence[str] | None
    ) -> None:
        """Settle whether records can be copied.

        Args:
            writer: What writes records that cannot.
            rules: Those of the input if it is CSV.
            names: The header's, or the columns'; records that go on behind it count on.
        """
        self._writer = writer
        self._names = tuple(names or ())
        self.copies = rules is not None and isinstance(writer, CsvWriter) and writer.copies(rules)
        self._after = np.frombuffer(rules.record if rules else b"\n", np.uint8)

    def write(self, batch: Batch, passed: Passed) -> tuple[bytes, NDArray[np.int64]]:
        """Return the records and the end of each."""
        columns = batch.every_column() if isinstance(batch, ColumnarBatch) else None
        if columns is not None:
            names, vectors = columns
            return self._writer.records([each.take(passed.rows) for each in vectors], names)
        if isinstance(batch, LinesBatch) and isinstance(self._writer, JsonWriter):
            return self._as_lines(batch, passed.rows, self._writer.after)
        if not isinstance(batch, CsvBatch):
            return self._one_by_one(batch, passed.rows)
        if not self.copies:
            return self._as_columns(batch, passed.rows)
        irregular = batch.irregular[passed.rows]
        rows = passed.rows[~irregular] if irregular.any() else passed.rows
        output, ends = gather_rows(
            batch.block.data, batch.row_starts[rows], batch.row_ends[rows], self._after, True
        )
        if len(rows) == len(passed.rows):
            return output.tobytes(), ends
        others = self._as_columns(batch, passed.rows[irregular])
        return _merged((output.tobytes(), ends), others, ~irregular)

    def _as_lines(
        self, batch: LinesBatch, rows: Rows, after: bytes
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Copy objects, but those that would not be written as they are read."""
        starts, stops = batch.bounds[:, rows]
        text = np.frombuffer(after, np.uint8)
        output, ends, odd = copy_objects(batch.block.data, starts, stops, text)
        if not odd.any():
            return output.tobytes(), ends
        others = self._one_by_one(batch, rows[odd])
        return _merged((output.tobytes(), ends[~odd]), others, ~odd)

    def _as_columns(self, batch: CsvBatch, rows: Rows) -> tuple[bytes, NDArray[np.int64]]:
        """Write records: at once those that have as many fields as most, all plain."""
        if len(rows) < _WORTH_COLUMNS:
            return self._one_by_one(batch, rows)
        first, starts, ends, flags = batch.all_fields()
        counts = np.diff(first)[rows]
        count = int(np.bincount(counts).argmax())
        alike = counts == count
        unclean = (flags & UNCLEAN) != 0
        if unclean.any():
            alike &= ~np.logical_or.reduceat(unclean, first[:-1])[rows]
        if np.count_nonzero(alike) < _WORTH_COLUMNS:
            return self._one_by_one(batch, rows)
        at = first[rows[alike]]
        data = batch.block.data
        columns = [
            # Only a column of its own is NULL where it is empty.
            text_vector(
                Slices(data, starts[cells], ends[cells], flags[cells] & (0xFF ^ EMPTY_NULL))
            )
            for cells in (at + place for place in range(count))
        ]
        written = self._writer.records(columns, self._all_names(count))
        if alike.all():
            return written
        return _merged(written, self._one_by_one(batch, rows[~alike]), alike)

    def _one_by_one(self, batch: Batch, rows: Rows) -> tuple[bytes, NDArray[np.int64]]:
        written = [self._record(batch, row) for row in rows.tolist()]
        return b"".join(written), np.cumsum([len(each) for each in written], dtype=np.int64)

    def _record(self, batch: Batch, place: int) -> bytes:
        row = batch.row(place)
        values = row.fields()
        names = row.names() if isinstance(row, NamedRow) else self._all_names(len(values))
        return self._writer.record(values, names)

    def _all_names(self, count: int) -> Sequence[str]:
        if len(self._names) >= count:
            return self._names[:count]
        return (*self._names, *(f"_{place + 1}" for place in range(len(self._names), count)))


def _merged(
    some: tuple[bytes, NDArray[np.int64]], others: tuple[bytes, NDArray[np.int64]], first: Mask
) -> tuple[bytes, NDArray[np.int64]]:
    """Put two outputs' records together: those of `some` where the mask holds."""
    text, ends = others
    pieces = [text[at:end] for at, end in itertools.pairwise([0, *ends.tolist()])]
    return interleaved(*some, np.flatnonzero(first), pieces, np.flatnonzero(~first))
