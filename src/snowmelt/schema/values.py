"""One value of a row becomes what a chunk stores: the rules of streaming v1, §5.4.

This is the exact path; `rows` converts whole columns at once where the outcome is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.schema.documents import document
from snowmelt.schema.numbers import boolean, fixed, real
from snowmelt.schema.refusals import Stored, null_refused
from snowmelt.schema.texts import binary, text
from snowmelt.schema.times import days, time_of_day, timestamp
from snowmelt.schema.types import SEMI_STRUCTURED, TIMESTAMPS, Column, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from zoneinfo import ZoneInfo

    Rule = Callable[[object, int], Stored]

_RULES: dict[Kind, Callable[[object, Column, int], Stored]] = {
    Kind.FIXED: fixed,
    Kind.REAL: real,
    Kind.BOOLEAN: boolean,
    Kind.TEXT: text,
    Kind.BINARY: binary,
    Kind.DATE: days,
    Kind.TIME: time_of_day,
    **dict.fromkeys(SEMI_STRUCTURED, document),
}


def rule_of(column: Column, zone: ZoneInfo) -> Rule:
    """Return what converts a value of a column: `convert_value` with the choices made."""
    zoned = column.kind in TIMESTAMPS
    plain = None if zoned else _RULES[column.kind]

    def rule(value: object, row_index: int) -> Stored:
        stored: Stored = None
        if value is not None:
            if plain is None:
                return timestamp(value, column, zone, row_index)
            stored = plain(value, column, row_index)
        if stored is None and not column.nullable:
            raise null_refused(column, row_index)
        return stored

    return rule


def convert_value(value: object, column: Column, *, zone: ZoneInfo, row_index: int) -> Stored:
    """Return the stored value; timestamps without a zone are clock times of `zone`.

    Raises:
        InvalidRow: if the Python type does not fit, a number is out of range, or null is refused.
        InvalidValue: if the value does not fit.
    """
    return rule_of(column, zone)(value, row_index)
