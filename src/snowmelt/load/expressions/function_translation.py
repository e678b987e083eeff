"""Functions of COPY expressions: Vertica's documented behavior as DuckDB SQL.

A function is in `FUNCTIONS` only if its result equals Vertica's for every value, or evaluation
fails. `REJECTED_FUNCTIONS` maps known but unsupported functions to a replacement.
`docs/reference/copy-functions.md` has a line with an example for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from snowmelt.load.expressions import types
from snowmelt.load.expressions.regex_patterns import (
    Re2Pattern,
    translate_pattern_to_re2,
    validate_replacement,
)
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    TypedSql,
    quote_literal,
    render_failure_if,
)

ExprType = types.ExpressionType

# Renderers of arguments, by the letter of the argument type in a signature.
_ARGUMENT_WRITERS: dict[str, Callable[[TypedSql], str]] = {
    "t": types.render_as_text,
    "i": types.render_as_integer,
    "n": lambda value: _require_exact_number_sql(value),
    "f": types.render_as_float,
    "d": types.render_as_timestamp,
    "x": types.require_binary_sql,
}
_ARGUMENT_TYPE_NAMES = {
    "t": "VARCHAR",
    "i": "INTEGER",
    "n": "INTEGER or NUMERIC",
    "f": "a number",
    "d": "DATE or TIMESTAMP",
    "x": "VARBINARY",
}
_ASCII_PATTERN = "^[\\x00-\\x7F]*$"


@dataclass(frozen=True, slots=True)
class FunctionOverload:
    """Function signature and its SQL.

    `arguments` has a key of `_ARGUMENT_WRITERS` for each argument. In `sql`, `{0}` is the first
    argument.
    """

    arguments: str
    sql: str
    type: types.ExpressionType
    has_scale: bool = True


@dataclass(frozen=True, slots=True)
class SpecialFunction:
    """Function that checks its arguments itself. `maximum` None means any number of arguments."""

    build: Callable[[Sequence[TypedSql]], TypedSql]
    minimum: int
    maximum: int | None
    usage: str


def _require_exact_number_sql(value: TypedSql) -> str:
    number = types.require_number(value)
    if number.type is ExprType.FLOAT:
        raise ExpressionInvalid("expected INTEGER or NUMERIC, got FLOAT; write ::NUMERIC(p,s)")
    return number.sql


def _render_ascii_check(sql: str, value: str, name: str) -> str:
    """Return SQL that fails if `value` has non-ASCII characters."""
    reason = (
        f"{name} of a text with characters other than ASCII: Vertica counts octets or characters, "
        "depending on the locale"
    )
    return render_failure_if(f"NOT regexp_matches({value}, '{_ASCII_PATTERN}')", reason, sql)


def _render_minimum_check(checked_sql: str, sql: str, name: str, minimum: int) -> str:
    reason = f"{name}: expected a number of at least {minimum}"
    return render_failure_if(f"{checked_sql} < {minimum}", reason, sql)


def _render_finite_check(name: str, sql: str, condition: str | None = None) -> str:
    wrong = f"NOT isfinite({sql})"
    if condition is not None:
        return render_failure_if(condition, f"{name} is not defined for this value", sql)
    return render_failure_if(wrong, f"{name} is not defined for this value, or too large", sql)


def _require_text_literal(value: TypedSql, label: str) -> str:
    if value.literal is None:
        raise ExpressionInvalid(f"{label} must be a text in quotes, the same for all rows")
    return value.literal


_CALENDAR_FUNCTIONS = {
    "YEAR": "year({0})",
    "QUARTER": "quarter({0})",
    "MONTH": "month({0})",
    "DAY": "day({0})",
    "DAYOFMONTH": "day({0})",
    "HOUR": "hour({0})",
    "MINUTE": "minute({0})",
    "SECOND": "second({0})",
    "MICROSECOND": "(microsecond({0}) % 1000000)",
    "DAYOFWEEK": "(dayofweek({0}) + 1)",
    "DAYOFWEEK_ISO": "isodow({0})",
    "DAYOFYEAR": "dayofyear({0})",
    "WEEK": "((dayofyear({0}) - 1 + dayofweek(date_trunc('year', {0}))) // 7 + 1)",
    "WEEK_ISO": "weekofyear({0})",
    "YEAR_ISO": "isoyear({0})",
    "JULIAN_DAY": "CAST(julian(CAST({0} AS DATE)) AS BIGINT)",
    "DAYS": "(CAST(julian(CAST({0} AS DATE)) AS BIGINT) - 1721425)",
    "MIDNIGHT_SECONDS": "(hour({0}) * 3600 + minute({0}) * 60 + second({0}))",
}
_MONTH_END_SQL = "last_day(CAST({0} AS DATE))"
_ADD_MONTHS_SQL = (
    f"(CASE WHEN CAST({{0}} AS DATE) = {_MONTH_END_SQL} "
    f"THEN last_day(CAST({_MONTH_END_SQL} + to_months(CAST({{1}} AS INTEGER)) AS DATE)) "
    "ELSE CAST(CAST({0} AS DATE) + to_months(CAST({1} AS INTEGER)) AS DATE) END)"
)
_FLOAT_FUNCTIONS = {
    "EXP": "exp({0})",
    "SIN": "sin({0})",
    "COS": "cos({0})",
    "TAN": "tan({0})",
    "ATAN": "atan({0})",
    "DEGREES": "degrees({0})",
    "RADIANS": "radians({0})",
}

FUNCTIONS: dict[str, tuple[FunctionOverload, ...] | SpecialFunction] = {
    **{name: (FunctionOverload("d", sql, ExprType.INTEGER),) for name, sql in _CALENDAR_FUNCTIONS.items()},
    **{
        name: (FunctionOverload("f", _render_finite_check(name, sql), ExprType.FLOAT),) for name, sql in _FLOAT_FUNCTIONS.items()
    },
    # Dates and times
    "ADD_MONTHS": (FunctionOverload("di", _ADD_MONTHS_SQL, ExprType.DATE),),
    "LAST_DAY": (FunctionOverload("d", _MONTH_END_SQL, ExprType.DATE),),
    "DATE": (FunctionOverload("d", "CAST({0} AS DATE)", ExprType.DATE),),
    "TO_TIMESTAMP": (FunctionOverload("f", "make_timestamp(CAST({0} * 1000000 AS BIGINT))", ExprType.TIMESTAMP),),
    # Numbers
    "ABS": (FunctionOverload("n", "abs({0})", ExprType.NUMERIC), FunctionOverload("f", "abs({0})", ExprType.FLOAT)),
    "SIGN": (FunctionOverload("n", "sign({0})", ExprType.INTEGER),),
    "MOD": (FunctionOverload("nn", "({0} % {1})", ExprType.NUMERIC, has_scale=False),),
    "CEIL": (
        FunctionOverload("n", "ceil({0})", ExprType.NUMERIC, has_scale=False),
        FunctionOverload("f", "ceil({0})", ExprType.FLOAT),
    ),
    "FLOOR": (
        FunctionOverload("n", "floor({0})", ExprType.NUMERIC, has_scale=False),
        FunctionOverload("f", "floor({0})", ExprType.FLOAT),
    ),
    "TRUNC": (
        FunctionOverload("n", "trunc({0})", ExprType.NUMERIC, has_scale=False),
        FunctionOverload("f", "trunc({0})", ExprType.FLOAT),
    ),
    "POWER": (FunctionOverload("ff", _render_finite_check("POWER", "power({0}, {1})"), ExprType.FLOAT),),
    "SQRT": (FunctionOverload("f", _render_finite_check("SQRT", "sqrt({0})", "{0} < 0"), ExprType.FLOAT),),
    "LN": (FunctionOverload("f", _render_finite_check("LN", "ln({0})", "{0} <= 0"), ExprType.FLOAT),),
    "LOG": (
        FunctionOverload("f", _render_finite_check("LOG", "log10({0})", "{0} <= 0"), ExprType.FLOAT),
        FunctionOverload("ff", _render_finite_check("LOG", "(ln({1}) / ln({0}))", "{0} <= 0 OR {1} <= 0"), ExprType.FLOAT),
    ),
    "LOG10": (FunctionOverload("f", _render_finite_check("LOG10", "log10({0})", "{0} <= 0"), ExprType.FLOAT),),
    "ASIN": (FunctionOverload("f", _render_finite_check("ASIN", "asin({0})", "abs({0}) > 1"), ExprType.FLOAT),),
    "ACOS": (FunctionOverload("f", _render_finite_check("ACOS", "acos({0})", "abs({0}) > 1"), ExprType.FLOAT),),
    "ATAN2": (FunctionOverload("ff", "atan2({0}, {1})", ExprType.FLOAT),),
    "COT": (FunctionOverload("f", _render_finite_check("COT", "(1 / tan({0}))", "{0} = 0"), ExprType.FLOAT),),
    "PI": (FunctionOverload("", "pi()", ExprType.FLOAT),),
    # Texts
    "UPPER": (FunctionOverload("t", "unicode_upper({0})", ExprType.TEXT),),
    "LOWER": (FunctionOverload("t", "unicode_lower({0})", ExprType.TEXT),),
    "LENGTH": (
        FunctionOverload("x", "octet_length({0})", ExprType.INTEGER),
        FunctionOverload("t", "length({0})", ExprType.INTEGER),
    ),
    "CHARACTER_LENGTH": (FunctionOverload("t", "length({0})", ExprType.INTEGER),),
    "OCTET_LENGTH": (
        FunctionOverload("x", "octet_length({0})", ExprType.INTEGER),
        FunctionOverload("t", "strlen({0})", ExprType.INTEGER),
    ),
    "BIT_LENGTH": (
        FunctionOverload("x", "(8 * octet_length({0}))", ExprType.INTEGER),
        FunctionOverload("t", "(8 * strlen({0}))", ExprType.INTEGER),
    ),
    "CONCAT": (FunctionOverload("tt", "({0} || {1})", ExprType.TEXT),),
    "REPLACE": (FunctionOverload("ttt", "replace({0}, {1}, {2})", ExprType.TEXT),),
    "REPEAT": (FunctionOverload("ti", "repeat({0}, {1})", ExprType.TEXT),),
    "SPACE": (FunctionOverload("i", "repeat(' ', {0})", ExprType.TEXT),),
    "SUBSTR": (
        FunctionOverload("ti", _render_minimum_check("{1}", "substr({0}, {1})", "SUBSTR", 1), ExprType.TEXT),
        FunctionOverload(
            "tii",
            _render_minimum_check("least({1}, {2} + 1)", "substr({0}, {1}, {2})", "SUBSTR", 1),
            ExprType.TEXT,
        ),
    ),
    "LEFT": (FunctionOverload("ti", _render_minimum_check("{1}", "left({0}, {1})", "LEFT", 0), ExprType.TEXT),),
    "RIGHT": (FunctionOverload("ti", _render_minimum_check("{1}", "right({0}, {1})", "RIGHT", 0), ExprType.TEXT),),
    "SPLIT_PART": (
        FunctionOverload(
            "tti",
            render_failure_if(
                "{1} = ''",
                "SPLIT_PART: the delimiter must not be empty",
                _render_minimum_check("{2}", "split_part({0}, {1}, {2})", "SPLIT_PART", 1),
            ),
            ExprType.TEXT,
        ),
    ),
    **{
        name: (
            FunctionOverload("t", f"{each}({{0}}, ' ')", ExprType.TEXT),
            FunctionOverload("tt", _render_ascii_check(f"{each}({{0}}, {{1}})", "{1}", name), ExprType.TEXT),
        )
        for name, each in (("BTRIM", "trim"), ("LTRIM", "ltrim"), ("RTRIM", "rtrim"))
    },
    **{
        name: (
            FunctionOverload("ti", _render_ascii_check(f"{each}({{0}}, CAST({{1}} AS INTEGER), ' ')", "{0}", name), ExprType.TEXT),
            FunctionOverload(
                "tit",
                render_failure_if(
                    "{2} = ''",
                    f"{name}: the fill text must not be empty",
                    _render_ascii_check(f"{each}({{0}}, CAST({{1}} AS INTEGER), {{2}})", "({0} || {2})", name),
                ),
                ExprType.TEXT,
            ),
        )
        for name, each in (("LPAD", "lpad"), ("RPAD", "rpad"))
    },
    **{
        name: (FunctionOverload("tt", _render_ascii_check("strpos({0}, {1})", "{0}", name), ExprType.INTEGER),)
        for name in ("INSTR", "STRPOS")
    },
    "TRANSLATE": (
        FunctionOverload("ttt", _render_ascii_check("translate({0}, {1}, {2})", "({1} || {2})", "TRANSLATE"), ExprType.TEXT),
    ),
    "ASCII": (FunctionOverload("t", _render_ascii_check("ascii({0})", "left({0}, 1)", "ASCII"), ExprType.INTEGER),),
    "CHR": (
        FunctionOverload(
            "i",
            render_failure_if("{0} NOT BETWEEN 1 AND 127", "CHR: expected 1 to 127", "chr(CAST({0} AS INTEGER))"),
            ExprType.TEXT,
        ),
    ),
    "MD5": (FunctionOverload("t", "md5({0})", ExprType.TEXT),),
    "SHA1": (FunctionOverload("t", "sha1({0})", ExprType.TEXT),),
    "SHA256": (FunctionOverload("t", "sha256({0})", ExprType.TEXT),),
    "TO_HEX": (
        FunctionOverload("x", "lower(hex({0}))", ExprType.TEXT),
        FunctionOverload("i", "lower(to_hex({0}))", ExprType.TEXT),
    ),
    "HEX_TO_BINARY": (FunctionOverload("t", "hex_to_binary({0})", ExprType.BINARY),),
    "HEX_TO_INTEGER": (FunctionOverload("t", "hex_to_integer({0})", ExprType.INTEGER),),
}  # fmt: skip
FUNCTIONS |= {
    "CEILING": FUNCTIONS["CEIL"],
    "CHAR_LENGTH": FUNCTIONS["CHARACTER_LENGTH"],
    "SUBSTRING": FUNCTIONS["SUBSTR"],
}


def _render_choice(values: Sequence[TypedSql], sql_template: str) -> TypedSql:
    """Render a choice among values, converted to their common type."""
    found, listed = types.convert_to_common_type(values)
    return TypedSql(sql_template.format(*listed), found, has_scale=types.is_scale_preserved(values))


def _build_coalesce(values: Sequence[TypedSql]) -> TypedSql:
    if not values:
        raise ExpressionInvalid("expected at least one argument")
    return _render_choice(values, f"coalesce({', '.join(f'{{{n}}}' for n in range(len(values)))})")


def _build_nullif(values: Sequence[TypedSql]) -> TypedSql:
    return _render_choice(values, "nullif({0}, {1})")


def _build_nvl2(values: Sequence[TypedSql]) -> TypedSql:
    found, (chosen, other) = types.convert_to_common_type(values[1:])
    sql = f"(CASE WHEN {values[0].sql} IS NOT NULL THEN {chosen} ELSE {other} END)"
    return TypedSql(sql, found, has_scale=types.is_scale_preserved(values[1:]))


def _build_zero_if_null(values: Sequence[TypedSql]) -> TypedSql:
    return _build_coalesce(
        [types.require_number(values[0]), TypedSql("CAST(0 AS BIGINT)", ExprType.INTEGER)]
    )


def _build_null_if_zero(values: Sequence[TypedSql]) -> TypedSql:
    number = types.require_number(values[0])
    return TypedSql(f"nullif({number.sql}, 0)", number.type, has_scale=number.has_scale)


def _make_greatest_least_builder(function: str) -> Callable[[Sequence[TypedSql]], TypedSql]:
    def build(values: Sequence[TypedSql]) -> TypedSql:
        found, listed = types.convert_to_common_type(values)
        nulls = " OR ".join(f"{each} IS NULL" for each in listed)
        sql = f"(CASE WHEN NOT ({nulls}) THEN {function}({', '.join(listed)}) END)"
        return TypedSql(sql, found, has_scale=types.is_scale_preserved(values))

    return build


def _build_decode(values: Sequence[TypedSql]) -> TypedSql:
    """Build DECODE(value, search, result, …, default). NULL equals NULL."""
    pairs, rest = divmod(len(values) - 1, 2)
    searches = [values[1 + 2 * n] for n in range(pairs)]
    results = [values[2 + 2 * n] for n in range(pairs)]
    default = values[-1] if rest else TypedSql("NULL", ExprType.NULL)
    _, (value, *sought) = types.convert_to_common_type([values[0], *searches])
    found, (*chosen, other) = types.convert_to_common_type([*results, default])
    cases = " ".join(
        f"WHEN {value} IS NOT DISTINCT FROM {each} THEN {result}"
        for each, result in zip(sought, chosen, strict=True)
    )
    scale = types.is_scale_preserved([*results, default])
    return TypedSql(f"(CASE {cases} ELSE {other} END)", found, has_scale=scale)


def _build_round(values: Sequence[TypedSql]) -> TypedSql:
    number = types.require_number(values[0])
    digits = _parse_digit_count(values)
    if number.type is ExprType.INTEGER:
        return number
    if number.type is ExprType.NUMERIC:
        return TypedSql(f"round({number.sql}, {digits})", ExprType.NUMERIC, has_scale=False)
    if digits:
        raise ExpressionInvalid("ROUND of a FLOAT to digits: write ::NUMERIC(p,s) before it")
    reason = "ROUND of a FLOAT that ends in .5: write ::NUMERIC(p,s) before it"
    half = f"abs({number.sql} - trunc({number.sql})) = 0.5"
    return TypedSql(render_failure_if(half, reason, f"round({number.sql})"), ExprType.FLOAT)


def _build_trunc(values: Sequence[TypedSql]) -> TypedSql:
    number = types.require_number(values[0])
    digits = _parse_digit_count(values)
    if number.type is ExprType.INTEGER:
        return number
    if number.type is ExprType.FLOAT:
        if digits:
            raise ExpressionInvalid("TRUNC of a FLOAT to digits: write ::NUMERIC(p,s) before it")
        return TypedSql(f"trunc({number.sql})", ExprType.FLOAT)
    return TypedSql(f"trunc({number.sql}, {digits})", ExprType.NUMERIC, has_scale=False)


def _parse_digit_count(values: Sequence[TypedSql]) -> int:
    if len(values) == 1:
        return 0
    match = re.fullmatch(r"CAST\((\d+) AS BIGINT\)", values[1].sql)
    if match is None or int(match[1]) > 37:
        raise ExpressionInvalid("the number of digits must be a number from 0 to 37")
    return int(match[1])


_DATE_PARTS = {
    **{
        part: _CALENDAR_FUNCTIONS[part]
        for part in ("YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE")
    },
    "DOW": "dayofweek({0})",
    "DOY": "dayofyear({0})",
    "DOQ": "(date_diff('day', date_trunc('quarter', {0}), {0}) + 1)",
    "ISODOW": "isodow({0})",
    "ISOWEEK": "weekofyear({0})",
    "ISOYEAR": "isoyear({0})",
    "EPOCH": "epoch({0})",
    "SECOND": "(microsecond({0}) / 1000000)",
    "MILLISECONDS": "(microsecond({0}) / 1000)",
    "MICROSECONDS": "microsecond({0})",
}
_REJECTED_DATE_PARTS = {
    "WEEK": "write WEEK(…), whose weeks begin on Sunday, or ISOWEEK",
    "CENTURY": "write TO_CHAR(…, 'CC')",
}


def build_date_part(part: str, value: TypedSql) -> TypedSql:
    """Return EXTRACT or DATE_PART of a value.

    Raises:
        ExpressionInvalid: If the part is not supported, or the value is not a date or timestamp.
    """
    name = part.upper()
    if name not in _DATE_PARTS:
        more = _REJECTED_DATE_PARTS.get(name, f"valid parts are {', '.join(sorted(_DATE_PARTS))}")
        raise ExpressionInvalid(f"part {part!r} of a date is not supported: {more}")
    return TypedSql(
        f"CAST({_DATE_PARTS[name].format(types.render_as_timestamp(value))} AS DOUBLE)",
        ExprType.FLOAT,
    )


def _build_date_part_call(values: Sequence[TypedSql]) -> TypedSql:
    return build_date_part(_require_text_literal(values[0], "the part of a date"), values[1])


_DATE_UNITS = ("year", "quarter", "month", "day", "hour", "minute", "second")
_SUBSECOND_UNITS = ("millisecond", "microsecond")


def _parse_date_part_name(value: TypedSql, valid: Sequence[str], aliases: dict[str, str]) -> str:
    word = _require_text_literal(value, "the part of a date").lower()
    word = aliases.get(word, word)
    if word not in valid:
        raise ExpressionInvalid(
            f"part {word!r} is not supported; valid parts are {', '.join(valid)}"
        )
    return word


def _build_date_trunc(values: Sequence[TypedSql]) -> TypedSql:
    unit = _parse_date_part_name(values[0], (*_DATE_UNITS, "milliseconds", "microseconds"), {})
    return TypedSql(
        f"CAST(date_trunc('{unit}', {types.render_as_timestamp(values[1])}) AS TIMESTAMP)",
        ExprType.TIMESTAMP,
    )


_DATEDIFF_ALIASES = {"yy": "year", "yyyy": "year", "qq": "quarter", "q": "quarter", "mm": "month",
                 "m": "month", "dd": "day", "d": "day", "hh": "hour", "mi": "minute", "n": "minute",
                 "ss": "second", "s": "second", "ms": "millisecond", "mcs": "microsecond",
                 "us": "microsecond"}  # fmt: skip


def _build_date_diff(values: Sequence[TypedSql]) -> TypedSql:
    unit = _parse_date_part_name(values[0], (*_DATE_UNITS, *_SUBSECOND_UNITS), _DATEDIFF_ALIASES)
    start, end = map(types.render_as_timestamp, values[1:])
    return TypedSql(f"date_diff('{unit}', {start}, {end})", ExprType.INTEGER)


_TIMESTAMPADD_UNITS = {"day": "days", "hour": "hours", "minute": "minutes", "second": "seconds",
                "millisecond": "milliseconds", "microsecond": "microseconds"}  # fmt: skip


def _build_timestamp_add(values: Sequence[TypedSql]) -> TypedSql:
    word = _require_text_literal(values[0], "the part of a date").lower()
    if word in {"year", "quarter", "month"}:
        raise ExpressionInvalid(f"TIMESTAMPADD of {word}: write ADD_MONTHS, which adds to a DATE")
    unit = _TIMESTAMPADD_UNITS[_parse_date_part_name(values[0], tuple(_TIMESTAMPADD_UNITS), {})]
    count = types.render_as_integer(values[1])
    if unit == "days":
        count = f"CAST({count} AS INTEGER)"
    sql = f"({types.render_as_timestamp(values[2])} + to_{unit}({count}))"
    return TypedSql(sql, ExprType.TIMESTAMP)


def _build_next_day(values: Sequence[TypedSql]) -> TypedSql:
    days = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
    word = _require_text_literal(values[1], "the day of the week").lower()
    found = [n for n, day in enumerate(days) if word in {day, day[:3]}]
    if not found:
        raise ExpressionInvalid(
            f"unknown day of the week {word!r}; valid days are {', '.join(days)}"
        )
    x = types.render_as_timestamp(values[0])
    ahead = f"CAST(({found[0]} - dayofweek({x}) + 6) % 7 + 1 AS INTEGER)"
    return TypedSql(f"(CAST({x} AS DATE) + {ahead})", ExprType.DATE)


def _parse_pattern(values: Sequence[TypedSql], *, allow_empty_match: bool) -> Re2Pattern:
    found = translate_pattern_to_re2(_require_text_literal(values[1], "a regular expression"))
    if found.is_nullable and not allow_empty_match:
        raise ExpressionInvalid(
            "a regular expression that matches the empty text is not supported here"
        )
    return found


def _parse_flags(values: Sequence[TypedSql], index: int) -> str:
    if len(values) <= index:
        return "'c'"
    word = _require_text_literal(values[index], "the modifiers")
    if word not in {"", "c", "i"}:
        raise ExpressionInvalid(
            f"modifiers {word!r} are not supported; valid modifiers are 'c' and 'i'"
        )
    return quote_literal(word or "c")


def _require_number_among(
    values: Sequence[TypedSql], index: int, valid: tuple[int, ...], label: str
) -> int:
    if len(values) <= index:
        return valid[0]
    for number in valid:
        if values[index].sql == f"CAST({number} AS BIGINT)":
            return number
    raise ExpressionInvalid(f"{label} is not supported unless it is {' or '.join(map(str, valid))}")


def _render_end_anchor_check(text: str, pattern: Re2Pattern, sql: str) -> str:
    """Return SQL that fails if the pattern has `$` and the text ends with a newline.

    Perl also matches `$` before the newline, and RE2 does not.
    """
    if not pattern.has_end:
        return sql
    reason = "$ in a regular expression, and a text that ends with a newline: TRIM it first"
    return render_failure_if(f"ends_with({text}, chr(10))", reason, sql)


def _build_regexp_like(values: Sequence[TypedSql], *, negate: bool, ignore_case: bool) -> TypedSql:
    pattern, text = _parse_pattern(values, allow_empty_match=True), types.render_as_text(values[0])
    flags = "'i'" if ignore_case else _parse_flags(values, 2)
    sql = f"regexp_matches({text}, {quote_literal(pattern.sql)}, {flags})"
    checked = _render_end_anchor_check(text, pattern, f"(NOT {sql})" if negate else sql)
    return TypedSql(checked, ExprType.BOOLEAN)


def _build_regexp_replace(values: Sequence[TypedSql]) -> TypedSql:
    pattern, text = _parse_pattern(values, allow_empty_match=False), types.render_as_text(values[0])
    replacement = _require_text_literal(values[2], "the replacement") if len(values) > 2 else ""
    validate_replacement(replacement, pattern.groups)
    _require_number_among(values, 3, (1,), "the position")
    everywhere = _require_number_among(values, 4, (0, 1), "the occurrence") == 0
    flags = f"{_parse_flags(values, 5)} || '{'g' if everywhere else ''}'"
    sql = f"regexp_replace({text}, {quote_literal(pattern.sql)}, {quote_literal(replacement)}, {flags})"
    return TypedSql(_render_end_anchor_check(text, pattern, sql), ExprType.TEXT)


def _build_regexp_substr(values: Sequence[TypedSql]) -> TypedSql:
    pattern, text = _parse_pattern(values, allow_empty_match=False), types.render_as_text(values[0])
    _require_number_among(values, 2, (1,), "the position")
    occurrence = _require_number_among(values, 3, (1, 2, 3, 4, 5, 6, 7, 8, 9), "the occurrence")
    group = _require_number_among(values, 5, tuple(range(pattern.groups + 1)), "the group")
    found = f"regexp_extract_all({text}, {quote_literal(pattern.sql)}, {group}, {_parse_flags(values, 4)})"
    return TypedSql(
        _render_end_anchor_check(text, pattern, f"list_extract({found}, {occurrence})"),
        ExprType.TEXT,
    )


def _build_regexp_count(values: Sequence[TypedSql]) -> TypedSql:
    pattern, text = _parse_pattern(values, allow_empty_match=False), types.render_as_text(values[0])
    _require_number_among(values, 2, (1,), "the position")
    found = (
        f"regexp_extract_all({text}, {quote_literal(pattern.sql)}, 0, {_parse_flags(values, 3)})"
    )
    return TypedSql(_render_end_anchor_check(text, pattern, f"len({found})"), ExprType.INTEGER)


FUNCTIONS |= {
    "COALESCE": SpecialFunction(_build_coalesce, 0, None, "COALESCE(a, b, …)"),
    "NVL": SpecialFunction(_build_coalesce, 2, 2, "NVL(a, b)"),
    "IFNULL": SpecialFunction(_build_coalesce, 2, 2, "IFNULL(a, b)"),
    "ISNULL": SpecialFunction(_build_coalesce, 2, 2, "ISNULL(a, b)"),
    "NVL2": SpecialFunction(_build_nvl2, 3, 3, "NVL2(a, b, c)"),
    "NULLIF": SpecialFunction(_build_nullif, 2, 2, "NULLIF(a, b)"),
    "ZEROIFNULL": SpecialFunction(_build_zero_if_null, 1, 1, "ZEROIFNULL(n)"),
    "NULLIFZERO": SpecialFunction(_build_null_if_zero, 1, 1, "NULLIFZERO(n)"),
    "GREATEST": SpecialFunction(
        _make_greatest_least_builder("greatest"), 1, None, "GREATEST(a, b, …)"
    ),
    "LEAST": SpecialFunction(_make_greatest_least_builder("least"), 1, None, "LEAST(a, b, …)"),
    "DECODE": SpecialFunction(_build_decode, 3, None, "DECODE(value, search, result, …, default)"),
    "ROUND": SpecialFunction(_build_round, 1, 2, "ROUND(n [, digits])"),
    "TRUNC": SpecialFunction(_build_trunc, 1, 2, "TRUNC(n [, digits])"),
    "DATE_PART": SpecialFunction(_build_date_part_call, 2, 2, "DATE_PART('part', date)"),
    "DATE_TRUNC": SpecialFunction(_build_date_trunc, 2, 2, "DATE_TRUNC('part', date)"),
    "DATEDIFF": SpecialFunction(_build_date_diff, 3, 3, "DATEDIFF('part', start, end)"),
    "TIMESTAMPADD": SpecialFunction(_build_timestamp_add, 3, 3, "TIMESTAMPADD('part', n, date)"),
    "NEXT_DAY": SpecialFunction(_build_next_day, 2, 2, "NEXT_DAY(date, 'weekday')"),
    **{
        name: SpecialFunction(
            partial(_build_regexp_like, negate="NOT" in name, ignore_case="ILIKE" in name),
            2,
            3,
            f"{name}(text, 'pattern'{more})",
        )
        for name, more in (
            ("REGEXP_LIKE", " [, 'c']"),
            ("REGEXP_NOT_LIKE", ""),
            ("REGEXP_ILIKE", ""),
            ("REGEXP_NOT_ILIKE", ""),
        )
    },
    "REGEXP_REPLACE": SpecialFunction(
        _build_regexp_replace, 2, 6, "REGEXP_REPLACE(text, 'pattern' [, 'replacement'])"
    ),
    "REGEXP_SUBSTR": SpecialFunction(_build_regexp_substr, 2, 6, "REGEXP_SUBSTR(text, 'pattern')"),
    "REGEXP_COUNT": SpecialFunction(_build_regexp_count, 2, 4, "REGEXP_COUNT(text, 'pattern')"),
}
# Functions whose first argument may be an unquoted word.
UNIT_ARGUMENT_FUNCTIONS = frozenset({"DATEDIFF", "TIMESTAMPADD"})

_OCTET_REASON = "positions in octets are not supported; use the function without B"
_RANDOM_REASON = (
    "a portion that is read again must give the same rows; generate the value before the load"
)
_NOT_VERTICA_REASON = "it is not one of Vertica's functions"
REJECTED_FUNCTIONS = {
    **dict.fromkeys(
        ("SUBSTRB", "INSTRB", "STRPOSB", "POSITIONB", "UPPERB", "LOWERB", "INITCAPB", "OVERLAYB",
         "SPLIT_PARTB", "GREATESTB", "LEASTB"), _OCTET_REASON),
    **dict.fromkeys(("RANDOM", "RANDOMINT", "UUID_GENERATE", "CLOCK_TIMESTAMP", "TIMEOFDAY"), _RANDOM_REASON),
    "INITCAP": "Vertica also ends words at digits; write UPPER(LEFT(…)) || LOWER(SUBSTR(…, 2))",
    "INSERT": "write LEFT(…) || … || SUBSTR(…)",
    "OVERLAY": "write LEFT(…) || … || SUBSTR(…)",
    "REVERSE": _NOT_VERTICA_REASON,
    "REGEXP_INSTR": "write REGEXP_SUBSTR or REGEXP_LIKE",
    "SOUNDEX": "compute it after the load",
    "EDIT_DISTANCE": "compute it after the load",
    "TO_BITSTRING": "load a FILLER with FORMAT 'bitstring'",
    "BITSTRING_TO_BINARY": "load a FILLER with FORMAT 'bitstring'",
    "TO_NUMBER": "write ::NUMERIC(p,s), after REPLACE of signs and commas",
    "TO_TIMESTAMP_TZ": "write TO_TIMESTAMP, whose result is in UTC",
    "SHA224": "write SHA256",
    "SHA384": "write SHA256",
    "SHA512": "write SHA256",
    "HASH": "Vertica's hash function is not public; write MD5 or SHA256",
    "CBRT": "write POWER(x, 1.0 / 3)",
    "WIDTH_BUCKET": "write CASE WHEN … THEN … END",
    "DISTANCE": "compute it after the load",
    "AGE_IN_YEARS": "write DATEDIFF, which counts crossed boundaries",
    "AGE_IN_MONTHS": "write DATEDIFF, which counts crossed boundaries",
    "MONTHS_BETWEEN": "write DATEDIFF, which counts crossed boundaries",
    "TIMESTAMPDIFF": "write DATEDIFF",
    "TIMESTAMP_TRUNC": "write DATE_TRUNC",
    "TIMESTAMP_ROUND": "write DATE_TRUNC",
    "TIME_SLICE": "write DATE_TRUNC",
    "NEW_TIME": "timestamps in a load are in UTC",
    "ISFINITE": "all dates and timestamps of a load are finite",
    "CURRENT_TIME": "write CURRENT_TIMESTAMP",
    "LOCALTIME": "write LOCALTIMESTAMP",
    "TRY_CAST": "write the cast that returns NULL on error: value::!TYPE",
    "SAFE_CAST": "write the cast that returns NULL on error: value::!TYPE",
    "IFF": "write CASE WHEN … THEN … ELSE … END",
    "IF": "write CASE WHEN … THEN … ELSE … END",
    "DATEADD": "write TIMESTAMPADD, or ADD_MONTHS",
    "STRFTIME": "write TO_CHAR",
    "STRPTIME": "write TO_TIMESTAMP",
    "CONCAT_WS": "write ||, with COALESCE for parts that may be NULL",
    "LEN": "write LENGTH",
    "POW": "write POWER",
    "NOW_UTC": "write GETUTCDATE()",
    "REGEXP_MATCHES": "write REGEXP_LIKE",
    "REGEXP_EXTRACT": "write REGEXP_SUBSTR",
    "CURRENT_USER": "an expression can use only the columns of its row",
    "VERSION": "an expression can use only the columns of its row",
}  # fmt: skip


def _check_argument_count(values: Sequence[TypedSql], minimum: int, maximum: int | None) -> None:
    if len(values) < minimum or (maximum is not None and len(values) > maximum):
        bounds = f"{minimum} to {maximum or 'any number of'}"
        wanted = f"{minimum}" if maximum == minimum else bounds
        raise ExpressionInvalid(f"expected {wanted} arguments, got {len(values)}")


def build_function_call(name: str, values: Sequence[TypedSql]) -> TypedSql:
    """Return a call of a function in `FUNCTIONS`.

    Raises:
        ExpressionInvalid: If the function does not accept these arguments.
    """
    found = FUNCTIONS[name]
    if isinstance(found, SpecialFunction):
        try:
            _check_argument_count(values, found.minimum, found.maximum)
            return found.build(values)
        except ExpressionInvalid as error:
            raise ExpressionInvalid(f"{found.usage}: {error}") from None
    fitting = [each for each in found if len(each.arguments) == len(values)]
    reason = ""
    for overload in fitting:
        try:
            taken = [
                _ARGUMENT_WRITERS[letter](each)
                for letter, each in zip(overload.arguments, values, strict=True)
            ]
        except ExpressionInvalid as error:
            reason = f": {error}"
            continue
        # If all numbers are integers, a NUMERIC result is an INTEGER.
        has_numbers = "n" in overload.arguments
        numbers = [types.require_number(value) for value in values] if has_numbers else []
        whole = overload.type is ExprType.NUMERIC and all(
            number.type is ExprType.INTEGER for number in numbers
        )
        return TypedSql(
            overload.sql.format(*taken),
            ExprType.INTEGER if whole else overload.type,
            has_scale=whole or (overload.has_scale and all(number.has_scale for number in numbers)),
        )
    usage = " or ".join(
        f"{name}({', '.join(_ARGUMENT_TYPE_NAMES[letter] for letter in each.arguments)})"
        for each in found
    )
    raise ExpressionInvalid(f"expected {usage}{reason}")
