"""Whole columns at once: values of a column become an Arrow array in chunk form.

A fast conversion runs only when all values have exactly the types it knows and the result is
surely that of `rule_of`; in any doubt it returns None and the exact path takes over.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidRow
from snowmelt.schema.chunk_types import (
    chunk_type,
    decimal_from_int64,
    decimal_from_unscaled,
    decimal_from_words,
    nulls_of,
)
from snowmelt.schema.conversion import msgpack_columns as packed
from snowmelt.schema.conversion.numbers import fixed
from snowmelt.schema.conversion.timestamp_limits import are_in_range
from snowmelt.schema.conversion.value_rules import rule_of
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    TIMESTAMPS,
    Column,
    Compatibility,
    Kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.schema.chunk_types import Float64s, Int64s, Mask
    from snowmelt.schema.value_errors import Stored

# --- What cannot be converted at once is halved until most of it can.

# Below this many values, one after the other is quicker than another two attempts.
_FEW = 32


def in_pieces(
    values: Any,
    at_once: Callable[[Any], pa.Array | None],
    exactly: Callable[[Any], tuple[pa.Array | pa.ChunkedArray, list[int]]],
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """Convert a list or an Arrow array that `at_once` has declined as a whole.

    Returns the converted values in one array, and the positions that `exactly` refused.
    """
    if len(values) <= _FEW:
        return exactly(values)
    pieces: list[pa.Array] = []
    refused: list[int] = []
    # The stack holds ranges still to do, the next one last.
    middle = len(values) // 2
    ranges = [(middle, len(values)), (0, middle)]
    while ranges:
        start, end = ranges.pop()
        part = values[start:end]
        array: pa.Array | pa.ChunkedArray | None = at_once(part)
        if array is None and end - start > _FEW:
            middle = (start + end) // 2
            ranges += [(middle, end), (start, middle)]
            continue
        if array is None:
            array, positions = exactly(part)
            refused += [start + position for position in positions]
        pieces += array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return pa.chunked_array(pieces).combine_chunks(), refused


# --- Offsets of a time zone by whole days, so that clock times convert a column at a time.

DAY_US = 86_400_000_000
_DAY_S = 86_400
_HOUR_S = 3_600
_EPOCH_ZONES = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_MAX_DAYS = 50_000


class DayOffsets:
    """Remembers, per day, the offset of a zone if it is the same all day long."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._known: dict[int, int | None] = {}
        self._known_instants: dict[int, int | None] = {}

    def of_local(self, local_us: Int64s) -> Int64s | None:
        """Return offsets (seconds) of local clock times (µs since 1970).

        None when some day has a gap or an overlap, or lies at the calendar's ends.
        """
        return _by_day(local_us, self._known, self._probe_local)

    def of_instant(self, us: Int64s) -> Int64s | None:
        """Return offsets (seconds) at instants (µs since 1970).

        None when the offset changes on some day, or it lies at the calendar's ends.
        """
        return _by_day(us, self._known_instants, self._probe_instant)

    def _probe_instant(self, day: int) -> int | None:
        start = _EPOCH_ZONES.replace(tzinfo=UTC) + timedelta(days=day)
        return _single(
            {
                (start + timedelta(seconds=second)).astimezone(self._zone).utcoffset()
                for second in range(0, _DAY_S + 1, _HOUR_S)
            }
        )

    def _probe_local(self, day: int) -> int | None:
        start = _EPOCH_ZONES.replace(tzinfo=self._zone)
        offsets = {
            (start + timedelta(seconds=day * _DAY_S + second)).replace(fold=fold).utcoffset()
            for second in range(0, _DAY_S + 1, _HOUR_S)
            for fold in (0, 1)
        }
        return _single(offsets)


def _single(offsets: set[timedelta | None]) -> int | None:
    if len(offsets) > 1:
        return None
    offset = offsets.pop()
    return None if offset is None else offset // timedelta(seconds=1)


def _by_day(
    us: Int64s, known: dict[int, int | None], probe: Callable[[int], int | None]
) -> Int64s | None:
    first, last = int(us.min()) // DAY_US, int(us.max()) // DAY_US
    if first <= _FIRST_DAY or last >= _LAST_DAY:
        return None
    if first == last:
        # One number serves all rows: numpy stretches it.
        wanted, places = [first], None
    else:
        unique, places = np.unique(us // DAY_US, return_inverse=True)
        wanted = unique.tolist()
    if len(known) + len(wanted) > _MAX_DAYS:
        known.clear()
    offsets = []
    for day in wanted:
        if day not in known:
            known[day] = probe(day)
        offset = known[day]
        if offset is None:
            return None
        offsets.append(offset)
    found = np.array(offsets, dtype=np.int64)
    return found if places is None else found[places]


if TYPE_CHECKING:
    # The values, the types among them that are not None's, and whether some are None.
    Fast = Callable[[Sequence[object], set[type], bool], pa.Array | None]

_MAX_INT64 = 2**63 - 1
_INT64_DIGITS = 18
_TZ_BITS = 14
_TZ_BIAS = 1440
# Below 2**40 a double times a power of ten is off by less than 2**-12: rounding is certain
# unless the fraction is this near to a half.
_CERTAIN_BELOW = float(2**40)
_NEAR_HALF = 1e-3
_MAX_FLOAT_SCALE = 15
# A day within the years 1 to 9999, whatever the offset.
_FIRST_S, _LAST_S = -62_135_510_400, 253_402_214_399
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_DURATION = pa.duration("us")
# Of these kinds a value that a QuickForm took is of one type, or None.
_ONLY = {
    Kind.BOOLEAN: bool,
    Kind.TEXT: str,
    Kind.BINARY: bytes,
    Kind.DATE: date,
    Kind.TIME: time,
}
_NO_OFFSET = np.array(0, dtype=np.int64)
_MAX_OFFSET = timedelta(hours=18)
# So many times a column is not tried as one of the plainest values after it was none.
_PAUSE = 15
_PLAIN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}"
    r"(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-5][0-9])?"
)


class ColumnConverter:
    """Converts the values of one column, many at a time."""

    def __init__(
        self,
        column: Column,
        zone: tzinfo,
        compatibility: Compatibility = Compatibility.STRICT,
    ) -> None:
        self.column = column
        self.compatibility = compatibility
        self.type = chunk_type(column)
        self._zone = zone
        self._offsets: dict[str, DayOffsets] = {}
        self._rule = rule_of(column, zone, compatibility)
        # A clock time of TIMESTAMP_NTZ that passes through no zone is never moved.
        self._unzoned = column.kind is Kind.TIMESTAMP_NTZ and not compatibility.is_java
        self._limit = int64_limit(column)
        self._most_text = MAX_TEXT_BYTES if column.length is None else column.length
        self._pause = 0
        self._fast = self._choose()

    def convert(self, values: list[object]) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
        """Return the array, and the positions of values that were refused (null in the array)."""
        array = self._at_once(values)
        if array is not None:
            return array, []
        if self._fast is _never:
            return self._exactly(values)
        return in_pieces(values, self._at_once, self._exactly)

    def convert_checked(self, values: list[Any]) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
        """Do the same for values that a `QuickForm` took: mostly their types need no second look."""
        if not values:
            return self.convert(values)
        try:
            array = self._unasked(values)
        except (AttributeError, TypeError, OverflowError):  # some are None, or of other types
            array = None
        return self.convert(values) if array is None else (array, [])

    def _unasked(self, values: list[Any]) -> pa.Array | None:
        kind = self.column.kind
        if kind is Kind.FIXED:
            numbers = _packed(values, "q", pa.int64())
            return None if numbers is None else self.integers(_int64s(numbers), None)
        if kind is Kind.REAL:
            return _packed(values, "d", self.type)
        if kind in TIMESTAMPS:
            return self._moments(values, some_null=False)
        return self._fast(values, {_ONLY[kind]}, True)

    def _at_once(self, values: Sequence[object]) -> pa.Array | None:
        array = self._packed(values)
        if array is not None:
            return array
        types = set(map(type, values))
        nulls = type(None) in types
        types.discard(type(None))
        if nulls and not self.column.nullable:
            return None
        if not types:
            return pa.nulls(len(values), self.type)
        return self._fast(values, types, nulls)

    def _packed(self, values: Sequence[Any]) -> pa.Array | None:
        """Read values that are all of the plainest type; None where they may not be."""
        if self._pause or not values:
            self._pause = max(self._pause - 1, 0)
            return None
        kind = self.column.kind
        array = None
        if kind is Kind.TEXT:
            array = packed.texts(values, self._most_text)
        elif kind is Kind.REAL:
            array = packed.floats(values)
        elif kind is Kind.BOOLEAN:
            array = packed.booleans(values)
        elif kind in TIMESTAMPS:
            array = self._packed_moments(values)
        if array is None:
            self._pause = _PAUSE
        return array

    def _packed_moments(self, values: Sequence[Any]) -> pa.Array | None:
        zone = getattr(values[0], "tzinfo", None)
        clock = packed.clocks(values, zone) if type(zone) is timezone else None
        return None if clock is None else self.shown(clock, zone, None)

    def stored(self, values: Sequence[Stored]) -> pa.Array | pa.ChunkedArray:
        """Return the array of values that are stored values already."""
        if pa.types.is_decimal(self.type):
            unscaled: Sequence[int | None] = values  # type: ignore[assignment]
            return decimal_from_unscaled(unscaled, self.type.precision, self.type.scale)
        if self.column.kind is Kind.DATE:
            return pa.array(values, pa.int32()).view(self.type)
        return pa.array(values, self.type)

    def _exactly(self, values: Sequence[object]) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
        stored: list[Stored] = []
        refused: list[int] = []
        for index, value in enumerate(values):
            try:
                stored.append(self._rule(value, index))
            except InvalidRow:
                stored.append(None)
                refused.append(index)
        return self.stored(stored), refused

    def _choose(self) -> Fast:
        if self.column.kind in TIMESTAMPS:
            return self._timestamps
        return {
            Kind.FIXED: self._numbers,
            Kind.REAL: self._reals,
            Kind.BOOLEAN: self._booleans,
            Kind.TEXT: self._texts,
            Kind.BINARY: self._binaries,
            Kind.DATE: self._dates,
            Kind.TIME: self._times,
        }.get(self.column.kind, _never)

    def _numbers(self, values: Sequence[object], types: set[type], nulls: bool) -> pa.Array | None:
        if types == {int}:
            return self._integers(values, nulls)
        if types == {Decimal}:
            return _array(values, self.type)
        if types == {float}:
            return self._floats(values)
        return None

    def _integers(self, values: Sequence[object], nulls: bool) -> pa.Array | None:
        array = _array(values, pa.int64()) if nulls else _packed(values, "q", pa.int64())
        return None if array is None else self.integers(_int64s(array), _nulls(array))

    def integers(self, numbers: Int64s, nulls: Mask | None) -> pa.Array | None:
        """Return FIXED values; None where only the exact path knows."""
        if self._limit == 0:
            return None
        precision, scale = self.type.precision, self.type.scale
        if numbers.max() > self._limit or numbers.min() < -self._limit:
            return None
        if scale:
            numbers = numbers * np.int64(10**scale)
        return decimal_from_int64(numbers, nulls, precision, scale)

    def _floats(self, values: Sequence[object]) -> pa.Array | None:
        array = _array(values, pa.float64())
        return None if array is None else self.floats(_float64s(array), _nulls(array))

    def floats(self, numbers: Float64s, nulls: Mask | None) -> pa.Array | None:
        """Return FIXED values, rounded; None where only the exact path knows."""
        precision, scale = self.type.precision, self.type.scale
        if scale > _MAX_FLOAT_SCALE:
            return None
        with np.errstate(all="ignore"):
            scaled = numbers * float(10**scale)
        # NaN and infinities fail this test.
        if not (np.abs(scaled) < min(_CERTAIN_BELOW, float(10**precision) - 1)).all():
            return None
        magnitude = np.abs(scaled)
        whole = np.floor(magnitude)
        rest = magnitude - whole
        unscaled = np.copysign(whole + (rest > 0.5), scaled).astype(np.int64)
        for index in np.flatnonzero(np.abs(rest - 0.5) < _NEAR_HALF).tolist():
            try:
                unscaled[index] = fixed(float(numbers[index]), self.column, index)
            except InvalidRow:
                return None
        return decimal_from_int64(unscaled, nulls, precision, scale)

    def _reals(self, values: Sequence[object], types: set[type], nulls: bool) -> pa.Array | None:
        if types == {float} and not nulls:
            return _packed(values, "d", self.type)
        return _array(values, self.type) if types <= {float, int} else None

    def _booleans(self, values: Sequence[object], types: set[type], _: bool) -> pa.Array | None:
        return _array(values, self.type) if types == {bool} else None

    def _texts(self, values: Sequence[object], types: set[type], _: bool) -> pa.Array | None:
        if types != {str}:
            return None
        array = _array(values, self.type)
        return None if array is None else self.texts(array)

    def texts(self, array: pa.Array) -> pa.Array | None:
        """Return texts that fit the column; None when one does not."""
        limit = MAX_TEXT_BYTES if self.column.length is None else self.column.length
        longest = _longest(array)
        if longest <= limit <= MAX_TEXT_BYTES:
            return array
        if longest > MAX_TEXT_BYTES or pc.max(pc.utf8_length(array)).as_py() > limit:
            return None
        return array

    def _binaries(self, values: Sequence[object], types: set[type], _: bool) -> pa.Array | None:
        array = _array(values, self.type) if types == {bytes} else None
        return None if array is None else self.binaries(array)

    def binaries(self, array: pa.Array) -> pa.Array | None:
        """Return bytes that fit the column; None when some do not."""
        limit = MAX_BINARY_BYTES if self.column.byte_length is None else self.column.byte_length
        return None if _longest(array) > limit else array

    def _dates(self, values: Sequence[object], types: set[type], _: bool) -> pa.Array | None:
        return _array(values, self.type) if types == {date} else None

    def _times(self, values: Sequence[object], types: set[type], _: bool) -> pa.Array | None:
        array = _array(values, pa.time64("us")) if types == {time} else None
        if array is None:
            return None
        return self.times(_int64s(array), 6, _nulls(array))

    def times(self, clock: Int64s, digits: int, nulls: Mask | None) -> pa.Array:
        """Return times of day that were counted in units of 10**-digits s."""
        scale = self.type.scale
        units = _rescaled(clock, digits, scale)
        return decimal_from_int64(units, nulls, self.type.precision, scale)

    def _timestamps(
        self, values: Sequence[object], types: set[type], nulls: bool
    ) -> pa.Array | None:
        if types == {str}:
            read = _datetimes(values, java=self.compatibility.is_java)
            return None if read is None else self._moments(read, nulls)
        if types == {datetime}:
            return self._moments(values, nulls)  # type: ignore[arg-type]
        return None

    def _moments(self, values: list[datetime | None], some_null: bool) -> pa.Array | None:
        given: list[datetime] = values  # type: ignore[assignment]
        if some_null:
            given = [value for value in values if value is not None]
        zone = given[0].tzinfo
        if zone is not None and [value.tzinfo for value in given].count(zone) != len(given):
            return None
        if zone is not None and self.compatibility.is_java and not _knows_offset(given[0]):
            return None
        # Clock times: within one zone the difference does not ask for offsets.
        since = _since(_EPOCH.replace(tzinfo=zone), values, some_null)
        array = None if since is None else _array(since, _DURATION)
        if array is None:
            return None
        return self.shown(_int64s(array), zone, _nulls(array))

    def shown(self, clock: Int64s, zone: tzinfo | None, nulls: Mask | None) -> pa.Array | None:
        """Return timestamps whose clocks show so many µs since 1970, all in one zone or none."""
        if self.column.kind is Kind.TIMESTAMP_NTZ and (zone is not None or self._unzoned):
            return self._scaled(clock, 6, _NO_OFFSET, nulls)
        offsets = self._offset_of(zone, clock)
        if offsets is None:
            return None
        if self.column.kind is not Kind.TIMESTAMP_NTZ:
            clock = clock - offsets * 1_000_000
        return self._scaled(clock, 6, offsets, nulls)

    def instants(
        self, counted: Int64s, digits: int, zone: tzinfo | None, nulls: Mask | None
    ) -> pa.Array | None:
        """Return timestamps counted since 1970 in units of 10**-digits s.

        They are instants shown in `zone`, clock times without one. None where only the exact
        path knows.
        """
        unit = 10**digits
        first, last = _FIRST_S * unit, _LAST_S * unit
        if counted.min() < first or counted.max() > last:
            return None
        if zone is None and self._unzoned:
            return self._scaled(counted, digits, _NO_OFFSET, nulls)
        us = counted * (10 ** (6 - digits)) if digits <= 6 else counted // 1000
        if zone is None:
            offsets = self._offset_of(None, us)
            back = -1
        else:
            offsets = self._offset_at(zone, us)
            back = 1
        if offsets is None:
            return None
        if (zone is None) != (self.column.kind is Kind.TIMESTAMP_NTZ):
            counted = counted + offsets * (back * unit)
        return self._scaled(counted, digits, offsets, nulls)

    def _offset_at(self, zone: tzinfo, us: Int64s) -> Int64s | None:
        """Return the offsets in seconds at instants; None where only the exact path knows."""
        if type(zone) is timezone:
            return _fixed_offset(zone)
        if isinstance(zone, ZoneInfo) and zone.key:
            return self._offsets_in(zone).of_instant(us)
        return None

    def _offset_of(self, zone: tzinfo | None, clock: Int64s) -> Int64s | None:
        """Return the offsets in seconds; None where only the exact path knows."""
        zone = self._zone if zone is None else zone
        if type(zone) is timezone:
            return _fixed_offset(zone)
        if isinstance(zone, ZoneInfo) and zone.key:
            return self._offsets_in(zone).of_local(clock)
        return None

    def _scaled(
        self, counted: Int64s, digits: int, offsets: Int64s, nulls: Mask | None
    ) -> pa.Array | None:
        precision, scale = self.type.precision, self.type.scale
        if not are_in_range(counted, digits, self.column.kind):
            return None
        largest = max(int(counted.max()), -int(counted.min()))
        if scale > digits and largest > _MAX_INT64 // 10 ** (scale - digits):
            return None
        units = _rescaled(counted, digits, scale)
        if self.column.kind is not Kind.TIMESTAMP_TZ:
            return decimal_from_int64(units, nulls, precision, scale)
        minutes = np.where(offsets >= 0, offsets // 60, -(-offsets // 60)) + _TZ_BIAS
        low = (units << _TZ_BITS) + minutes
        return decimal_from_words(
            low.view(np.uint64), units >> (64 - _TZ_BITS), nulls, precision, scale
        )

    def _offsets_in(self, zone: ZoneInfo) -> DayOffsets:
        known = self._offsets.get(zone.key)
        if known is None:
            known = self._offsets[zone.key] = DayOffsets(zone)
        return known


def _knows_offset(value: datetime) -> bool:
    try:
        return value.utcoffset() is not None
    except Exception:  # noqa: BLE001 - code of a zone may raise anything
        return False


def int64_limit(column: Column) -> int:
    """Return the largest integer of a FIXED column whose unscaled value has 64 bits."""
    precision, scale = column.precision or 38, column.scale or 0
    return int(min(10**precision - 1, _MAX_INT64) // 10**scale)


def _never(values: Sequence[object], types: set[type], nulls: bool) -> pa.Array | None:  # noqa: ARG001
    return None


def _array(values: Sequence[object], arrow_type: pa.DataType) -> pa.Array | None:
    """Build an array; None when Arrow refuses a value or would need several pieces."""
    try:
        array = pa.array(values, arrow_type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None
    return array if isinstance(array, pa.Array) else None


def _packed(values: Sequence[object], code: str, arrow_type: pa.DataType) -> pa.Array | None:
    """Build an array of numbers without nulls, in a third of the time that Arrow takes."""
    try:
        words = struct.pack(f"{len(values)}{code}", *values)
    except struct.error:
        return None
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(words)])


def _int64s(array: pa.Array) -> Int64s:
    """Return the values of a new array; 0 where it is null."""
    return np.frombuffer(array.buffers()[1], dtype=np.int64, count=len(array))


def _float64s(array: pa.Array) -> Float64s:
    return np.frombuffer(array.buffers()[1], dtype=np.float64, count=len(array))


def _since(
    epoch: datetime, values: list[datetime | None], some_null: bool
) -> list[timedelta | None] | None:
    try:
        if some_null:
            return [None if value is None else value - epoch for value in values]
        return [value - epoch for value in values]  # type: ignore[operator]
    except TypeError:  # some have a zone, others none
        return None


def _nulls(array: pa.Array) -> Mask | None:
    return nulls_of(array) if array.null_count else None


def _longest(array: pa.Array) -> int:
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1)
    return int((offsets[1:] - offsets[:-1]).max())


def _rescaled(counted: Int64s, digits: int, scale: int) -> Int64s:
    """Turn units of 10**-digits s into units of 10**-scale s, floored."""
    if scale > digits:
        return counted * np.int64(10 ** (scale - digits))
    return counted // 10 ** (digits - scale) if scale < digits else counted


def _fixed_offset(zone: timezone) -> Int64s | None:
    offset = zone.utcoffset(None)
    if offset.microseconds:
        return None
    return np.array(offset // timedelta(seconds=1), dtype=np.int64)


def _datetimes(values: Sequence[object], *, java: bool) -> list[datetime | None] | None:
    """Read texts of the most usual form; None when some text needs the exact reader."""
    read: list[datetime | None] = []
    fits = _PLAIN.fullmatch
    try:
        for value in values:
            if value is None:
                read.append(None)
            elif isinstance(value, str) and fits(value) and not (java and value[10] == " "):
                read.append(datetime.fromisoformat(value))
            else:
                return None
    except ValueError:
        return None
    # fromisoformat takes offsets of nearly a day; the wire's limit is 18 hours.
    return read if all(_offset_allowed(value) for value in read) else None


def is_plain_moment(text: str, *, java: bool) -> bool:
    """Return True if a text is a timestamp in its most usual form."""
    return _datetimes([text], java=java) is not None


def _offset_allowed(value: datetime | None) -> bool:
    if value is None or value.tzinfo is None:
        return True
    offset = value.utcoffset()
    return offset is not None and abs(offset) <= _MAX_OFFSET
