"""Columnar encoder: converts Arrow columns to request bodies without a Python call per value.

The result equals that of `wire.messages.RequestWriter`. For large batches, Arrow kernels format one
column at a time as strings, and join these with the JSON text between the values. msgspec encodes
small batches, strings that need escapes, and columns in which only some values need quotation
marks.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.caller.arrow_types import (
    MIN_COLUMNAR_ROWS,
    floor_to_fraction_digits,
    make_row_prefixes,
    parse_time_zone,
    to_arrow_type,
)
from snowmelt.functions.errors import BatchInvalid
from snowmelt.functions.signature import FunctionArgument
from snowmelt.functions.wire.messages import make_row_numbers
from snowmelt.functions.wire.values import BinaryForm
from snowmelt.json import exact
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, LogicalType

_UNQUOTED_TYPES = frozenset({LogicalType.FIXED, LogicalType.BOOLEAN, *SEMI_STRUCTURED_TYPES})
_UNCHECKED_TAKE = pc.TakeOptions(boundscheck=False)


class RequestEncoder:
    """Encoder of requests of one function from Arrow columns. Thread-safe."""

    def __init__(
        self,
        arguments: Sequence[FunctionArgument],
        zone: str = "UTC",
        *,
        binary: BinaryForm = BinaryForm.HEX,
        array_as_string: bool = False,
    ) -> None:
        """Create an encoder.

        Args:
            arguments: Arguments of the function.
            zone: Time zone of the session, for timestamps with time zone.
            binary: Text form of BINARY.
            array_as_string: Write an ARRAY as a string that contains JSON instead of a JSON array. The
                published format specifies strings for all types except objects.
        """
        self._argument_encoders = [
            _ArgumentEncoder(each, zone, binary, array_as_string=array_as_string)
            for each in arguments
        ]
        marks = [each.quote for each in self._argument_encoders]
        between = [f"{mark},{after}" for mark, after in pairwise(marks)]
        # JSON text between the columns of a row, and after the last row.
        self._separators = pa.array(
            [*between, *(f"{mark}]]}}" for mark in marks[-1:])], pa.string()
        )

    def to_json_values(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return the values of each argument in the form that msgspec encodes.

        Raises:
            BatchInvalid: If a column does not fit its argument.
        """
        return [
            each.to_json_values(column)
            for each, column in zip(self._argument_encoders, columns, strict=False)
        ]

    def encode_body(self, row_count: int, columns: Sequence[pa.Array]) -> bytes:
        """Return the body of a batch.

        Args:
            row_count: Number of rows.
            columns: Columns by argument. Further columns are not sent.

        Raises:
            BatchInvalid: If a column does not fit its argument.
        """
        if row_count >= MIN_COLUMNAR_ROWS and self._argument_encoders:
            found = self._encode_by_column(row_count, columns)
            if found is not None:
                return found
        return exact.serialize_json(
            {
                "data": list(
                    zip(make_row_numbers(row_count), *self.to_json_values(columns), strict=True)
                )
            }
        )

    def _encode_by_column(self, row_count: int, columns: Sequence[pa.Array]) -> bytes | None:
        texts = []
        for each, column in zip(self._argument_encoders, columns, strict=False):
            found = each.to_json_fragments(column)
            if found is None:
                return None
            if len(found) != row_count:
                raise ValueError("columns differ in their number of rows")
            texts.append(found)
        before = make_row_prefixes(
            row_count, self._argument_encoders[0].quote, self._argument_encoders[-1].quote
        )
        pieces = pa.concat_arrays([before, self._separators, *texts])
        body = pc.call_function(
            "array_take", [pieces, _make_take_indices(row_count, len(texts))], _UNCHECKED_TAKE
        )
        return body.buffers()[2].to_pybytes()  # type: ignore[no-any-return]


@lru_cache(maxsize=8)
def _make_take_indices(row_count: int, column_count: int) -> pa.Array:
    """Return the indices that order the segments of a body: row prefixes, separators and values."""
    rows = np.arange(row_count, dtype=np.int32)
    order = np.empty((row_count, 2 * column_count), np.int32)
    order[:, 0] = rows
    for column in range(column_count):
        order[:, 2 * column + 1] = row_count + column_count + column * row_count + rows
        if column:
            order[:, 2 * column] = row_count + column - 1
    return pa.array(np.append(order.ravel(), np.int32(row_count + column_count - 1)))


class _ArgumentEncoder:
    """Encoder of one argument."""

    def __init__(
        self, argument: FunctionArgument, zone: str, binary: BinaryForm, *, array_as_string: bool
    ) -> None:
        self._name = argument.name
        self._type = sql_type = argument.type
        self._kind = (
            LogicalType.TEXT
            if array_as_string and sql_type.kind is LogicalType.ARRAY
            else sql_type.kind
        )
        self._arrow_type = to_arrow_type(sql_type, zone)
        self._format_column = get_column_formatter(self._kind, zone, binary)
        self.quote = "" if self._kind in _UNQUOTED_TYPES else '"'

    def to_json_fragments(self, column: pa.Array) -> pa.StringArray | None:
        """Return JSON without quotation marks, or None if values must be encoded one by one."""
        # Arrow drops the point of whole floats. NULL must have no quotation marks.
        if self._kind is LogicalType.REAL or (self.quote and column.null_count):
            return None
        found = self._format_texts(column)
        if self._kind is LogicalType.TEXT and needs_escapes(found):
            return None
        return found.fill_null("null") if found.null_count else found

    def to_json_values(self, column: pa.Array) -> list[Any]:
        """Return the value that msgspec writes for each value."""
        if self._kind is LogicalType.REAL:
            column = self._cast_column(column)
            values: list[Any] = column.to_pylist()
            finite = pc.is_finite(column)
            if pc.all(finite).as_py() is False:
                for place in pc.indices_nonzero(pc.invert(finite)).to_pylist():
                    value = values[place]
                    values[place] = "NaN" if value != value else ("inf" if value > 0 else "-inf")
            return values
        if self._kind is LogicalType.BOOLEAN or column.type == pa.int64():
            return column.to_pylist()  # type: ignore[no-any-return]
        texts = self._format_texts(column).to_pylist()
        if self.quote:
            return texts  # type: ignore[no-any-return]
        return [None if text is None else msgspec.Raw(text) for text in texts]

    def _format_texts(self, column: pa.Array) -> pa.StringArray:
        column = self._cast_column(column)
        if self._type.length is not None:
            is_text = self._kind is LogicalType.TEXT
            lengths = pc.utf8_length(column) if is_text else pc.binary_length(column)
            longest = pc.max(lengths).as_py()
            if longest is not None and longest > self._type.length:
                raise BatchInvalid(
                    reason=f"argument {self._name} of row {pc.index(lengths, longest).as_py()} has "
                    f"{longest} {'characters' if is_text else 'bytes'}, more than "
                    f"{self._type.format_with_parameters()}"
                )
        if self._kind in TIMESTAMP_TYPES:
            column = floor_to_fraction_digits(column, self._type.scale)
        try:
            return self._format_column(column)
        except pa.ArrowException as error:
            raise self._make_type_error(column) from error

    def _cast_column(self, column: pa.Array) -> pa.Array:
        kind, form = column.type, self._arrow_type
        if kind == form:
            return column
        if self._kind is LogicalType.FIXED and (
            pa.types.is_string(kind) or pa.types.is_integer(kind)
        ):
            return column
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(form) and form.tz and kind.tz:
            form = pa.timestamp("us", kind.tz)  # The zone of the type does not change the values.
        try:
            return column.cast(form)
        except pa.ArrowException as error:
            raise self._make_type_error(column) from error

    def _make_type_error(self, column: pa.Array) -> BatchInvalid:
        return BatchInvalid(
            reason=f"argument {self._name} has type {column.type}, expected {self._arrow_type}"
        )


ColumnFormatter: TypeAlias = Callable[[pa.Array], pa.StringArray]

_NUMBER_PATTERN = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_SPACE_BYTE = 32
# Arrow writes decimals with exponents only if their scale is larger.
_MAX_PLAIN_SCALE = 6
_STRING_TYPE = pa.string()
_INT32_FORMAT = Struct("<i")
_CAST_TO_STRING = pc.CastOptions(target_type=_STRING_TYPE)
_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US
_MINUTE = dt.timedelta(minutes=1)
# Arrow does not apply a zone's rule after its last listed change, in 2037.
_LAST_LISTED_ZONE_CHANGE_US = 2_114_380_800 * _SECOND_US  # 2037-01-01


def get_column_formatter(kind: LogicalType, zone: str, binary: BinaryForm) -> ColumnFormatter:
    """Return a function that formats a column of a type as strings; not for FLOAT.

    The strings have no quotation marks, although JSON requires them for types other than NUMBER,
    BOOLEAN and the semi-structured types. NULL stays NULL.
    """
    if kind is LogicalType.BINARY:
        return lambda column: _encode_bytes(column, binary)
    if kind in {LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ}:
        return lambda column: _format_zoned_timestamps(column, zone)
    return _COLUMN_FORMATTERS.get(kind, lambda column: column)


def needs_escapes(column: pa.StringArray) -> bool:
    """Return True if any string has a character that JSON escapes."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return False
    first, last = (
        int(_INT32_FORMAT.unpack_from(offsets, 4 * (column.offset + at))[0])
        for at in (0, len(column))
    )
    written = data.slice(first, last - first).to_pybytes()
    if not written:
        return False
    return (
        b'"' in written
        or b"\\" in written
        or int(np.minimum.reduce(np.frombuffer(written, np.uint8))) < _SPACE_BYTE
    )


def _cast_to_text(column: pa.Array) -> pa.StringArray:
    return pc.call_function("cast", [column], _CAST_TO_STRING)


def _format_numbers(column: pa.Array) -> pa.StringArray:
    if pa.types.is_decimal(column.type):
        return _format_decimals(column)
    if column.type != _STRING_TYPE:
        return _cast_to_text(column)
    if pc.all(pc.match_substring_regex(column, _NUMBER_PATTERN)).as_py() is False:
        raise pa.ArrowInvalid("it has text that is not a number")
    return column


def _format_decimals(column: pa.Array) -> pa.StringArray:
    """Return strings without exponents, which Arrow writes for decimals close to zero."""
    texts = _cast_to_text(column)
    if column.type.scale <= _MAX_PLAIN_SCALE:
        return texts
    places = pc.indices_nonzero(pc.match_substring(texts, "E").fill_null(False))
    if not len(places):
        return texts
    plain = texts.to_pylist()
    for place, value in zip(places.to_pylist(), column.take(places).to_pylist(), strict=True):
        plain[place] = format(value, "f")
    return pa.array(plain, _STRING_TYPE)


def _format_timestamps(column: pa.Array) -> pa.StringArray:
    return _format_optional_fraction(column, pa.timestamp("s"))


def _format_optional_fraction(column: pa.Array, second_type: pa.DataType) -> pa.StringArray:
    try:
        return column.cast(second_type).cast(pa.string())
    except pa.ArrowInvalid:
        pass  # Some values have a fraction.
    texts = column.cast(pa.string())
    if pc.any(pc.ends_with(texts, ".000000")).as_py():
        return pc.replace_substring_regex(texts, r"\.000000$", "")
    return texts


def _format_zoned_timestamps(column: pa.Array, zone: str) -> pa.StringArray:
    """Return strings `YYYY-MM-DD HH:MM:SS[.fraction] +HHMM` in the zone.

    Offsets of local mean time have seconds, which the format cannot represent. They are rounded to
    minutes, and the time of day is adjusted so that the UTC time stays the same.
    """
    utc = column.view(pa.int64())
    minutes = _compute_utc_offsets(utc, zone)
    local = pc.add(utc, pc.multiply(minutes, _MINUTE_US)).view(pa.timestamp("us"))
    distinct = minutes.dictionary_encode()
    offsets = pa.array(
        [_format_utc_offset(each) for each in distinct.dictionary.to_pylist()], pa.string()
    )
    return pc.binary_join_element_wise(
        _format_timestamps(local), offsets.take(distinct.indices), " "
    )


def _compute_utc_offsets(utc: pa.Array, zone: str) -> pa.Array:
    """Return the zone's UTC offset at each timestamp, in whole minutes."""
    found = parse_time_zone(zone)
    fixed = found.utcoffset(None)
    if fixed is not None:
        minutes = pa.scalar(round(fixed / _MINUTE), pa.int64())
        return pc.if_else(utc.is_valid(), minutes, pa.scalar(None, pa.int64()))
    latest = pc.max(utc).as_py()
    if latest is not None and latest >= _LAST_LISTED_ZONE_CHANGE_US:
        instants = utc.view(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).to_pylist()
        offsets = [
            None if each is None else each.astimezone(found).utcoffset() for each in instants
        ]
        minutes = [None if each is None else round(each / _MINUTE) for each in offsets]
        return pa.array(minutes, pa.int64())
    local = pc.local_timestamp(utc.view(pa.timestamp("us", zone))).view(pa.int64())
    seconds = pc.divide(pc.subtract(local, utc), _SECOND_US)
    return pc.round(pc.divide(seconds.cast(pa.float64()), 60.0)).cast(pa.int64())


def _format_utc_offset(minutes: int | None) -> str | None:
    if minutes is None:
        return None
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}{rest:02}"


def _encode_bytes(column: pa.Array, binary: BinaryForm) -> pa.StringArray:
    def encode(value: bytes) -> str:
        return value.hex().upper() if binary is BinaryForm.HEX else b64encode(value).decode()

    texts = [None if each is None else encode(each) for each in column.to_pylist()]
    return pa.array(texts, pa.string())


_COLUMN_FORMATTERS: dict[LogicalType, ColumnFormatter] = {
    LogicalType.FIXED: _format_numbers,
    LogicalType.BOOLEAN: _cast_to_text,
    LogicalType.DATE: _cast_to_text,
    LogicalType.TIME: lambda column: _format_optional_fraction(column, pa.time32("s")),
    LogicalType.TIMESTAMP_NTZ: _format_timestamps,
}
