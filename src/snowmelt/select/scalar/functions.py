"""The functions of one record."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select import timestamps
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import row_error
from snowmelt.select.scalar.operators import calculate, same
from snowmelt.select.scalar.patterns import format_timestamp
from snowmelt.select.timestamps import Timestamp, parse_iso, parse_seed
from snowmelt.select.values import excerpt, infer_number, is_absent, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run: TypeAlias = Callable[[Sequence[object], Dialect], object]

_BEYOND = 2**63


@dataclass(frozen=True, slots=True)
class Function:
    """What a call needs to know: what to run, and whether NULL among the arguments is NULL."""

    run: Run
    takes_null: bool = False


def call_function(name: str, arguments: Sequence[object], dialect: Dialect) -> object:
    """Return what a function makes of its arguments; NULL where one of them is, mostly.

    Raises:
        SelectError: Where an argument is of a wrong type or out of range.
    """
    function = FUNCTIONS[name]
    if not function.takes_null and any(is_absent(argument) for argument in arguments):
        return None
    return function.run(arguments, dialect)


def _text(value: object, name: str, dialect: Dialect) -> str:
    if isinstance(value, str):
        return value
    message = f"{name} takes text, not {excerpt(value)} ({kind_of(value)}); CAST it AS STRING"
    raise row_error("IncorrectSqlFunctionArgumentType", message, dialect)


def _whole(value: object, name: str, dialect: Dialect) -> int:
    number = infer_number(value) if isinstance(value, str) and not dialect.is_ceph else value
    if isinstance(number, int | float | Decimal) and not isinstance(number, bool):
        # Infinity and NaN are not below the bound.
        whole = int(number) if -_BEYOND < number < _BEYOND else None
        if whole is not None and whole == number:
            return whole
    message = f"{name} takes a whole number, not {excerpt(value)} ({kind_of(value)})"
    raise row_error("IncorrectSqlFunctionArgumentType", message, dialect)


def _moment(value: object, name: str, dialect: Dialect) -> Timestamp:
    if isinstance(value, Timestamp):
        return value
    inferred = parse_iso(value) if isinstance(value, str) and not dialect.is_ceph else None
    if inferred is None:
        message = f"{name} takes a timestamp, not {excerpt(value)} ({kind_of(value)})"
        raise row_error("IncorrectSqlFunctionArgumentType", message, dialect)
    return inferred


def _char_length(arguments: Sequence[object], dialect: Dialect) -> int:
    return len(_text(arguments[0], "char_length", dialect))


def _lower(arguments: Sequence[object], dialect: Dialect) -> str:
    return _text(arguments[0], "lower", dialect).lower()


def _upper(arguments: Sequence[object], dialect: Dialect) -> str:
    return _text(arguments[0], "upper", dialect).upper()


def _substring(arguments: Sequence[object], dialect: Dialect) -> str:
    """Cut a part out: a start before the first character moves to it in `aws`.

    In Ceph the part keeps its place, so what lies before the first character is lost.
    """
    text = _text(arguments[0], "substring", dialect)
    start, length = _range(arguments, "substring", dialect)
    if dialect is Dialect.AWS:
        start = max(start, 1)
    end = len(text) if length is None else max(start + length - 1, 0)
    return text[max(start, 1) - 1 : end]


def _substr(arguments: Sequence[object], dialect: Dialect) -> str:
    """Cut like `substring`; in `ceph-2020` what is not all inside the text is an error."""
    if dialect is not Dialect.CEPH_2020:
        return _substring(arguments, dialect)
    text = _text(arguments[0], "substr", dialect)
    start, length = _range(arguments, "substr", dialect)
    if start == 0:
        return ""
    end = len(text) if length is None else start - 1 + length
    if not 0 < start <= len(text) or end > len(text):
        message = f"substr of {len(text)} characters from {start} to {end} is out of range"
        raise row_error("EvaluatorInvalidArguments", message, dialect)
    return text[start - 1 : end]


def _range(arguments: Sequence[object], name: str, dialect: Dialect) -> tuple[int, int | None]:
    start = _whole(arguments[1], name, dialect)
    length = _whole(arguments[2], name, dialect) if len(arguments) > 2 else None
    if length is not None and length < 0:
        message = f"{name} takes a length of 0 or more, not {length}"
        raise row_error("EvaluatorInvalidArguments", message, dialect)
    return start, length


def _trim(arguments: Sequence[object], dialect: Dialect) -> str:
    mode = arguments[0]
    characters = _text(arguments[1], "trim", dialect)
    text = _text(arguments[2], "trim", dialect)
    if mode == "leading":
        return text.lstrip(characters) if characters else text
    if mode == "trailing":
        return text.rstrip(characters) if characters else text
    return text.strip(characters) if characters else text


def _nullif(arguments: Sequence[object], _dialect: Dialect) -> object:
    return None if same(arguments[0], arguments[1]) else arguments[0]


def _coalesce(arguments: Sequence[object], _dialect: Dialect) -> object:
    return next((argument for argument in arguments if not is_absent(argument)), None)


def _timestamp(arguments: Sequence[object], dialect: Dialect) -> Timestamp:
    value = arguments[0]
    if isinstance(value, Timestamp):
        return value
    parsed = parse_seed(_text(value, "timestamp", dialect))
    if parsed is None:
        message = f"{excerpt(value)} is no timestamp; write it like 1999:10:10-12:23:44"
        raise row_error("ValueParseFailure", message, dialect)
    return parsed


def _extract(arguments: Sequence[object], dialect: Dialect) -> int:
    return timestamps.extract(str(arguments[0]), _moment(arguments[1], "extract", dialect))


def _date_add(arguments: Sequence[object], dialect: Dialect) -> Timestamp:
    return _added(arguments, dialect, name="date_add", sticky=False)


def _dateadd(arguments: Sequence[object], dialect: Dialect) -> Timestamp:
    return _added(arguments, dialect, name="dateadd", sticky=True)


def _added(arguments: Sequence[object], dialect: Dialect, *, name: str, sticky: bool) -> Timestamp:
    count = _whole(arguments[1], name, dialect)
    moment = _moment(arguments[2], name, dialect)
    added = timestamps.date_add(str(arguments[0]), count, moment, sticky=sticky)
    if added is None:
        message = f"{name} leaves the years 1 to 9999"
        raise row_error("EvaluatorInvalidArguments", message, dialect)
    return added


def _date_diff(arguments: Sequence[object], dialect: Dialect) -> int:
    start = _moment(arguments[1], "date_diff", dialect)
    return timestamps.date_diff(
        str(arguments[0]), start, _moment(arguments[2], "date_diff", dialect)
    )


def _datediff(arguments: Sequence[object], dialect: Dialect) -> int:
    start = _moment(arguments[1], "datediff", dialect)
    return timestamps.calendar_diff(
        str(arguments[0]), start, _moment(arguments[2], "datediff", dialect)
    )


def _to_string(arguments: Sequence[object], dialect: Dialect) -> str:
    moment = _moment(arguments[0], "to_string", dialect)
    picture = _text(arguments[1], "to_string", dialect)
    return format_timestamp(moment, picture, ceph=dialect.is_ceph)


def _add(arguments: Sequence[object], dialect: Dialect) -> object:
    return calculate("+", arguments[0], arguments[1], dialect)


def _version(_arguments: Sequence[object], _dialect: Dialect) -> str:
    return "snowmelt " + version("snowmelt")


FUNCTIONS = {
    "add": Function(_add),
    "char_length": Function(_char_length),
    "character_length": Function(_char_length),
    "coalesce": Function(_coalesce, takes_null=True),
    "date_add": Function(_date_add),
    "date_diff": Function(_date_diff),
    "dateadd": Function(_dateadd),
    "datediff": Function(_datediff),
    "engine_version": Function(_version),
    "extract": Function(_extract),
    "lower": Function(_lower),
    "nullif": Function(_nullif, takes_null=True),
    "substr": Function(_substr),
    "substring": Function(_substring),
    "timestamp": Function(_timestamp),
    "to_string": Function(_to_string),
    "trim": Function(_trim),
    "upper": Function(_upper),
    "version": Function(_version),
}
