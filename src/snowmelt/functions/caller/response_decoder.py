"""Columnar decoder: converts response bodies to Arrow arrays, usually without a call per value.

The result equals that of `wire.messages.ResponseReader`. A fast path is used only if its result is
certain to be the same; otherwise `ResponseReader` decodes the body.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from types import GenericAlias
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
from snowmelt.functions.errors import ResponseInvalid
from snowmelt.functions.signature import SqlType
from snowmelt.functions.wire.messages import ResponseReader, RowFailure, make_row_numbers
from snowmelt.functions.wire.values import BinaryForm, Formats
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, LogicalType

ArrayConverter: TypeAlias = Callable[[pa.Array], pa.Array]

_get_row_number, _get_value = itemgetter(0), itemgetter(1)
_QUOTE_BYTE, _SPACE_BYTE = 0x22, 0x20
_WIDE_DECIMAL_TYPE = pa.decimal256(76, 38)
_INT64_TYPE = pa.int64()
_MAX_DECIMAL_DIGITS = 38
_MAX_DOUBLE_DIGITS = 17
_DATE_RANGE_DAYS = (-719_162, 2_932_896)  # Days since 1970-01-01 of 0001-01-01 and 9999-12-31.
_TIMESTAMP_RANGE_US = (
    _DATE_RANGE_DAYS[0] * 86_400_000_000,
    (_DATE_RANGE_DAYS[1] + 1) * 86_400_000_000 - 1,
)
# Classes of bytes. They exclude numbers that may not fit without a check of each string.
_BYTE_CLASSES = bytes(
    ord("1") if chr(byte) in "0123456789.+-" else ord("e") if chr(byte) in "eE" else ord(" ")
    for byte in range(256)
)
_LONG_NUMBER, _EXPONENT_NUMBER = b"1" * 39, b"1e1"
_NUMBER_OR_STRING_PATTERN = re.compile(
    r'"(?:[^"\\]|\\.)*"|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL
)
_UNCHECKED_TAKE = pc.TakeOptions(boundscheck=False)
_FIRST_CHARACTERS = {LogicalType.OBJECT: "{", LogicalType.ARRAY: "["}
_DECODED_TYPES: dict[LogicalType, Any] = {
    LogicalType.REAL: float | None,
    LogicalType.BOOLEAN: bool | None,
    **dict.fromkeys((LogicalType.TEXT, LogicalType.DATE, *TIMESTAMP_TYPES), str | None),
    **dict.fromkeys(SEMI_STRUCTURED_TYPES, msgspec.Raw),
}
_DECODE_ERRORS = (
    msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError, pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodedResponse:
    """Decoded response: one value per row that was sent, and failures by row number."""

    values: pa.Array
    failures: Mapping[int, RowFailure]


class ResponseDecoder:
    """Decoder of responses of one function to Arrow arrays. Thread-safe."""

    def __init__(
        self,
        returns: SqlType,
        zone: str = "UTC",
        *,
        binary: BinaryForm = BinaryForm.HEX,
        nullable: bool = True,
        lenient: bool = False,
    ) -> None:
        """Create a decoder.

        Args:
            returns: Type of the result.
            zone: Time zone of the session, for timestamps without an offset.
            binary: Text form of BINARY.
            nullable: True if the function may return NULL.
            lenient: Accept a byte order mark, and for FLOAT the tokens NaN and Infinity. Other types
                cannot represent them.
        """
        self._type = returns
        self._result_type = to_arrow_type(returns, zone)
        self._nullable = nullable
        formats = Formats(parse_time_zone(zone), binary)
        self._lenient = lenient
        special = lenient and returns.kind is LogicalType.REAL
        self._exact_reader = ResponseReader(returns, formats, raw=True, lenient=special)
        decoded = _DECODED_TYPES.get(returns.kind)
        if returns.kind is LogicalType.FIXED:
            decoded = int | None if returns.is_integer else msgspec.Raw
        self._decoder = None if decoded is None else _TypedResponseDecoder(decoded)
        self._convert = self._choose_converter()

    def decode(self, body: bytes, row_count: int) -> DecodedResponse:
        """Return the values of a response to `row_count` rows.

        Raises:
            ResponseInvalid: If the form is invalid, a value does not fit the result type, or a value is
                NULL although the function is NOT NULL. The message contains no value.
        """
        if self._lenient:
            body = body.removeprefix(BOM_UTF8)
        answers = self._decode_fast(body, row_count) or self._decode_exact(body, row_count)
        if answers.failures:
            # Failed rows have no value.
            if not all(0 <= at < row_count for at in answers.failures):
                raise ResponseInvalid(reason='"errors" names a row that was not sent')
            failed = np.zeros(row_count, np.bool_)
            failed[list(answers.failures)] = True
            nothing = pa.scalar(None, answers.values.type)
            values = pc.if_else(pa.array(failed), nothing, answers.values)
            answers = DecodedResponse(values, answers.failures)
        if not self._nullable and answers.values.null_count > len(answers.failures):
            for at in pc.indices_nonzero(answers.values.is_null()).to_pylist():
                if at not in answers.failures:
                    raise ResponseInvalid(reason=f"Row {at}: null from a function that is NOT NULL")
        return answers

    def _decode_fast(self, body: bytes, row_count: int) -> DecodedResponse | None:
        if self._decoder is None:
            return None
        try:
            if row_count >= MIN_COLUMNAR_ROWS and self._decoder.is_text:
                texts = _decode_plain_texts(body, row_count)
                if texts is not None:
                    return DecodedResponse(self._convert(texts), {})
            found = self._decoder.decode(body, row_count)
            if found is None:
                return None
            return DecodedResponse(self._convert(found.values), found.failures)
        except _DECODE_ERRORS:
            return None

    def _decode_exact(self, body: bytes, row_count: int) -> DecodedResponse:
        reply = self._exact_reader.read(body, row_count)
        try:
            values = pa.array(reply.values, self._result_type)
            unfit = (
                _find_unfit_variant_row(values)
                if self._type.kind in SEMI_STRUCTURED_TYPES
                else None
            )
            if unfit is not None:
                raise ResponseInvalid(
                    reason=f"Row {unfit}: the {self._type.kind} has a number that is neither a decimal "
                    "of at most 38 digits nor a double of at most 17 digits"
                )
            return DecodedResponse(values, reply.failures)
        except UnicodeEncodeError:
            row = next(at for at, text in enumerate(reply.values) if _has_surrogate(text))
            raise ResponseInvalid(reason=f"Row {row}: the text has an unpaired surrogate") from None
        except (pa.ArrowException, OverflowError):
            raise ResponseInvalid(
                reason=f"A value does not fit into {self._type.format_with_parameters()}"
            ) from None

    def _choose_converter(self) -> ArrayConverter:
        kind, form = self._type.kind, self._result_type
        if kind is LogicalType.FIXED:
            return self._convert_integers if self._type.is_integer else self._convert_decimals
        if kind is LogicalType.TEXT and self._type.length is not None:
            return self._check_text_length
        by_kind: dict[LogicalType, ArrayConverter] = {
            **dict.fromkeys(SEMI_STRUCTURED_TYPES, self._convert_json_texts),
            LogicalType.TIMESTAMP_LTZ: self._convert_zoned_timestamps,
            LogicalType.TIMESTAMP_TZ: self._convert_zoned_timestamps,
            LogicalType.TIMESTAMP_NTZ: lambda found: self._floor_timestamps(found.cast(form)),
            LogicalType.DATE: lambda found: _check_year_range(found.cast(form)),
        }
        return by_kind.get(kind, lambda found: found if found.type == form else found.cast(form))

    def _check_text_length(self, column: pa.Array) -> pa.Array:
        longest = pc.max(pc.utf8_length(column)).as_py()
        if longest is not None and longest > (self._type.length or 0):
            raise pa.ArrowInvalid("a text is too long")
        return column

    def _floor_timestamps(self, column: pa.Array) -> pa.Array:
        """Return timestamps rounded down to the fraction digits of the type."""
        return floor_to_fraction_digits(_check_year_range(column), self._type.scale)

    def _convert_integers(self, column: pa.Array) -> pa.Array:
        if self._result_type != _INT64_TYPE:
            return column.cast(self._result_type)
        limit = 10 ** (self._type.precision or 1)
        # Do not compare absolute values: the lowest int64 has none.
        bounds = pc.min_max(column).as_py()
        if bounds["min"] is not None and not -limit < bounds["min"] <= bounds["max"] < limit:
            raise pa.ArrowInvalid("a number has more digits")
        return column

    def _convert_decimals(self, column: pa.Array) -> pa.Array:
        written = column.buffers()[2].to_pybytes()
        longest = pc.max(pc.binary_length(column)).as_py()
        # If digits and scale exceed the type, Arrow returns an incorrect number without an error.
        # Use it only for numbers that certainly fit.
        if (
            longest + _WIDE_DECIMAL_TYPE.scale > _WIDE_DECIMAL_TYPE.precision
            or b"e" in written
            or b"E" in written
        ):
            raise pa.ArrowInvalid("a number may be too long")
        texts = _replace_null_texts(column)
        if longest + self._type.scale <= _MAX_DECIMAL_DIGITS:
            try:
                return texts.cast(self._result_type)
            except pa.ArrowInvalid:
                pass  # Some numbers have more fraction digits than the scale.
        rounded = pc.round(
            texts.cast(_WIDE_DECIMAL_TYPE), self._type.scale, round_mode="half_towards_infinity"
        )
        return rounded.cast(self._result_type)

    def _convert_json_texts(self, column: pa.Array) -> pa.Array:
        texts = _replace_null_texts(column)
        if _find_unfit_variant_row(texts) is not None:
            raise pa.ArrowInvalid("a number is too long")
        first = _FIRST_CHARACTERS.get(self._type.kind)
        if first is not None and pc.all(pc.starts_with(texts, first)).as_py() is False:
            raise pa.ArrowInvalid("the JSON has another form")
        return texts

    def _convert_zoned_timestamps(self, column: pa.Array) -> pa.Array:
        # Remove the blank before the offset, which Arrow rejects. Arrow also rejects a missing
        # offset.
        column = pc.replace_substring_regex(column, r" ([+-][0-9:]+)$", r"\1")
        return self._floor_timestamps(column.cast(self._result_type))


def _has_surrogate(value: object) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_year_range(column: pa.Array) -> pa.Array:
    """Reject years outside of 1 to 9999, because some readers cannot display them."""
    first, last = _DATE_RANGE_DAYS if pa.types.is_date(column.type) else _TIMESTAMP_RANGE_US
    numbers = column.cast(pa.int32()) if pa.types.is_date(column.type) else column.view(_INT64_TYPE)
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] <= last:
        raise pa.ArrowInvalid("a year is out of range")
    return column


def _find_unfit_variant_row(texts: pa.StringArray) -> int | None:
    """Return the index of the first JSON value with a number that VARIANT would change, or None.

    Spark's VARIANT stores numbers of up to 38 digits without an exponent exactly. Any other number
    becomes the nearest double, or infinity.
    """
    data = texts.buffers()[2]
    if data is None:
        return None
    kinds = data.to_pybytes().translate(_BYTE_CLASSES)
    if _LONG_NUMBER not in kinds and _EXPONENT_NUMBER not in kinds:
        return None
    for at, text in enumerate(texts.to_pylist()):
        if text is not None and any(
            found[1] is not None and not _fits_variant(found[1])
            for found in _NUMBER_OR_STRING_PATTERN.finditer(text)
        ):
            return at
    return None


def _fits_variant(number: str) -> bool:
    exact = Decimal(number)
    digits, exponent = exact.as_tuple().digits, exact.as_tuple().exponent
    has_exponent = "e" in number or "E" in number
    if (
        not has_exponent
        and len(digits) <= _MAX_DECIMAL_DIGITS
        and -int(exponent) <= _MAX_DECIMAL_DIGITS
    ):
        return True
    nearest = float(number)
    if math.isinf(nearest) or (nearest == 0) != (exact == 0):
        return False
    # Accept up to 17 significant digits: programs write doubles with so many, and parsing restores
    # the same double.
    return (has_exponent and len(digits) <= _MAX_DOUBLE_DIGITS) or Decimal(repr(nearest)) == exact


def _replace_null_texts(texts: pa.Array) -> pa.Array:
    nothing = pc.equal(texts, "null")
    if pc.any(nothing).as_py():
        return pc.if_else(nothing, pa.scalar(None, pa.string()), texts)
    return texts


@lru_cache(maxsize=16)
def _make_alternating_indices(count: int) -> tuple[pa.Array, pa.Array]:
    """Return indices that alternate between values and the text between them."""
    return (
        pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)),
        pa.array(np.arange(1, 2 * count - 1, 2, dtype=np.int32)),
    )


def _decode_plain_texts(body: bytes, row_count: int) -> pa.StringArray | None:
    """Decode a response that contains only strings without escapes. Return None for others.

    Without escapes, each quotation mark begins or ends a string. Verifies the text outside of the
    strings.
    """
    if b"\\" in body:
        return None
    written = np.frombuffer(body, np.uint8)
    marks = np.flatnonzero(written == _QUOTE_BYTE)
    if len(marks) != 2 * row_count + 2 or int(written.min()) < _SPACE_BYTE:
        return None
    ends = marks[2:].astype(np.int32)
    ends[0::2] += 1
    blank = " " if body.startswith(b'{"data": ') else ""
    around = make_row_prefixes(row_count, '"', '"', blank)
    if body[: ends[0]] != around[0].as_py().encode() or body[ends[-1] :] != b'"]]}':
        return None
    pieces = pa.StringArray.from_buffers(2 * row_count - 1, pa.py_buffer(ends), pa.py_buffer(body))
    values, between = (
        pc.call_function("array_take", [pieces, places], _UNCHECKED_TAKE)
        for places in _make_alternating_indices(row_count)
    )
    if not between.equals(around.slice(1)):
        return None
    values.validate(full=True)  # Raises an error for invalid UTF-8.
    return values


class _TypedResponseDecoder:
    """Decoder that uses msgspec to parse and validate values."""

    def __init__(self, value_type: Any) -> None:
        self.is_text = value_type == (str | None)
        self._is_raw = value_type is msgspec.Raw
        self._arrow_type = {
            float | None: pa.float64(),
            bool | None: pa.bool_(),
            int | None: _INT64_TYPE,
        }.get(value_type, pa.string())
        row = GenericAlias(tuple, (int, value_type))
        errors = list[tuple[int, str, str]]
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            ("data", GenericAlias(list, (row,))),
            ("errors", errors, ()),
        ]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("Reply", fields)
        )

    def decode(self, body: bytes, row_count: int) -> DecodedResponse | None:
        """Return values and failures, or None if the row numbers are not those of `row_count` rows."""
        found = self._decoder.decode(body)
        if [*map(_get_row_number, found.data)] != make_row_numbers(row_count):
            return None
        values = [*map(_get_value, found.data)]
        array = (
            _fragments_to_text_array(values) if self._is_raw else pa.array(values, self._arrow_type)
        )
        return DecodedResponse(
            array, {at: RowFailure(code, text) for at, code, text in found.errors}
        )


def _fragments_to_text_array(fragments: list[Any]) -> pa.StringArray:
    ends = np.zeros(len(fragments) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, fragments), np.int32, len(fragments)), out=ends[1:])
    data = pa.py_buffer(b"".join(fragments))
    texts = pa.StringArray.from_buffers(len(fragments), pa.py_buffer(ends), data)
    texts.validate(full=True)  # Raises an error for invalid UTF-8.
    return texts
