"""Exact batch readers for JSON objects: Arrow on blocks, and generated structs per object.

`JsonBlockReader` passes whole blocks to Arrow. `JsonStructReader` decodes each object with plain
keys straight into the types of the columns. Both return only what `JsonDocumentReader` and
`JsonColumnFinder` would return. The struct reader skips other records: broken ones, unknown keys, values
of another type, and numbers that a double cannot represent exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as arrow_json

from snowmelt.load.parsers.delimited_text import UTF8_BOM
from snowmelt.schema.chunk_types import decimal_from_int64, make_null_mask, to_contiguous_array
from snowmelt.schema.iceberg_table_form import native_fields
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.load.column_converter import TableConverter, TextColumnConverter
    from snowmelt.load.parsers.json_document_mapping import FlexJsonOptions, JsonColumnFinder

_DIRECT_KINDS = {LogicalType.FIXED, LogicalType.REAL, LogicalType.BOOLEAN, LogicalType.TEXT}


class JsonBlockReader:
    """Reads blocks of objects; remembers how keys are written, which Arrow must know before."""

    def __init__(
        self, converter: TableConverter, column_paths: JsonColumnFinder, options: FlexJsonOptions
    ) -> None:
        self._columns = converter.columns
        self._column_paths = column_paths
        self._strict = options.reject_on_materialized_type_error
        self._known_paths: dict[int, tuple[str, ...]] = {}
        kinds = {column.column.kind for column in self._columns}
        self._is_supported = not (
            kinds & SEMI_STRUCTURED_TYPES
            or options.flatten_arrays
            or options.reject_on_duplicate
            or options.reject_on_empty_key
            or options.omit_empty_keys
            or options.suppress_nonalphanumeric_key_chars
            or options.start_point
        )

    def read_block(
        self, data: bytes, count: int | None = None, *, is_json: bool = False
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]] | None:
        """Return native arrays and refused values by row; None if the exact way must be taken.

        `count` is how many objects there must be, if that is known; `is_json` says that they are
        known to be JSON.
        """
        if not self._is_supported or not (is_json or _is_strict_json(data)):
            return None
        if not self._known_paths and not self._learn_paths(data):
            return None
        read = self._read_with_arrow(data)
        if read is not None and self._learn_new_paths(read.schema):
            read = self._read_with_arrow(data)
        if read is None or (count is not None and read.num_rows != count):
            return None
        return self._convert_columns(read) if self._has_only_known_paths(read.schema) else None

    def _learn_paths(self, data: bytes) -> bool:
        end = data.find(b"\n")
        try:
            first = orjson.loads(data[: end if end >= 0 else None])
        except orjson.JSONDecodeError:
            return False
        if isinstance(first, dict):
            self._known_paths = dict(self._column_paths.iter_column_paths(first))
        return bool(self._known_paths)

    def _read_with_arrow(self, data: bytes) -> pa.Table | None:
        tree: dict[str, Any] = {}
        for place, path in self._known_paths.items():
            inner = tree
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = self._choose_arrow_type(place)
        try:
            return arrow_json.read_json(
                pa.BufferReader(data),
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=pa.schema(_make_arrow_fields(tree)),
                    newlines_in_values=True,
                    unexpected_field_behavior="infer",
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None

    def _choose_arrow_type(self, column_index: int) -> pa.DataType:
        column = self._columns[column_index]
        direct = column.csv_reader_arrow_type
        return direct if direct is not None and column.column.kind in _DIRECT_KINDS else pa.string()

    def _learn_new_paths(self, schema: pa.Schema) -> bool:
        """Remember paths of columns that had none before; tell whether there are any."""
        before = len(self._known_paths)
        for place, path in self._column_paths.iter_column_paths(_schema_to_null_record(schema)):
            self._known_paths.setdefault(place, path)
        return len(self._known_paths) > before

    def _has_only_known_paths(self, schema: pa.Schema) -> bool:
        """Tell whether no column is written in two ways."""
        known = set(self._known_paths.values())
        return all(
            path in known
            for _, path in self._column_paths.iter_column_paths(_schema_to_null_record(schema))
        )

    def _convert_columns(
        self, arrow_table: pa.Table
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]] | None:
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for place, column in enumerate(self._columns):
            path = self._known_paths.get(place)
            values = (
                pa.nulls(arrow_table.num_rows, self._choose_arrow_type(place))
                if path is None
                else _get_nested_column(arrow_table, path)
            )
            parts = None
            if column.column.kind in _DIRECT_KINDS and column.csv_reader_arrow_type is not None:
                parts = column.convert_csv_reader_values(values)
                if parts is None:
                    return None
            else:
                parts, reasons = column.convert_texts(values)
                if self._strict or not column.column.nullable:
                    name = column.column.display_name
                    refused |= {row: (name, reason) for row, reason in reasons.items()}
            arrays.extend(parts)
        return arrays, refused


def _is_strict_json(data: bytes) -> bool:
    """Tell whether nothing is there that is no JSON, but that Arrow may take."""
    if data.startswith(UTF8_BOM) or b"NaN" in data or b"Inf" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _make_arrow_fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(key, pa.struct(_make_arrow_fields(inner)) if isinstance(inner, dict) else inner)
        for key, inner in tree.items()
    ]


def _schema_to_null_record(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    return {
        field.name: _schema_to_null_record(field.type) if pa.types.is_struct(field.type) else None
        for field in fields
    }


def _get_nested_column(arrow_table: pa.Table, path: tuple[str, ...]) -> pa.Array:
    values = to_contiguous_array(arrow_table.column(path[0]))
    for key in path[1:]:
        # Flattening puts the parent's nulls into the child.
        names = [field.name for field in values.type]
        values = values.flatten()[names.index(key)]
    return values


# --- JSON objects of plain keys, each read by itself and straight into the types of the columns.
#
# What this reader takes it reads as the exact way does. It leaves the others alone: broken ones,
# keys that it has not met, values of another type, and numbers that a double cannot tell apart.

if TYPE_CHECKING:
    Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

_DECODE_ERRORS = (msgspec.DecodeError, ValueError, RecursionError)
_MAX_KEYS = 500
# From so many records that were left alone, new keys are learned.
_LEARN_RECORDS = 16
# Where more than one in so many is left alone, or so often one after the other, another way is better.
_MIN_RECORDS_PER_SKIP = 8
_MAX_FAILURES = 3
# Up to here no two decimals of a scale round to the same double, and each rounds back by itself.
_MAX_EXACT_UNSCALED = 2**50
_MAX_SCALE = 22
_MAX_INT64_DIGITS = 18
_NEGATIVE_ZERO = re.compile(rb"-0(?![0-9.eE])")


@dataclass(frozen=True, slots=True)
class StructParseResult:
    """What became of some records.

    Attributes:
        arrays: Native arrays of those that were read.
        refused: The column and the reason, by row of these arrays.
        rest: Places of records that were left alone.
    """

    arrays: list[pa.Array]
    rejected: dict[int, tuple[str, str]]
    skipped_indexes: list[int]


class JsonStructReader:
    """Reads records; remembers which keys they have."""

    def __init__(
        self, converter: TableConverter, column_paths: JsonColumnFinder, options: FlexJsonOptions
    ) -> None:
        self._columns = converter.columns
        self._column_paths = column_paths
        self._strict = options.reject_on_materialized_type_error
        self._keys: dict[str, int] = {}
        self._decode: Callable[[bytes], Any] = _return_none
        self._failures = 0
        self._is_supported = column_paths.is_plain and not (
            options.flatten_arrays
            or options.reject_on_duplicate
            or options.reject_on_empty_key
            or options.start_point
            or any(map(_is_unsupported_column, converter.columns))
        )

    def read_records(self, records: Sequence[bytes]) -> StructParseResult | None:
        """Read records; None where another way is better."""
        if not self._is_supported or not records or self._failures >= _MAX_FAILURES:
            return None
        shaped = None
        if self._keys or self._learn_keys(records[:_LEARN_RECORDS]):
            objects, rest = self._decode_records(records)
            if _exceed_skip_limit(rest, records) and self._learn_keys(
                [records[at] for at in rest[:_LEARN_RECORDS]]
            ):
                objects, rest = self._decode_records(records)
            if not _exceed_skip_limit(rest, records):
                shaped = self._make_batch(records, objects, rest)
                self._learn_keys([records[at] for at in rest[:_LEARN_RECORDS]])
        self._failures = self._failures + 1 if shaped is None else 0
        return shaped

    def _learn_keys(self, records: Sequence[bytes]) -> bool:
        """Remember the keys of records; tell whether there are new ones."""
        before = len(self._keys)
        for record in records:
            try:
                value = orjson.loads(record)
            except orjson.JSONDecodeError:
                continue
            if isinstance(value, dict):
                for key in value:
                    place = self._column_paths.find_column_index(key)
                    self._keys.setdefault(key, -1 if place is None else place)
        if len(self._keys) == before:
            return False
        places = [place for place in self._keys.values() if place >= 0]
        # Where two keys mean one column, the last in the object counts.
        self._is_supported = len(set(places)) == len(places) and len(self._keys) <= _MAX_KEYS
        if not self._is_supported:
            return False
        names = {f"k{at}": key for at, key in enumerate(self._keys)}
        fields: list[tuple[str, Any, Any]] = [
            (name, Any if place < 0 else _choose_json_type(self._columns[place]), None)
            for name, place in zip(names, self._keys.values(), strict=True)
        ]
        struct = msgspec.defstruct(
            "Record", fields, rename=names, forbid_unknown_fields=True, gc=False
        )
        self._decode = msgspec.json.Decoder(struct).decode
        return True

    def _decode_records(self, records: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        """Return the objects of the records that are as expected, and the places of the others."""
        objects: list[Any] = []
        rest: list[int] = []
        left = iter(records)
        while True:
            try:
                # What was read before a record fails stays in the list.
                objects.extend(map(self._decode, left))
            except _DECODE_ERRORS:
                rest.append(len(objects) + len(rest))
            else:
                return objects, rest

    def _make_batch(
        self, records: Sequence[bytes], objects: list[Any], skipped_indexes: list[int]
    ) -> StructParseResult | None:
        odd = np.zeros(len(objects), np.bool_)
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        names = {place: f"k{at}" for at, place in enumerate(self._keys.values())}
        taken = np.delete(np.arange(len(records)), skipped_indexes)
        for place, column in enumerate(self._columns):
            name = names.get(place)
            get = attrgetter(name) if name else _return_none
            parts, reasons, zeros = _convert_column(column, objects, get, odd)
            for at in zeros:
                odd[at] |= _NEGATIVE_ZERO.search(records[taken[at]]) is not None
            arrays.extend(parts)
            if self._strict or not column.column.nullable:
                name = column.column.display_name
                refused |= {row: (name, reason) for row, reason in reasons.items()}
        left = np.flatnonzero(odd)
        if _exceed_skip_limit(left, records):
            return None
        if len(left):
            kept = pa.array(~odd)
            arrays = [array.filter(kept) for array in arrays]
            rows = np.cumsum(~odd) - 1
            refused = {int(rows[at]): why for at, why in refused.items() if not odd[at]}
            skipped_indexes = sorted(skipped_indexes + taken[left].tolist())
        return StructParseResult(arrays, refused, skipped_indexes)


def _return_none(_: object) -> None:
    return None


def _is_unsupported_column(column: TextColumnConverter) -> bool:
    described = column.column
    is_decimal = described.kind is LogicalType.FIXED
    return described.kind in SEMI_STRUCTURED_TYPES or (
        is_decimal and (described.scale or 0) > _MAX_SCALE
    )


def _choose_json_type(column: TextColumnConverter) -> Any:
    if column.csv_reader_arrow_type is None:
        return str | None
    match column.column.kind:
        case LogicalType.FIXED:
            return float | None if column.column.scale else int | None
        case LogicalType.REAL:
            return float | None
        case LogicalType.BOOLEAN:
            return bool | None
        case _:
            return str | None


def _exceed_skip_limit(
    indexes: Sequence[int] | np.ndarray[Any, Any], records: Sequence[bytes]
) -> bool:
    return len(indexes) * _MIN_RECORDS_PER_SKIP > len(records)


def _convert_column(
    column: TextColumnConverter, objects: list[Any], get: Callable[[Any], Any], inexact: Mask
) -> tuple[list[pa.Array], dict[int, str], list[int]]:
    """Return native arrays, why values were refused, and where a zero may have lost its sign.

    Rows that must be read exactly are marked in `inexact`.
    """
    described = column.column
    kind = described.kind if column.csv_reader_arrow_type is not None else LogicalType.TEXT
    if kind is LogicalType.FIXED:
        return [_make_decimals(column, objects, get, inexact)], {}, []
    if kind is LogicalType.REAL:
        numbers, nulls = _collect_numbers(column, objects, get, np.float64, inexact)
        zeros = np.flatnonzero((numbers == 0) & ~np.signbit(numbers))
        return [pa.array(numbers, pa.float64(), mask=nulls)], {}, zeros.tolist()
    if kind is LogicalType.BOOLEAN:
        array = pa.array(list(map(get, objects)), pa.bool_())
        _mark_null_violations(column, array, inexact)
        return [array], {}, []
    array = pa.array(list(map(get, objects)), pa.string())
    parts = column.convert_csv_reader_values(array) if described.kind is LogicalType.TEXT else None
    if parts is not None:
        return parts, {}, []
    return *column.convert_texts(array), []


def _make_decimals(
    column: TextColumnConverter, objects: list[Any], get: Callable[[Any], Any], inexact: Mask
) -> pa.Array:
    described = column.column
    scale, precision = described.scale or 0, described.precision or 38
    try:
        numbers, nulls = _collect_numbers(
            column, objects, get, np.float64 if scale else np.int64, inexact
        )
    except (OverflowError, pa.ArrowException):
        inexact |= True
        return pa.nulls(len(objects), native_fields(described)[0].type)
    if not scale:
        if precision <= _MAX_INT64_DIGITS:
            inexact |= (numbers >= 10**precision) | (numbers <= -(10**precision))
        return decimal_from_int64(np.where(inexact, 0, numbers), nulls, precision, 0)
    moved = np.rint(numbers * float(10**scale))
    bound = min(float(_MAX_EXACT_UNSCALED), float(10**precision))
    inexact |= ~((np.abs(moved) < bound) & (moved / float(10**scale) == numbers))
    unscaled = np.where(inexact, 0.0, moved).astype(np.int64)
    return decimal_from_int64(unscaled, nulls, precision, scale)


def _collect_numbers(
    column: TextColumnConverter,
    objects: list[Any],
    get: Callable[[Any], Any],
    kind: type[Any],
    inexact: Mask,
) -> tuple[np.ndarray[Any, Any], Mask | None]:
    """Return the numbers, and where they are null (1 there)."""
    try:
        numbers = np.fromiter(map(get, objects), kind, len(objects))
    except TypeError:
        numbers = None
    # NULL is not a number for numpy, which no JSON is.
    if numbers is not None and (kind is np.int64 or not np.isnan(numbers).any()):
        return numbers, None
    array = pa.array(list(map(get, objects)), pa.from_numpy_dtype(kind))
    _mark_null_violations(column, array, inexact)
    return array.fill_null(1).to_numpy(), make_null_mask(array)


def _mark_null_violations(column: TextColumnConverter, array: pa.Array, inexact: Mask) -> None:
    if array.null_count and not column.column.nullable:
        inexact |= make_null_mask(array)
