"""Types of external functions in Spark's SQL: arguments on their way out, values on their way in.

Conversions stand in the query as SQL, so the JVM does them: a VARIANT that becomes a Python object
costs ten times as much as its JSON text. Values look as columns of tables do (see
`docs/decisions/0010-types-in-spark.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.functions.types import MAX_PRECISION
from snowmelt.schema.types import SEMI_STRUCTURED, Kind

if TYPE_CHECKING:
    from snowmelt.functions.types import SqlType

_MOST_DIGITS_OF_BIGINT = 18
# Microseconds are as fine as Spark's times are.
_TIME_DIGITS = 6
_SIMPLE = {
    Kind.REAL: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.TEXT: "STRING",
    Kind.BINARY: "BINARY",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
    Kind.TIMESTAMP_LTZ: "TIMESTAMP",
    Kind.TIMESTAMP_TZ: "TIMESTAMP",
    **dict.fromkeys(SEMI_STRUCTURED, "STRING"),
}
# Spark otherwise leaves fields without a value out, and cuts instants to milliseconds.
_JSON = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSSXXX',"
    " 'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
)
# Neither is the name of a column that anybody has.
_EACH = "snowmelt_each"
_FIELDS = ("error", "status", "batch_id")


def visible_type(sql_type: SqlType) -> str:
    """Return the Spark type of arguments and values as queries see them."""
    if sql_type.kind in SEMI_STRUCTURED:
        return "VARIANT"
    if sql_type.kind is Kind.FIXED:
        return f"DECIMAL({sql_type.precision or MAX_PRECISION},{sql_type.scale or 0})"
    if sql_type.kind is Kind.TIME:
        digits = _TIME_DIGITS if sql_type.scale is None else sql_type.scale
        return f"TIME({min(digits, _TIME_DIGITS)})"
    return _SIMPLE[sql_type.kind]


def raw_type(sql_type: SqlType) -> str:
    """Return the Spark type whose Arrow form the caller takes and gives."""
    if sql_type.kind is Kind.TIME:
        # Arrow's time has no digits of its own: Spark takes it for the finest.
        return f"TIME({_TIME_DIGITS})"
    precision = sql_type.precision or MAX_PRECISION
    if sql_type.is_whole and precision <= _MOST_DIGITS_OF_BIGINT:
        return "BIGINT"
    return _SIMPLE.get(sql_type.kind) or visible_type(sql_type)


def trying_type(sql_type: SqlType) -> str:
    """Return the raw type of what a call gives that reports errors instead of raising them."""
    return f"STRUCT<value: {raw_type(sql_type)}, error: STRING, status: INT, batch_id: STRING>"


def argument(sql_type: SqlType, text: str, *, visible: bool = False) -> str:
    """Return the SQL that makes the raw argument of any expression that can be cast to the type.

    A VARIANT may be of any type, struct and map too; OBJECT and ARRAY are struct, map, array or
    VARIANT.

    Args:
        sql_type: Of the argument.
        text: The expression.
        visible: The expression is known to have the visible type.
    """
    if sql_type.kind not in SEMI_STRUCTURED:
        # Two casts, so that a value is refused that has more digits than the type.
        narrow = text if visible else f"CAST({text} AS {visible_type(sql_type)})"
        if raw_type(sql_type) == visible_type(sql_type):
            return narrow
        return f"CAST({narrow} AS {raw_type(sql_type)})"
    if visible or sql_type.kind is not Kind.VARIANT:
        return f"to_json({text}, {_JSON})"
    # `to_json` takes no scalars, and inside an array NULL would become JSON's null.
    boxed = f"transform(array({text}), {_EACH} -> if({_EACH} IS NULL, NULL, to_json(array({_EACH}), {_JSON})))"
    return f"transform({boxed}, {_EACH} -> substring({_EACH}, 2, length({_EACH}) - 2))[0]"


def value(sql_type: SqlType, text: str) -> str:
    """Return the SQL that makes the visible value of what a call gives."""
    if sql_type.kind in SEMI_STRUCTURED:
        return f"parse_json({text})"
    if raw_type(sql_type) == visible_type(sql_type):
        return text
    return f"CAST({text} AS {visible_type(sql_type)})"


def tried_value(sql_type: SqlType, text: str) -> str:
    """Return the SQL that makes the visible struct of what a call gives that reports errors."""
    if raw_type(sql_type) == visible_type(sql_type):
        return text
    # The lambda names the call, which would be made again for each time that it is written.
    inner, error = f"{_EACH}.value", f"{_EACH}.error"
    shown = value(sql_type, inner)
    if sql_type.kind in SEMI_STRUCTURED:
        shown = f"try_parse_json({inner})"
        unfit = f"{inner} IS NOT NULL AND {shown} IS NULL"
        error = f"if({unfit}, 'The value is no document that Spark can hold.', {error})"
    fields = [f"'value', {shown}", f"'error', {error}"]
    fields += [f"'{name}', {_EACH}.{name}" for name in _FIELDS[1:]]
    struct = f"named_struct({', '.join(fields)})"
    return f"transform(array({text}), {_EACH} -> if({_EACH} IS NULL, NULL, {struct}))[0]"


def visible_trying_type(sql_type: SqlType) -> str:
    """Return the type of `tried_value`."""
    return f"STRUCT<value: {visible_type(sql_type)}, error: STRING, status: INT, batch_id: STRING>"
