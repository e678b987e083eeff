"""The functions of COPY expressions: what Vertica's manual says, written for DuckDB.

A function is in `FUNCTIONS` only if its result is Vertica's for every value, or the value fails.
`REJECTED` says what to write instead of those that are known and not supported.
`docs/copy-functions.md` has a line with an example for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.load.expressions import types
from snowmelt.load.expressions.regex_patterns import (
    CheckedPattern,
    check_pattern,
    check_replacement,
)
from snowmelt.load.expressions.types import ExpressionInvalid, TypedSql, failing, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = types.ExpressionType

# How an argument is taken, by the letter that a signature has for it.
_TAKE: dict[str, Callable[[TypedSql], str]] = {
    "t": types.to_text,
    "i": types.to_integer,
    "n": lambda value: _whole(value),
    "f": types.to_float,
    "d": types.to_timestamp,
    "x": types.to_binary,
}
_NEEDS = {
    "t": "VARCHAR",
    "i": "INTEGER",
    "n": "INTEGER or NUMERIC",
    "f": "a number",
    "d": "DATE or TIMESTAMP",
    "x": "VARBINARY",
}
_ASCII = "^[\\x00-\\x7F]*$"


@dataclass(frozen=True, slots=True)
class Overload:
    """A function of these arguments: a letter of `_TAKE` for each, `{0}` in its SQL is the first."""

    arguments: str
    sql: str
    type: types.ExpressionType
    has_scale: bool = True


@dataclass(frozen=True, slots=True)
class Special:
    """A function that looks at its arguments itself."""

    build: Callable[[Sequence[TypedSql]], TypedSql]
    usage: str


def _whole(value: TypedSql) -> str:
    number = types.to_number(value)
    if number.type is T.FLOAT:
        raise ExpressionInvalid("expected INTEGER or NUMERIC, got FLOAT; write ::NUMERIC(p,s)")
    return number.sql


def _ascii(sql: str, value: str, name: str) -> str:
    """Return SQL that fails where the text that is looked at has other than ASCII characters."""
    reason = (
        f"{name} of a text with characters other than ASCII: Vertica counts octets or characters, "
        "as the locale says"
    )
    return failing(f"NOT regexp_matches({value}, '{_ASCII}')", reason, sql)


def _limited(position: str, sql: str, name: str, least: int) -> str:
    reason = f"{name}: expected a number of at least {least}"
    return failing(f"{position} < {least}", reason, sql)


def _finite(name: str, sql: str, condition: str | None = None) -> str:
    wrong = f"NOT isfinite({sql})"
    if condition is not None:
        return failing(condition, f"{name} is not defined for this value", sql)
    return failing(wrong, f"{name} is not defined for this value, or too large", sql)


def _constant(value: TypedSql, what: str) -> str:
    if value.literal is None:
        raise ExpressionInvalid(f"{what} must be a text in quotes, the same for all rows")
    return value.literal


_CALENDAR = {
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
_MONTH_END = "last_day(CAST({0} AS DATE))"
_ADD_MONTHS = (
    f"(CASE WHEN CAST({{0}} AS DATE) = {_MONTH_END} "
    f"THEN last_day(CAST({_MONTH_END} + to_months(CAST({{1}} AS INTEGER)) AS DATE)) "
    "ELSE CAST(CAST({0} AS DATE) + to_months(CAST({1} AS INTEGER)) AS DATE) END)"
)
_FLOATS = {
    "EXP": "exp({0})",
    "SIN": "sin({0})",
    "COS": "cos({0})",
    "TAN": "tan({0})",
    "ATAN": "atan({0})",
    "DEGREES": "degrees({0})",
    "RADIANS": "radians({0})",
}
_HALF = "abs({0} - trunc({0})) = 0.5"
_HALF_REASON = "ROUND of a FLOAT that ends in .5: write ::NUMERIC(p,s) before it"

FUNCTIONS: dict[str, tuple[Overload, ...] | Special] = {
    **{name: (Overload("d", sql, T.INTEGER),) for name, sql in _CALENDAR.items()},
    **{
        name: (Overload("f", _finite(name, sql), T.FLOAT),) for name, sql in _FLOATS.items()
    },
    # Dates and times
    "ADD_MONTHS": (Overload("di", _ADD_MONTHS, T.DATE),),
    "LAST_DAY": (Overload("d", _MONTH_END, T.DATE),),
    "DATE": (Overload("d", "CAST({0} AS DATE)", T.DATE),),
    "TO_TIMESTAMP": (Overload("f", "make_timestamp(CAST({0} * 1000000 AS BIGINT))", T.TIMESTAMP),),
    # Numbers
    "ABS": (Overload("n", "abs({0})", T.NUMERIC), Overload("f", "abs({0})", T.FLOAT)),
    "SIGN": (Overload("n", "sign({0})", T.INTEGER),),
    "MOD": (Overload("nn", "({0} % {1})", T.NUMERIC, has_scale=False),),
    "CEIL": (
        Overload("n", "ceil({0})", T.NUMERIC, has_scale=False),
        Overload("f", "ceil({0})", T.FLOAT),
    ),
    "FLOOR": (
        Overload("n", "floor({0})", T.NUMERIC, has_scale=False),
        Overload("f", "floor({0})", T.FLOAT),
    ),
    "TRUNC": (
        Overload("n", "trunc({0})", T.NUMERIC, has_scale=False),
        Overload("f", "trunc({0})", T.FLOAT),
    ),
    "POWER": (Overload("ff", _finite("POWER", "power({0}, {1})"), T.FLOAT),),
    "SQRT": (Overload("f", _finite("SQRT", "sqrt({0})", "{0} < 0"), T.FLOAT),),
    "LN": (Overload("f", _finite("LN", "ln({0})", "{0} <= 0"), T.FLOAT),),
    "LOG": (
        Overload("f", _finite("LOG", "log10({0})", "{0} <= 0"), T.FLOAT),
        Overload("ff", _finite("LOG", "(ln({1}) / ln({0}))", "{0} <= 0 OR {1} <= 0"), T.FLOAT),
    ),
    "LOG10": (Overload("f", _finite("LOG10", "log10({0})", "{0} <= 0"), T.FLOAT),),
    "ASIN": (Overload("f", _finite("ASIN", "asin({0})", "abs({0}) > 1"), T.FLOAT),),
    "ACOS": (Overload("f", _finite("ACOS", "acos({0})", "abs({0}) > 1"), T.FLOAT),),
    "ATAN2": (Overload("ff", "atan2({0}, {1})", T.FLOAT),),
    "COT": (Overload("f", _finite("COT", "(1 / tan({0}))", "{0} = 0"), T.FLOAT),),
    "PI": (Overload("", "pi()", T.FLOAT),),
    # Texts
    "UPPER": (Overload("t", "unicode_upper({0})", T.TEXT),),
    "LOWER": (Overload("t", "unicode_lower({0})", T.TEXT),),
    "LENGTH": (
        Overload("x", "octet_length({0})", T.INTEGER),
        Overload("t", "length({0})", T.INTEGER),
    ),
    "CHARACTER_LENGTH": (Overload("t", "length({0})", T.INTEGER),),
    "OCTET_LENGTH": (
        Overload("x", "octet_length({0})", T.INTEGER),
        Overload("t", "strlen({0})", T.INTEGER),
    ),
    "BIT_LENGTH": (
        Overload("x", "(8 * octet_length({0}))", T.INTEGER),
        Overload("t", "(8 * strlen({0}))", T.INTEGER),
    ),
    "CONCAT": (Overload("tt", "({0} || {1})", T.TEXT),),
    "REPLACE": (Overload("ttt", "replace({0}, {1}, {2})", T.TEXT),),
    "REPEAT": (Overload("ti", "repeat({0}, {1})", T.TEXT),),
    "SPACE": (Overload("i", "repeat(' ', {0})", T.TEXT),),
    "SUBSTR": (
        Overload("ti", _limited("{1}", "substr({0}, {1})", "SUBSTR", 1), T.TEXT),
        Overload(
            "tii",
            _limited("least({1}, {2} + 1)", "substr({0}, {1}, {2})", "SUBSTR", 1),
            T.TEXT,
        ),
    ),
    "LEFT": (Overload("ti", _limited("{1}", "left({0}, {1})", "LEFT", 0), T.TEXT),),
    "RIGHT": (Overload("ti", _limited("{1}", "right({0}, {1})", "RIGHT", 0), T.TEXT),),
    "SPLIT_PART": (
        Overload(
            "tti",
            failing(
                "{1} = ''",
                "SPLIT_PART: the delimiter is not empty",
                _limited("{2}", "split_part({0}, {1}, {2})", "SPLIT_PART", 1),
            ),
            T.TEXT,
        ),
    ),
    **{
        name: (
            Overload("t", f"{each}({{0}}, ' ')", T.TEXT),
            Overload("tt", _ascii(f"{each}({{0}}, {{1}})", "{1}", name), T.TEXT),
        )
        for name, each in (("BTRIM", "trim"), ("LTRIM", "ltrim"), ("RTRIM", "rtrim"))
    },
    **{
        name: (
            Overload("ti", _ascii(f"{each}({{0}}, CAST({{1}} AS INTEGER), ' ')", "{0}", name), T.TEXT),
            Overload(
                "tit",
                failing(
                    "{2} = ''",
                    f"{name}: the text to fill up with is not empty",
                    _ascii(f"{each}({{0}}, CAST({{1}} AS INTEGER), {{2}})", "({0} || {2})", name),
                ),
                T.TEXT,
            ),
        )
        for name, each in (("LPAD", "lpad"), ("RPAD", "rpad"))
    },
    **{
        name: (Overload("tt", _ascii("strpos({0}, {1})", "{0}", name), T.INTEGER),)
        for name in ("INSTR", "STRPOS")
    },
    "TRANSLATE": (
        Overload("ttt", _ascii("translate({0}, {1}, {2})", "({1} || {2})", "TRANSLATE"), T.TEXT),
    ),
    "ASCII": (Overload("t", _ascii("ascii({0})", "left({0}, 1)", "ASCII"), T.INTEGER),),
    "CHR": (
        Overload(
            "i",
            failing("{0} NOT BETWEEN 1 AND 127", "CHR: expected 1 to 127", "chr(CAST({0} AS INTEGER))"),
            T.TEXT,
        ),
    ),
    "MD5": (Overload("t", "md5({0})", T.TEXT),),
    "SHA1": (Overload("t", "sha1({0})", T.TEXT),),
    "SHA256": (Overload("t", "sha256({0})", T.TEXT),),
    "TO_HEX": (
        Overload("x", "lower(hex({0}))", T.TEXT),
        Overload("i", "lower(to_hex({0}))", T.TEXT),
    ),
    "HEX_TO_BINARY": (Overload("t", "hex_to_binary({0})", T.BINARY),),
    "HEX_TO_INTEGER": (Overload("t", "hex_to_integer({0})", T.INTEGER),),
}  # fmt: skip
FUNCTIONS |= {
    "CEILING": FUNCTIONS["CEIL"],
    "CHAR_LENGTH": FUNCTIONS["CHARACTER_LENGTH"],
    "SUBSTRING": FUNCTIONS["SUBSTR"],
}


def _choice(values: Sequence[TypedSql], written: str) -> TypedSql:
    """Return a choice among values of a common type."""
    found, listed = types.unify(values)
    return TypedSql(written.format(*listed), found, has_scale=types.has_one_scale(values))


def _coalesce(values: Sequence[TypedSql]) -> TypedSql:
    if not values:
        raise ExpressionInvalid("expected at least one argument")
    return _choice(values, f"coalesce({', '.join(f'{{{n}}}' for n in range(len(values)))})")


def _two(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 2)
    return _coalesce(values)


def _count(values: Sequence[TypedSql], least: int, most: int | None) -> None:
    if len(values) < least or (most is not None and len(values) > most):
        wanted = f"{least}" if most == least else f"{least} to {most or 'any number of'}"
        raise ExpressionInvalid(f"expected {wanted} arguments, got {len(values)}")


def _nullif(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 2)
    return _choice(values, "nullif({0}, {1})")


def _nvl2(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 3, 3)
    found, (chosen, other) = types.unify(values[1:])
    sql = f"(CASE WHEN {values[0].sql} IS NOT NULL THEN {chosen} ELSE {other} END)"
    return TypedSql(sql, found, has_scale=types.has_one_scale(values[1:]))


def _zero_if_null(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 1, 1)
    return _coalesce([types.to_number(values[0]), TypedSql("CAST(0 AS BIGINT)", T.INTEGER)])


def _null_if_zero(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 1, 1)
    number = types.to_number(values[0])
    return TypedSql(f"nullif({number.sql}, 0)", number.type, has_scale=number.has_scale)


def _extreme(function: str) -> Callable[[Sequence[TypedSql]], TypedSql]:
    def build(values: Sequence[TypedSql]) -> TypedSql:
        _count(values, 1, None)
        found, listed = types.unify(values)
        nulls = " OR ".join(f"{each} IS NULL" for each in listed)
        sql = f"(CASE WHEN NOT ({nulls}) THEN {function}({', '.join(listed)}) END)"
        return TypedSql(sql, found, has_scale=types.has_one_scale(values))

    return build


def _decode(values: Sequence[TypedSql]) -> TypedSql:
    """DECODE(value, search, result, …, default): NULL is equal to NULL."""
    _count(values, 3, None)
    pairs, rest = divmod(len(values) - 1, 2)
    searches = [values[1 + 2 * n] for n in range(pairs)]
    results = [values[2 + 2 * n] for n in range(pairs)]
    default = values[-1] if rest else TypedSql("NULL", T.NULL)
    _, (value, *sought) = types.unify([values[0], *searches])
    found, (*chosen, other) = types.unify([*results, default])
    cases = " ".join(
        f"WHEN {value} IS NOT DISTINCT FROM {each} THEN {result}"
        for each, result in zip(sought, chosen, strict=True)
    )
    scale = types.has_one_scale([*results, default])
    return TypedSql(f"(CASE {cases} ELSE {other} END)", found, has_scale=scale)


def _round(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 1, 2)
    number = types.to_number(values[0])
    digits = _digits(values)
    if number.type is T.INTEGER:
        return number
    if number.type is T.NUMERIC:
        return TypedSql(f"round({number.sql}, {digits})", T.NUMERIC, has_scale=False)
    if digits:
        raise ExpressionInvalid("ROUND of a FLOAT to digits: write ::NUMERIC(p,s) before it")
    sql = failing(_HALF.format(number.sql), _HALF_REASON, f"round({number.sql})")
    return TypedSql(sql, T.FLOAT)


def _trunc(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 1, 2)
    number = types.to_number(values[0])
    digits = _digits(values)
    if number.type is T.INTEGER:
        return number
    if number.type is T.FLOAT:
        if digits:
            raise ExpressionInvalid("TRUNC of a FLOAT to digits: write ::NUMERIC(p,s) before it")
        return TypedSql(f"trunc({number.sql})", T.FLOAT)
    return TypedSql(f"trunc({number.sql}, {digits})", T.NUMERIC, has_scale=False)


def _digits(values: Sequence[TypedSql]) -> int:
    if len(values) == 1:
        return 0
    match = re.fullmatch(r"CAST\((\d+) AS BIGINT\)", values[1].sql)
    if match is None or int(match[1]) > 37:
        raise ExpressionInvalid("the number of digits must be a number from 0 to 37")
    return int(match[1])


_PARTS = {
    **{part: _CALENDAR[part] for part in ("YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE")},
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
_PART_REJECTED = {
    "WEEK": "write WEEK(…), whose weeks begin on Sunday, or ISOWEEK",
    "CENTURY": "write TO_CHAR(…, 'CC')",
}


def date_part(part: str, value: TypedSql) -> TypedSql:
    """Return EXTRACT and DATE_PART.

    Raises:
        ExpressionInvalid: If there is no such part, or it is not one of a date or timestamp.
    """
    name = part.upper()
    if name not in _PARTS:
        more = _PART_REJECTED.get(name, f"valid parts are {', '.join(sorted(_PARTS))}")
        raise ExpressionInvalid(f"part {part!r} of a date is not supported: {more}")
    return TypedSql(f"CAST({_PARTS[name].format(types.to_timestamp(value))} AS DOUBLE)", T.FLOAT)


def _date_part(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 2)
    return date_part(_constant(values[0], "the part of a date"), values[1])


_UNITS = ("year", "quarter", "month", "day", "hour", "minute", "second")
_FINE = ("millisecond", "microsecond")


def _unit(value: TypedSql, valid: Sequence[str], aliases: dict[str, str]) -> str:
    word = _constant(value, "the part of a date").lower()
    word = aliases.get(word, word)
    if word not in valid:
        raise ExpressionInvalid(
            f"part {word!r} is not supported; valid parts are {', '.join(valid)}"
        )
    return word


def _date_trunc(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 2)
    unit = _unit(values[0], (*_UNITS, "milliseconds", "microseconds"), {})
    return TypedSql(
        f"CAST(date_trunc('{unit}', {types.to_timestamp(values[1])}) AS TIMESTAMP)", T.TIMESTAMP
    )


_DIFF_ALIASES = {"yy": "year", "yyyy": "year", "qq": "quarter", "q": "quarter", "mm": "month",
                 "m": "month", "dd": "day", "d": "day", "hh": "hour", "mi": "minute", "n": "minute",
                 "ss": "second", "s": "second", "ms": "millisecond", "mcs": "microsecond",
                 "us": "microsecond"}  # fmt: skip


def _date_diff(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 3, 3)
    unit = _unit(values[0], (*_UNITS, *_FINE), _DIFF_ALIASES)
    start, end = map(types.to_timestamp, values[1:])
    return TypedSql(f"date_diff('{unit}', {start}, {end})", T.INTEGER)


_ADDED_UNITS = {"day": "days", "hour": "hours", "minute": "minutes", "second": "seconds",
                "millisecond": "milliseconds", "microsecond": "microseconds"}  # fmt: skip


def _timestamp_add(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 3, 3)
    word = _constant(values[0], "the part of a date").lower()
    if word in {"year", "quarter", "month"}:
        raise ExpressionInvalid(f"TIMESTAMPADD of {word}: write ADD_MONTHS, which adds to a DATE")
    unit = _ADDED_UNITS[_unit(values[0], tuple(_ADDED_UNITS), {})]
    count = types.to_integer(values[1])
    if unit == "days":
        count = f"CAST({count} AS INTEGER)"
    sql = f"({types.to_timestamp(values[2])} + to_{unit}({count}))"
    return TypedSql(sql, T.TIMESTAMP)


def _next_day(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 2)
    days = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
    word = _constant(values[1], "the day of the week").lower()
    found = [n for n, day in enumerate(days) if word in {day, day[:3]}]
    if not found:
        raise ExpressionInvalid(
            f"unknown day of the week {word!r}; valid days are {', '.join(days)}"
        )
    x = types.to_timestamp(values[0])
    ahead = f"CAST(({found[0]} - dayofweek({x}) + 6) % 7 + 1 AS INTEGER)"
    return TypedSql(f"(CAST({x} AS DATE) + {ahead})", T.DATE)


def _pattern(values: Sequence[TypedSql], *, always: bool) -> CheckedPattern:
    found = check_pattern(_constant(values[1], "a regular expression"))
    if found.is_nullable and not always:
        raise ExpressionInvalid(
            "a regular expression that matches the empty text is not supported here"
        )
    return found


def _flags(values: Sequence[TypedSql], place: int) -> str:
    if len(values) <= place:
        return "'c'"
    word = _constant(values[place], "the modifiers")
    if word not in {"", "c", "i"}:
        raise ExpressionInvalid(
            f"modifiers {word!r} are not supported; valid modifiers are 'c' and 'i'"
        )
    return quote(word or "c")


def _fixed(values: Sequence[TypedSql], place: int, valid: tuple[int, ...], what: str) -> int:
    if len(values) <= place:
        return valid[0]
    for number in valid:
        if values[place].sql == f"CAST({number} AS BIGINT)":
            return number
    raise ExpressionInvalid(f"{what} is not supported unless it is {' or '.join(map(str, valid))}")


def _matched(text: str, pattern: CheckedPattern, sql: str) -> str:
    """Return SQL that fails where `$` and a newline at the end would be doubtful."""
    if not pattern.has_end:
        return sql
    reason = "$ in a regular expression, and a text that ends with a newline: TRIM it first"
    return failing(f"ends_with({text}, chr(10))", reason, sql)


def _like(*, wanted: bool, fold: bool) -> Callable[[Sequence[TypedSql]], TypedSql]:
    def build(values: Sequence[TypedSql]) -> TypedSql:
        _count(values, 2, 3)
        pattern, text = _pattern(values, always=True), types.to_text(values[0])
        flags = "'i'" if fold else _flags(values, 2)
        sql = f"regexp_matches({text}, {quote(pattern.sql)}, {flags})"
        return TypedSql(_matched(text, pattern, sql if wanted else f"(NOT {sql})"), T.BOOLEAN)

    return build


def _regexp_replace(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 6)
    pattern, text = _pattern(values, always=False), types.to_text(values[0])
    replacement = _constant(values[2], "the replacement") if len(values) > 2 else ""
    check_replacement(replacement, pattern.groups)
    _fixed(values, 3, (1,), "the position")
    everywhere = _fixed(values, 4, (0, 1), "the occurrence") == 0
    flags = f"{_flags(values, 5)} || '{'g' if everywhere else ''}'"
    sql = f"regexp_replace({text}, {quote(pattern.sql)}, {quote(replacement)}, {flags})"
    return TypedSql(_matched(text, pattern, sql), T.TEXT)


def _regexp_substr(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 6)
    pattern, text = _pattern(values, always=False), types.to_text(values[0])
    _fixed(values, 2, (1,), "the position")
    occurrence = _fixed(values, 3, (1, 2, 3, 4, 5, 6, 7, 8, 9), "the occurrence")
    group = _fixed(values, 5, tuple(range(pattern.groups + 1)), "the group")
    found = f"regexp_extract_all({text}, {quote(pattern.sql)}, {group}, {_flags(values, 4)})"
    return TypedSql(_matched(text, pattern, f"list_extract({found}, {occurrence})"), T.TEXT)


def _regexp_count(values: Sequence[TypedSql]) -> TypedSql:
    _count(values, 2, 4)
    pattern, text = _pattern(values, always=False), types.to_text(values[0])
    _fixed(values, 2, (1,), "the position")
    found = f"regexp_extract_all({text}, {quote(pattern.sql)}, 0, {_flags(values, 3)})"
    return TypedSql(_matched(text, pattern, f"len({found})"), T.INTEGER)


FUNCTIONS |= {
    "COALESCE": Special(_coalesce, "COALESCE(a, b, …)"),
    "NVL": Special(_two, "NVL(a, b)"),
    "IFNULL": Special(_two, "IFNULL(a, b)"),
    "ISNULL": Special(_two, "ISNULL(a, b)"),
    "NVL2": Special(_nvl2, "NVL2(a, b, c)"),
    "NULLIF": Special(_nullif, "NULLIF(a, b)"),
    "ZEROIFNULL": Special(_zero_if_null, "ZEROIFNULL(n)"),
    "NULLIFZERO": Special(_null_if_zero, "NULLIFZERO(n)"),
    "GREATEST": Special(_extreme("greatest"), "GREATEST(a, b, …)"),
    "LEAST": Special(_extreme("least"), "LEAST(a, b, …)"),
    "DECODE": Special(_decode, "DECODE(value, search, result, …, default)"),
    "ROUND": Special(_round, "ROUND(n [, digits])"),
    "TRUNC": Special(_trunc, "TRUNC(n [, digits])"),
    "DATE_PART": Special(_date_part, "DATE_PART('part', date)"),
    "DATE_TRUNC": Special(_date_trunc, "DATE_TRUNC('part', date)"),
    "DATEDIFF": Special(_date_diff, "DATEDIFF('part', start, end)"),
    "TIMESTAMPADD": Special(_timestamp_add, "TIMESTAMPADD('part', n, date)"),
    "NEXT_DAY": Special(_next_day, "NEXT_DAY(date, 'weekday')"),
    "REGEXP_LIKE": Special(_like(wanted=True, fold=False), "REGEXP_LIKE(text, 'pattern' [, 'c'])"),
    "REGEXP_NOT_LIKE": Special(_like(wanted=False, fold=False), "REGEXP_NOT_LIKE(text, 'pattern')"),
    "REGEXP_ILIKE": Special(_like(wanted=True, fold=True), "REGEXP_ILIKE(text, 'pattern')"),
    "REGEXP_NOT_ILIKE": Special(
        _like(wanted=False, fold=True), "REGEXP_NOT_ILIKE(text, 'pattern')"
    ),
    "REGEXP_REPLACE": Special(_regexp_replace, "REGEXP_REPLACE(text, 'pattern' [, 'replacement'])"),
    "REGEXP_SUBSTR": Special(_regexp_substr, "REGEXP_SUBSTR(text, 'pattern')"),
    "REGEXP_COUNT": Special(_regexp_count, "REGEXP_COUNT(text, 'pattern')"),
}
# The first argument of these may be a word without quotes.
PART_FUNCTIONS = frozenset({"DATEDIFF", "TIMESTAMPADD"})

_OCTETS = "octets of texts are not counted here; write the function without B"
_RANDOM = "a portion that is read again must give the same rows; generate it before the load"
_NO_COMPAT = "it is not one of Vertica's functions"
REJECTED = {
    **dict.fromkeys(
        ("SUBSTRB", "INSTRB", "STRPOSB", "POSITIONB", "UPPERB", "LOWERB", "INITCAPB", "OVERLAYB",
         "SPLIT_PARTB", "GREATESTB", "LEASTB"), _OCTETS),
    **dict.fromkeys(("RANDOM", "RANDOMINT", "UUID_GENERATE", "CLOCK_TIMESTAMP", "TIMEOFDAY"), _RANDOM),
    "INITCAP": "Vertica's words end at digits, too; write UPPER(LEFT(…)) || LOWER(SUBSTR(…, 2))",
    "INSERT": "write LEFT(…) || … || SUBSTR(…)",
    "OVERLAY": "write LEFT(…) || … || SUBSTR(…)",
    "REVERSE": _NO_COMPAT,
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
    "HASH": "Vertica's hash is its own; write MD5 or SHA256",
    "CBRT": "write POWER(x, 1.0 / 3)",
    "WIDTH_BUCKET": "write CASE WHEN … THEN … END",
    "DISTANCE": "compute it after the load",
    "AGE_IN_YEARS": "write DATEDIFF, which counts the borders that are crossed",
    "AGE_IN_MONTHS": "write DATEDIFF, which counts the borders that are crossed",
    "MONTHS_BETWEEN": "write DATEDIFF, which counts the borders that are crossed",
    "TIMESTAMPDIFF": "write DATEDIFF",
    "TIMESTAMP_TRUNC": "write DATE_TRUNC",
    "TIMESTAMP_ROUND": "write DATE_TRUNC",
    "TIME_SLICE": "write DATE_TRUNC",
    "NEW_TIME": "timestamps in a load are in UTC",
    "ISFINITE": "all dates and timestamps of a load are finite",
    "CURRENT_TIME": "write CURRENT_TIMESTAMP",
    "LOCALTIME": "write LOCALTIMESTAMP",
    "TRY_CAST": "write Vertica's cast that gives NULL: value::!TYPE",
    "SAFE_CAST": "write Vertica's cast that gives NULL: value::!TYPE",
    "IFF": "write CASE WHEN … THEN … ELSE … END",
    "IF": "write CASE WHEN … THEN … ELSE … END",
    "DATEADD": "write TIMESTAMPADD, or ADD_MONTHS",
    "STRFTIME": "write TO_CHAR",
    "STRPTIME": "write TO_TIMESTAMP",
    "CONCAT_WS": "write ||, with COALESCE where a part may be NULL",
    "LEN": "write LENGTH",
    "POW": "write POWER",
    "NOW_UTC": "write GETUTCDATE()",
    "REGEXP_MATCHES": "write REGEXP_LIKE",
    "REGEXP_EXTRACT": "write REGEXP_SUBSTR",
    "CURRENT_USER": "an expression sees its row alone",
    "VERSION": "an expression sees its row alone",
}  # fmt: skip


def call(name: str, values: Sequence[TypedSql]) -> TypedSql:
    """Return the call of a function in `FUNCTIONS`.

    Raises:
        ExpressionInvalid: If it takes no such arguments.
    """
    found = FUNCTIONS[name]
    if isinstance(found, Special):
        try:
            return found.build(values)
        except ExpressionInvalid as error:
            raise ExpressionInvalid(f"{found.usage}: {error}") from None
    fitting = [each for each in found if len(each.arguments) == len(values)]
    reason = ""
    for overload in fitting:
        try:
            taken = [
                _TAKE[letter](each) for letter, each in zip(overload.arguments, values, strict=True)
            ]
        except ExpressionInvalid as error:
            reason = f": {error}"
            continue
        return _result(overload, taken, values)
    usage = " or ".join(
        f"{name}({', '.join(_NEEDS[letter] for letter in each.arguments)})" for each in found
    )
    raise ExpressionInvalid(f"expected {usage}{reason}")


def _result(overload: Overload, taken: list[str], values: Sequence[TypedSql]) -> TypedSql:
    # Whole numbers stay whole.
    numbers = [types.to_number(value) for value in values] if "n" in overload.arguments else []
    whole = overload.type is T.NUMERIC and all(number.type is T.INTEGER for number in numbers)
    return TypedSql(
        overload.sql.format(*taken),
        T.INTEGER if whole else overload.type,
        has_scale=whole or (overload.has_scale and all(number.has_scale for number in numbers)),
    )
