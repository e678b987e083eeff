"""Casts of COPY expressions to DuckDB SQL: `value::TYPE`, `CAST(value AS TYPE)`, `value::!TYPE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlglot import exp

from snowmelt.load.expressions import types
from snowmelt.load.expressions.types import ExpressionInvalid, ExpressionType, TypedSql

ExprType = ExpressionType
SqlType = exp.DataType.Type

# Renders a cast from three arguments: the value, the numbers of the type (length, or precision and
# scale), and True to return NULL on error.
Render: TypeAlias = Callable[[TypedSql, Sequence[int], bool], str]

_TEXT_TYPES = frozenset({SqlType.VARCHAR, SqlType.TEXT})
_INTEGER_TYPES = frozenset({SqlType.INT, SqlType.BIGINT, SqlType.SMALLINT, SqlType.TINYINT})
_FLOAT_TYPES = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_TRUE_WORDS_SQL = "('t', 'true', 'y', 'yes', '1')"
_FALSE_WORDS_SQL = "('f', 'false', 'n', 'no', '0')"
# Precision and scale of Vertica's NUMERIC without parameters.
_DEFAULT_PRECISION, _DEFAULT_SCALE, _MAX_PRECISION = 37, 15, 38
_VALID_TYPES = (
    "VARCHAR(n), INTEGER, NUMERIC(p,s), FLOAT, BOOLEAN, DATE, TIME, TIMESTAMP, TIMESTAMPTZ"
)


def render_cast(value: TypedSql, target_type: exp.DataType, *, null_on_error: bool) -> TypedSql:
    """Return the SQL of a cast.

    Args:
        value: Value to cast.
        target_type: Type to cast to.
        null_on_error: Return NULL for a value that cannot be cast, instead of an error.

    Raises:
        ExpressionInvalid: If the cast does not exist, or if Vertica's result is not documented.
    """
    parameters = [each.name for each in target_type.expressions]
    known = target_type.this in _CASTS and all(text.isdigit() for text in parameters)
    if target_type.args.get("nested") or not known:
        raise ExpressionInvalid(
            f"a cast to {target_type.sql()} is not supported; valid types are {_VALID_TYPES}"
        )
    expr_type, render = _CASTS[target_type.this]
    sizes = [int(text) for text in parameters]
    if expr_type in {ExprType.TIMESTAMP, ExprType.TIMESTAMP_TZ, ExprType.TIME}:
        if sizes not in ([], [6]):
            raise ExpressionInvalid(f"{expr_type} has microseconds here: write {expr_type}")
    elif sizes and expr_type not in {ExprType.TEXT, ExprType.NUMERIC}:
        raise ExpressionInvalid(f"{expr_type} takes no precision here")
    return TypedSql(render(value, sizes, null_on_error), expr_type)


def _render_cast_to_text(value: TypedSql, sizes: Sequence[int], _null_on_error: bool) -> str:
    text = types.render_as_text(value)
    if not sizes:
        return text
    if len(sizes) > 1 or not sizes[0]:
        raise ExpressionInvalid("VARCHAR has one length, of at least 1")
    return f"cut_octets({text}, {sizes[0]})"


def _render_cast_to_integer(value: TypedSql, _: Sequence[int], null_on_error: bool) -> str:
    sql = value.sql
    match value.type:
        case ExprType.INTEGER:
            return sql
        case ExprType.NUMERIC | ExprType.NULL:
            return _render_duckdb_cast(sql, "BIGINT", null_on_error)
        case ExprType.FLOAT:
            reason = "a cast to INTEGER of a FLOAT that ends in .5: write ::NUMERIC(p,s) before it"
            halves = f"abs({sql} - trunc({sql})) = 0.5"
            cast = _render_duckdb_cast(sql, "BIGINT", null_on_error)
            return types.render_failure_if(halves, reason, cast)
        case ExprType.BOOLEAN:
            return f"CAST({sql} AS BIGINT)"
        case ExprType.TEXT | ExprType.LITERAL:
            pattern = types.INTEGER_TEXT_PATTERN
            return _render_checked_cast(sql, pattern, "BIGINT", "INTEGER", null_on_error)
        case _:
            raise ExpressionInvalid(f"{value.type} has no cast to INTEGER")


def _render_checked_cast(
    sql: str, pattern: str, duckdb_type: str, name: str, null_on_error: bool
) -> str:
    """Return the SQL of a cast from text that fails if the text does not match `pattern`."""
    known = f"regexp_matches({sql}, {types.quote_literal(pattern)})"
    trimmed = f"trim({sql}, ' \t')"
    if null_on_error:
        return f"(CASE WHEN {known} THEN TRY_CAST({trimmed} AS {duckdb_type}) END)"
    error = _render_invalid_text_error(sql, name)
    return f"(CASE WHEN NOT {known} THEN {error} ELSE CAST({trimmed} AS {duckdb_type}) END)"


def _render_invalid_text_error(sql: str, name: str) -> str:
    return f"error({types.quote_literal(f'invalid text for {name}: ')} || left({sql}, 80))"


def _render_duckdb_cast(sql: str, duckdb_type: str, null_on_error: bool) -> str:
    return f"{'TRY_CAST' if null_on_error else 'CAST'}({sql} AS {duckdb_type})"


def _render_cast_to_numeric(value: TypedSql, sizes: Sequence[int], null_on_error: bool) -> str:
    precision, scale = (*sizes, 0)[:2] if sizes else (_DEFAULT_PRECISION, _DEFAULT_SCALE)
    if not 1 <= precision <= _MAX_PRECISION or scale > precision or len(sizes) > 2:
        raise ExpressionInvalid(
            f"NUMERIC({precision},{scale}): the precision is 1 to {_MAX_PRECISION}, the scale at "
            "most the precision"
        )
    name = f"DECIMAL({precision},{scale})"
    if value.type in types.TEXT_TYPES:
        pattern = types.NUMBER_TEXT_PATTERN
        return _render_checked_cast(value.sql, pattern, name, "NUMERIC", null_on_error)
    if value.type in types.NUMBER_TYPES | {ExprType.NULL}:
        return _render_duckdb_cast(value.sql, name, null_on_error)
    raise ExpressionInvalid(f"{value.type} has no cast to NUMERIC")


def _render_cast_to_float(value: TypedSql, _: Sequence[int], null_on_error: bool) -> str:
    if value.type not in types.TEXT_TYPES:
        return types.render_as_float(value)
    pattern = types.NUMBER_TEXT_PATTERN
    return _render_checked_cast(value.sql, pattern, "DOUBLE", "FLOAT", null_on_error)


def _render_cast_to_boolean(value: TypedSql, _: Sequence[int], null_on_error: bool) -> str:
    sql = value.sql
    match value.type:
        case ExprType.BOOLEAN:
            return sql
        case ExprType.NULL | ExprType.INTEGER:
            return f"CAST({sql} AS BOOLEAN)"
        case ExprType.TEXT | ExprType.LITERAL:
            word = f"lower(trim({sql}, ' '))"
            other = "NULL" if null_on_error else _render_invalid_text_error(sql, "BOOLEAN")
            known = (
                f"(CASE WHEN {word} IN {_TRUE_WORDS_SQL} THEN TRUE WHEN {word} IN {_FALSE_WORDS_SQL} THEN FALSE "
                f"ELSE {other} END)"
            )
            return f"(CASE WHEN {sql} IS NOT NULL THEN {known} END)"
        case _:
            raise ExpressionInvalid(f"{value.type} has no cast to BOOLEAN")


def _make_date_cast(
    reader: str, of_text: str, of_timestamp: str, own_type: ExpressionType | None = None
) -> Render:
    """Return a renderer of casts to a date or time. Values of `own_type` are unchanged.

    `of_text` is the SQL template for text, which `reader` parses. `of_timestamp` is the SQL
    template for a timestamp.
    """

    def render(value: TypedSql, _: Sequence[int], null_on_error: bool) -> str:
        if value.type is own_type:
            return value.sql
        if value.type in types.TEXT_TYPES:
            prefix = "try_read" if null_on_error else "read"
            return of_text.format(f"{prefix}_{reader}({value.sql})")
        return of_timestamp.format(types.render_as_timestamp(value))

    return render


def _render_cast_to_binary(value: TypedSql, _: Sequence[int], _null_on_error: bool) -> str:
    if value.type is ExprType.BINARY:
        return value.sql
    raise ExpressionInvalid("a cast to VARBINARY is not supported; write HEX_TO_BINARY(…)")


_INSTANT_SQL = "timezone('UTC', {})"
_CASTS: dict[object, tuple[ExpressionType, Render]] = {
    **dict.fromkeys(_TEXT_TYPES, (ExprType.TEXT, _render_cast_to_text)),
    **dict.fromkeys(_INTEGER_TYPES, (ExprType.INTEGER, _render_cast_to_integer)),
    **dict.fromkeys(_FLOAT_TYPES, (ExprType.FLOAT, _render_cast_to_float)),
    SqlType.DECIMAL: (ExprType.NUMERIC, _render_cast_to_numeric),
    SqlType.BOOLEAN: (ExprType.BOOLEAN, _render_cast_to_boolean),
    SqlType.DATE: (ExprType.DATE, _make_date_cast("date", "{}", "CAST({} AS DATE)")),
    SqlType.TIMESTAMP: (ExprType.TIMESTAMP, _make_date_cast("timestamp", "{}", "{}")),
    SqlType.TIMESTAMPTZ: (
        ExprType.TIMESTAMP_TZ,
        _make_date_cast("instant", _INSTANT_SQL, _INSTANT_SQL, ExprType.TIMESTAMP_TZ),
    ),
    SqlType.TIME: (
        ExprType.TIME,
        _make_date_cast("time", "{}", "CAST({} AS TIME)", ExprType.TIME),
    ),
    SqlType.VARBINARY: (ExprType.BINARY, _render_cast_to_binary),
}
