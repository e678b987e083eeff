"""Arrow columns to the body of a request: what `RequestWriter` writes, without a look at each value."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.calling.forms import arrow_form, zone_of
from snowmelt.functions.refusals import BatchInvalid
from snowmelt.functions.wire import exact
from snowmelt.functions.wire.values import BinaryForm
from snowmelt.schema.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.functions.signature import Argument
    from snowmelt.functions.types import SqlType

    Write: TypeAlias = Callable[[pa.Array], list[Any]]

_NUMBER_TEXT = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US
_MINUTE = dt.timedelta(minutes=1)
# Arrow does not apply the rule by which a zone goes on after its last listed change, in 2037.
_LAST_KNOWN_US = 2_114_380_800 * _SECOND_US  # 2037-01-01


@lru_cache(maxsize=64)
def numbers(count: int) -> list[int]:
    """Return 0, 1, 2 … below a count; not to be changed."""
    return list(range(count))


class ColumnWriter:
    """Writes requests of one function from Arrow columns; for any number of threads."""

    def __init__(
        self,
        arguments: Sequence[Argument],
        zone: str = "UTC",
        *,
        binary: BinaryForm = BinaryForm.HEX,
        array_as_string: bool = False,
    ) -> None:
        """Prepare.

        Args:
            arguments: The function's.
            zone: The session's time zone, in which instants are written.
            binary: How BINARY becomes text.
            array_as_string: Write an ARRAY as text that holds JSON, as the published format says
                of all types but objects, instead of a JSON array.
        """
        self._forms = [arrow_form(each.type, zone) for each in arguments]
        self._writes = [
            _writer(each.type, zone, binary, array_as_string=array_as_string) for each in arguments
        ]

    def columns(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return what JSON says for each value, by argument.

        Raises:
            BatchInvalid: A column does not fit its argument.
        """
        found = []
        for at, (column, form, write) in enumerate(
            zip(columns, self._forms, self._writes, strict=False)
        ):
            try:
                found.append(write(_as_form(column, form)))
            except pa.ArrowException as error:
                reason = f"argument {at + 1} is {column.type}, which is not {form}"
                raise BatchInvalid(reason=reason) from error
        return found

    def body(self, count: int, columns: Sequence[pa.Array]) -> bytes:
        """Return the body of a batch of `count` rows.

        Args:
            count: Of the rows.
            columns: By argument; a column beyond the arguments is not sent.

        Raises:
            BatchInvalid: A column does not fit its argument.
        """
        return exact.write({"data": list(zip(numbers(count), *self.columns(columns), strict=True))})


def _as_form(column: pa.Array, form: pa.DataType) -> pa.Array:
    if column.type == form:
        return column
    kind = column.type
    if pa.types.is_decimal(form) and (pa.types.is_string(kind) or pa.types.is_int64(kind)):
        return column
    if pa.types.is_timestamp(form) and pa.types.is_timestamp(kind) and kind.unit == form.unit:
        return column if (kind.tz is None) == (form.tz is None) else column.cast(form)
    return column.cast(form)


def _writer(sql_type: SqlType, zone: str, binary: BinaryForm, *, array_as_string: bool) -> Write:
    kind = sql_type.kind
    if kind in {Kind.VARIANT, Kind.OBJECT} or (kind is Kind.ARRAY and not array_as_string):
        return _fragments
    if kind is Kind.BINARY:
        return _hex if binary is BinaryForm.HEX else _base64
    if kind in {Kind.TIMESTAMP_LTZ, Kind.TIMESTAMP_TZ}:
        return lambda column: _instants(column, zone)
    return _WRITERS.get(kind, _values)


def _values(column: pa.Array) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]


def _fragments(column: pa.Array) -> list[Any]:
    """Return JSON texts as fragments that are written as they are."""
    texts = column.to_pylist()
    if column.null_count:
        return [None if text is None else msgspec.Raw(text) for text in texts]
    return [*map(msgspec.Raw, texts)]


def _fixed(column: pa.Array) -> list[Any]:
    """Return numbers; those that no int64 holds as text of all their digits."""
    if pa.types.is_int64(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(column.type):
        if column.type.scale == 0:
            try:
                return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
            except pa.ArrowInvalid:
                pass  # more than 64 bits
        return _fragments(column.cast(pa.string()))
    if pc.all(pc.match_substring_regex(column, _NUMBER_TEXT)).as_py() is False:
        raise pa.ArrowInvalid("it holds text that is no number")
    return _fragments(column)


def _float(column: pa.Array) -> list[Any]:
    values = column.to_pylist()
    if pc.all(pc.is_finite(column)).as_py() is False:
        at = pc.indices_nonzero(pc.invert(pc.is_finite(column))).to_pylist()
        for place in at:
            value = values[place]
            values[place] = "NaN" if value != value else ("inf" if value > 0 else "-inf")
    return values  # type: ignore[no-any-return]


def _date(column: pa.Array) -> list[Any]:
    return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _time(column: pa.Array) -> list[Any]:
    return _whole_or_not(column, pa.time32("s")).to_pylist()  # type: ignore[no-any-return]


def _timestamp(column: pa.Array) -> list[Any]:
    return _whole_or_not(column, pa.timestamp("s")).to_pylist()  # type: ignore[no-any-return]


def _whole_or_not(column: pa.Array, seconds: pa.DataType) -> pa.Array:
    """Return texts whose fraction of a second is left out where it is zero."""
    try:
        return column.cast(seconds).cast(pa.string())
    except pa.ArrowInvalid:
        pass  # some have a fraction
    texts = column.cast(pa.string())
    return pc.replace_substring_regex(texts, r"\.000000$", "")


def _instants(column: pa.Array, zone: str) -> list[Any]:
    """Return texts `YYYY-MM-DD HH:MM:SS[.fraction] +HHMM` in the zone.

    Offsets of local mean time have seconds, which the format cannot say: they are rounded to
    minutes, and the time of day with them, so that the instant is the same.
    """
    utc = column.cast(pa.timestamp("us", "UTC")).view(pa.int64())
    minutes = _offsets(utc, zone)
    local = pc.add(utc, pc.multiply(minutes, _MINUTE_US)).view(pa.timestamp("us"))
    distinct = minutes.dictionary_encode()
    signs = pa.array([_offset_text(each) for each in distinct.dictionary.to_pylist()], pa.string())
    texts = _whole_or_not(local, pa.timestamp("s"))
    written = pc.binary_join_element_wise(texts, signs.take(distinct.indices), " ")
    return written.to_pylist()  # type: ignore[no-any-return]


def _offsets(utc: pa.Array, zone: str) -> pa.Array:
    """Return the zone's distance from UTC at each instant, in whole minutes."""
    found = zone_of(zone)
    fixed = found.utcoffset(None)
    if fixed is not None:
        minutes = pa.scalar(round(fixed / _MINUTE), pa.int64())
        return pc.if_else(utc.is_valid(), minutes, pa.scalar(None, pa.int64()))
    latest = pc.max(utc).as_py()
    if latest is not None and latest >= _LAST_KNOWN_US:
        instants = utc.view(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).to_pylist()
        offsets = [
            None if each is None else each.astimezone(found).utcoffset() for each in instants
        ]
        minutes = [None if each is None else round(each / _MINUTE) for each in offsets]
        return pa.array(minutes, pa.int64())
    local = pc.local_timestamp(utc.view(pa.timestamp("us", zone))).view(pa.int64())
    seconds = pc.divide(pc.subtract(local, utc), _SECOND_US)
    return pc.round(pc.divide(seconds.cast(pa.float64()), 60.0)).cast(pa.int64())


def _offset_text(minutes: int | None) -> str | None:
    if minutes is None:
        return None
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}{rest:02}"


def _hex(column: pa.Array) -> list[Any]:
    return [None if each is None else each.hex().upper() for each in column.to_pylist()]


def _base64(column: pa.Array) -> list[Any]:
    return [None if each is None else b64encode(each).decode() for each in column.to_pylist()]


_WRITERS: dict[Kind, Write] = {
    Kind.FIXED: _fixed,
    Kind.REAL: _float,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP_NTZ: _timestamp,
}
