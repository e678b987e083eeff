"""Casts of COPY expressions: `value::TYPE`, `CAST(value AS TYPE)` and `value::!TYPE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from snowmelt.load.expressions import types
from snowmelt.load.expressions.types import ExpressionInvalid, ExpressionType, TypedSql, failing

if TYPE_CHECKING:
    from collections.abc import Sequence

T = ExpressionType
D = exp.DataType.Type

_TEXTS = frozenset({D.VARCHAR, D.TEXT})
_INTEGERS = frozenset({D.INT, D.BIGINT, D.SMALLINT, D.TINYINT})
_FLOATS = frozenset({D.FLOAT, D.DOUBLE})
_TRUE = "('t', 'true', 'y', 'yes', '1')"
_FALSE = "('f', 'false', 'n', 'no', '0')"
# Vertica's NUMERIC without precision.
_DEFAULT_PRECISION, _DEFAULT_SCALE, _MAX_PRECISION = 37, 15, 38
_VALID = "VARCHAR(n), INTEGER, NUMERIC(p,s), FLOAT, BOOLEAN, DATE, TIME, TIMESTAMP, TIMESTAMPTZ"


def cast(value: TypedSql, to: exp.DataType, *, lenient: bool = False) -> TypedSql:
    """Return a cast; `lenient` gives NULL for a value that it fails for.

    Raises:
        ExpressionInvalid: If there is no such cast, or what it gives is not known for certain.
    """
    kind, parameters = to.this, _parameters(to)
    if to.args.get("nested") or kind not in _CASTS:
        raise ExpressionInvalid(f"a cast to {to.sql()} is not supported; valid types are {_VALID}")
    return _CASTS[kind](value, parameters, lenient)


def _parameters(to: exp.DataType) -> list[int]:
    found = []
    for each in to.expressions:
        text = each.name
        if not text.isdigit():
            raise ExpressionInvalid(
                f"a cast to {to.sql()} is not supported; valid types are {_VALID}"
            )
        found.append(int(text))
    return found


def _none(parameters: Sequence[int], name: str) -> None:
    if parameters:
        raise ExpressionInvalid(f"{name} takes no precision here")


def _to_text(value: TypedSql, parameters: Sequence[int], _lenient: bool) -> TypedSql:
    text = types.to_text(value)
    if not parameters:
        return TypedSql(text, T.TEXT)
    if len(parameters) > 1 or not parameters[0]:
        raise ExpressionInvalid("VARCHAR has one length, of at least 1")
    return TypedSql(f"cut_octets({text}, {parameters[0]})", T.TEXT)


def _to_integer(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    _none(parameters, "INTEGER")
    sql = value.sql
    match value.type:
        case T.INTEGER:
            return value
        case T.NUMERIC | T.NULL:
            return TypedSql(_cast(sql, "BIGINT", lenient=lenient), T.INTEGER)
        case T.FLOAT:
            reason = "a cast to INTEGER of a FLOAT that ends in .5: write ::NUMERIC(p,s) before it"
            halves = f"abs({sql} - trunc({sql})) = 0.5"
            return TypedSql(
                failing(halves, reason, _cast(sql, "BIGINT", lenient=lenient)), T.INTEGER
            )
        case T.BOOLEAN:
            return TypedSql(f"CAST({sql} AS BIGINT)", T.INTEGER)
        case T.TEXT | T.LITERAL:
            return TypedSql(
                _checked(sql, types.INTEGER_TEXT, "BIGINT", "INTEGER", lenient=lenient), T.INTEGER
            )
        case _:
            raise ExpressionInvalid(f"{value.type} has no cast to INTEGER")


def _checked(sql: str, pattern: str, duckdb: str, name: str, *, lenient: bool) -> str:
    """Return SQL for a cast of text that fails for all but the forms that Vertica reads."""
    known = f"regexp_matches({sql}, {types.quote(pattern)})"
    trimmed = f"trim({sql}, ' \t')"
    if lenient:
        return f"(CASE WHEN {known} THEN TRY_CAST({trimmed} AS {duckdb}) END)"
    error = _text_error(sql, name)
    return f"(CASE WHEN NOT {known} THEN {error} ELSE CAST({trimmed} AS {duckdb}) END)"


def _text_error(sql: str, name: str) -> str:
    return f"error({types.quote(f'invalid text for {name}: ')} || left({sql}, 80))"


def _cast(sql: str, duckdb: str, *, lenient: bool) -> str:
    return f"{'TRY_CAST' if lenient else 'CAST'}({sql} AS {duckdb})"


def _to_numeric(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    precision, scale = _DEFAULT_PRECISION, _DEFAULT_SCALE
    if parameters:
        precision, scale = (*parameters, 0)[:2]
    if not 1 <= precision <= _MAX_PRECISION or scale > precision or len(parameters) > 2:
        raise ExpressionInvalid(
            f"NUMERIC({precision},{scale}): the precision is 1 to {_MAX_PRECISION}, the scale at "
            "most the precision"
        )
    name = f"DECIMAL({precision},{scale})"
    if value.type in types.TEXTS:
        return TypedSql(
            _checked(value.sql, types.NUMBER_TEXT, name, "NUMERIC", lenient=lenient), T.NUMERIC
        )
    if value.type in types.NUMBERS | {T.NULL}:
        return TypedSql(_cast(value.sql, name, lenient=lenient), T.NUMERIC)
    raise ExpressionInvalid(f"{value.type} has no cast to NUMERIC")


def _to_float(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    _none(parameters, "FLOAT")
    if value.type in types.TEXTS:
        return TypedSql(
            _checked(value.sql, types.NUMBER_TEXT, "DOUBLE", "FLOAT", lenient=lenient), T.FLOAT
        )
    return TypedSql(types.to_float(value), T.FLOAT)


def _to_boolean(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    _none(parameters, "BOOLEAN")
    sql = value.sql
    match value.type:
        case T.BOOLEAN:
            return value
        case T.NULL | T.INTEGER:
            return TypedSql(f"CAST({sql} AS BOOLEAN)", T.BOOLEAN)
        case T.TEXT | T.LITERAL:
            word = f"lower(trim({sql}, ' '))"
            other = "NULL" if lenient else _text_error(sql, "BOOLEAN")
            known = (
                f"(CASE WHEN {word} IN {_TRUE} THEN TRUE WHEN {word} IN {_FALSE} THEN FALSE "
                f"ELSE {other} END)"
            )
            return TypedSql(f"(CASE WHEN {sql} IS NOT NULL THEN {known} END)", T.BOOLEAN)
        case _:
            raise ExpressionInvalid(f"{value.type} has no cast to BOOLEAN")


def _reader(lenient: bool) -> str:
    return "try_read" if lenient else "read"


def _to_date(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    _none(parameters, "DATE")
    if value.type in types.TEXTS:
        return TypedSql(f"{_reader(lenient)}_date({value.sql})", T.DATE)
    return TypedSql(f"CAST({types.to_timestamp(value)} AS DATE)", T.DATE)


def _to_timestamp(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    if list(parameters) not in ([], [6]):
        raise ExpressionInvalid("TIMESTAMP has microseconds here: write TIMESTAMP")
    if value.type in types.TEXTS:
        return TypedSql(f"{_reader(lenient)}_timestamp({value.sql})", T.TIMESTAMP)
    return TypedSql(types.to_timestamp(value), T.TIMESTAMP)


def _to_timestamp_tz(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    if list(parameters) not in ([], [6]):
        raise ExpressionInvalid("TIMESTAMPTZ has microseconds here: write TIMESTAMPTZ")
    if value.type is T.TIMESTAMP_TZ:
        return value
    if value.type in types.TEXTS:
        return TypedSql(f"timezone('UTC', {_reader(lenient)}_instant({value.sql}))", T.TIMESTAMP_TZ)
    return TypedSql(f"timezone('UTC', {types.to_timestamp(value)})", T.TIMESTAMP_TZ)


def _to_time(value: TypedSql, parameters: Sequence[int], lenient: bool) -> TypedSql:
    if list(parameters) not in ([], [6]):
        raise ExpressionInvalid("TIME has microseconds here: write TIME")
    if value.type is T.TIME:
        return value
    if value.type in types.TEXTS:
        return TypedSql(f"{_reader(lenient)}_time({value.sql})", T.TIME)
    return TypedSql(f"CAST({types.to_timestamp(value)} AS TIME)", T.TIME)


def _to_binary(value: TypedSql, parameters: Sequence[int], _lenient: bool) -> TypedSql:
    _none(parameters, "VARBINARY")
    if value.type is T.BINARY:
        return value
    raise ExpressionInvalid("a cast to VARBINARY is not supported; write HEX_TO_BINARY(…)")


_CASTS = {
    **dict.fromkeys(_TEXTS, _to_text),
    **dict.fromkeys(_INTEGERS, _to_integer),
    **dict.fromkeys(_FLOATS, _to_float),
    D.DECIMAL: _to_numeric,
    D.BOOLEAN: _to_boolean,
    D.DATE: _to_date,
    D.TIMESTAMP: _to_timestamp,
    D.TIMESTAMPTZ: _to_timestamp_tz,
    D.TIME: _to_time,
    D.VARBINARY: _to_binary,
}
