"""Conversion of Arrow values to equivalent Python values.

A value without a Python equivalent (a duration, a time outside its day, an unknown zone) stays an
Arrow scalar. Every column rejects it, with the name of its type in the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.chunk_types import Int64s, Mask, make_null_mask

UNIT_FRACTION_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Fraction digits of a second in each Arrow unit."""

EXTENSIONS_UNLIKE_STORAGE = frozenset({"arrow.uuid", "arrow.bool8", "pandas.period"})
"""Extensions whose values differ from their storage. A period is stored as a count of days or years."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_EPOCH_ORDINAL = 719_163
_DAY_S = 86_400
_DAY_MS = 86_400_000
_arrow_types = pa.types


class NanosecondDatetime(datetime):
    """Datetime with additional nanoseconds, as in `pandas.Timestamp`."""

    nanosecond: int


class NanosecondTime(time):
    """Time of day with additional nanoseconds."""

    nanosecond: int


class MapPairs(dict[object, object]):
    """Map with duplicate keys. It keeps all pairs, so that a JSON writer can reject them."""

    def __init__(self, pairs: list[tuple[object, object]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        """Return all pairs, including duplicate keys."""
        return self._pairs


def to_python_values(array: pa.Array) -> list[Any]:
    """Return one Python value for each value of an array, None for nulls."""
    kind: Any = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return _map_non_null(array.storage.to_pylist(), lambda raw: UUID(bytes=raw))
        if kind.extension_name == "arrow.bool8":
            return _map_non_null(array.storage.to_pylist(), bool)
        return (
            _to_arrow_scalars(array)
            if kind.extension_name in EXTENSIONS_UNLIKE_STORAGE
            else to_python_values(array.storage)
        )
    if _arrow_types.is_dictionary(kind):
        values = to_python_values(array.dictionary)
        return _map_non_null(array.indices.to_pylist(), values.__getitem__)
    plain = unwrap_encoding(array)
    if plain is not None:
        found = (reader for fits, reader in _VALUE_CONVERTERS if fits(plain.type))
        return next(found, _to_arrow_scalars)(plain)
    if _arrow_types.is_run_end_encoded(kind):
        values = to_python_values(array.values)
        return [values[place] for place in _expand_run_indexes(array).to_pylist()]
    return _to_arrow_scalars(array)


def unwrap_encoding(array: pa.Array) -> pa.Array | None:
    """Decode dictionaries, runs and unknown extensions. Return None if that is impossible.

    Extensions in `EXTENSIONS_UNLIKE_STORAGE` and types that Arrow cannot decode return None.
    """
    while True:
        kind: Any = array.type
        if isinstance(kind, pa.BaseExtensionType):
            if kind.extension_name in EXTENSIONS_UNLIKE_STORAGE:
                return None
            array = array.storage
            continue
        try:
            if _arrow_types.is_dictionary(kind):
                array = array.dictionary_decode()
            elif _arrow_types.is_run_end_encoded(kind):
                array = pc.run_end_decode(array)
            else:
                return array
        except pa.ArrowNotImplementedError:
            return None  # Arrow cannot decode some types as a whole.


def _expand_run_indexes(array: Any) -> pa.Array:
    """Return, for each position of a run-end encoded array, the index of its value."""
    numbers = pa.array(range(len(array.values)), pa.int64())
    runs: Any = pa.RunEndEncodedArray.from_arrays(array.run_ends, numbers)
    return pc.run_end_decode(runs.slice(array.offset, len(array)))


def has_nulls(array: pa.Array) -> bool:
    """Return True if any value is null, including values in a dictionary or run."""
    plain = unwrap_encoding(array)
    return (
        any(value is None for value in to_python_values(array))
        if plain is None
        else plain.null_count > 0
    )


@lru_cache(maxsize=256)
def parse_arrow_zone(name: str) -> tzinfo | None:
    """Return the zone of an Arrow type, or None if the zone does not exist."""
    if name.upper() in {"UTC", "ETC/UTC", "Z"}:
        return UTC
    if name[:1] in {"+", "-"}:
        hours, _, minutes = name[1:].partition(":")
        if not (hours.isdecimal() and (minutes or "0").isdecimal()):
            return None
        span = timedelta(hours=int(hours[:2]), minutes=int(minutes or hours[2:] or 0))
        return timezone(-span if name[0] == "-" else span) if span < timedelta(days=1) else None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def to_int64_and_nulls(array: pa.Array) -> tuple[Int64s, Mask | None]:
    """Return the integers of a fixed-width array (0 for nulls), and a null mask or None."""
    width = array.type.bit_width
    dtype = np.int64 if width == 64 else np.int32
    raw = np.frombuffer(array.buffers()[1], dtype=dtype, count=array.offset + len(array))
    numbers = raw[array.offset :].astype(np.int64)
    if not array.null_count:
        return numbers, None
    nulls = make_null_mask(array)
    numbers[nulls] = 0
    return numbers, nulls


def _map_non_null(values: Iterable[Any], make: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else make(value) for value in values]


def _to_arrow_scalars(array: Any) -> list[Any]:
    return [value if value.is_valid else None for value in array]


def _to_numpy_floats(array: Any) -> list[Any]:
    # Keep NumPy scalars, because their text is the shortest for their width.
    dtype = np.float16 if _arrow_types.is_float16(array.type) else np.float32
    numbers = np.frombuffer(array.buffers()[1], dtype, array.offset + len(array))[array.offset :]
    if not array.null_count:
        return list(numbers)
    valid = array.is_valid().to_pylist()
    return [number if here else None for number, here in zip(numbers, valid, strict=True)]


def _convert_temporal_counts(array: Any, make: Callable[[int], Any]) -> list[Any]:
    """Convert each count with `make`. Keep the Arrow scalar where it returns None."""
    numbers, nulls = to_int64_and_nulls(array)
    values = [make(number) for number in numbers.tolist()]
    for place, value in enumerate(values):
        if value is None:
            values[place] = array[place]
    if nulls is not None:
        for place in np.flatnonzero(nulls).tolist():
            values[place] = None
    return values


def _to_dates(array: Any) -> list[Any]:
    per_day = _DAY_MS if _arrow_types.is_date64(array.type) else 1
    return _convert_temporal_counts(array, lambda count: _to_date(count // per_day))


def _to_date(day: int) -> object:
    if _FIRST_DAY <= day <= _LAST_DAY:
        return date.fromordinal(day + _EPOCH_ORDINAL)
    return np.datetime64(day, "D")


def _to_times(array: Any) -> list[Any]:
    step = 10 ** (9 - UNIT_FRACTION_DIGITS[array.type.unit])
    return _convert_temporal_counts(array, lambda count: _to_time(count * step))


def _to_time(nanos: int) -> time | None:
    seconds, nanos = divmod(nanos, 10**9)
    if not 0 <= seconds < _DAY_S:
        return None
    fields = (seconds // 3600, seconds // 60 % 60, seconds % 60, nanos // 1000)
    if nanos % 1000 == 0:
        return time(*fields)
    fine = NanosecondTime(*fields)
    fine.nanosecond = nanos % 1000
    return fine


def _to_datetimes(array: Any) -> list[Any]:
    zone = None
    if array.type.tz is not None:
        zone = parse_arrow_zone(array.type.tz)
        if zone is None:
            return _to_arrow_scalars(array)
    unit = array.type.unit
    step = 10 ** (9 - UNIT_FRACTION_DIGITS[unit])

    def make_timestamp(count: int) -> object:
        try:
            return nanoseconds_to_datetime(count * step, zone)
        except OverflowError:
            # Use NumPy outside the years of `datetime`. NumPy supports only values without a zone.
            return np.datetime64(count, unit) if zone is None else None

    return _convert_temporal_counts(array, make_timestamp)


def nanoseconds_to_datetime(nanos: int, zone: tzinfo | None) -> datetime:
    """Return the time of a count of nanoseconds since 1970, naive or in a zone.

    Raises:
        OverflowError: If it is outside the years 1 to 9999.
    """
    us, fine_ns = divmod(nanos, 1000)
    moment = _EPOCH + timedelta(microseconds=us)
    moment = moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
    if not fine_ns:
        return moment
    fields = (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second)
    fine = NanosecondDatetime(*fields, moment.microsecond, moment.tzinfo, fold=moment.fold)
    fine.nanosecond = fine_ns
    return fine


def _to_nested_lists(array: Any) -> list[Any]:
    flat = iter(to_python_values(array.flatten()))
    return [
        None if length is None else [next(flat) for _ in range(length)]
        for length in pc.list_value_length(array).to_pylist()
    ]


def _to_map_dicts(array: Any) -> list[Any]:
    fields = [
        pa.field("key", array.type.key_type, nullable=False),
        pa.field("value", array.type.item_type),
    ]
    listed: Any = array.cast(pa.list_(pa.field("entries", pa.struct(fields), nullable=False)))
    keys, items = (to_python_values(part) for part in listed.flatten().flatten())
    pairs: Iterator[tuple[object, object]] = zip(keys, items, strict=True)
    lengths = pc.list_value_length(listed).to_pylist()
    return [
        None if length is None else _make_map_dict([next(pairs) for _ in range(length)])
        for length in lengths
    ]


def _make_map_dict(pairs: list[tuple[object, object]]) -> dict[object, object]:
    try:
        single = dict(pairs)
    except TypeError:
        return {None: None}  # Unhashable keys. All keys that are not strings are rejected later.
    return single if len(single) == len(pairs) else MapPairs(pairs)


def _to_struct_dicts(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        return _to_arrow_scalars(array)
    children = [to_python_values(child) for child in array.flatten()]
    rows = (
        [dict(zip(names, values, strict=True)) for values in zip(*children, strict=True)]
        if names
        else [{} for _ in range(len(array))]
    )
    if not array.null_count:
        return rows
    valid = array.is_valid().to_pylist()
    return [row if here else None for row, here in zip(rows, valid, strict=True)]


def type_checks(names: str) -> list[Callable[[pa.DataType], bool]]:
    """Return the `pyarrow.types` predicates for these type names."""
    return [getattr(pa.types, f"is_{name}") for name in names.split()]


_LIST_CHECKS = type_checks("list large_list fixed_size_list list_view large_list_view")
_EXACT_CHECKS = type_checks(
    "null boolean integer float64 decimal string large_string string_view binary large_binary "
    "binary_view fixed_size_binary"
)
_VALUE_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Any]]], ...] = (
    *((check, pa.Array.to_pylist) for check in _EXACT_CHECKS),
    (_arrow_types.is_floating, _to_numpy_floats),
    (_arrow_types.is_date, _to_dates),
    (_arrow_types.is_time, _to_times),
    (_arrow_types.is_timestamp, _to_datetimes),
    *((check, _to_nested_lists) for check in _LIST_CHECKS),
    (_arrow_types.is_map, _to_map_dicts),
    (_arrow_types.is_struct, _to_struct_dicts),
)
