"""Values as JSON text: numbers keep every digit, timestamps are strings."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt.select.refusals import SelectError
from snowmelt.select.syntax import MISSING
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.values import print_decimal, print_value

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


def json_text(value: object, dialect: Dialect) -> bytes:
    """Return a value as JSON; NaN and the infinities, which JSON has not, are null.

    Floats and timestamps are shown as the dialect shows them. Bytes that were no UTF-8 where they were read are written as they were.

    Raises:
        SelectError: It is nested hundreds of levels deep.
    """
    return _joined(value, dialect).encode("utf-8", "surrogateescape")


def plain_text(value: object, dialect: Dialect) -> str:
    """Return a value as a CSV field shows it; lists and records as JSON.

    Raises:
        SelectError: It is nested hundreds of levels deep.
    """
    if isinstance(value, list | dict):
        return _joined(value, dialect)
    return print_value(value, dialect)


def _joined(value: object, dialect: Dialect) -> str:
    try:
        return "".join(_pieces(value, dialect))
    except RecursionError:
        raise SelectError("JSONParsingError", "A value is nested too deep to be written.") from None


def _pieces(value: object, dialect: Dialect) -> list[str]:
    if isinstance(value, dict):
        return _record(value, dialect)
    if isinstance(value, list):
        items = [piece for item in value for piece in (",", *_pieces(item, dialect))]
        return ["[", *items[1:], "]"]
    return [_scalar(value, dialect)]


def _record(value: dict[object, object], dialect: Dialect) -> list[str]:
    fields: list[str] = []
    for name, item in value.items():
        if item is not MISSING:
            fields += [",", _string(str(name)), ":", *_pieces(item, dialect)]
    return ["{", *fields[1:], "}"]


def _scalar(value: object, dialect: Dialect) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):
        return _number(value, dialect)
    if isinstance(value, Timestamp):
        return _string(print_value(value, dialect))
    return str(value) if isinstance(value, int) else "null"


def _number(value: float | Decimal, dialect: Dialect) -> str:
    if isinstance(value, Decimal):
        # By its own word: a decimal that no float holds is finite all the same.
        return print_decimal(value) if value.is_finite() else "null"
    return print_value(value, dialect) if math.isfinite(value) else "null"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
