"""Batch reader of JSON records: compiled kernels convert text to the types of the columns.

Its results equal those of `JsonDocumentReader` and `JsonColumnFinder`. It does not read records
with invalid JSON, unknown keys, values of another type than the column's, or values that the
kernels do not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from snowmelt.json.columns import (
    LEFT_ALONE,
    NULL_VALUE,
    read_booleans,
    read_decimals,
    read_floats,
    read_texts,
)
from snowmelt.json.scanner import (
    ABSENT,
    OBJECT,
    FieldNames,
    encode_field_names,
    scan_json_records,
)
from snowmelt.kernels.slices import Bytes
from snowmelt.schema.chunk_types import decimal_from_int64
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

if TYPE_CHECKING:
    from snowmelt.json.columns import FieldPositions
    from snowmelt.load.column_converter import TableConverter, TextColumnConverter
    from snowmelt.load.parsers.json_document_mapping import FlexJsonOptions, JsonColumnFinder

    Places = np.ndarray[tuple[int], np.dtype[np.int64]]
    Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

_MAX_KEYS = 500
# Kernels have 32-bit positions.
_MAX_BYTES = 2**31 - 1
# Maximum number of unread records that are searched for new keys.
_LEARN_RECORDS = 16
# Scan again with the new keys if more than one record in this many is unread.
_MIN_RECORDS_PER_SKIP = 8


class JsonRecords:
    """Byte ranges of records in one buffer that has `PADDING_BYTES` bytes of padding."""

    def __init__(self, data: Bytes, starts: Places, ends: Places) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends
        self._memory = data.data

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._memory[self.starts[index] : self.ends[index]])

    def take(self, indexes: Sequence[int] | Places) -> JsonRecords:
        """Return the records at these indexes, in the same buffer."""
        places = np.asarray(indexes, np.int64)
        return JsonRecords(self.data, self.starts[places], self.ends[places])

    def mask_valid_utf8(self) -> Mask:
        """Return a mask of the records that are valid UTF-8.

        Checks the whole buffer first. Checks each record only if the buffer is not valid.
        """
        try:
            str(self._memory, "utf-8")
        except UnicodeDecodeError:
            return np.fromiter((_is_utf8(self[at]) for at in range(len(self))), np.bool_, len(self))
        return np.ones(len(self), np.bool_)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(slots=True)
class _KeyNode:
    """Known keys of one object level: column index per key (or -1), and nodes of nested objects."""

    columns: dict[str, int] = field(default_factory=dict)
    inner: dict[str, _KeyNode] = field(default_factory=dict)
    names: FieldNames = field(default_factory=lambda: encode_field_names([]))

    def encode_names(self) -> None:
        self.names = encode_field_names([(key.encode(), False) for key in self.columns])
        for node in self.inner.values():
            node.encode_names()


@dataclass(frozen=True, slots=True)
class ColumnReadResult:
    """Result of a batch read.

    Attributes:
        arrays: Native arrays of the records that were read.
        rejected: Column name and reason, by row of these arrays.
        is_read: Mask of the records that were read.
    """

    arrays: list[pa.Array]
    rejected: dict[int, tuple[str, str]]
    is_read: Mask


class JsonColumnReader:
    """Batch reader of records. Caches the keys of earlier records."""

    def __init__(
        self, converter: TableConverter, column_paths: JsonColumnFinder, options: FlexJsonOptions
    ) -> None:
        self._columns = converter.columns
        self._column_paths = column_paths
        self._strict = options.reject_on_materialized_type_error
        self._root = _KeyNode()
        self._key_count = 0
        self._used_columns: set[int] = set()
        # True if there are more than `_MAX_KEYS` keys, or two keys for one column.
        self._has_conflict = False
        self._is_supported = not (
            options.flatten_arrays
            or options.reject_on_duplicate
            or options.reject_on_empty_key
            or options.omit_empty_keys
            or options.suppress_nonalphanumeric_key_chars
            or options.start_point
            or any(column.column.kind in SEMI_STRUCTURED_TYPES for column in converter.columns)
        )

    def read_records(self, records: JsonRecords) -> ColumnReadResult | None:
        """Read records. Return None if the exact reader must read all of them."""
        if not (self._is_supported and len(records) > 0 and len(records.data) <= _MAX_BYTES):
            return None
        is_text = records.mask_valid_utf8()
        fields, is_read = self._scan_fields(self._root, records)
        left = np.flatnonzero(~is_read)
        has_new_keys = len(left) > 0 and self._learn_keys(records, left[:_LEARN_RECORDS])
        if has_new_keys and len(left) * _MIN_RECORDS_PER_SKIP > len(records):
            fields, is_read = self._scan_fields(self._root, records)
        if self._has_conflict:
            return None
        return self._make_batch(records.data, fields, is_read & is_text)

    def _learn_keys(self, records: JsonRecords, indexes: Places) -> bool:
        """Add the keys of records. Return True if any are new."""
        before = self._key_count
        for index in indexes.tolist():
            try:
                value = orjson.loads(records[index])
            except orjson.JSONDecodeError:
                continue
            if isinstance(value, dict):
                self._learn_object(value, self._root, ())
        if self._key_count == before:
            return False
        self._has_conflict |= self._key_count > _MAX_KEYS
        self._root.encode_names()
        return True

    def _learn_object(self, value: dict[str, Any], node: _KeyNode, prefix: tuple[str, ...]) -> None:
        for key, item in value.items():
            path = (*prefix, key)
            if key not in node.columns:
                self._key_count += 1
                index, has_inner = self._column_paths.find_path(path)
                node.columns[key] = -1 if index is None else index
                if index is not None:
                    # If two keys map to one column, the last one in the object applies. Leave this
                    # to the exact reader.
                    self._has_conflict |= index in self._used_columns
                    self._used_columns.add(index)
                if has_inner:
                    node.inner[key] = _KeyNode()
            if isinstance(item, dict) and key in node.inner:
                self._learn_object(item, node.inner[key], path)

    def _scan_fields(
        self, node: _KeyNode, records: JsonRecords
    ) -> tuple[dict[int, FieldPositions], Mask]:
        """Return the positions of column values, and a mask of the records without unknown keys."""
        (starts, ends, kinds), is_read = scan_json_records(
            records.data, records.starts, records.ends, node.names
        )
        fields: dict[int, FieldPositions] = {}
        for at, (key, index) in enumerate(node.columns.items()):
            if index >= 0:
                fields[index] = starts[at], ends[at], kinds[at]
            if key not in node.inner:
                continue
            rows = np.flatnonzero(kinds[at] == OBJECT)
            objects = JsonRecords(
                records.data,
                starts[at][rows].astype(np.int64),
                ends[at][rows].astype(np.int64),
            )
            found, is_known = self._scan_fields(node.inner[key], objects)
            is_read[rows[~is_known]] = False
            for inner, values in found.items():
                first, last, what = (_scatter(part, rows, len(records)) for part in values)
                fields[inner] = first, last, what
        return fields, is_read

    def _make_batch(
        self, data: Bytes, fields: dict[int, FieldPositions], is_read: Mask
    ) -> ColumnReadResult:
        places = np.zeros((2, len(is_read)), np.int32)
        absent = places[0], places[1], np.full(len(is_read), ABSENT, np.uint8)
        read: list[tuple[tuple[Any, ...], Mask]] = []
        for index, column in enumerate(self._columns):
            values = _read_values(data, fields.get(index, absent), column)
            status = values[-1]
            nulls = status == NULL_VALUE
            is_read &= (status != LEFT_ALONE) & (~nulls | column.column.nullable)
            read.append((values[:-1], nulls))
        kept = None if is_read.all() else pa.array(is_read)
        arrays: list[pa.Array] = []
        rejected: dict[int, tuple[str, str]] = {}
        for (values, nulls), column in zip(read, self._columns, strict=True):
            array = _make_array(column, values, nulls)
            parts, reasons = _convert_array(column, array if kept is None else array.filter(kept))
            arrays.extend(parts)
            if self._strict or not column.column.nullable:
                name = column.column.display_name
                rejected |= {row: (name, reason) for row, reason in reasons.items()}
        return ColumnReadResult(arrays, rejected, is_read)


def _scatter(values: np.ndarray[Any, Any], rows: Places, count: int) -> np.ndarray[Any, Any]:
    """Return an array of `count` values with `values` at `rows`, and zero elsewhere."""
    spread = np.zeros(count, values.dtype)
    spread[rows] = values
    return spread


def _choose_kind(column: TextColumnConverter) -> LogicalType:
    """Return the type that JSON values of a column must have for the kernels."""
    kind = column.column.kind
    is_direct = kind in {LogicalType.FIXED, LogicalType.REAL, LogicalType.BOOLEAN}
    return kind if is_direct and column.csv_reader_arrow_type is not None else LogicalType.TEXT


def _read_values(
    data: Bytes, found: FieldPositions, column: TextColumnConverter
) -> tuple[Any, ...]:
    """Return the kernel's output for a column, with the status as its last item."""
    match _choose_kind(column):
        case LogicalType.FIXED:
            return read_decimals(
                data, found, column.column.precision or 38, column.column.scale or 0
            )
        case LogicalType.REAL:
            return read_floats(data, found)
        case LogicalType.BOOLEAN:
            return read_booleans(found)
        case _:
            return read_texts(data, found)


def _make_array(column: TextColumnConverter, values: tuple[Any, ...], nulls: Mask) -> pa.Array:
    match _choose_kind(column):
        case LogicalType.FIXED:
            precision, scale = column.column.precision or 38, column.column.scale or 0
            return decimal_from_int64(values[0], nulls, precision, scale)
        case LogicalType.REAL | LogicalType.BOOLEAN:
            return pa.array(values[0], mask=nulls)
        case _:
            offsets, texts = values
            validity = None
            if nulls.any():
                validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
            return pa.StringArray.from_buffers(
                len(nulls), pa.py_buffer(offsets), pa.py_buffer(texts), validity
            )


def _convert_array(
    column: TextColumnConverter, array: pa.Array
) -> tuple[list[pa.Array], dict[int, str]]:
    """Return native arrays, and the rejection reasons by row."""
    if _choose_kind(column) is not LogicalType.TEXT:
        return [array], {}
    if column.column.kind is LogicalType.TEXT:
        parts = column.convert_csv_reader_values(array)
        if parts is not None:
            return parts, {}
    return column.convert_texts(array)
