"""Bodies of replies to Arrow arrays: what `ReplyReader` reads, mostly without a look at each value.

Each fast way is taken where it surely says the same; else `ReplyReader` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.calling.encoding import numbers
from snowmelt.functions.calling.forms import arrow_form, zone_of
from snowmelt.functions.refusals import ReplyInvalid
from snowmelt.functions.wire import exact
from snowmelt.functions.wire.replies import ReplyReader, RowFailure
from snowmelt.functions.wire.values import BinaryForm, Formats
from snowmelt.schema.types import SEMI_STRUCTURED, TIMESTAMPS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from snowmelt.functions.types import SqlType

    Convert: TypeAlias = Callable[[list[Any]], pa.Array]

_number, _value = itemgetter(0), itemgetter(1)
_DECODED: dict[Kind, Any] = {
    Kind.REAL: float,
    Kind.BOOLEAN: bool,
    Kind.TEXT: str,
    Kind.DATE: str,
    **dict.fromkeys(TIMESTAMPS, str),
}
_DATE_CHARACTERS = 10
_WIDE = pa.decimal256(76, 38)


class _NotPlain(Exception):
    """The fast way does not know."""


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
            lenient: Take a byte order mark and the tokens NaN and Infinity.
        """
        self._type = returns
        self._form = arrow_form(returns, zone)
        self._zone = zone
        self._nullable = nullable
        self._slow = ReplyReader(returns, Formats(zone_of(zone), binary), raw=True, lenient=lenient)
        self._convert = self._converter()
        self._decoder = _decoder(returns)

    def read(self, body: bytes, count: int) -> Answers:
        """Return the values of a reply to `count` rows.

        Raises:
            ReplyInvalid: It is not the form, a value does not fit the result's type, or is NULL
                where the function promises none; the message holds no value.
        """
        answers = self._quickly(body, count) or self._slowly(body, count)
        if not self._nullable and answers.values.null_count > len(answers.failures):
            self._check_nulls(answers)
        return answers

    def _quickly(self, body: bytes, count: int) -> Answers | None:
        if self._convert is None:
            return None
        try:
            found = self._decoder.decode(body)
            rows = found.data
            if [*map(_number, rows)] != numbers(count):
                return None
            values = self._convert([*map(_value, rows)])
        except (
            msgspec.DecodeError, exact.NotJson, RecursionError, pa.ArrowException, OverflowError,
            UnicodeDecodeError, _NotPlain,
        ):  # fmt: skip
            return None
        failures = {at: RowFailure(code, message) for at, code, message in found.errors}
        return Answers(values, failures)

    def _slowly(self, body: bytes, count: int) -> Answers:
        reply = self._slow.read(body, count)
        try:
            return Answers(pa.array(reply.values, self._form), reply.failures)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            raise ReplyInvalid(
                reason=f"a value is out of the range of {self._type.full()}"
            ) from None

    def _check_nulls(self, answers: Answers) -> None:
        for at in pc.indices_nonzero(answers.values.is_null()).to_pylist():
            if at not in answers.failures:
                raise ReplyInvalid(reason=f"Row {at}: NULL from a function that is NOT NULL")

    def _converter(self) -> Convert | None:
        kind = self._type.kind
        if kind is Kind.FIXED:
            return self._whole if self._type.is_whole else self._decimal
        if kind in SEMI_STRUCTURED:
            return self._json
        return {
            Kind.REAL: self._as_it_is,
            Kind.BOOLEAN: self._as_it_is,
            Kind.TEXT: self._as_it_is,
            Kind.DATE: self._dates,
            Kind.TIMESTAMP_NTZ: self._naive,
            Kind.TIMESTAMP_LTZ: self._instants,
            Kind.TIMESTAMP_TZ: self._instants,
        }.get(kind)

    def _as_it_is(self, values: list[Any]) -> pa.Array:
        return pa.array(values, self._form)

    def _whole(self, values: list[Any]) -> pa.Array:
        found = pa.array(values, pa.int64())
        if self._form != pa.int64():
            return found.cast(self._form)
        limit = 10 ** (self._type.precision or 1)
        least, most = pc.min_max(found).as_py().values()
        if least is not None and not -limit < least <= most < limit:
            raise _NotPlain
        return found

    def _decimal(self, values: list[Any]) -> pa.Array:
        texts = _texts(values, "null")
        rounded = pc.round(texts.cast(_WIDE), self._type.scale, round_mode="half_towards_infinity")
        return rounded.cast(self._form)

    def _json(self, values: list[Any]) -> pa.Array:
        texts = _texts(values, "null")
        first = {Kind.OBJECT: "{", Kind.ARRAY: "["}.get(self._type.kind)
        if first is not None and pc.all(pc.starts_with(texts, first)).as_py() is False:
            raise _NotPlain
        return texts

    def _dates(self, values: list[Any]) -> pa.Array:
        return pa.array(values, pa.string()).cast(self._form)

    def _naive(self, values: list[Any]) -> pa.Array:
        return pa.array(values, pa.string()).cast(self._form)

    def _instants(self, values: list[Any]) -> pa.Array:
        texts = pa.array(values, pa.string())
        for sign in "+-":
            # What the format says is `… +0100`; Arrow reads `…+0100`.
            texts = pc.replace_substring(texts, f" {sign}", sign)
        return texts.cast(self._form)


def _texts(values: Sequence[Any], null: str) -> pa.Array:
    texts = pa.array([*map(bytes, values)], pa.string())
    empty = pc.equal(texts, null)
    if pc.any(empty).as_py():
        return pc.if_else(empty, pa.scalar(None, pa.string()), texts)
    return texts


def _decoder(returns: SqlType) -> msgspec.json.Decoder[Any]:
    kind = returns.kind
    if kind in SEMI_STRUCTURED or (kind is Kind.FIXED and not returns.is_whole):
        value: Any = msgspec.Raw
    elif kind is Kind.FIXED:
        value = int | None
    else:
        value = _DECODED.get(kind, str) | None
    row = GenericAlias(tuple, (int, value))
    errors = list[tuple[int, str, str]]
    struct = msgspec.defstruct(
        "Reply", [("data", GenericAlias(list, (row,))), ("errors", errors, ())]
    )
    return msgspec.json.Decoder(struct)
