"""One value of a row becomes what a chunk stores: the rules of streaming v1, §5.4.

This is the exact path; `rows` converts whole columns at once where the outcome is the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.errors import InvalidRow, InvalidValue
from snowmelt.schema.compatibility import Compatibility
from snowmelt.schema.documents import document
from snowmelt.schema.likenesses import likeness
from snowmelt.schema.numbers import boolean, fixed, real
from snowmelt.schema.refusals import Stored, null_refused, wrong_value
from snowmelt.schema.sdk_bytes import no_base64, no_bytes
from snowmelt.schema.texts import binary, text
from snowmelt.schema.time_limits import (
    LIMITED,
    find_range_error,
    foreign_instant,
    instant_out_of_range,
)
from snowmelt.schema.times import days, time_of_day, timestamp
from snowmelt.schema.types import SEMI_STRUCTURED, TIMESTAMPS, Column, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    Rule = Callable[[object, int], Stored]
    Convert = Callable[[object, Column, int], Stored]

_DATED = TIMESTAMPS | {Kind.DATE}


def rule_of(
    column: Column, zone: tzinfo, compatibility: Compatibility = Compatibility.STRICT
) -> Rule:
    """Return what converts a value of a column: `convert_value` with the choices made."""
    convert = _chosen(column, zone, compatibility)
    is_limited = column.kind in LIMITED

    def rule(value: object, row_index: int) -> Stored:
        stored: Stored = None
        if value is not None:
            try:
                stored = convert(value, column, row_index)
            except InvalidRow as refusal:
                if is_limited and (foreign := foreign_instant(value)) is not None:
                    raise instant_out_of_range(column, row_index, foreign) from None
                stored = _of_likeness(value, convert, column, refusal)
            except Exception as error:
                reason = f"Reading the value raised {type(error).__name__}"
                raise wrong_value(column, row_index, reason) from error
        if is_limited and isinstance(stored, int):
            range_error = find_range_error(stored, column, row_index, value)
            if range_error is not None:
                raise range_error
        if stored is None and not column.nullable:
            raise null_refused(column, row_index)
        return stored

    return rule


def convert_value(
    value: object,
    column: Column,
    *,
    zone: tzinfo,
    row_index: int,
    compatibility: Compatibility = Compatibility.STRICT,
) -> Stored:
    """Return the stored value; timestamps without a zone are clock times of `zone`.

    Raises:
        InvalidRow: if the Python type does not fit, a number is out of range, or null is refused.
        InvalidValue: if the value does not fit.
    """
    return rule_of(column, zone, compatibility)(value, row_index)


def _chosen(column: Column, zone: tzinfo, compatibility: Compatibility) -> Convert:
    kind, java, forms = column.kind, compatibility.is_java, compatibility.text_forms
    if kind in SEMI_STRUCTURED:
        return partial(document, java=java)
    if kind in TIMESTAMPS:
        # A timestamp without a zone never meets one, but in the Java client.
        meets_zone = java or kind is not Kind.TIMESTAMP_NTZ
        return partial(timestamp, zone=zone if meets_zone else None, forms=forms)
    sdk = compatibility is Compatibility.SDK_ROWS
    converts: dict[Kind, Convert] = {
        Kind.FIXED: no_bytes(fixed) if sdk else fixed,
        Kind.REAL: no_bytes(partial(real, java=False)) if sdk else partial(real, java=java),
        Kind.BOOLEAN: partial(boolean, java=java),
        Kind.TEXT: text,
        Kind.BINARY: no_base64(binary) if sdk else binary,
        Kind.DATE: partial(days, forms=forms),
        Kind.TIME: partial(time_of_day, forms=forms),
    }
    return converts[kind]


def _of_likeness(value: object, convert: Convert, column: Column, refusal: InvalidRow) -> Stored:
    """Try what an unusual value stands for; a refusal of its type names its own type."""
    plain = likeness(value)
    if plain is None:
        return None
    # Text that only stands for a moment is no text elsewhere; a moment is no time of day.
    moment = isinstance(value, np.datetime64)
    if plain is value or (moment and column.kind not in _DATED):
        raise refusal
    try:
        return convert(plain, column, int(str(refusal.fields.get("row_index", 0))))
    except InvalidValue:
        raise
    except InvalidRow:
        raise refusal from None
