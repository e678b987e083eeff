"""Fast casts of text by Arrow, limited to text forms for which Arrow gives the exact result.

The exact rules for single values convert all other text. A form that is omitted here costs only
time. A form that Arrow casts differently would produce incorrect values. `ArraySyntax` parses
arrays in delimited files, such as `[a,b,"c,d",null]`, with configurable delimiters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidValue
from snowmelt.schema.chunk_types import chunk_arrow_type, make_null_mask
from snowmelt.schema.conversion.json_text import (
    JSON_LIMIT_REASON,
    MAX_DEPTH,
    InvalidJson,
    JsonLimitExceeded,
    normalize_json,
    quote_json_string,
)
from snowmelt.schema.conversion.numbers import TRIMMED_CHARACTERS
from snowmelt.schema.iceberg_table_form import needs_nanosecond_companion
from snowmelt.schema.types import MAX_TEXT_BYTES, TIMESTAMP_TYPES, Column, LogicalType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.schema.chunk_types import Int64s, Mask

TRUE_WORDS = ["true", "t", "yes", "y", "on", "1", "TRUE", "T", "YES", "Y", "ON", "True"]
FALSE_WORDS = ["false", "f", "no", "n", "off", "0", "FALSE", "F", "NO", "N", "OFF", "False"]

_TIME_OF_DAY_PATTERN = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_OFFSET_PATTERN = r"[+-](0[0-9]|1[0-7]):[0-5][0-9]"
_ZONE_SUFFIX_PATTERN = rf"(Z|{_OFFSET_PATTERN})$"
_CASTABLE_PATTERNS = {
    LogicalType.REAL: r"^-?[0-9]{1,100}(\.[0-9]{0,100})?([eE][+-]?[0-9]{1,2})?$",
    LogicalType.DATE: r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}$",
    LogicalType.TIME: rf"^{_TIME_OF_DAY_PATTERN}$",
    **dict.fromkeys(
        TIMESTAMP_TYPES,
        rf"^[1-9][0-9]{{3}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_TIME_OF_DAY_PATTERN}(Z|{_OFFSET_PATTERN})?$",
    ),
}
_MAX_INT64 = 2**63 - 1
_FIRST_YEAR_US = -62_135_596_800_000_000


class ArrowTextCaster:
    """Caster of the text of one column."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._kind = column.kind
        self._scale = column.scale or 0
        self._pattern = _CASTABLE_PATTERNS.get(column.kind)
        if column.kind is LogicalType.FIXED:
            digits = (column.precision or 38) - self._scale
            fraction = rf"(\.[0-9]{{1,{self._scale}}})?" if self._scale else ""
            self._pattern = rf"^-?[0-9]{{1,{digits}}}{fraction}$" if digits else None

    @property
    def csv_reader_arrow_type(self) -> pa.DataType | None:
        """Arrow type that a CSV reader may produce, or None if it must return text."""
        match self._kind:
            case (
                LogicalType.FIXED
                | LogicalType.REAL
                | LogicalType.BOOLEAN
                | LogicalType.TEXT
                | LogicalType.DATE
            ):
                return chunk_arrow_type(self._column)
            case LogicalType.TIME:
                return pa.time64("us")
            case LogicalType.TIMESTAMP_NTZ:
                return pa.timestamp("us")
            case _:
                return None

    def convert_csv_reader_values(self, array: pa.Array) -> list[pa.Array] | None:
        """Convert values of `csv_reader_arrow_type` to native arrays.

        Return None if some values must be converted one by one.
        """
        if self._kind is LogicalType.FIXED:
            # Arrow checks the number of digits before it applies the scale.
            return [array] if _is_within_precision(array) else None
        if self._kind is LogicalType.REAL:
            # Defer infinities and NaN, because some of their spellings must be rejected.
            return None if pc.all(pc.is_finite(array)).as_py() is False else [array]
        if self._kind is LogicalType.TEXT:
            return [array] if self._fits_length(array) else None
        if self._kind is LogicalType.TIME or self._kind is LogicalType.TIMESTAMP_NTZ:
            first = pc.min(array.view(pa.int64())).as_py()
            if (
                self._kind is LogicalType.TIMESTAMP_NTZ
                and first is not None
                and first < _FIRST_YEAR_US
            ):
                return None
            return self._truncate_to_scale(array)
        return [array]

    def mask_castable(self, texts: pa.Array) -> Mask | None:
        """Return a mask of the texts that Arrow may cast, or None if there are none."""
        if self._kind is LogicalType.TEXT:
            return self._mask_texts_within_length(texts)
        if self._kind is LogicalType.BOOLEAN:
            known = pc.is_in(texts, value_set=pa.array(TRUE_WORDS + FALSE_WORDS))
        elif self._pattern is None:
            return None
        else:
            known = pc.match_substring_regex(texts, self._pattern)
        return _to_mask(known)

    def cast_texts(self, texts: pa.Array) -> list[pa.Array] | None:
        """Cast texts that are castable or null to native arrays. Return None if a cast fails."""
        if self._kind is LogicalType.TEXT:
            return [texts]
        if self._kind is LogicalType.BOOLEAN:
            read = pc.is_in(texts, value_set=pa.array(TRUE_WORDS))
            return [pc.if_else(pc.is_valid(texts), read, pa.scalar(None, pa.bool_()))]
        try:
            if self._kind in TIMESTAMP_TYPES:
                return self._cast_timestamps(texts)
            if self._kind is LogicalType.TIME:
                # Arrow does not cast text to a time of day.
                texts = pc.binary_join_element_wise("1970-01-01", texts, " ")
                clock = texts.cast(pa.timestamp("us")).view(pa.int64())
                return self._truncate_to_scale(clock.view(pa.time64("us")))
            direct = self.csv_reader_arrow_type
            array = None if direct is None else texts.cast(direct)
        except pa.ArrowInvalid:
            return None
        return None if array is None else self.convert_csv_reader_values(array)

    def _cast_timestamps(self, texts: pa.Array) -> list[pa.Array]:
        """Cast text to timestamps. A naive timestamp drops the offset."""
        zoned = pc.match_substring_regex(texts, _ZONE_SUFFIX_PATTERN)
        offsets: Int64s | None = None
        if pc.any(zoned).as_py():
            offsets = _parse_offset_minutes(pc.if_else(zoned, texts, pa.scalar(None, pa.string())))
            texts = pc.replace_substring_regex(texts, _ZONE_SUFFIX_PATTERN, "")
        micros = texts.cast(pa.timestamp("us")).view(pa.int64()).fill_null(0).to_numpy()
        if offsets is None:
            offsets = np.zeros(len(texts), np.int64)
        elif self._kind is not LogicalType.TIMESTAMP_NTZ:
            micros = micros - offsets * 60_000_000
        return self.make_timestamps(micros, offsets, make_null_mask(texts))

    def make_timestamps(
        self, micros: Int64s, offset_minutes: NDArray[np.integer], null: Mask
    ) -> list[pa.Array]:
        """Return native timestamp arrays of microseconds, in UTC unless the column is naive."""
        mask = null if null.any() else None
        zone = None if self._kind is LogicalType.TIMESTAMP_NTZ else "UTC"
        parts = self._truncate_to_scale(pa.array(micros, mask=mask).view(pa.timestamp("us", zone)))
        if self._kind is LogicalType.TIMESTAMP_TZ:
            parts.append(pa.array(offset_minutes.astype(np.int32), mask=mask))
        return parts

    def _truncate_to_scale(self, array: pa.Array) -> list[pa.Array]:
        """Truncate microseconds to the column's scale. A nanosecond companion is 0."""
        if self._scale < 6:
            unit = 10 ** (6 - self._scale)
            micros = array.view(pa.int64()).fill_null(0).to_numpy()
            mask = make_null_mask(array) if array.null_count else None
            array = pa.array(micros // unit * unit, mask=mask).view(array.type)
        if not needs_nanosecond_companion(self._column):
            return [array]
        mask = make_null_mask(array) if array.null_count else None
        return [array, pa.array(np.zeros(len(array), np.int32), mask=mask)]

    def _fits_length(self, array: pa.Array) -> bool:
        return bool(self._mask_texts_within_length(array).all())

    def has_text_over_byte_limit(self, longest_bytes: int) -> bool:
        """Return True if a text of this many bytes may exceed the column's length."""
        return longest_bytes > min(self._column.length or MAX_TEXT_BYTES, MAX_TEXT_BYTES)

    def _mask_texts_within_length(self, texts: pa.Array) -> Mask:
        if not self.has_text_over_byte_limit(pc.max(pc.binary_length(texts)).as_py() or 0):
            return np.ones(len(texts), np.bool_)
        limit = self._column.length or MAX_TEXT_BYTES
        fits = pc.and_(
            pc.less_equal(pc.utf8_length(texts), limit),
            pc.less_equal(pc.binary_length(texts), MAX_TEXT_BYTES),
        )
        return np.asarray(pc.fill_null(fits, True))


def _is_within_precision(array: pa.Array) -> bool:
    limit = 10**array.type.precision
    if limit < _MAX_INT64 and len(array):
        words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
        words = words[array.offset : array.offset + len(array)]
        low = words[:, 0]
        return bool(low.max() < limit and low.min() > -limit and (words[:, 1] == low >> 63).all())
    bounds = pc.min_max(array.view(pa.decimal128(38, 0))).as_py()
    return bounds["min"] is None or (bounds["max"] < limit and bounds["min"] > -limit)


def _parse_offset_minutes(texts: pa.Array) -> Int64s:
    """Parse the UTC offsets at the ends of texts, in minutes. Z and null give 0."""
    written = pc.match_substring_regex(texts, rf"{_OFFSET_PATTERN}$")
    ends = pc.if_else(written, pc.utf8_slice_codeunits(texts, -6), "+00:00").fill_null("+00:00")
    hours = pc.utf8_slice_codeunits(ends, 1, 3).cast(pa.int64()).to_numpy()
    minutes = pc.utf8_slice_codeunits(ends, 4, 6).cast(pa.int64()).to_numpy()
    negative = np.asarray(pc.starts_with(ends, "-"))
    found = hours * 60 + minutes
    signed: Int64s = np.where(negative, -found, found)
    return signed


def _to_mask(values: pa.Array) -> Mask:
    mask: Mask = np.asarray(pc.fill_null(values, False))
    return mask


# --- Arrays in delimited files.

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_JSON_WORDS = {"true", "false"}


@dataclass(frozen=True, slots=True)
class ArraySyntax:
    """Delimiter, brackets, quote and NULL text of arrays."""

    delimiter: str = ","
    opening: str = "["
    closing: str = "]"
    enclose: str = '"'
    null: str = "null"

    def convert_array_to_json(self, text: str) -> str:
        """Return the array as JSON. Unquoted elements are numbers, booleans or text.

        Raises:
            InvalidValue: If an array is not closed, text follows it, or it exceeds a limit of JSON.
        """
        text = text.strip(TRIMMED_CHARACTERS)
        try:
            if self == ArraySyntax():
                try:
                    return normalize_json(text)
                except JsonLimitExceeded:
                    raise
                except InvalidJson:
                    pass
            written, end = self._parse_array(text, 0)
            if text[end:].strip(TRIMMED_CHARACTERS):
                raise InvalidValue(reason=f"Not a valid array: text follows its {self.closing}")
            return normalize_json(written)
        except JsonLimitExceeded:
            raise InvalidValue(reason=f"The array {JSON_LIMIT_REASON}") from None

    def _parse_array(self, text: str, position: int, depth: int = 0) -> tuple[str, int]:
        if depth >= MAX_DEPTH:
            raise JsonLimitExceeded
        if not text.startswith(self.opening, position):
            raise InvalidValue(reason=f"Not a valid array: it does not start with {self.opening}")
        position += len(self.opening)
        elements: list[str] = []
        while True:
            element, position = self._parse_element(text, position, depth + 1)
            is_last = text.startswith(self.closing, position)
            if element or elements or not is_last:
                elements.append(element or '""')
            if is_last:
                return f"[{','.join(elements)}]", position + len(self.closing)
            if not text.startswith(self.delimiter, position):
                raise InvalidValue(reason=f"Not a valid array: {self.closing} is missing")
            position += len(self.delimiter)

    def _parse_element(self, text: str, position: int, depth: int) -> tuple[str, int]:
        while text[position : position + 1] == " ":
            position += 1
        if text.startswith(self.opening, position):
            element, position = self._parse_array(text, position, depth)
        elif self.enclose and text.startswith(self.enclose, position):
            element, position = self._parse_enclosed(text, position + len(self.enclose))
        else:
            ends = [text.find(mark, position) for mark in (self.delimiter, self.closing)]
            end = min((found for found in ends if found >= 0), default=len(text))
            return self._parse_bare_element(text[position:end].rstrip(" ")), end
        while text[position : position + 1] == " ":
            position += 1
        return element, position

    def _parse_enclosed(self, text: str, position: int) -> tuple[str, int]:
        pieces: list[str] = []
        while True:
            end = text.find(self.enclose, position)
            if end < 0:
                raise InvalidValue(
                    reason=f"Not a valid array: a text has no closing {self.enclose}"
                )
            pieces.append(text[position:end])
            position = end + len(self.enclose)
            if not text.startswith(self.enclose, position):
                return quote_json_string("".join(pieces)), position
            pieces.append(self.enclose)
            position += len(self.enclose)

    def _parse_bare_element(self, text: str) -> str:
        if text == self.null:
            return "null"
        if not text or text in _JSON_WORDS or _JSON_NUMBER.fullmatch(text):
            return text
        return quote_json_string(text)
