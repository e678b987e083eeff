"""Many JSON objects at once by Arrow, where it makes of them what the exact way would."""

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

from snowmelt.load.parsers.arrow_block import BOM
from snowmelt.schema.chunk_types import decimal_from_int64, null_mask, to_contiguous_array
from snowmelt.schema.native_types import native_fields
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.load.column_converter import Conversion, TextColumn
    from snowmelt.load.parsers.json_documents import FlexJsonOptions, Paths

_DIRECT = {LogicalType.FIXED, LogicalType.REAL, LogicalType.BOOLEAN, LogicalType.TEXT}


class JsonBlocks:
    """Reads blocks of objects; remembers how keys are written, which Arrow must know before."""

    def __init__(self, conversion: Conversion, paths: Paths, options: FlexJsonOptions) -> None:
        self._columns = conversion.columns
        self._paths = paths
        self._strict = options.reject_on_materialized_type_error
        self._spelled: dict[int, tuple[str, ...]] = {}
        kinds = {column.column.kind for column in self._columns}
        self._can = not (
            kinds & SEMI_STRUCTURED_TYPES
            or options.flatten_arrays
            or options.reject_on_duplicate
            or options.reject_on_empty_key
            or options.omit_empty_keys
            or options.suppress_nonalphanumeric_key_chars
            or options.start_point
        )

    def read(
        self, data: bytes, count: int | None = None, *, is_json: bool = False
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]] | None:
        """Return native arrays and refused values by row; None if the exact way must be taken.

        `count` is how many objects there must be, if that is known; `is_json` says that they are
        known to be JSON.
        """
        if not self._can or not (is_json or _is_json(data)):
            return None
        if not self._spelled and not self._learn(data):
            return None
        read = self._read(data)
        if read is not None and self._learn_more(read.schema):
            read = self._read(data)
        if read is None or (count is not None and read.num_rows != count):
            return None
        return self._converted(read) if self._names_all(read.schema) else None

    def _learn(self, data: bytes) -> bool:
        end = data.find(b"\n")
        try:
            first = orjson.loads(data[: end if end >= 0 else None])
        except orjson.JSONDecodeError:
            return False
        if isinstance(first, dict):
            self._spelled = dict(self._paths.spelled(first))
        return bool(self._spelled)

    def _read(self, data: bytes) -> pa.Table | None:
        tree: dict[str, Any] = {}
        for place, path in self._spelled.items():
            inner = tree
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = self._type(place)
        try:
            return arrow_json.read_json(
                pa.BufferReader(data),
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=pa.schema(_fields(tree)),
                    newlines_in_values=True,
                    unexpected_field_behavior="infer",
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None

    def _type(self, place: int) -> pa.DataType:
        column = self._columns[place]
        direct = column.direct_type
        return direct if direct is not None and column.column.kind in _DIRECT else pa.string()

    def _learn_more(self, schema: pa.Schema) -> bool:
        """Remember paths of columns that had none before; tell whether there are any."""
        before = len(self._spelled)
        for place, path in self._paths.spelled(_record_of(schema)):
            self._spelled.setdefault(place, path)
        return len(self._spelled) > before

    def _names_all(self, schema: pa.Schema) -> bool:
        """Tell whether no column is written in two ways."""
        known = set(self._spelled.values())
        return all(path in known for _, path in self._paths.spelled(_record_of(schema)))

    def _converted(
        self, read: pa.Table
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]] | None:
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for place, column in enumerate(self._columns):
            path = self._spelled.get(place)
            values = pa.nulls(read.num_rows, self._type(place)) if path is None else _at(read, path)
            parts = None
            if column.column.kind in _DIRECT and column.direct_type is not None:
                parts = column.finished(values)
                if parts is None:
                    return None
            else:
                parts, reasons = column.convert(values)
                if self._strict or not column.column.nullable:
                    name = column.column.display_name
                    refused |= {row: (name, reason) for row, reason in reasons.items()}
            arrays.extend(parts)
        return arrays, refused


def _is_json(data: bytes) -> bool:
    """Tell whether nothing is there that is no JSON, but that Arrow may take."""
    if data.startswith(BOM) or b"NaN" in data or b"Inf" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(key, pa.struct(_fields(inner)) if isinstance(inner, dict) else inner)
        for key, inner in tree.items()
    ]


def _record_of(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    return {
        field.name: _record_of(field.type) if pa.types.is_struct(field.type) else None
        for field in fields
    }


def _at(read: pa.Table, path: tuple[str, ...]) -> pa.Array:
    values = to_contiguous_array(read.column(path[0]))
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

_UNREAD = (msgspec.DecodeError, ValueError, RecursionError)
_MAX_KEYS = 500
# From so many records that were left alone, new keys are learned.
_LEARN_FROM = 16
# Where more than one in so many is left alone, or so often one after the other, another way is better.
_FEW = 8
_PATIENCE = 3
# Up to here no two decimals of a scale round to the same double, and each rounds back by itself.
_EXACT = 2**50
_MAX_SCALE = 22
_MAX_INT64_DIGITS = 18
_NEGATIVE_ZERO = re.compile(rb"-0(?![0-9.eE])")


@dataclass(frozen=True, slots=True)
class Shaped:
    """What became of some records.

    Attributes:
        arrays: Native arrays of those that were read.
        refused: The column and the reason, by row of these arrays.
        rest: Places of records that were left alone.
    """

    arrays: list[pa.Array]
    refused: dict[int, tuple[str, str]]
    rest: list[int]


class JsonStructs:
    """Reads records; remembers which keys they have."""

    def __init__(self, conversion: Conversion, paths: Paths, options: FlexJsonOptions) -> None:
        self._columns = conversion.columns
        self._paths = paths
        self._strict = options.reject_on_materialized_type_error
        self._keys: dict[str, int] = {}
        self._decode: Callable[[bytes], Any] = _nothing
        self._failures = 0
        self._can = paths.is_plain and not (
            options.flatten_arrays
            or options.reject_on_duplicate
            or options.reject_on_empty_key
            or options.start_point
            or any(map(_is_out_of_reach, conversion.columns))
        )

    def read(self, records: Sequence[bytes]) -> Shaped | None:
        """Read records; None where another way is better."""
        if not self._can or not records or self._failures >= _PATIENCE:
            return None
        shaped = None
        if self._keys or self._learn(records[:_LEARN_FROM]):
            objects, rest = self._objects(records)
            if _are_many(rest, records) and self._learn([records[at] for at in rest[:_LEARN_FROM]]):
                objects, rest = self._objects(records)
            if not _are_many(rest, records):
                shaped = self._shaped(records, objects, rest)
                self._learn([records[at] for at in rest[:_LEARN_FROM]])
        self._failures = self._failures + 1 if shaped is None else 0
        return shaped

    def _learn(self, records: Sequence[bytes]) -> bool:
        """Remember the keys of records; tell whether there are new ones."""
        before = len(self._keys)
        for record in records:
            try:
                value = orjson.loads(record)
            except orjson.JSONDecodeError:
                continue
            if isinstance(value, dict):
                for key in value:
                    place = self._paths.place(key)
                    self._keys.setdefault(key, -1 if place is None else place)
        if len(self._keys) == before:
            return False
        places = [place for place in self._keys.values() if place >= 0]
        # Where two keys mean one column, the last in the object counts.
        self._can = len(set(places)) == len(places) and len(self._keys) <= _MAX_KEYS
        if not self._can:
            return False
        names = {f"k{at}": key for at, key in enumerate(self._keys)}
        fields: list[tuple[str, Any, Any]] = [
            (name, Any if place < 0 else _type_of(self._columns[place]), None)
            for name, place in zip(names, self._keys.values(), strict=True)
        ]
        struct = msgspec.defstruct(
            "Record", fields, rename=names, forbid_unknown_fields=True, gc=False
        )
        self._decode = msgspec.json.Decoder(struct).decode
        return True

    def _objects(self, records: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        """Return the objects of the records that are as expected, and the places of the others."""
        objects: list[Any] = []
        rest: list[int] = []
        left = iter(records)
        while True:
            try:
                # What was read before a record fails stays in the list.
                objects.extend(map(self._decode, left))
            except _UNREAD:
                rest.append(len(objects) + len(rest))
            else:
                return objects, rest

    def _shaped(
        self, records: Sequence[bytes], objects: list[Any], rest: list[int]
    ) -> Shaped | None:
        odd = np.zeros(len(objects), np.bool_)
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        names = {place: f"k{at}" for at, place in enumerate(self._keys.values())}
        taken = np.delete(np.arange(len(records)), rest)
        for place, column in enumerate(self._columns):
            name = names.get(place)
            get = attrgetter(name) if name else _nothing
            parts, reasons, zeros = _converted(column, objects, get, odd)
            for at in zeros:
                odd[at] |= _NEGATIVE_ZERO.search(records[taken[at]]) is not None
            arrays.extend(parts)
            if self._strict or not column.column.nullable:
                name = column.column.display_name
                refused |= {row: (name, reason) for row, reason in reasons.items()}
        left = np.flatnonzero(odd)
        if _are_many(left, records):
            return None
        if len(left):
            kept = pa.array(~odd)
            arrays = [array.filter(kept) for array in arrays]
            rows = np.cumsum(~odd) - 1
            refused = {int(rows[at]): why for at, why in refused.items() if not odd[at]}
            rest = sorted(rest + taken[left].tolist())
        return Shaped(arrays, refused, rest)


def _nothing(_: object) -> None:
    return None


def _is_out_of_reach(column: TextColumn) -> bool:
    described = column.column
    is_decimal = described.kind is LogicalType.FIXED
    return described.kind in SEMI_STRUCTURED_TYPES or (
        is_decimal and (described.scale or 0) > _MAX_SCALE
    )


def _type_of(column: TextColumn) -> Any:
    if column.direct_type is None:
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


def _are_many(places: Sequence[int] | np.ndarray[Any, Any], records: Sequence[bytes]) -> bool:
    return len(places) * _FEW > len(records)


def _converted(
    column: TextColumn, objects: list[Any], get: Callable[[Any], Any], odd: Mask
) -> tuple[list[pa.Array], dict[int, str], list[int]]:
    """Return native arrays, why values were refused, and where a zero may have lost its sign.

    Rows that must be read exactly are marked in `odd`.
    """
    described = column.column
    kind = described.kind if column.direct_type is not None else LogicalType.TEXT
    if kind is LogicalType.FIXED:
        return [_decimals(column, objects, get, odd)], {}, []
    if kind is LogicalType.REAL:
        numbers, nulls = _numbers(column, objects, get, np.float64, odd)
        zeros = np.flatnonzero((numbers == 0) & ~np.signbit(numbers))
        return [pa.array(numbers, pa.float64(), mask=nulls)], {}, zeros.tolist()
    if kind is LogicalType.BOOLEAN:
        array = pa.array(list(map(get, objects)), pa.bool_())
        _mark_nulls(column, array, odd)
        return [array], {}, []
    array = pa.array(list(map(get, objects)), pa.string())
    parts = column.finished(array) if described.kind is LogicalType.TEXT else None
    if parts is not None:
        return parts, {}, []
    return *column.convert(array), []


def _decimals(
    column: TextColumn, objects: list[Any], get: Callable[[Any], Any], odd: Mask
) -> pa.Array:
    described = column.column
    scale, precision = described.scale or 0, described.precision or 38
    try:
        numbers, nulls = _numbers(column, objects, get, np.float64 if scale else np.int64, odd)
    except (OverflowError, pa.ArrowException):
        odd |= True
        return pa.nulls(len(objects), native_fields(described)[0].type)
    if not scale:
        if precision <= _MAX_INT64_DIGITS:
            odd |= (numbers >= 10**precision) | (numbers <= -(10**precision))
        return decimal_from_int64(np.where(odd, 0, numbers), nulls, precision, 0)
    moved = np.rint(numbers * float(10**scale))
    bound = min(float(_EXACT), float(10**precision))
    odd |= ~((np.abs(moved) < bound) & (moved / float(10**scale) == numbers))
    unscaled = np.where(odd, 0.0, moved).astype(np.int64)
    return decimal_from_int64(unscaled, nulls, precision, scale)


def _numbers(
    column: TextColumn, objects: list[Any], get: Callable[[Any], Any], kind: type[Any], odd: Mask
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
    _mark_nulls(column, array, odd)
    return array.fill_null(1).to_numpy(), null_mask(array)


def _mark_nulls(column: TextColumn, array: pa.Array, odd: Mask) -> None:
    if array.null_count and not column.column.nullable:
        odd |= null_mask(array)
