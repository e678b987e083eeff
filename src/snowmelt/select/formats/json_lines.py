"""JSON lines as columns: kernels locate the values, and the JSON decoder reads deferred records.

Numbers keep every digit: integers of any size, decimals as written. A number with an exponent
becomes the nearest float, unless that is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snowmelt.json.exact import decode_record
from snowmelt.json.scanner import (
    ABSENT,
    DECIMAL,
    FALSE,
    INTEGER,
    NULL,
    TEXT,
    TRUE,
    ValuePositions,
    encode_field_names,
    scan_json_lines,
    scan_json_records,
    scan_nested_fields,
)
from snowmelt.kernels.csv_tokenizer import find_invalid_utf8_byte
from snowmelt.kernels.numbers import parse_integers
from snowmelt.kernels.slices import Bytes, Mask, Positions, RowIndexes, StringSlices
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import RecordBlock
from snowmelt.select.scalar.paths import follow_path
from snowmelt.select.sql.ast import ColumnRef, Expression, KeyStep, PathStep, walk_in_source_order
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.values import MISSING
from snowmelt.select.vectors import ValueVector, VectorKind

_RECORD_STEP = KeyStep("_1")


class JsonLineColumns:
    """Locator of a query's column values in blocks. Each column's path contains only names."""

    def __init__(self, query: BoundQuery) -> None:
        self._is_ceph = query.dialect.is_ceph
        self._paths: dict[tuple[PathStep, ...], tuple[tuple[bytes, bool], ...]] = {}
        firsts: list[tuple[bytes, bool]] = []
        for column in _list_columns(query):
            path = tuple(step for step in column.steps if isinstance(step, KeyStep))
            # Kernels ignore case in ASCII names only.
            named = all(step.text.isascii() or self._is_case_sensitive(step) for step in path)
            if not (path and named) or len(path) != len(column.steps) or path[0] == _RECORD_STEP:
                continue
            names = tuple(self._encode_field_name(step) for step in path)
            # A key can belong to one column. If a query has both "a" and a, the evaluator reads the
            # second.
            if all(names[0] == each or names[0][0].lower() != each[0].lower() for each in firsts):
                self._paths[column.steps] = names
                if names[0] not in firsts:
                    firsts.append(names[0])
        self._name_indexes = {path: firsts.index(names[0]) for path, names in self._paths.items()}
        self._encoded_names = encode_field_names(firsts)

    def _is_case_sensitive(self, step: KeyStep) -> bool:
        return step.quoted and not self._is_ceph

    def _encode_field_name(self, step: KeyStep) -> tuple[bytes, bool]:
        folds = not self._is_case_sensitive(step)
        text = step.text.lower() if folds else step.text
        return text.encode("utf-8", "surrogateescape"), folds

    def scan_block(self, block: RecordBlock) -> JsonLinesBatch | None:
        """Return the records of a block, or None if a line may be anything but one object."""
        if find_invalid_utf8_byte(block.data, block.start, block.end) >= 0:
            return None
        read = scan_json_lines(block.data, block.start, block.end, self._encoded_names)
        if read is None:
            return None
        return JsonLinesBatch(block, read[0], read[1], self)

    @property
    def is_ceph(self) -> bool:
        """True if paths follow Ceph's rules for JSON."""
        return self._is_ceph

    def locate_values(
        self, batch: JsonLinesBatch, column: ColumnRef
    ) -> tuple[Positions, Positions, Bytes] | None:
        """Return the positions of a column's values. None: use the scalar evaluator."""
        names = self._paths.get(column.steps)
        if names is None:
            return None
        place = self._name_indexes[column.steps]
        starts, ends, kinds = batch.value_positions
        found = starts[place], ends[place], kinds[place]
        for name in names[1:]:
            starts, ends, kinds = scan_nested_fields(
                batch.block.data, *found, encode_field_names([name])
            )
            found = starts[0], ends[0], kinds[0]
        return found


def _list_columns(query: BoundQuery) -> Iterator[ColumnRef]:
    expressions: list[Expression] = [output.expression for output in query.outputs]
    expressions += [order.expression for order in query.order_by]
    expressions += [*query.aggregates, *query.group_by]
    if query.where is not None:
        expressions.append(query.where)
    for expression in expressions:
        yield from (
            part for part in walk_in_source_order(expression) if isinstance(part, ColumnRef)
        )


@dataclass(frozen=True, slots=True)
class JsonLinesBatch:
    """Records stored as positions in a block's data. Valid until the block is released."""

    block: RecordBlock
    # Start and end offset of each record.
    record_bounds: NDArray[np.int32]
    value_positions: ValuePositions
    columns: JsonLineColumns
    failure: SelectError | None = None

    @property
    def row_count(self) -> int:
        """Number of records."""
        return len(self.record_bounds[0])

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:
        """Return the values of a column. Values that are not of the most frequent type are deferred."""
        found = self.columns.locate_values(self, column)
        if found is None:
            return None
        return _make_vector(self.block.data, found, for_output=for_output)

    def read_all_fields(self, rows: RowIndexes) -> tuple[list[ValueVector], Mask]:
        """Return the fields of the first record of `rows`, and the mask of records with its layout.

        Records in the mask have the same fields in the same order, with values of the same types or NULL.
        The vectors are undefined in other records.
        """
        first = self.read_row(int(rows[0])).record
        names = [(name.encode(), False) for name in first] if isinstance(first, dict) else []
        starts, ends = self.record_bounds[:, rows].astype(np.int64)
        found, alike = scan_json_records(self.block.data, starts, ends, encode_field_names(names))
        alike &= (found[2] != ABSENT).all(axis=0) & (np.diff(found[0], axis=0) > 0).all(axis=0)
        vectors = [
            _make_vector(self.block.data, field, for_output=True)
            for field in zip(*found, strict=True)
        ]
        for vector in vectors:
            alike &= ~vector.deferred
        return vectors, alike if vectors else np.zeros(len(rows), np.bool_)

    def read_row(self, row_index: int) -> JsonRow:
        """Return one record."""
        start, end = self.record_bounds[:, row_index].tolist()
        return JsonRow(
            decode_record(memoryview(self.block.memory)[start:end]), self.columns.is_ceph
        )

    def record_offset(self, row_index: int) -> int:
        """Return the byte offset of a record in the object's decompressed text."""
        return self.block.offset + int(self.record_bounds[0, row_index]) - self.block.start


def _make_vector(
    data: Bytes, found: tuple[Positions, Positions, Bytes], *, for_output: bool
) -> ValueVector:
    """Return values as a vector in which values not of the most frequent type are deferred."""
    starts, ends, kinds = found
    null = kinds == NULL
    if not for_output:
        null |= kinds == ABSENT
    counts = np.bincount(kinds, minlength=16)
    slices = StringSlices(data, starts, ends, np.zeros(len(kinds), np.uint8))
    numbers = counts[INTEGER] + counts[DECIMAL]
    truths = counts[TRUE] + counts[FALSE]
    if counts[TEXT] > max(numbers, truths):
        return ValueVector(VectorKind.TEXT, slices, null, ~(null | (kinds == TEXT)))
    if truths > numbers:
        odd = ~(null | (kinds == TRUE) | (kinds == FALSE))
        return ValueVector(VectorKind.BOOL, kinds == TRUE, null, odd)
    if counts[DECIMAL] or (numbers and for_output):
        odd = ~(null | (kinds == INTEGER) | (kinds == DECIMAL))
        return ValueVector(VectorKind.NUMERIC_TEXT, slices, null, odd)
    if numbers:
        values, status = parse_integers(slices)
        return ValueVector(
            VectorKind.INT, values, null, ~null & ((status != 0) | (kinds != INTEGER))
        )
    return ValueVector(VectorKind.OBJECT, np.empty(len(kinds), np.object_), null, ~null)


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One record, for the scalar evaluator. It is MISSING if FROM's path does not exist."""

    record: object
    is_ceph: bool

    def field(self, column: ColumnRef) -> object:
        """Return the value at the column's path, or MISSING if there is none."""
        found = follow_path(self.record, column.steps, is_ceph=self.is_ceph)
        if found is MISSING and column.steps[:1] == (_RECORD_STEP,):
            # `_1` is the record itself.
            return follow_path(self.record, column.steps[1:], is_ceph=self.is_ceph)
        return found

    def fields(self) -> Sequence[object]:
        """Return the values of `*`."""
        if isinstance(self.record, dict):
            return list(self.record.values())
        return [] if self.record is MISSING else [self.record]

    def field_names(self) -> Sequence[str]:
        """Return the names of the values that `fields` returns."""
        return list(self.record) if isinstance(self.record, dict) else ["_1"]
