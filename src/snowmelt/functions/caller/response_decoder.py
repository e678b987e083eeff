"""Bodies of replies to Arrow arrays: what `ReplyReader` reads, mostly without a look at each value.

Each fast way is taken where it surely says the same; else `ReplyReader` decides.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.caller.arrow_types import (
    FEW_ROWS,
    arrow_form,
    floor_micros,
    leads,
    numbers,
    zone_of,
)
from snowmelt.functions.errors import ReplyInvalid
from snowmelt.functions.wire.messages import ReplyReader, RowFailure
from snowmelt.functions.wire.values import BinaryForm, Formats
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.functions.signature import SqlType

    Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_number, _value = itemgetter(0), itemgetter(1)
_QUOTE, _BLANK = 0x22, 0x20
_WIDE = pa.decimal256(76, 38)
_INT64 = pa.int64()
_MOST_DIGITS = 38
_DIGITS_OF_DOUBLE = 17
_DAYS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31, from 1970 on
_INSTANTS_US = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
# Numbers that may not fit are found without a look at each text.
_NUMBER_SIGNS = bytes(
    ord("1") if chr(byte) in "0123456789.+-" else ord("e") if chr(byte) in "eE" else ord(" ")
    for byte in range(256)
)
_LONG, _EXPONENT = b"1" * 39, b"1e1"
_NUMBER_OR_TEXT = re.compile(
    r'"(?:[^"\\]|\\.)*"|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL
)
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_FIRST_SIGN = {LogicalType.OBJECT: "{", LogicalType.ARRAY: "["}
_DECODED: dict[LogicalType, Any] = {
    LogicalType.REAL: float | None,
    LogicalType.BOOLEAN: bool | None,
    **dict.fromkeys((LogicalType.TEXT, LogicalType.DATE, *TIMESTAMP_TYPES), str | None),
    **dict.fromkeys(SEMI_STRUCTURED_TYPES, msgspec.Raw),
}
_REFUSALS = (
    msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError, pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answers:
    """A value for each row that was sent, and why rows have none, by row number."""

    values: pa.Array
    failures: Mapping[int, RowFailure]


class AnswerReader:
    """Reads replies of one function as Arrow arrays; for any number of threads."""

    def __init__(
        self,
        returns: SqlType,
        zone: str = "UTC",
        *,
        binary: BinaryForm = BinaryForm.HEX,
        nullable: bool = True,
        lenient: bool = False,
    ) -> None:
        """Prepare.

        Args:
            returns: The function's result.
            zone: The session's time zone, of instants that say none.
            binary: The form of BINARY.
            nullable: Whether the function may give NULL.
            lenient: Take a byte order mark, and for FLOAT the tokens NaN and Infinity. Elsewhere
                they have no value that says the same.
        """
        self._type = returns
        self._form = arrow_form(returns, zone)
        self._nullable = nullable
        formats = Formats(zone_of(zone), binary)
        self._lenient = lenient
        special = lenient and returns.kind is LogicalType.REAL
        self._slow = ReplyReader(returns, formats, raw=True, lenient=special)
        self._decoder = _decoder(returns)
        self._convert = self._converter()

    def read(self, body: bytes, count: int) -> Answers:
        """Return the values of a reply to `count` rows.

        Raises:
            ReplyInvalid: It is not the form, a value does not fit the result's type, or is NULL
                where the function promises none; the message holds no value.
        """
        if self._lenient:
            body = body.removeprefix(BOM_UTF8)
        answers = self._quickly(body, count) or self._slowly(body, count)
        if answers.failures:
            answers = _without(answers, count)
        if not self._nullable and answers.values.null_count > len(answers.failures):
            self._refuse_null(answers)
        return answers

    def _quickly(self, body: bytes, count: int) -> Answers | None:
        if self._decoder is None:
            return None
        try:
            if count >= FEW_ROWS and self._decoder.texts:
                texts = _plain_texts(body, count)
                if texts is not None:
                    return Answers(self._convert(texts), {})
            found = self._decoder.decode(body, count)
            if found is None:
                return None
            return Answers(self._convert(found.values), found.failures)
        except _REFUSALS:
            return None

    def _slowly(self, body: bytes, count: int) -> Answers:
        reply = self._slow.read(body, count)
        try:
            values = pa.array(reply.values, self._form)
            unfit = _first_unfit(values) if self._type.kind in SEMI_STRUCTURED_TYPES else None
            if unfit is not None:
                raise ReplyInvalid(
                    reason=f"Row {unfit}: a number in the {self._type.kind} has more digits than "
                    "the 38 of a decimal and the 17 of a double, or is out of range"
                )
            return Answers(values, reply.failures)
        except UnicodeEncodeError:
            raise ReplyInvalid(reason="A text holds half a character") from None
        except (pa.ArrowException, OverflowError):
            raise ReplyInvalid(reason=f"A value does not fit into {self._type.full()}") from None

    def _refuse_null(self, answers: Answers) -> None:
        for at in pc.indices_nonzero(answers.values.is_null()).to_pylist():
            if at not in answers.failures:
                raise ReplyInvalid(reason=f"Row {at}: null from a function that is NOT NULL")

    def _converter(self) -> Convert:
        kind, form = self._type.kind, self._form
        if kind is LogicalType.FIXED:
            return self._whole if self._type.is_whole else self._decimal
        if kind is LogicalType.TEXT and self._type.length is not None:
            return self._short_texts
        by_kind: dict[LogicalType, Convert] = {
            **dict.fromkeys(SEMI_STRUCTURED_TYPES, self._json),
            LogicalType.TIMESTAMP_LTZ: self._instants,
            LogicalType.TIMESTAMP_TZ: self._instants,
            LogicalType.TIMESTAMP_NTZ: lambda found: self._floored(found.cast(form)),
            LogicalType.DATE: lambda found: _within_years(found.cast(form)),
        }
        return by_kind.get(kind, lambda found: found if found.type == form else found.cast(form))

    def _short_texts(self, found: pa.Array) -> pa.Array:
        longest = pc.max(pc.utf8_length(found)).as_py()
        if longest is not None and longest > (self._type.length or 0):
            raise pa.ArrowInvalid("a text is too long")
        return found

    def _floored(self, found: pa.Array) -> pa.Array:
        """Return timestamps without the digits that the type has not."""
        return floor_micros(_within_years(found), self._type.scale)

    def _whole(self, found: pa.Array) -> pa.Array:
        if self._form != _INT64:
            return found.cast(self._form)
        limit = 10 ** (self._type.precision or 1)
        if pc.any(pc.greater_equal(pc.abs(found), limit)).as_py():
            raise pa.ArrowInvalid("a number has more digits")
        return found

    def _decimal(self, found: pa.Array) -> pa.Array:
        written = found.buffers()[2].to_pybytes()
        longest = pc.max(pc.binary_length(found)).as_py()
        # Arrow does not notice when digits and scale are more than the type holds, and gives
        # another number: only what surely fits is left to it.
        if longest + _WIDE.scale > _WIDE.precision or b"e" in written or b"E" in written:
            raise pa.ArrowInvalid("a number may be too long")
        texts = _null_as_null(found)
        if longest + self._type.scale <= _MOST_DIGITS:
            try:
                return texts.cast(self._form)
            except pa.ArrowInvalid:
                pass  # some have more digits than the scale
        rounded = pc.round(texts.cast(_WIDE), self._type.scale, round_mode="half_towards_infinity")
        return rounded.cast(self._form)

    def _json(self, found: pa.Array) -> pa.Array:
        texts = _null_as_null(found)
        if _first_unfit(texts) is not None:
            raise pa.ArrowInvalid("a number is too long")
        first = _FIRST_SIGN.get(self._type.kind)
        if first is not None and pc.all(pc.starts_with(texts, first)).as_py() is False:
            raise pa.ArrowInvalid("it is no such JSON")
        return texts

    def _instants(self, found: pa.Array) -> pa.Array:
        # The format says `… +0100`; Arrow reads `…+0100`, and refuses what has no offset.
        found = pc.replace_substring_regex(found, r" ([+-][0-9:]+)$", r"\1")
        return self._floored(found.cast(self._form))


def _within_years(found: pa.Array) -> pa.Array:
    """Refuse what lies outside the years 1 to 9999, which some readers cannot show."""
    first, last = _DAYS if pa.types.is_date(found.type) else _INSTANTS_US
    numbers = found.cast(pa.int32()) if pa.types.is_date(found.type) else found.view(_INT64)
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] <= last:
        raise pa.ArrowInvalid("a year is out of range")
    return found


def _first_unfit(texts: pa.StringArray) -> int | None:
    """Return the first row of JSON with a number that Spark's VARIANT would change; None if none.

    A VARIANT holds a number without exponent of up to 38 digits exactly. Any other becomes the
    nearest double, or infinite.
    """
    data = texts.buffers()[2]
    if data is None:
        return None
    kinds = data.to_pybytes().translate(_NUMBER_SIGNS)
    if _LONG not in kinds and _EXPONENT not in kinds:
        return None
    for at, text in enumerate(texts.to_pylist()):
        if text is not None and any(
            found[1] is not None and not _fits_variant(found[1])
            for found in _NUMBER_OR_TEXT.finditer(text)
        ):
            return at
    return None


def _fits_variant(number: str) -> bool:
    exact = Decimal(number)
    digits, exponent = exact.as_tuple().digits, exact.as_tuple().exponent
    has_exponent = "e" in number or "E" in number
    if not has_exponent and len(digits) <= _MOST_DIGITS and -int(exponent) <= _MOST_DIGITS:
        return True
    nearest = float(number)
    if math.isinf(nearest) or (nearest == 0) != (exact == 0):
        return False
    # What programs write of a double has 17 digits at most, and is read as that double again.
    return (has_exponent and len(digits) <= _DIGITS_OF_DOUBLE) or Decimal(repr(nearest)) == exact


def _without(answers: Answers, count: int) -> Answers:
    """Return answers that have no value where there is a failure."""
    if not all(0 <= at < count for at in answers.failures):
        raise ReplyInvalid(reason='"errors" names a row that was not sent')
    failed = np.zeros(count, np.bool_)
    failed[list(answers.failures)] = True
    nothing = pa.scalar(None, answers.values.type)
    return Answers(pc.if_else(pa.array(failed), nothing, answers.values), answers.failures)


def _null_as_null(texts: pa.Array) -> pa.Array:
    nothing = pc.equal(texts, "null")
    if pc.any(nothing).as_py():
        return pc.if_else(nothing, pa.scalar(None, pa.string()), texts)
    return texts


@lru_cache(maxsize=16)
def _turns(count: int) -> tuple[pa.Array, pa.Array]:
    """Return where values are, and what is between them, when both take turns."""
    return (
        pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)),
        pa.array(np.arange(1, 2 * count - 1, 2, dtype=np.int32)),
    )


def _plain_texts(body: bytes, count: int) -> pa.StringArray | None:
    """Return the values of a reply that holds nothing but texts without escapes; None if it does.

    Without escapes each quotation mark begins or ends a text. All that stands outside of texts is
    compared with what has to be there.
    """
    if b"\\" in body:
        return None
    written = np.frombuffer(body, np.uint8)
    marks = np.flatnonzero(written == _QUOTE)
    if len(marks) != 2 * count + 2 or int(written.min()) < _BLANK:
        return None
    ends = marks[2:].astype(np.int32)
    ends[0::2] += 1
    blank = " " if body.startswith(b'{"data": ') else ""
    around = leads(count, '"', '"', blank)
    if body[: ends[0]] != around[0].as_py().encode() or body[ends[-1] :] != b'"]]}':
        return None
    pieces = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(ends), pa.py_buffer(body))
    values, between = (
        pc.call_function("array_take", [pieces, places], _UNCHECKED) for places in _turns(count)
    )
    if not between.equals(around.slice(1)):
        return None
    values.validate(full=True)  # whether it is UTF-8
    return values


class _Decoder:
    """Decodes replies as values that msgspec has checked."""

    def __init__(self, value: Any) -> None:
        self.texts = value == (str | None)
        self._raw = value is msgspec.Raw
        self._arrow = {float | None: pa.float64(), bool | None: pa.bool_(), int | None: _INT64}.get(
            value, pa.string()
        )
        row = GenericAlias(tuple, (int, value))
        errors = list[tuple[int, str, str]]
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            ("data", GenericAlias(list, (row,))),
            ("errors", errors, ()),
        ]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("Reply", fields)
        )

    def decode(self, body: bytes, count: int) -> Answers | None:
        """Return values and failures; None where row numbers are not those of `count` rows."""
        found = self._decoder.decode(body)
        if [*map(_number, found.data)] != numbers(count):
            return None
        values = [*map(_value, found.data)]
        array = _joined(values) if self._raw else pa.array(values, self._arrow)
        return Answers(array, {at: RowFailure(code, text) for at, code, text in found.errors})


def _joined(fragments: list[Any]) -> pa.StringArray:
    ends = np.zeros(len(fragments) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, fragments), np.int32, len(fragments)), out=ends[1:])
    data = pa.py_buffer(b"".join(fragments))
    texts = pa.StringArray.from_buffers(len(fragments), pa.py_buffer(ends), data)
    texts.validate(full=True)  # whether it is UTF-8
    return texts


def _decoder(returns: SqlType) -> _Decoder | None:
    if returns.kind is LogicalType.FIXED:
        return _Decoder(int | None if returns.is_whole else msgspec.Raw)
    value = _DECODED.get(returns.kind)
    return None if value is None else _Decoder(value)
