"""Vertica's date and time templates for TO_CHAR, TO_DATE, TO_TIMESTAMP and FORMAT.

A template is split into fields once. `render_to_char` converts it to a DuckDB expression that
formats a timestamp. `DatetimeTemplateReader` parses text. A pattern that Vertica lacks, or that its
manual does not define, is rejected with an error that names it. `docs/reference/copy-functions.md`
lists these patterns.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

from snowmelt.errors import InvalidValue
from snowmelt.schema.conversion.numbers import TRIMMED_CHARACTERS

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
ROMAN_MONTHS = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")

_NAME_WIDTH, _ROMAN_WIDTH = 9, 4
_HALF_DAY_HOURS = 12
_TWO_DIGIT_YEAR_PIVOT = 70
_JULIAN_DAY_1970 = 2_440_588
_MAX_YEAR = 9999


class DatetimeTemplateInvalid(ValueError):
    """Raised if part of a template is not supported. The message names it and an alternative."""


class ParsedDateTime(NamedTuple):
    """Parsed date and time of day. `fraction` has the digits of the fractional second."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    fraction: str

    @property
    def iso_time(self) -> str:
        """Time of day in ISO 8601."""
        clock = f"{self.hour:02}:{self.minute:02}:{self.second:02}"
        return f"{clock}.{self.fraction}" if self.fraction else clock

    @property
    def iso_timestamp(self) -> str:
        """Date and time in ISO 8601."""
        return f"{self.year:04}-{self.month:02}-{self.day:02}T{self.iso_time}"


@dataclass(frozen=True, slots=True)
class DatetimeTemplateField:
    """One part of a template: a pattern or literal text.

    `name` is the pattern's name, or None for literal text. `text` is the original text. `fill` is
    False with the modifier FM. `ordinal` is the suffix TH or th.
    """

    name: str | None
    text: str
    fill: bool = True
    ordinal: str = ""


# For each pattern, the DuckDB expression of a timestamp {x}, and the width to pad to.
_YEAR_SQL = "(CASE WHEN year({x}) <= 0 THEN 1 - year({x}) ELSE year({x}) END)"
_ISO_YEAR_SQL = "(CASE WHEN isoyear({x}) <= 0 THEN 1 - isoyear({x}) ELSE isoyear({x}) END)"
_NUMBER_PATTERNS: dict[str, tuple[str, int]] = {
    "HH": ("hour({x})", 2),
    "HH24": ("hour({x})", 2),
    "HH12": ("((hour({x}) + 11) % 12 + 1)", 2),
    "MI": ("minute({x})", 2),
    "SS": ("second({x})", 2),
    "MS": ("(microsecond({x}) // 1000 % 1000)", 3),
    "US": ("(microsecond({x}) % 1000000)", 6),
    "SSSS": ("(hour({x}) * 3600 + minute({x}) * 60 + second({x}))", 1),
    "YYYY": (_YEAR_SQL, 4),
    "YYY": (f"({_YEAR_SQL} % 1000)", 3),
    "YY": (f"({_YEAR_SQL} % 100)", 2),
    "Y": (f"({_YEAR_SQL} % 10)", 1),
    "IYYY": (_ISO_YEAR_SQL, 4),
    "IYY": (f"({_ISO_YEAR_SQL} % 1000)", 3),
    "IY": (f"({_ISO_YEAR_SQL} % 100)", 2),
    "I": (f"({_ISO_YEAR_SQL} % 10)", 1),
    "MM": ("month({x})", 2),
    "DDD": ("dayofyear({x})", 3),
    "DD": ("day({x})", 2),
    "D": ("(dayofweek({x}) + 1)", 1),
    "ID": ("isodow({x})", 1),
    "W": ("((day({x}) - 1) // 7 + 1)", 1),
    "WW": ("((dayofyear({x}) - 1) // 7 + 1)", 2),
    "IW": ("weekofyear({x})", 2),
    "CC": ("((year({x}) - 1) // 100 + 1)", 2),
    "J": ("CAST(julian(CAST({x} AS DATE)) AS BIGINT)", 1),
    "Q": ("quarter({x})", 1),
}
_ALWAYS_PADDED = frozenset({"MS", "US"})
_MERIDIEM_PATTERNS = ("AM", "PM", "A.M.", "P.M.")
_ERA_PATTERNS = ("AD", "BC", "A.D.", "B.C.")
_NAME_PATTERNS = tuple(
    spell(name)
    for name in ("month", "mon", "day", "dy")
    for spell in (str.upper, str.capitalize, str.lower)
)
_OTHER_PATTERNS = ("Y,YYY", "RM", "rm")
# Patterns of other systems and of newer PostgreSQL versions, with the alternatives to suggest.
REJECTED_PATTERNS = {
    "TZH": "Vertica has no pattern for offsets; a column without FORMAT accepts them",
    "TZM": "Vertica has no pattern for offsets; a column without FORMAT accepts them",
    "TZ": "timestamps in a load are in UTC; write the zone as quoted text",
    "OF": "Vertica has no pattern for offsets; a column without FORMAT accepts them",
    "IDDD": "it is not one of Vertica's patterns; write DDD",
    "SSSSS": "it is not one of Vertica's patterns; write SSSS",
    "FF": "it is not one of Vertica's patterns; write MS or US",
    "RR": "it is not one of Vertica's patterns; write YY",
    "RRRR": "it is not one of Vertica's patterns; write YYYY",
    "FX": "texts are always parsed strictly; omit FX",
    "TM": "names are always English; omit TM",
    "SP": "it is not one of Vertica's modifiers",
}
_CASE_SENSITIVE_PATTERNS = frozenset({*_NAME_PATTERNS, "RM", "rm"})
_CASE_INSENSITIVE_PATTERNS = frozenset(
    {*_NUMBER_PATTERNS, *_MERIDIEM_PATTERNS, *_ERA_PATTERNS, "Y,YYY"}
)
PATTERNS = frozenset(
    {*_NUMBER_PATTERNS, *_MERIDIEM_PATTERNS, *_ERA_PATTERNS, *_NAME_PATTERNS, *_OTHER_PATTERNS}
)
_PATTERN_WORDS = {
    **{name: name for name in PATTERNS},
    **{name.lower(): name.lower() for name in _CASE_INSENSITIVE_PATTERNS},
    **{word: word for name in REJECTED_PATTERNS for word in (name, name.lower())},
}
_PATTERN_REGEX = re.compile(
    "(?P<fill>FM|fm)?(?P<word>"
    + "|".join(map(re.escape, sorted(_PATTERN_WORDS, key=lambda word: (-len(word), word))))
    + ")(?P<ordinal>TH|th)?"
)


@lru_cache(maxsize=1024)
def parse_datetime_template(template: str) -> tuple[DatetimeTemplateField, ...]:
    """Split a template into patterns and literal text.

    Raises:
        DatetimeTemplateInvalid: If a part is neither literal text nor a supported pattern.
    """
    fields: list[DatetimeTemplateField] = []
    at = 0
    while at < len(template):
        if template[at] == '"':
            end = template.find('"', at + 1)
            if end < 0:
                raise DatetimeTemplateInvalid(f"the quote at {template[at:]!r} is not closed")
            quoted = template[at : end + 1]
            if "\\" in quoted:
                raise DatetimeTemplateInvalid(
                    f"quoted text {quoted} contains a backslash; write the backslash outside the quotes"
                )
            field, at = DatetimeTemplateField(None, quoted[1:-1]), end + 1
        elif template.startswith('\\"', at):
            field, at = DatetimeTemplateField(None, '"'), at + 2
        elif (match := _PATTERN_REGEX.match(template, at)) is not None:
            field, at = _parse_field(match, template), match.end()
        else:
            field, at = DatetimeTemplateField(None, _parse_literal(template, at)), at + 1
        if field.name is None and fields and fields[-1].name is None:
            # Merge adjacent literal text.
            field = DatetimeTemplateField(None, fields.pop().text + field.text)
        fields.append(field)
    return tuple(fields)


def render_to_char(template: str, timestamp_sql: str) -> str:
    """Return the DuckDB expression for TO_CHAR of a timestamp with a template.

    Raises:
        DatetimeTemplateInvalid: If a part of the template is not supported.
    """
    written = [_render_field(field, timestamp_sql) for field in parse_datetime_template(template)]
    # Return NULL for NULL, even if the template is empty.
    return f"(CASE WHEN {timestamp_sql} IS NOT NULL THEN concat({', '.join(written or [_quote_literal('')])}) END)"


def _parse_literal(template: str, start: int) -> str:
    char = template[start]
    if char == "\\":
        raise DatetimeTemplateInvalid(r"unsupported backslash: only \" is valid")
    if char.isalpha():
        word = re.match(r"\w+", template[start:])
        shown = word[0] if word else char
        raise DatetimeTemplateInvalid(
            f'{shown!r} is not one of Vertica\'s patterns; write literal text in quotes: "{shown}"'
        )
    return char


def _parse_field(match: re.Match[str], template: str) -> DatetimeTemplateField:
    word = match["word"]
    name = word if word in _CASE_SENSITIVE_PATTERNS else word.upper()
    if name in REJECTED_PATTERNS:
        raise DatetimeTemplateInvalid(f"{word}: {REJECTED_PATTERNS[name]}")
    ordinal = match["ordinal"] or ""
    if ordinal and template[match.end() : match.end() + 1] in {"H", "h"}:
        # In DDTHH24, DDTH would be parsed as the day with its suffix, followed by H24.
        raise DatetimeTemplateInvalid(
            f'{word}{ordinal} is an ordinal number; write a literal T as {word}"T"HH24'
        )
    if ordinal and name not in _NUMBER_PATTERNS:
        raise DatetimeTemplateInvalid(f"{word}{ordinal}: only numbers have an ordinal suffix")
    return DatetimeTemplateField(name, word, fill=match["fill"] is None, ordinal=ordinal)


def _render_field(field: DatetimeTemplateField, timestamp_sql: str) -> str:
    name, year = field.name, _YEAR_SQL.format(x=timestamp_sql)
    if name is None:
        return _quote_literal(field.text)
    if name in _NUMBER_PATTERNS:
        return _render_number_field(field, timestamp_sql)
    if name == "Y,YYY":
        return f"printf('%d,%03d', {year} // 1000, {year} % 1000)"
    if name in _MERIDIEM_PATTERNS or name in _ERA_PATTERNS:
        is_half = name in _MERIDIEM_PATTERNS
        late, early = ("PM", "AM") if is_half else ("AD", "BC")
        if "." in name:
            late, early = (f"{word[0]}.{word[1]}." for word in (late, early))
        is_late = f"hour({timestamp_sql}) >= 12" if is_half else f"year({timestamp_sql}) >= 1"
        sql = f"CASE WHEN {is_late} THEN '{late}' ELSE '{early}' END"
        return f"({sql})" if field.text.isupper() else f"lower({sql})"
    if name.upper() == "RM":
        texts, width, index = list(ROMAN_MONTHS), _ROMAN_WIDTH, f"month({timestamp_sql})"
    elif name.upper().startswith("MON"):
        texts, width, index = list(MONTHS), _NAME_WIDTH, f"month({timestamp_sql})"
    else:
        texts, width, index = list(WEEKDAYS), _NAME_WIDTH, f"(dayofweek({timestamp_sql}) + 1)"
    if name.upper() in {"MON", "DY"}:
        texts, width = [text[:3] for text in texts], 0
    if name.isupper():
        texts = [text.upper() for text in texts]
    elif name.islower():
        texts = [text.lower() for text in texts]
    listed = ", ".join(_quote_literal(text.ljust(width if field.fill else 0)) for text in texts)
    return f"list_extract([{listed}], {index})"


def _render_number_field(field: DatetimeTemplateField, timestamp_sql: str) -> str:
    value, width = _NUMBER_PATTERNS[field.name or ""]
    value = value.format(x=timestamp_sql)
    fill = field.fill or field.name in _ALWAYS_PADDED
    digits = f"printf('%0{width}d', {value})" if fill and width > 1 else f"CAST({value} AS VARCHAR)"
    if not field.ordinal:
        return digits
    suffix = (
        f"CASE WHEN {value} // 10 % 10 = 1 THEN 'th' WHEN {value} % 10 = 1 THEN 'st' "
        f"WHEN {value} % 10 = 2 THEN 'nd' WHEN {value} % 10 = 3 THEN 'rd' ELSE 'th' END"
    )
    return f"{digits}, {suffix if field.ordinal == 'th' else f'upper({suffix})'}"


def _quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# Patterns that can be parsed. Each group of the regular expression has the name of its value.
_EXACT_WIDTHS = {"YYYY": 4, "YY": 2, "DDD": 3, "SSSS": 5, "J": 7, "MS": 3, "US": 6}
_GROUP_NAMES = {
    "YYYY": "year",
    "YY": "short",
    "MM": "month",
    "DD": "day",
    "DDD": "ordinal",
    "J": "julian",
    "HH": "hour",
    "HH24": "hour",
    "HH12": "hour12",
    "MI": "minute",
    "SS": "second",
    "SSSS": "seconds",
    "MS": "fraction",
    "US": "fraction",
}
_DIGIT_WIDTHS = {"YYYY": (4, 4), "YY": (2, 2), "DDD": (1, 3), "J": (1, 7), "SSSS": (1, 5)}
_DIGIT_WIDTHS |= {"MS": (1, 3), "US": (1, 6)}
_DATE_GROUPS = frozenset({"year", "short", "month", "name", "roman", "day", "ordinal", "julian"})
# Fixed-width patterns. Arrow parses a template that consists only of these and literal text.
_BULK_PATTERNS = {
    # `read` parses the years before 1000, and rejects the year 0, which Arrow accepts.
    "YYYY": "([1-9][0-9]{3})",
    "MM": "(0[1-9]|1[0-2])",
    "DD": "(0[1-9]|[12][0-9]|3[01])",
    "HH24": "([01][0-9]|2[0-3])",
    "HH": "([01][0-9]|2[0-3])",
    "MI": "([0-5][0-9])",
    "SS": "([0-5][0-9])",
    "MS": "([0-9]{3})",
    "US": "([0-9]{6})",
}


class DatetimeTemplateReader:
    """Parser of text by a template, which must match the whole text.

    `bulk_pattern` is a regular expression and its replacement, or None. It rewrites matching text
    to ISO 8601. `read` returns the same value, but rejects a day that the month does not have.
    """

    def __init__(self, template: str, *, needs_date: bool, needs_time: bool = True) -> None:
        """Parse and validate a template.

        Args:
            template: The template.
            needs_date: If True, the template must have a year, and a month if it has a day. If
                False, it must have a time of day.
            needs_time: Include the time of day in the result of `bulk_pattern`.

        Raises:
            DatetimeTemplateInvalid: If the template cannot be used to parse text.
        """
        self.template = template
        fields = parse_datetime_template(template)
        self._groups: set[str] = set()
        pieces = [self._make_field_pattern(fields, place) for place in range(len(fields))]
        self._pattern = re.compile("".join(pieces), re.ASCII | re.IGNORECASE)
        self._require_complete_groups(needs_date=needs_date)
        self.bulk_pattern = _make_bulk_pattern_and_replacement(
            fields, needs_date=needs_date, needs_time=needs_time
        )
        # Files repeat dates, so most results come from the cache.
        self.read = lru_cache(maxsize=65_536)(self._parse_text)

    def _make_field_pattern(self, fields: tuple[DatetimeTemplateField, ...], index: int) -> str:
        field = fields[index]
        name = field.name
        if name is None:
            # The text may have more spaces before a value than the template.
            before = field.text.rstrip(" ")
            blanks = len(field.text) - len(before)
            if index + 1 == len(fields) or not blanks:
                return re.escape(field.text)
            return f"{re.escape(before)} {{{blanks},}}"
        if name in _GROUP_NAMES:
            return self._make_digits_pattern(fields, index)
        if name.upper() in {"MONTH", "MON"}:
            names = MONTHS if name.upper() == "MONTH" else [month[:3] for month in MONTHS]
            return f"(?P<{self._add_unique_group('name', name)}>{'|'.join(names)})"
        if name.upper() in {"DAY", "DY"}:
            days = WEEKDAYS if name.upper() == "DAY" else [day[:3] for day in WEEKDAYS]
            self._add_unique_group("weekday", name)
            return f"(?:{'|'.join(days)})"
        if name.upper() == "RM":
            numerals = "|".join(sorted(ROMAN_MONTHS, key=len, reverse=True))
            return f"(?P<{self._add_unique_group('roman', name)}>{numerals})"
        if name in _MERIDIEM_PATTERNS:
            dot = r"\." if "." in name else ""
            return f"(?P<{self._add_unique_group('half', name)}>[AP]){dot}M{dot}"
        raise DatetimeTemplateInvalid(
            f"{field.text} cannot be parsed from text; write a date with YYYY or YY, MM, MON, MONTH "
            "or DDD, and DD"
        )

    def _make_digits_pattern(self, fields: tuple[DatetimeTemplateField, ...], index: int) -> str:
        field = fields[index]
        name = field.name or ""
        group = self._add_unique_group(_GROUP_NAMES[name], name)
        low, high = _DIGIT_WIDTHS.get(name, (1, 2))
        # True if another number is directly before or after this one.
        number_before, number_after = (
            left >= 0
            and left + 1 < len(fields)
            and {fields[left].name, fields[left + 1].name} <= _GROUP_NAMES.keys()
            and not fields[left].ordinal
            for left in (index - 1, index)
        )
        if number_before or number_after:
            if not field.fill:
                raise DatetimeTemplateInvalid(
                    f"FM{name} has no width, and a number follows or precedes it; put text between"
                )
            low = high = _EXACT_WIDTHS.get(name, 2)
        digits = f"(?P<{group}>[0-9]{{{low},{high}}})"
        return f"{digits}(?:st|nd|rd|th)" if field.ordinal else digits

    def _add_unique_group(self, group: str, name: str) -> str:
        if group in self._groups:
            raise DatetimeTemplateInvalid(f"{name}: the template already has this value")
        self._groups.add(group)
        return group

    def _require_complete_groups(self, *, needs_date: bool) -> None:
        names = self._groups
        month = names & {"month", "name", "roman"}
        clash = (
            (len(month) > 1, "the month is given twice"),
            (names >= {"year", "short"}, "the year is given twice"),
            ("ordinal" in names and month | names & {"day"}, "DDD is a date without month and day"),
            ("julian" in names and names & (_DATE_GROUPS - {"julian"}), "J is a whole date"),
            ("seconds" in names and names & {"hour", "hour12", "minute", "second"},
             "SSSS is a whole time of day"),
            (names >= {"hour", "hour12"}, "the hour is given twice"),
            ("half" in names and "hour" in names,
             "use HH12 with AM or PM; HH and HH24 are 24-hour values"),
            ("half" in names and "hour12" not in names, "AM and PM require HH12"),
        )  # fmt: skip
        for wrong, reason in clash:
            if wrong:
                raise DatetimeTemplateInvalid(reason)
        if needs_date and not names & {"year", "short", "julian"}:
            raise DatetimeTemplateInvalid("it has no year: YYYY, YY or J")
        if needs_date and "day" in names and not month:
            raise DatetimeTemplateInvalid("it has a day but no month")
        if not needs_date and not names & {"hour", "hour12", "minute", "second", "seconds"}:
            raise DatetimeTemplateInvalid("it has no time of day, such as HH24:MI:SS")

    def _parse_text(self, text: str) -> ParsedDateTime:
        """Parse a text.

        Raises:
            InvalidValue: If it does not match the template, or the date or time does not exist.
        """
        match = self._pattern.fullmatch(text.strip(TRIMMED_CHARACTERS))
        if match is None:
            raise InvalidValue(reason=f"Does not match the format {self.template!r}")
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        year, month, day = self._parse_date(found)
        hour, minute, second, fraction = self._parse_time(found)
        return ParsedDateTime(year, month, day, hour, minute, second, fraction)

    def _parse_date(self, groups: dict[str, str]) -> tuple[int, int, int]:
        if "julian" in groups:
            julian = int(groups["julian"])
            try:
                day = date.fromordinal(julian - _JULIAN_DAY_1970 + date(1970, 1, 1).toordinal())
            except (ValueError, OverflowError):
                raise self._make_error(
                    f"Julian day {julian} is not within years 1 to {_MAX_YEAR}"
                ) from None
            return day.year, day.month, day.day
        short = int(groups.get("short", "0"))
        year = int(groups.get("year") or short + (1900 if short >= _TWO_DIGIT_YEAR_PIVOT else 2000))
        if year < 1:
            raise self._make_error(f"there is no year {year}")
        if "ordinal" in groups:
            ordinal = int(groups["ordinal"])
            if not 1 <= ordinal <= 365 + calendar.isleap(year):
                raise self._make_error(f"{year} has no day {ordinal}")
            day = date(year, 1, 1) + timedelta(days=ordinal - 1)
            return day.year, day.month, day.day
        month = int(groups.get("month", "1"))
        if "name" in groups:
            name = groups["name"][:3].capitalize()
            month = next(n for n, each in enumerate(MONTHS, 1) if each.startswith(name))
        elif "roman" in groups:
            month = ROMAN_MONTHS.index(groups["roman"].upper()) + 1
        number = int(groups.get("day", "1"))
        if not 1 <= month <= 12:
            raise self._make_error(f"there is no month {month}")
        if not 1 <= number <= calendar.monthrange(year, month)[1]:
            raise self._make_error(f"day {number} does not exist in month {month} of {year}")
        return year, month, number

    def _parse_time(self, groups: dict[str, str]) -> tuple[int, int, int, str]:
        if "seconds" in groups:
            minutes, second = divmod(int(groups["seconds"]), 60)
            hour, minute = divmod(minutes, 60)
        else:
            hour = int(groups.get("hour", "0"))
            minute, second = int(groups.get("minute", "0")), int(groups.get("second", "0"))
        if "hour12" in groups:
            hour = int(groups["hour12"])
            if not 1 <= hour <= _HALF_DAY_HOURS:
                raise self._make_error(f"hour {hour} is not within 1 to 12")
            hour = hour % _HALF_DAY_HOURS + (
                _HALF_DAY_HOURS if groups.get("half", "a") in "Pp" else 0
            )
        if hour > 23 or minute > 59 or second > 59:
            raise self._make_error(f"there is no time {hour}:{minute:02}:{second:02}")
        return hour, minute, second, groups.get("fraction", "")

    def _make_error(self, reason: str) -> InvalidValue:
        return InvalidValue(reason=f"Does not match the format {self.template!r}: {reason}")


def _make_bulk_pattern_and_replacement(
    fields: tuple[DatetimeTemplateField, ...], *, needs_date: bool, needs_time: bool
) -> tuple[str, str] | None:
    """Return an RE2 pattern and its ISO 8601 replacement, or None if the template is unsuitable."""
    pattern = ""
    places: dict[str, int] = {}
    for field in fields:
        if field.name is None:
            pattern += re.escape(field.text)
        elif field.name in _BULK_PATTERNS and not field.ordinal:
            pattern += _BULK_PATTERNS[field.name]
            places[_GROUP_NAMES[field.name]] = len(places) + 1
        else:
            return None
    if needs_date and "year" not in places:
        return None

    def part(name: str, default: str) -> str:
        return f"\\{places[name]}" if name in places else default

    day = f"{part('year', '')}-{part('month', '01')}-{part('day', '01')}"
    fraction = f".{part('fraction', '')}" if "fraction" in places else ""
    time = f"{part('hour', '00')}:{part('minute', '00')}:{part('second', '00')}{fraction}"
    if not needs_date:
        return f"^{pattern}$", time
    return f"^{pattern}$", f"{day}T{time}" if needs_time else day
