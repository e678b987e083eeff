"""JSON lines as columns: kernels locate the values, the decoder reads every record they leave.

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
from snowmelt.select.sql.ast import ColumnRef, Expression, KeyStep, PathStep, walk_outer_first
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.values import MISSING
from snowmelt.select.vectors import ValueVector, VectorKind

_RECORD_STEP = KeyStep("_1")


class JsonLineColumns:
    """The fields that a query reads, where steps by name lead to them; finds them in blocks."""

    def __init__(self, query: BoundQuery) -> None:
        self._is_ceph = query.dialect.is_ceph
        self._paths: dict[tuple[PathStep, ...], tuple[tuple[bytes, bool], ...]] = {}
        firsts: list[tuple[bytes, bool]] = []
        for column in _list_columns(query):
            path = tuple(step for step in column.steps if isinstance(step, KeyStep))
            # A name beyond ASCII has small letters that the kernels do not know.
            named = all(step.text.isascii() or self._is_case_sensitive(step) for step in path)
            if not (path and named) or len(path) != len(column.steps) or path[0] == _RECORD_STEP:
                continue
            names = tuple(self._encode_field_name(step) for step in path)
            # A key is one name's: "a" beside a, which stands for A, too, is the evaluator's.
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
        """Return a block's records; None where lines are not one object each, or may not be."""
        if find_invalid_utf8_byte(block.data, block.start, block.end) >= 0:
            return None
        read = scan_json_lines(block.data, block.start, block.end, self._encoded_names)
        if read is None:
            return None
        return JsonLinesBatch(block, read[0], read[1], self)

    @property
    def is_ceph(self) -> bool:
        """Whether paths are followed as in Ceph."""
        return self._is_ceph

    def locate_values(
        self, batch: JsonLinesBatch, column: ColumnRef
    ) -> tuple[Positions, Positions, Bytes] | None:
        """Return where a column's values lie; None where only the evaluator finds them."""
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
        yield from (part for part in walk_outer_first(expression) if isinstance(part, ColumnRef))


@dataclass(frozen=True, slots=True)
class JsonLinesBatch:
    """Records as places in a block's data; valid until the block is released."""

    block: RecordBlock
    # Where each record begins and ends.
    record_bounds: NDArray[np.int32]
    value_positions: ValuePositions
    columns: JsonLineColumns
    failure: SelectError | None = None

    @property
    def row_count(self) -> int:
        """How many records."""
        return len(self.record_bounds[0])

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:
        """Return a column's values, those of other types than most are of deferred."""
        found = self.columns.locate_values(self, column)
        if found is None:
            return None
        return _make_vector(self.block.data, found, for_output=for_output)

    def read_all_fields(self, rows: RowIndexes) -> tuple[list[ValueVector], Mask]:
        """Return the fields that the first of some records has, and which records are alike.

        These have the same fields in the same order, with values of the same types or NULL; what
        the vectors say of others does not matter.
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
        """Return the byte of the object's text where a record begins."""
        return self.block.offset + int(self.record_bounds[0, row_index]) - self.block.start


def _make_vector(
    data: Bytes, found: tuple[Positions, Positions, Bytes], *, for_output: bool
) -> ValueVector:
    """Return values of which those of other types than most are deferred."""
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
    """One record as the evaluator reads it; MISSING where FROM's path led nowhere."""

    record: object
    is_ceph: bool

    def field(self, column: ColumnRef) -> object:
        """Return what the column's path leads to, MISSING if nowhere."""
        found = follow_path(self.record, column.steps, is_ceph=self.is_ceph)
        if found is MISSING and column.steps[:1] == (_RECORD_STEP,):
            # The record itself is its first, unnamed field.
            return follow_path(self.record, column.steps[1:], is_ceph=self.is_ceph)
        return found

    def fields(self) -> Sequence[object]:
        """Return the values of `*`."""
        if isinstance(self.record, dict):
            return list(self.record.values())
        return [] if self.record is MISSING else [self.record]

    def field_names(self) -> Sequence[str]:
        """Return the names of these values."""
        return list(self.record) if isinstance(self.record, dict) else ["_1"]
