"""Passthrough writer for `SELECT *`.

Copies input records whose output is identical. Writes other records column by column or row by row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from snowmelt.kernels.csv_tokenizer import CsvRules
from snowmelt.kernels.slices import (
    EMPTY_NULL,
    NEEDS_UNQUOTING,
    Mask,
    RowIndexes,
    StringSlices,
    view_bytes,
)
from snowmelt.select.execution.block_executor import NamedFieldRow, SelectedRecords
from snowmelt.select.execution.serializer import (
    CsvSerializer,
    JsonSerializer,
    OutputSegment,
    RecordSerializer,
    interleave_records,
)
from snowmelt.select.formats.csv_reader import CsvBatch
from snowmelt.select.formats.json_lines import JsonLinesBatch
from snowmelt.select.kernels.json import copy_json_objects
from snowmelt.select.kernels.output import copy_rows
from snowmelt.select.vectors import ColumnBatch, ValueVector, make_masked_text_vector

# Minimum number of rows for output by column. Smaller batches are written row by row.
_MIN_COLUMNAR_ROWS = 32


@runtime_checkable
class UniformBatch(Protocol):
    """Batch whose records all have the same fields, each stored as a column."""

    def read_all_columns(self) -> tuple[tuple[str, ...], list[ValueVector]] | None:
        """Return names and values of all fields, or None if the scalar evaluator must read some."""


class PassthroughSerializer:
    """Serializer for `SELECT *`: writes all fields of the selected records."""

    def __init__(
        self,
        writer: RecordSerializer,
        csv_rules: CsvRules | None,
        field_names: Sequence[str] | None,
    ) -> None:
        """Determine whether records can be copied.

        Args:
            writer: Writer for records that cannot be copied.
            csv_rules: CSV rules of the input, or None if the input is not CSV.
            field_names: Names from the header or the schema. Further fields are named by position, such
                as `_3`.
        """
        self._writer = writer
        self._field_names = tuple(field_names or ())
        self.can_copy = (
            csv_rules is not None
            and isinstance(writer, CsvSerializer)
            and writer.can_copy_records(csv_rules)
        )
        self._record_delimiter = view_bytes(csv_rules.record if csv_rules else b"\n")

    def serialize_selected(self, batch: ColumnBatch, selected: SelectedRecords) -> OutputSegment:
        """Return the selected records and the end of each."""
        columns = batch.read_all_columns() if isinstance(batch, UniformBatch) else None
        if columns is not None:
            names, vectors = columns
            return self._writer.serialize_columns(
                [each.take(selected.rows) for each in vectors], names
            )
        if isinstance(batch, JsonLinesBatch):
            return self._serialize_json_lines(batch, selected.rows)
        if not isinstance(batch, CsvBatch):
            return self._serialize_row_by_row(batch, selected.rows)
        if not self.can_copy:
            return self._serialize_csv_columns(batch, selected.rows)
        irregular = batch.needs_requoting_mask[selected.rows]
        rows = selected.rows[~irregular] if irregular.any() else selected.rows
        output, ends = copy_rows(
            batch.block.data, batch.row_starts[rows], batch.row_ends[rows], self._record_delimiter
        )
        if len(rows) == len(selected.rows):
            return output.data, ends
        others = self._serialize_csv_columns(batch, selected.rows[irregular])
        return _merge_outputs((output.data, ends), others, ~irregular)

    def _serialize_json_lines(self, batch: JsonLinesBatch, rows: RowIndexes) -> OutputSegment:
        """Serialize objects. JSON output copies objects that would be written unchanged."""
        if not isinstance(self._writer, JsonSerializer):
            return self._serialize_json_columns(batch, rows)
        # Indexing makes the arrays contiguous, so that the kernel is compiled for one array type.
        starts, stops = (bounds[rows] for bounds in batch.record_bounds)
        text = view_bytes(self._writer.record_delimiter)
        output, ends, odd = copy_json_objects(batch.block.data, starts, stops, text)
        if not odd.any():
            return output.data, ends
        others = self._serialize_row_by_row(batch, rows[odd])
        return _merge_outputs((output.data, ends[~odd]), others, ~odd)

    def _serialize_json_columns(self, batch: JsonLinesBatch, rows: RowIndexes) -> OutputSegment:
        """Serialize objects with the layout of the first one by column, and others row by row."""
        if len(rows) < _MIN_COLUMNAR_ROWS:
            return self._serialize_row_by_row(batch, rows)
        vectors, alike = batch.read_all_fields(rows)
        if np.count_nonzero(alike) < _MIN_COLUMNAR_ROWS:
            return self._serialize_row_by_row(batch, rows)
        at = np.flatnonzero(alike)
        written = self._writer.serialize_columns([vector.take(at) for vector in vectors])
        if len(at) == len(rows):
            return written
        return _merge_outputs(written, self._serialize_row_by_row(batch, rows[~alike]), alike)

    def _serialize_csv_columns(self, batch: CsvBatch, rows: RowIndexes) -> OutputSegment:
        """Serialize records with the most frequent field count by column, others row by row.

        A record that needs unquoting is serialized row by row. If fewer than `_MIN_COLUMNAR_ROWS`
        records remain for columns, all are serialized row by row.
        """
        if len(rows) < _MIN_COLUMNAR_ROWS:
            return self._serialize_row_by_row(batch, rows)
        first, starts, ends, flags = batch.tokenize_all_fields()
        counts = np.diff(first)[rows]
        count = int(np.bincount(counts).argmax())
        alike = counts == count
        unclean = (flags & NEEDS_UNQUOTING) != 0
        if unclean.any():
            alike &= ~np.logical_or.reduceat(unclean, first[:-1])[rows]
        if np.count_nonzero(alike) < _MIN_COLUMNAR_ROWS:
            return self._serialize_row_by_row(batch, rows)
        at = first[rows[alike]]
        data = batch.block.data
        columns = [
            # `*` outputs an empty field as empty, not as NULL.
            make_masked_text_vector(
                StringSlices(data, starts[cells], ends[cells], flags[cells] & (0xFF ^ EMPTY_NULL))
            )
            for cells in (at + place for place in range(count))
        ]
        written = self._writer.serialize_columns(columns, self._list_field_names(count))
        if alike.all():
            return written
        return _merge_outputs(written, self._serialize_row_by_row(batch, rows[~alike]), alike)

    def _serialize_row_by_row(self, batch: ColumnBatch, rows: RowIndexes) -> OutputSegment:
        written = [self._serialize_row(batch, row) for row in rows.tolist()]
        return b"".join(written), np.cumsum([len(each) for each in written], dtype=np.int64)

    def _serialize_row(self, batch: ColumnBatch, row_index: int) -> bytes:
        row = batch.read_row(row_index)
        values = row.fields()
        names = (
            row.field_names()
            if isinstance(row, NamedFieldRow)
            else self._list_field_names(len(values))
        )
        return self._writer.serialize_record(values, names)

    def _list_field_names(self, count: int) -> Sequence[str]:
        if len(self._field_names) >= count:
            return self._field_names[:count]
        return (
            *self._field_names,
            *(f"_{place + 1}" for place in range(len(self._field_names), count)),
        )


def _merge_outputs(
    primary: OutputSegment,
    secondary: OutputSegment,
    primary_mask: Mask,
) -> OutputSegment:
    """Merge two outputs. Records come from `primary` where the mask is True, else `secondary`."""
    text, ends = secondary
    pieces = [text[at:end] for at, end in itertools.pairwise([0, *ends.tolist()])]
    return interleave_records(
        *primary, np.flatnonzero(primary_mask), pieces, np.flatnonzero(~primary_mask)
    )
