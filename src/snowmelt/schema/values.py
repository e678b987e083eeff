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
from snowmelt.schema.refusals import Stored, null_refused
from snowmelt.schema.texts import binary, text
from snowmelt.schema.times import days, sane, time_of_day, timestamp
from snowmelt.schema.types import SEMI_STRUCTURED, TIMESTAMPS, Column, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from zoneinfo import ZoneInfo

    Rule = Callable[[object, int], Stored]
    Convert = Callable[[object, Column, int], Stored]

_RULES: dict[Kind, Convert] = {
    Kind.FIXED: fixed,
    Kind.REAL: real,
    Kind.BOOLEAN: boolean,
    Kind.TEXT: text,
    Kind.BINARY: binary,
    Kind.DATE: days,
    Kind.TIME: time_of_day,
}
_DATED = TIMESTAMPS | {Kind.DATE}
_MOMENTS = _DATED | {Kind.TIME}


def rule_of(
    column: Column, zone: ZoneInfo, compatibility: Compatibility = Compatibility.SNOWFLAKE
) -> Rule:
    """Return what converts a value of a column: `convert_value` with the choices made."""
    convert = _chosen(column, zone, strict=compatibility is Compatibility.STRICT)

    def rule(value: object, row_index: int) -> Stored:
        stored: Stored = None
        if value is not None:
            try:
                stored = convert(value, column, row_index)
            except InvalidRow as refusal:
                stored = _of_likeness(value, convert, column, refusal)
        if stored is None and not column.nullable:
            raise null_refused(column, row_index)
        return stored

    return rule


def convert_value(
    value: object,
    column: Column,
    *,
    zone: ZoneInfo,
    row_index: int,
    compatibility: Compatibility = Compatibility.SNOWFLAKE,
) -> Stored:
    """Return the stored value; timestamps without a zone are clock times of `zone`.

    Raises:
        InvalidRow: if the Python type does not fit, a number is out of range, or null is refused.
        InvalidValue: if the value does not fit.
    """
    return rule_of(column, zone, compatibility)(value, row_index)


def _chosen(column: Column, zone: ZoneInfo, *, strict: bool) -> Convert:
    if column.kind in SEMI_STRUCTURED:
        return partial(document, several_roots=not strict)
    convert = _RULES.get(column.kind)
    if convert is None:
        # A clock time that stays one need not pass through any zone.
        naive = None if strict and column.kind is Kind.TIMESTAMP_NTZ else zone
        convert = partial(timestamp, zone=naive)
    return partial(sane, convert) if strict and column.kind in _MOMENTS else convert


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
