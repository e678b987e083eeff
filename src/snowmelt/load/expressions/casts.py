"""Casts of COPY expressions as DuckDB SQL: `value::TYPE`, `CAST(value AS TYPE)`, `value::!TYPE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from snowmelt.load.expressions import types
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    ExpressionType,
    TypedSql,
    render_failure_if,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ExprType = ExpressionType
SqlType = exp.DataType.Type

_TEXT_TYPES = frozenset({SqlType.VARCHAR, SqlType.TEXT})
_INTEGER_TYPES = frozenset({SqlType.INT, SqlType.BIGINT, SqlType.SMALLINT, SqlType.TINYINT})
_FLOAT_TYPES = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_TRUE_WORDS_SQL = "('t', 'true', 'y', 'yes', '1')"
_FALSE_WORDS_SQL = "('f', 'false', 'n', 'no', '0')"
# Vertica's NUMERIC without precision.
_DEFAULT_PRECISION, _DEFAULT_SCALE, _MAX_PRECISION = 37, 15, 38
_VALID_TYPES = (
    "VARCHAR(n), INTEGER, NUMERIC(p,s), FLOAT, BOOLEAN, DATE, TIME, TIMESTAMP, TIMESTAMPTZ"
)


def render_cast(
    value: TypedSql, target_type: exp.DataType, *, null_on_error: bool = False
) -> TypedSql:
    """Return a cast; `null_on_error` gives NULL for a value that it fails for.

    Raises:
        ExpressionInvalid: If there is no such cast, or what it gives is not known for certain.
    """
    kind, parameters = target_type.this, _parse_type_parameters(target_type)
    if target_type.args.get("nested") or kind not in _CAST_WRITERS:
        raise ExpressionInvalid(
            f"a cast to {target_type.sql()} is not supported; valid types are {_VALID_TYPES}"
        )
    return _CAST_WRITERS[kind](value, parameters, null_on_error)


def _parse_type_parameters(target_type: exp.DataType) -> list[int]:
    found = []
    for each in target_type.expressions:
        text = each.name
        if not text.isdigit():
            raise ExpressionInvalid(
                f"a cast to {target_type.sql()} is not supported; valid types are {_VALID_TYPES}"
            )
        found.append(int(text))
    return found


def _require_no_type_parameters(parameters: Sequence[int], name: str) -> None:
    if parameters:
        raise ExpressionInvalid(f"{name} takes no precision here")


def _render_cast_to_text(
    value: TypedSql, parameters: Sequence[int], _null_on_error: bool
) -> TypedSql:
    text = types.render_as_text(value)
    if not parameters:
        return TypedSql(text, ExprType.TEXT)
    if len(parameters) > 1 or not parameters[0]:
        raise ExpressionInvalid("VARCHAR has one length, of at least 1")
    return TypedSql(f"cut_octets({text}, {parameters[0]})", ExprType.TEXT)


def _render_cast_to_integer(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    _require_no_type_parameters(parameters, "INTEGER")
    sql = value.sql
    match value.type:
        case ExprType.INTEGER:
            return value
        case ExprType.NUMERIC | ExprType.NULL:
            return TypedSql(
                _render_duckdb_cast(sql, "BIGINT", null_on_error=null_on_error), ExprType.INTEGER
            )
        case ExprType.FLOAT:
            reason = "a cast to INTEGER of a FLOAT that ends in .5: write ::NUMERIC(p,s) before it"
            halves = f"abs({sql} - trunc({sql})) = 0.5"
            return TypedSql(
                render_failure_if(
                    halves, reason, _render_duckdb_cast(sql, "BIGINT", null_on_error=null_on_error)
                ),
                ExprType.INTEGER,
            )
        case ExprType.BOOLEAN:
            return TypedSql(f"CAST({sql} AS BIGINT)", ExprType.INTEGER)
        case ExprType.TEXT | ExprType.LITERAL:
            return TypedSql(
                _render_checked_cast(
                    sql,
                    types.INTEGER_TEXT_PATTERN,
                    "BIGINT",
                    "INTEGER",
                    null_on_error=null_on_error,
                ),
                ExprType.INTEGER,
            )
        case _:
            raise ExpressionInvalid(f"{value.type} has no cast to INTEGER")


def _render_checked_cast(
    sql: str, pattern: str, duckdb_type: str, name: str, *, null_on_error: bool
) -> str:
    """Return SQL for a cast of text that fails for all but the forms that Vertica reads."""
    known = f"regexp_matches({sql}, {types.quote_literal(pattern)})"
    trimmed = f"trim({sql}, ' \t')"
    if null_on_error:
        return f"(CASE WHEN {known} THEN TRY_CAST({trimmed} AS {duckdb_type}) END)"
    error = _render_invalid_text_error(sql, name)
    return f"(CASE WHEN NOT {known} THEN {error} ELSE CAST({trimmed} AS {duckdb_type}) END)"


def _render_invalid_text_error(sql: str, name: str) -> str:
    return f"error({types.quote_literal(f'invalid text for {name}: ')} || left({sql}, 80))"


def _render_duckdb_cast(sql: str, duckdb_type: str, *, null_on_error: bool) -> str:
    return f"{'TRY_CAST' if null_on_error else 'CAST'}({sql} AS {duckdb_type})"


def _render_cast_to_numeric(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    precision, scale = _DEFAULT_PRECISION, _DEFAULT_SCALE
    if parameters:
        precision, scale = (*parameters, 0)[:2]
    if not 1 <= precision <= _MAX_PRECISION or scale > precision or len(parameters) > 2:
        raise ExpressionInvalid(
            f"NUMERIC({precision},{scale}): the precision is 1 to {_MAX_PRECISION}, the scale at "
            "most the precision"
        )
    name = f"DECIMAL({precision},{scale})"
    if value.type in types.TEXT_TYPES:
        return TypedSql(
            _render_checked_cast(
                value.sql, types.NUMBER_TEXT_PATTERN, name, "NUMERIC", null_on_error=null_on_error
            ),
            ExprType.NUMERIC,
        )
    if value.type in types.NUMBER_TYPES | {ExprType.NULL}:
        return TypedSql(
            _render_duckdb_cast(value.sql, name, null_on_error=null_on_error), ExprType.NUMERIC
        )
    raise ExpressionInvalid(f"{value.type} has no cast to NUMERIC")


def _render_cast_to_float(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    _require_no_type_parameters(parameters, "FLOAT")
    if value.type in types.TEXT_TYPES:
        return TypedSql(
            _render_checked_cast(
                value.sql, types.NUMBER_TEXT_PATTERN, "DOUBLE", "FLOAT", null_on_error=null_on_error
            ),
            ExprType.FLOAT,
        )
    return TypedSql(types.render_as_float(value), ExprType.FLOAT)


def _render_cast_to_boolean(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    _require_no_type_parameters(parameters, "BOOLEAN")
    sql = value.sql
    match value.type:
        case ExprType.BOOLEAN:
            return value
        case ExprType.NULL | ExprType.INTEGER:
            return TypedSql(f"CAST({sql} AS BOOLEAN)", ExprType.BOOLEAN)
        case ExprType.TEXT | ExprType.LITERAL:
            word = f"lower(trim({sql}, ' '))"
            other = "NULL" if null_on_error else _render_invalid_text_error(sql, "BOOLEAN")
            known = (
                f"(CASE WHEN {word} IN {_TRUE_WORDS_SQL} THEN TRUE WHEN {word} IN {_FALSE_WORDS_SQL} THEN FALSE "
                f"ELSE {other} END)"
            )
            return TypedSql(f"(CASE WHEN {sql} IS NOT NULL THEN {known} END)", ExprType.BOOLEAN)
        case _:
            raise ExpressionInvalid(f"{value.type} has no cast to BOOLEAN")


def _choose_read_function_prefix(null_on_error: bool) -> str:
    return "try_read" if null_on_error else "read"


def _render_cast_to_date(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    _require_no_type_parameters(parameters, "DATE")
    if value.type in types.TEXT_TYPES:
        return TypedSql(
            f"{_choose_read_function_prefix(null_on_error)}_date({value.sql})", ExprType.DATE
        )
    return TypedSql(f"CAST({types.render_as_timestamp(value)} AS DATE)", ExprType.DATE)


def _render_cast_to_timestamp(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    if list(parameters) not in ([], [6]):
        raise ExpressionInvalid("TIMESTAMP has microseconds here: write TIMESTAMP")
    if value.type in types.TEXT_TYPES:
        return TypedSql(
            f"{_choose_read_function_prefix(null_on_error)}_timestamp({value.sql})",
            ExprType.TIMESTAMP,
        )
    return TypedSql(types.render_as_timestamp(value), ExprType.TIMESTAMP)


def _render_cast_to_timestamp_tz(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    if list(parameters) not in ([], [6]):
        raise ExpressionInvalid("TIMESTAMPTZ has microseconds here: write TIMESTAMPTZ")
    if value.type is ExprType.TIMESTAMP_TZ:
        return value
    if value.type in types.TEXT_TYPES:
        return TypedSql(
            f"timezone('UTC', {_choose_read_function_prefix(null_on_error)}_instant({value.sql}))",
            ExprType.TIMESTAMP_TZ,
        )
    return TypedSql(f"timezone('UTC', {types.render_as_timestamp(value)})", ExprType.TIMESTAMP_TZ)


def _render_cast_to_time(
    value: TypedSql, parameters: Sequence[int], null_on_error: bool
) -> TypedSql:
    if list(parameters) not in ([], [6]):
        raise ExpressionInvalid("TIME has microseconds here: write TIME")
    if value.type is ExprType.TIME:
        return value
    if value.type in types.TEXT_TYPES:
        return TypedSql(
            f"{_choose_read_function_prefix(null_on_error)}_time({value.sql})", ExprType.TIME
        )
    return TypedSql(f"CAST({types.render_as_timestamp(value)} AS TIME)", ExprType.TIME)


def _render_cast_to_binary(
    value: TypedSql, parameters: Sequence[int], _null_on_error: bool
) -> TypedSql:
    _require_no_type_parameters(parameters, "VARBINARY")
    if value.type is ExprType.BINARY:
        return value
    raise ExpressionInvalid("a cast to VARBINARY is not supported; write HEX_TO_BINARY(…)")


_CAST_WRITERS = {
    **dict.fromkeys(_TEXT_TYPES, _render_cast_to_text),
    **dict.fromkeys(_INTEGER_TYPES, _render_cast_to_integer),
    **dict.fromkeys(_FLOAT_TYPES, _render_cast_to_float),
    SqlType.DECIMAL: _render_cast_to_numeric,
    SqlType.BOOLEAN: _render_cast_to_boolean,
    SqlType.DATE: _render_cast_to_date,
    SqlType.TIMESTAMP: _render_cast_to_timestamp,
    SqlType.TIMESTAMPTZ: _render_cast_to_timestamp_tz,
    SqlType.TIME: _render_cast_to_time,
    SqlType.VARBINARY: _render_cast_to_binary,
}
