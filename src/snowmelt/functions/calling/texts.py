"""Arrow columns as JSON text, type by type, through kernels that see a whole column at once."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.calling.forms import zone_of
from snowmelt.functions.wire.values import BinaryForm
from snowmelt.schema.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    Write: TypeAlias = Callable[[pa.Array], pa.StringArray]

_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_BLANK = 32
_TEXT = pa.string()
_INT32 = Struct("<i")
_TO_TEXT = pc.CastOptions(target_type=_TEXT)
_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US
_MINUTE = dt.timedelta(minutes=1)
# Arrow does not apply the rule by which a zone goes on after its last listed change, in 2037.
_LAST_KNOWN_US = 2_114_380_800 * _SECOND_US  # 2037-01-01


def writer(kind: Kind, zone: str, binary: BinaryForm) -> Write:
    """Return what gives the texts of a type; FLOAT has none.

    A text lacks the quotation marks that JSON wants for types other than NUMBER, BOOLEAN and
    those that are JSON already. NULL stays NULL.
    """
    if kind is Kind.BINARY:
        return _hex if binary is BinaryForm.HEX else _base64
    if kind in {Kind.TIMESTAMP_LTZ, Kind.TIMESTAMP_TZ}:
        return lambda column: _instants(column, zone)
    return _WRITERS.get(kind, _themselves)


def needs_escapes(column: pa.StringArray) -> bool:
    """Tell whether any of the texts has a character that JSON writes in another way."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return False
    first, last = (_offset(offsets, column.offset + at) for at in (0, len(column)))
    written = data.slice(first, last - first).to_pybytes()
    if not written:
        return False
    return (
        b'"' in written
        or b"\\" in written
        or int(np.minimum.reduce(np.frombuffer(written, np.uint8))) < _BLANK
    )


def _offset(offsets: pa.Buffer, at: int) -> int:
    return int(_INT32.unpack_from(offsets, 4 * at)[0])


def _themselves(column: pa.Array) -> pa.StringArray:
    return column


def _plainly(column: pa.Array) -> pa.StringArray:
    return pc.call_function("cast", [column], _TO_TEXT)


def _fixed(column: pa.Array) -> pa.StringArray:
    if column.type != _TEXT:
        return _plainly(column)
    if pc.all(pc.match_substring_regex(column, _NUMBER)).as_py() is False:
        raise pa.ArrowInvalid("it holds text that is no number")
    return column


def _times(column: pa.Array) -> pa.StringArray:
    return _with_fraction_if_any(column, pa.time32("s"))


def _timestamps(column: pa.Array) -> pa.StringArray:
    return _with_fraction_if_any(column, pa.timestamp("s"))


def _with_fraction_if_any(column: pa.Array, seconds: pa.DataType) -> pa.StringArray:
    try:
        return column.cast(seconds).cast(pa.string())
    except pa.ArrowInvalid:
        pass  # some have a fraction
    texts = column.cast(pa.string())
    if pc.any(pc.ends_with(texts, ".000000")).as_py():
        return pc.replace_substring_regex(texts, r"\.000000$", "")
    return texts


def _instants(column: pa.Array, zone: str) -> pa.StringArray:
    """Return texts `YYYY-MM-DD HH:MM:SS[.fraction] +HHMM` in the zone.

    Offsets of local mean time have seconds, which the format cannot say: they are rounded to
    minutes, and the time of day with them, so that the instant is the same.
    """
    utc = column.view(pa.int64())
    minutes = _offsets(utc, zone)
    local = pc.add(utc, pc.multiply(minutes, _MINUTE_US)).view(pa.timestamp("us"))
    distinct = minutes.dictionary_encode()
    offsets = pa.array(
        [_offset_text(each) for each in distinct.dictionary.to_pylist()], pa.string()
    )
    return pc.binary_join_element_wise(_timestamps(local), offsets.take(distinct.indices), " ")


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


def _hex(column: pa.Array) -> pa.StringArray:
    texts = [None if each is None else each.hex().upper() for each in column.to_pylist()]
    return pa.array(texts, pa.string())


def _base64(column: pa.Array) -> pa.StringArray:
    texts = [None if each is None else b64encode(each).decode() for each in column.to_pylist()]
    return pa.array(texts, pa.string())


_WRITERS: dict[Kind, Write] = {
    Kind.FIXED: _fixed,
    Kind.BOOLEAN: _plainly,
    Kind.DATE: _plainly,
    Kind.TIME: _times,
    Kind.TIMESTAMP_NTZ: _timestamps,
}
