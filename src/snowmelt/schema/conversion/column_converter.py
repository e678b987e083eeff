"""Conversion of whole columns: values of one column to an Arrow array in chunk form.

A fast conversion returns an array only if all values have exactly the types that it supports, and
the result certainly equals that of `make_value_rule`. Otherwise it returns None, and the exact path
runs.

A column that the fast path rejects is halved repeatedly. The exact path converts rejected ranges of
up to 32 values. Offsets of a time zone are cached for whole days, so that local times can be
converted as columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InternalError, InvalidRow
from snowmelt.schema.chunk_types import (
    Float64s,
    Int64s,
    Mask,
    chunk_arrow_type,
    decimal_from_int64,
    decimal_from_unscaled,
    decimal_from_words,
)
from snowmelt.schema.conversion.numbers import convert_fixed
from snowmelt.schema.conversion.packed_input_columns import (
    CompactColumn,
    insert_nulls,
    max_int64_for_column,
    try_compact_column,
)
from snowmelt.schema.conversion.timestamps import are_timestamps_in_range
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    Compatibility,
    LogicalType,
    StoredValue,
    TableSchema,
)

# --- Halving of values that cannot be converted as a whole.

# Ranges of up to this number of values are not halved: converting each value is faster.
_MIN_SPLIT_VALUES = 32


def convert_by_halving(
    values: Any,
    try_vectorized: Callable[[Any], pa.Array | None],
    convert_exactly: Callable[[Any], tuple[pa.Array | pa.ChunkedArray, list[int]]],
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """Convert a list or an Arrow array that `try_vectorized` rejected as a whole.

    Returns the values in one array, and the positions of values that `convert_exactly` rejected.
    """
    if len(values) <= _MIN_SPLIT_VALUES:
        return convert_exactly(values)
    pieces: list[pa.Array] = []
    refused: list[int] = []
    # Stack of remaining ranges, the next one last.
    middle = len(values) // 2
    ranges = [(middle, len(values)), (0, middle)]
    while ranges:
        start, end = ranges.pop()
        part = values[start:end]
        array: pa.Array | pa.ChunkedArray | None = try_vectorized(part)
        if array is None and end - start > _MIN_SPLIT_VALUES:
            middle = (start + end) // 2
            ranges += [(middle, end), (start, middle)]
            continue
        if array is None:
            array, positions = convert_exactly(part)
            refused += [start + position for position in positions]
        pieces += flatten_chunks([array])
    return pa.chunked_array(pieces).combine_chunks(), refused


def flatten_chunks(arrays: Iterable[pa.Array | pa.ChunkedArray]) -> list[pa.Array]:
    """Return the arrays with each chunked array replaced by its chunks."""
    return [
        chunk
        for array in arrays
        for chunk in (array.chunks if isinstance(array, pa.ChunkedArray) else [array])
    ]


# --- Time zone offsets of whole days, so that local times can be converted as columns.

DAY_US = 86_400_000_000
_DAY_S = 86_400
_HOUR_S = 3_600
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_MAX_CACHED_DAYS = 50_000


class ZoneOffsetCache:
    """Cache of a zone's offset for each day on which it is constant.

    With `of_utc` days are UTC days, otherwise local days.
    """

    def __init__(self, zone: ZoneInfo, *, of_utc: bool) -> None:
        self._zone = zone
        self._of_utc = of_utc
        self._offsets_s: dict[int, int | None] = {}

    def get_offsets(self, timestamps_us: Int64s) -> Int64s | None:
        """Return the offsets in seconds at these times in µs since 1970.

        Returns None if the offset changes on one of the days, or a day is at the end of the calendar.
        """
        first, last = int(timestamps_us.min()) // DAY_US, int(timestamps_us.max()) // DAY_US
        if first <= _FIRST_DAY or last >= _LAST_DAY:
            return None
        if first == last:
            # NumPy broadcasts a single offset to all rows.
            wanted, places = [first], None
        else:
            unique, places = np.unique(timestamps_us // DAY_US, return_inverse=True)
            wanted = unique.tolist()
        cache = self._offsets_s
        if len(cache) + len(wanted) > _MAX_CACHED_DAYS:
            cache.clear()
        offsets = []
        for day in wanted:
            if day not in cache:
                cache[day] = self._probe_day(day)
            offset = cache[day]
            if offset is None:
                return None
            offsets.append(offset)
        found = np.array(offsets, dtype=np.int64)
        return found if places is None else found[places]

    def _probe_day(self, day: int) -> int | None:
        start = _EPOCH + timedelta(days=day)
        hours = [start + timedelta(seconds=second) for second in range(0, _DAY_S + 1, _HOUR_S)]
        if self._of_utc:
            moments = [hour.replace(tzinfo=UTC).astimezone(self._zone) for hour in hours]
        else:
            moments = [hour.replace(tzinfo=self._zone, fold=f) for hour in hours for f in (0, 1)]
        offsets = {moment.utcoffset() for moment in moments}
        offset = offsets.pop()
        return None if offsets or offset is None else offset // timedelta(seconds=1)


# Fast conversion function. Arguments: values without None, and the set of their types.
Fast = Callable[[Sequence[Any], set[type]], pa.Array | None]

_MAX_INT64 = 2**63 - 1
_TZ_BITS = 14
_TZ_BIAS = 1440
# Below 2**40, a double times a power of ten has an error of less than 2**-12. Rounding is exact
# unless the fraction is within this distance of a half.
_MAX_CERTAIN_SCALED = float(2**40)
_HALF_MARGIN = 1e-3
_MAX_FLOAT_SCALE = 15
# Years 1 to 9999 minus a day at each end, so that values stay in range with any offset.
_FIRST_S, _LAST_S = -62_135_510_400, 253_402_214_399
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_DURATION_US_TYPE = pa.duration("us")
_ZERO_OFFSET = np.array(0, dtype=np.int64)
_MAX_OFFSET = timedelta(hours=18)
_PLAIN_TIMESTAMP_PATTERN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}"
    r"(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-5][0-9])?"
)


class ColumnConverter:
    """Converter of the values of one column, many at a time. Not thread-safe."""

    def __init__(
        self,
        column: Column,
        zone: tzinfo,
        compatibility: Compatibility = Compatibility.STRICT,
    ) -> None:
        self.column = column
        self.compatibility = compatibility
        self.type = chunk_arrow_type(column)
        self._zone = zone
        self._offset_caches: dict[tuple[str, bool], ZoneOffsetCache] = {}
        self._rule = make_value_rule(column, zone, compatibility)
        # True if local times of TIMESTAMP_NTZ stay unchanged, because no zone conversion applies.
        self._keeps_naive_timestamps = (
            column.kind is LogicalType.TIMESTAMP_NTZ and not compatibility.is_java
        )
        self._max_int64 = max_int64_for_column(column)
        self._convert_fast = self._select_fast_path()

    def convert(self, values: list[object]) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
        """Convert values. Return the array, and the positions of rejected values, which are null."""
        piece, refused = self.pack(values)
        return (self.unpack(piece) if isinstance(piece, CompactColumn) else piece), refused

    def pack(
        self, values: list[object]
    ) -> tuple[CompactColumn | pa.Array | pa.ChunkedArray, list[int]]:
        """Convert as `convert` does, but keep values of common types packed as bytes for `unpack`."""
        packed = self._try_pack(values)
        return self._convert_unpacked(values) if packed is None else (packed, [])

    def unpack(self, packed: CompactColumn) -> pa.Array | pa.ChunkedArray:
        """Return the array of values that were packed for this column or an equal one."""
        array = packed.to_array(self)
        if array is not None:
            return array
        array, refused = self._convert_unpacked(packed.to_python_values())
        if refused:
            raise InternalError(
                f"Column {self.column.display_name} rejects values that passed its check."
            )
        return array

    def _try_pack(self, values: Sequence[object]) -> CompactColumn | None:
        if not values:
            return None
        return try_compact_column(
            self.column, values, keeps_clock_times=self._keeps_naive_timestamps
        )

    def _convert_unpacked(
        self, values: list[object]
    ) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
        array = self._try_convert_by_type(values)
        if array is not None:
            return array, []
        if self.column.kind in SEMI_STRUCTURED_TYPES:
            return self._convert_exactly(values)
        return convert_by_halving(values, self._try_convert_vectorized, self._convert_exactly)

    def _try_convert_vectorized(self, values: Sequence[object]) -> pa.Array | None:
        packed = self._try_pack(values)
        array = None if packed is None else packed.to_array(self)
        return self._try_convert_by_type(values) if array is None else array

    def _try_convert_by_type(self, values: Sequence[object]) -> pa.Array | None:
        types = set(map(type, values))
        if type(None) not in types:
            return self._convert_fast(values, types) if values else pa.nulls(0, self.type)
        if not self.column.nullable:
            return None
        types.discard(type(None))
        if not types:
            return pa.nulls(len(values), self.type)
        present = [value for value in values if value is not None]
        array = self._convert_fast(present, types)
        null_bytes = bytes([value is None for value in values])
        return None if array is None else insert_nulls(array, null_bytes)

    def stored_to_array(self, values: Sequence[StoredValue]) -> pa.Array | pa.ChunkedArray:
        """Return an array of stored values."""
        if pa.types.is_decimal(self.type):
            unscaled: Sequence[int | None] = values  # type: ignore[assignment]
            return decimal_from_unscaled(unscaled, self.type.precision, self.type.scale)
        if self.column.kind is LogicalType.DATE:
            return pa.array(values, pa.int32()).view(self.type)
        return pa.array(values, self.type)

    def _convert_exactly(
        self, values: Sequence[object]
    ) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
        stored: list[StoredValue] = []
        refused: list[int] = []
        for index, value in enumerate(values):
            try:
                stored.append(self._rule(value, index))
            except InvalidRow:
                stored.append(None)
                refused.append(index)
        return self.stored_to_array(stored), refused

    def _select_fast_path(self) -> Fast:
        if self.column.kind in TIMESTAMP_TYPES:
            return self._convert_timestamps
        return {
            LogicalType.FIXED: self._convert_numbers,
            LogicalType.REAL: self._convert_floats,
            LogicalType.TEXT: self._convert_strings,
            LogicalType.BINARY: self._convert_binary,
            LogicalType.DATE: self._convert_dates,
            LogicalType.TIME: self._convert_times,
        }.get(self.column.kind, _no_fast_path)

    def _convert_numbers(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        return self.floats_to_fixed(np.array(values), None) if types == {float} else None

    def integers_to_fixed(self, numbers: Int64s, nulls: Mask | None) -> pa.Array | None:
        """Return FIXED values, or None if the exact path is needed."""
        if self._max_int64 == 0:
            return None
        precision, scale = self.type.precision, self.type.scale
        if numbers.max() > self._max_int64 or numbers.min() < -self._max_int64:
            return None
        if scale:
            numbers = numbers * np.int64(10**scale)
        return decimal_from_int64(numbers, nulls, precision, scale)

    def floats_to_fixed(self, numbers: Float64s, nulls: Mask | None) -> pa.Array | None:
        """Return rounded FIXED values, or None if the exact path is needed."""
        precision, scale = self.type.precision, self.type.scale
        if scale > _MAX_FLOAT_SCALE:
            return None
        with np.errstate(all="ignore"):
            scaled = numbers * float(10**scale)
        # The test is also False for NaN and infinities.
        if not (np.abs(scaled) < min(_MAX_CERTAIN_SCALED, float(10**precision) - 1)).all():
            return None
        magnitude = np.abs(scaled)
        whole = np.floor(magnitude)
        rest = magnitude - whole
        unscaled = np.copysign(whole + (rest > 0.5), scaled).astype(np.int64)
        for index in np.flatnonzero(np.abs(rest - 0.5) < _HALF_MARGIN).tolist():
            try:
                unscaled[index] = convert_fixed(float(numbers[index]), self.column, index)
            except InvalidRow:
                return None
        return decimal_from_int64(unscaled, nulls, precision, scale)

    def _convert_floats(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        return _try_make_array(values, self.type) if types <= {float, int} else None

    def _convert_strings(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        if types != {str}:
            return None
        array = _try_make_array(values, self.type)
        return None if array is None else self.check_string_lengths(array)

    def check_string_lengths(self, array: pa.Array) -> pa.Array | None:
        """Return the array if all strings fit the column, else None."""
        limit = MAX_TEXT_BYTES if self.column.length is None else self.column.length
        longest = _max_value_bytes(array)
        if longest <= limit <= MAX_TEXT_BYTES:
            return array
        if longest > MAX_TEXT_BYTES or pc.max(pc.utf8_length(array)).as_py() > limit:
            return None
        return array

    def _convert_binary(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        array = _try_make_array(values, self.type) if types == {bytes} else None
        return None if array is None else self.check_binary_lengths(array)

    def check_binary_lengths(self, array: pa.Array) -> pa.Array | None:
        """Return the array if all values fit the column, else None."""
        limit = MAX_BINARY_BYTES if self.column.byte_length is None else self.column.byte_length
        return None if _max_value_bytes(array) > limit else array

    def _convert_dates(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        return _try_make_array(values, self.type) if types == {date} else None

    def _convert_times(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        array = _try_make_array(values, pa.time64("us")) if types == {time} else None
        if array is None:
            return None
        return self.scale_times(_int64_values(array), 6, None)

    def scale_times(self, counts: Int64s, digits: int, nulls: Mask | None) -> pa.Array:
        """Convert times of day in units of 10**-digits s to the column's scale."""
        scale = self.type.scale
        units = _rescale_counts(counts, digits, scale)
        return decimal_from_int64(units, nulls, self.type.precision, scale)

    def _convert_timestamps(self, values: Sequence[Any], types: set[type]) -> pa.Array | None:
        if types == {str}:
            read = _parse_plain_timestamps(values, java=self.compatibility.is_java)
            return None if read is None else self._convert_datetimes(read)
        return self._convert_datetimes(values) if types == {datetime} else None

    def _convert_datetimes(self, values: Sequence[datetime]) -> pa.Array | None:
        zone = values[0].tzinfo
        if zone is not None and [value.tzinfo for value in values].count(zone) != len(values):
            return None
        if zone is not None and self.compatibility.is_java and not _has_offset(values[0]):
            return None
        # Python subtracts datetimes of one zone as local times, without offsets.
        epoch = _EPOCH.replace(tzinfo=zone)
        try:
            since = [value - epoch for value in values]
        except TypeError:  # Only some of the values have a zone.
            return None
        array = _try_make_array(since, _DURATION_US_TYPE)
        if array is None:
            return None
        return self.local_times_to_timestamps(_int64_values(array), zone, None)

    def local_times_to_timestamps(
        self, local_us: Int64s, zone: tzinfo | None, nulls: Mask | None
    ) -> pa.Array | None:
        """Convert local times (µs since 1970), all in `zone` or all without a zone, to timestamps.

        Returns None if the exact path is needed.
        """
        if self.column.kind is LogicalType.TIMESTAMP_NTZ and (
            zone is not None or self._keeps_naive_timestamps
        ):
            return self._scale_timestamps(local_us, 6, _ZERO_OFFSET, nulls)
        offsets = self._find_offsets(zone, local_us, of_utc=False)
        if offsets is None:
            return None
        if self.column.kind is not LogicalType.TIMESTAMP_NTZ:
            local_us = local_us - offsets * 1_000_000
        return self._scale_timestamps(local_us, 6, offsets, nulls)

    def epoch_counts_to_timestamps(
        self, counts: Int64s, digits: int, zone: tzinfo | None, nulls: Mask | None
    ) -> pa.Array | None:
        """Convert counts since 1970 in units of 10**-digits s to timestamps.

        With a `zone` the counts are UTC, otherwise local times. Returns None if the exact path is needed.
        """
        unit = 10**digits
        first, last = _FIRST_S * unit, _LAST_S * unit
        if counts.min() < first or counts.max() > last:
            return None
        if zone is None and self._keeps_naive_timestamps:
            return self._scale_timestamps(counts, digits, _ZERO_OFFSET, nulls)
        us = counts * (10 ** (6 - digits)) if digits <= 6 else counts // 1000
        offsets = self._find_offsets(zone, us, of_utc=zone is not None)
        if offsets is None:
            return None
        if (zone is None) != (self.column.kind is LogicalType.TIMESTAMP_NTZ):
            counts = counts + offsets * (-unit if zone is None else unit)
        return self._scale_timestamps(counts, digits, offsets, nulls)

    def _find_offsets(self, zone: tzinfo | None, us: Int64s, *, of_utc: bool) -> Int64s | None:
        """Return the offsets in seconds, or None if the exact path is needed.

        With `of_utc`, `us` are UTC times, otherwise local times. Without `zone`, the converter's zone applies.
        """
        zone = self._zone if zone is None else zone
        if type(zone) is timezone:
            return _fixed_offset_s(zone)
        if not (isinstance(zone, ZoneInfo) and zone.key):
            return None
        cache = self._offset_caches.get((zone.key, of_utc))
        if cache is None:
            cache = self._offset_caches[zone.key, of_utc] = ZoneOffsetCache(zone, of_utc=of_utc)
        return cache.get_offsets(us)

    def _scale_timestamps(
        self, counts: Int64s, digits: int, offsets: Int64s, nulls: Mask | None
    ) -> pa.Array | None:
        precision, scale = self.type.precision, self.type.scale
        if not are_timestamps_in_range(counts, digits, self.column.kind):
            return None
        largest = max(int(counts.max()), -int(counts.min()))
        if scale > digits and largest > _MAX_INT64 // 10 ** (scale - digits):
            return None
        units = _rescale_counts(counts, digits, scale)
        if self.column.kind is not LogicalType.TIMESTAMP_TZ:
            return decimal_from_int64(units, nulls, precision, scale)
        minutes = np.where(offsets >= 0, offsets // 60, -(-offsets // 60)) + _TZ_BIAS
        low = (units << _TZ_BITS) + minutes
        return decimal_from_words(
            low.view(np.uint64), units >> (64 - _TZ_BITS), nulls, precision, scale
        )


def _has_offset(value: datetime) -> bool:
    try:
        return value.utcoffset() is not None
    except Exception:  # noqa: BLE001 - code of a zone may raise anything
        return False


def _no_fast_path(values: Sequence[Any], types: set[type]) -> pa.Array | None:  # noqa: ARG001
    return None


def _try_make_array(values: Sequence[object], arrow_type: pa.DataType) -> pa.Array | None:
    """Build an array. Return None if Arrow rejects a value or needs several chunks."""
    try:
        array = pa.array(values, arrow_type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None
    return array if isinstance(array, pa.Array) else None


def _int64_values(array: pa.Array) -> Int64s:
    """Return the values of an array without nulls and without an offset."""
    return np.frombuffer(array.buffers()[1], dtype=np.int64, count=len(array))


def _max_value_bytes(array: pa.Array) -> int:
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1)
    return int((offsets[1:] - offsets[:-1]).max())


def _rescale_counts(counts: Int64s, digits: int, scale: int) -> Int64s:
    """Convert units of 10**-digits s to units of 10**-scale s, floored."""
    if scale > digits:
        return counts * np.int64(10 ** (scale - digits))
    return counts // 10 ** (digits - scale) if scale < digits else counts


def _fixed_offset_s(zone: timezone) -> Int64s | None:
    offset = zone.utcoffset(None)
    if offset.microseconds:
        return None
    return np.array(offset // timedelta(seconds=1), dtype=np.int64)


def _parse_plain_timestamps(values: Sequence[str], *, java: bool) -> list[datetime] | None:
    """Parse texts of the most common form. Return None if a text needs the exact parser."""
    fits = _PLAIN_TIMESTAMP_PATTERN.fullmatch
    if not all(fits(value) and not (java and value[10] == " ") for value in values):
        return None
    try:
        read = list(map(datetime.fromisoformat, values))
    except ValueError:
        return None
    # `fromisoformat` accepts offsets of nearly a day. The limit of the wire format is 18 hours.
    return read if all(map(_is_offset_allowed, read)) else None


def is_plain_timestamp(text: str, *, java: bool) -> bool:
    """Return True if a text is a timestamp in the most common form."""
    return _parse_plain_timestamps([text], java=java) is not None


def _is_offset_allowed(value: datetime) -> bool:
    if value.tzinfo is None:
        return True
    offset = value.utcoffset()
    return offset is not None and abs(offset) <= _MAX_OFFSET


def make_column_converters(
    schema: TableSchema, zone: tzinfo, compatibility: Compatibility
) -> list[ColumnConverter]:
    """Return a converter for each column. Not thread-safe, because converters cache offsets."""
    return [ColumnConverter(column, zone, compatibility) for column in schema.columns]
