"""Arrow values as the Python values that rows would hold, exactly.

What has no such value (a duration, a time beyond its day, a zone nobody knows) stays an Arrow
scalar, which every column refuses by its type's name.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.chunk_types import nulls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import tzinfo

    from snowmelt.schema.chunk_types import Int64s, Mask

DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Decimals of a second in each of Arrow's units."""

MORE_THAN_STORED = frozenset({"arrow.uuid", "arrow.bool8", "pandas.period"})
"""Extensions whose values are not those of their storage; a period is a count of days, or years."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_EPOCH_ORDINAL = 719_163
_DAY_S = 86_400
_DAY_MS = 86_400_000
_types = pa.types


class FineDatetime(datetime):
    """A datetime with the nanoseconds below its microsecond, as `pandas.Timestamp` has them."""

    nanosecond: int


class FineTime(time):
    """A time of day with the nanoseconds below its microsecond."""

    nanosecond: int


class Pairs(dict[object, object]):
    """A map whose keys repeat: its pairs are all of them, so that a writer of JSON can refuse."""

    def __init__(self, pairs: list[tuple[object, object]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        """Return every pair, repetitions included."""
        return self._pairs


def python_values(array: pa.Array) -> list[Any]:
    """Return one Python value for each value of an array; None where it is null."""
    kind: Any = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extended(array, kind.extension_name)
    if _types.is_dictionary(kind):
        values = python_values(array.dictionary)
        return _valued(array.indices.to_pylist(), values.__getitem__)
    plain = unwrapped(array)
    if plain is not None:
        return _reader_of(plain.type)(plain)
    if _types.is_run_end_encoded(kind):
        values = python_values(array.values)
        return [values[place] for place in _runs(array).to_pylist()]
    return _scalars(array)


def _extended(array: Any, name: str) -> list[Any]:
    if name == "arrow.uuid":
        return _valued(array.storage.to_pylist(), lambda raw: UUID(bytes=raw))
    if name == "arrow.bool8":
        return _valued(array.storage.to_pylist(), bool)
    return _scalars(array) if name in MORE_THAN_STORED else python_values(array.storage)


def unwrapped(array: pa.Array) -> pa.Array | None:
    """Undo dictionaries, runs and unknown extensions; None where values say more, or all."""
    while True:
        kind: Any = array.type
        if isinstance(kind, pa.BaseExtensionType):
            if kind.extension_name in MORE_THAN_STORED:
                return None
            array = array.storage
            continue
        try:
            if _types.is_dictionary(kind):
                array = array.dictionary_decode()
            elif _types.is_run_end_encoded(kind):
                array = pc.run_end_decode(array)
            else:
                return array
        except pa.ArrowNotImplementedError:
            return None  # of some types only values can be looked up


def _runs(array: Any) -> pa.Array:
    """Return for each place of an array of runs which of the runs' values is there."""
    numbers = pa.array(range(len(array.values)), pa.int64())
    runs: Any = pa.RunEndEncodedArray.from_arrays(array.run_ends, numbers)
    return pc.run_end_decode(runs.slice(array.offset, len(array)))


def has_nulls(array: pa.Array) -> bool:
    """Tell whether a value is null, also where a dictionary or a run stands for it."""
    plain = unwrapped(array)
    return (
        any(value is None for value in python_values(array))
        if plain is None
        else plain.null_count > 0
    )


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo | None:
    """Return the zone that an Arrow type names; None when there is none such."""
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


def counts(array: pa.Array) -> tuple[Int64s, Mask | None]:
    """Return the integers of a fixed-width array (0 where null), and where it is null."""
    width = array.type.bit_width
    dtype = np.int64 if width == 64 else np.int32
    raw = np.frombuffer(array.buffers()[1], dtype=dtype, count=array.offset + len(array))
    numbers = raw[array.offset :].astype(np.int64)
    if not array.null_count:
        return numbers, None
    nulls = nulls_of(array)
    numbers[nulls] = 0
    return numbers, nulls


def _reader_of(kind: pa.DataType) -> Callable[[Any], list[Any]]:
    for fits, reader in _READERS:
        if fits(kind):
            return reader
    return _scalars


def _valued(values: Iterable[Any], make: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else make(value) for value in values]


def _scalars(array: Any) -> list[Any]:
    return [value if value.is_valid else None for value in array]


def _listed(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _floats(array: Any) -> list[Any]:
    # As NumPy scalars they keep their own shortest text.
    dtype = np.float16 if _types.is_float16(array.type) else np.float32
    numbers = np.frombuffer(array.buffers()[1], dtype, array.offset + len(array))[array.offset :]
    if not array.null_count:
        return list(numbers)
    valid = array.is_valid().to_pylist()
    return [number if here else None for number, here in zip(numbers, valid, strict=True)]


def _each(array: Any, make: Callable[[int], Any]) -> list[Any]:
    """Make each value from its count; where that gives nothing, keep Arrow's scalar."""
    numbers, nulls = counts(array)
    values = [make(number) for number in numbers.tolist()]
    for place, value in enumerate(values):
        if value is None:
            values[place] = array[place]
    if nulls is not None:
        for place in np.flatnonzero(nulls).tolist():
            values[place] = None
    return values


def _dates(array: Any) -> list[Any]:
    per_day = _DAY_MS if _types.is_date64(array.type) else 1
    return _each(array, lambda count: _date(count // per_day))


def _date(day: int) -> object:
    if _FIRST_DAY <= day <= _LAST_DAY:
        return date.fromordinal(day + _EPOCH_ORDINAL)
    return np.datetime64(day, "D")


def _times(array: Any) -> list[Any]:
    step = 10 ** (9 - DIGITS[array.type.unit])
    return _each(array, lambda count: _time(count * step))


def _time(nanos: int) -> time | None:
    seconds, nanos = divmod(nanos, 10**9)
    if not 0 <= seconds < _DAY_S:
        return None
    fields = (seconds // 3600, seconds // 60 % 60, seconds % 60, nanos // 1000)
    if nanos % 1000 == 0:
        return time(*fields)
    fine = FineTime(*fields)
    fine.nanosecond = nanos % 1000
    return fine


def _timestamps(array: Any) -> list[Any]:
    zone = None
    if array.type.tz is not None:
        zone = zone_of(array.type.tz)
        if zone is None:
            return _scalars(array)
    unit = array.type.unit
    step = 10 ** (9 - DIGITS[unit])

    def moment(count: int) -> object:
        try:
            return _datetime(count * step, zone)
        except OverflowError:
            # Beyond the years of datetime, only NumPy has such clock times, and without a zone.
            return np.datetime64(count, unit) if zone is None else None

    return _each(array, moment)


def _datetime(nanos: int, zone: tzinfo | None) -> datetime:
    us, fine_ns = divmod(nanos, 1000)
    moment = _EPOCH + timedelta(microseconds=us)
    moment = moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
    if not fine_ns:
        return moment
    fields = (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second)
    fine = FineDatetime(*fields, moment.microsecond, moment.tzinfo, fold=moment.fold)
    fine.nanosecond = fine_ns
    return fine


def _lists(array: Any) -> list[Any]:
    flat = iter(python_values(array.flatten()))
    return [
        None if length is None else [next(flat) for _ in range(length)]
        for length in pc.list_value_length(array).to_pylist()
    ]


def _maps(array: Any) -> list[Any]:
    listed: Any = array.cast(_as_list(array.type))
    keys, items = (python_values(part) for part in listed.flatten().flatten())
    pairs: Iterator[tuple[object, object]] = zip(keys, items, strict=True)
    lengths = pc.list_value_length(listed).to_pylist()
    return [
        None if length is None else _mapping([next(pairs) for _ in range(length)])
        for length in lengths
    ]


def _as_list(kind: pa.MapType) -> pa.ListType:
    fields = [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
    return pa.list_(pa.field("entries", pa.struct(fields), nullable=False))


def _mapping(pairs: list[tuple[object, object]]) -> dict[object, object]:
    try:
        single = dict(pairs)
    except TypeError:
        return {None: None}  # keys that are containers: refused, as any key that is no text
    return single if len(single) == len(pairs) else Pairs(pairs)


def _structs(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        return _scalars(array)
    children = [python_values(child) for child in array.flatten()]
    rows = (
        [dict(zip(names, values, strict=True)) for values in zip(*children, strict=True)]
        if names
        else [{} for _ in range(len(array))]
    )
    if not array.null_count:
        return rows
    valid = array.is_valid().to_pylist()
    return [row if here else None for row, here in zip(rows, valid, strict=True)]


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        _types.is_list(kind)
        or _types.is_large_list(kind)
        or _types.is_fixed_size_list(kind)
        or _types.is_list_view(kind)
        or _types.is_large_list_view(kind)
    )


def _is_listed(kind: pa.DataType) -> bool:
    return (
        _types.is_null(kind)
        or _types.is_boolean(kind)
        or _types.is_integer(kind)
        or _types.is_float64(kind)
        or _types.is_decimal(kind)
        or _is_text_or_bytes(kind)
    )


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return bool(
        _types.is_string(kind)
        or _types.is_large_string(kind)
        or _types.is_string_view(kind)
        or _types.is_binary(kind)
        or _types.is_large_binary(kind)
        or _types.is_binary_view(kind)
        or _types.is_fixed_size_binary(kind)
    )


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Any]]], ...] = (
    (_is_listed, _listed),
    (_types.is_floating, _floats),
    (_types.is_date, _dates),
    (_types.is_time, _times),
    (_types.is_timestamp, _timestamps),
    (_is_list, _lists),
    (_types.is_map, _maps),
    (_types.is_struct, _structs),
)
