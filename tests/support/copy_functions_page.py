"""Lines of docs/reference/copy-functions.md, each with an example and its result from the manual."""

from __future__ import annotations

from collections.abc import Sequence

from snowmelt.load.expressions.datetime_templates import REJECTED_PATTERNS
from snowmelt.load.expressions.function_translation import REJECTED_FUNCTIONS

MOMENT = "2024-03-05 14:05:09.123456"
_PATTERN_CASES = (
    "Patterns for numbers may be in lower case. For names, Roman numerals, AM, PM, AD and BC, the case of the"
    " pattern is the case of the result."
)

# Name, example, result. NULL is the SQL value. Other results have the form that COPY stores.
FUNCTIONS = {
    "Texts": [
        ("ASCII", "ASCII('A')", "65"),
        ("BIT_LENGTH", "BIT_LENGTH('abc')", "24"),
        ("BTRIM", "BTRIM('xyxtrimyyx', 'xy')", "trim"),
        ("CHARACTER_LENGTH", "CHARACTER_LENGTH('été')", "3"),
        ("CHAR_LENGTH", "CHAR_LENGTH('été')", "3"),
        ("CHR", "CHR(65)", "A"),
        ("CONCAT", "CONCAT('a', NULL)", "NULL"),
        ("HEX_TO_BINARY", "HEX_TO_BINARY('0x6162')", "0x6162"),
        ("HEX_TO_INTEGER", "HEX_TO_INTEGER('0x0aedc')", "44764"),
        ("INSTR", "INSTR('abcabc', 'c')", "3"),
        ("LEFT", "LEFT('vertica', 3)", "ver"),
        ("LENGTH", "LENGTH('été')", "3"),
        ("LOWER", "LOWER('ÉTÉ 1')", "été 1"),
        ("LPAD", "LPAD('database', 15, 'xzy')", "xzyxzyxdatabase"),
        ("LTRIM", "LTRIM('zzzyyyyyyxxxxxxxxtrim', 'xyz')", "trim"),
        ("MD5", "MD5('123')", "202cb962ac59075b964b07152d234b70"),
        ("OCTET_LENGTH", "OCTET_LENGTH('été')", "5"),
        ("REPEAT", "REPEAT('vmart', 2)", "vmartvmart"),
        ("REPLACE", "REPLACE('Documentation%20Library', '%20', ' ')", "Documentation Library"),
        ("RIGHT", "RIGHT('vertica', 3)", "ica"),
        ("RPAD", "RPAD('database', 15, 'xzy')", "databasexzyxzyx"),
        ("RTRIM", "RTRIM('trimzzzyyyyyyxxxxxxxx', 'xyz')", "trim"),
        ("SHA1", "SHA1('123')", "40bd001563085fc35165329ea1ff5c5ecbdbbeef"),
        (
            "SHA256",
            "SHA256('123')",
            "a665a45920422f9d417e4867efdc4fb8a04a1f3fff1fa07e998e86f7f7a27ae3",
        ),
        ("SPACE", "'x' || SPACE(3) || 'y'", "x   y"),
        ("SPLIT_PART", "SPLIT_PART('abc~@~def~@~ghi', '~@~', 2)", "def"),
        ("STRPOS", "STRPOS('abc', 'c')", "3"),
        ("SUBSTR", "SUBSTR('abc', 2, 1)", "b"),
        ("SUBSTRING", "SUBSTRING('été' FROM 2 FOR 1)", "t"),
        ("TO_HEX", "TO_HEX(123456789)", "75bcd15"),
        ("TRANSLATE", "TRANSLATE('12345', '143', 'ax')", "a2x5"),
        ("UPPER", "UPPER('étudiant')", "ÉTUDIANT"),
    ],
    "Regular expressions": [
        ("REGEXP_COUNT", "REGEXP_COUNT('a man, a plan, a canal: Panama', 'an')", "4"),
        ("REGEXP_ILIKE", "REGEXP_ILIKE('ABC', '^a')", "true"),
        ("REGEXP_LIKE", "REGEXP_LIKE('123', 'a|\\d+')", "true"),
        ("REGEXP_NOT_ILIKE", "REGEXP_NOT_ILIKE('ABC', '^a')", "false"),
        ("REGEXP_NOT_LIKE", "REGEXP_NOT_LIKE('123', 'a')", "true"),
        (
            "REGEXP_REPLACE",
            "REGEXP_REPLACE('healthy, wealthy, and wise', '\\w+thy', 'something')",
            "something, something, and wise",
        ),
        (
            "REGEXP_SUBSTR",
            "REGEXP_SUBSTR('easy come, easy go', '\\w+o\\b')",
            "go",
        ),
    ],
    "Dates and times": [
        ("ADD_MONTHS", "ADD_MONTHS('2008-01-31', 1)", "2008-02-29"),
        ("DATE", "DATE('2004-10-19 10:23:54')", "2004-10-19"),
        ("DATEDIFF", "DATEDIFF('month', '2024-01-31', '2024-02-01')", "1"),
        ("DATE_PART", "DATE_PART('doq', '2024-02-29')", "60"),
        ("DATE_TRUNC", "DATE_TRUNC('hour', '2001-02-16 20:38:40')", "2001-02-16 20:00:00"),
        ("DAY", "DAY('2011-02-22 12:34')", "22"),
        ("DAYOFMONTH", "DAYOFMONTH('2011-02-22')", "22"),
        ("DAYOFWEEK", "DAYOFWEEK('2011-09-17 12:34')", "7"),
        ("DAYOFWEEK_ISO", "DAYOFWEEK_ISO('2011-09-22 12:34')", "4"),
        ("DAYOFYEAR", "DAYOFYEAR('2011-01-22')", "22"),
        ("DAYS", "DAYS('2011-01-22')", "734159"),
        ("HOUR", "HOUR('2011-09-22 12:34:01')", "12"),
        ("JULIAN_DAY", "JULIAN_DAY('2000-01-01')", "2451545"),
        ("LAST_DAY", "LAST_DAY('2004-02-28 18:30')", "2004-02-29"),
        ("MICROSECOND", "MICROSECOND('2011-09-22 12:34:01.123456')", "123456"),
        ("MIDNIGHT_SECONDS", "MIDNIGHT_SECONDS('2001-02-16 12:34:56')", "45296"),
        ("MINUTE", "MINUTE('2011-09-22 12:34:01')", "34"),
        ("MONTH", "MONTH('2011-09-22')", "9"),
        ("NEXT_DAY", "NEXT_DAY('2000-08-01', 'Monday')", "2000-08-07"),
        ("QUARTER", "QUARTER('2011-09-22')", "3"),
        ("SECOND", "SECOND('2011-09-22 12:34:01.99')", "1"),
        ("TIMESTAMPADD", "TIMESTAMPADD(DAY, 15, '2001-02-16')", "2001-03-03 00:00:00"),
        ("TO_CHAR", "TO_CHAR('2024-03-05'::DATE, 'FMMonth DDth')", "March 05th"),
        ("TO_DATE", "TO_DATE('2017-1231', 'YYYY-MMDD')", "2017-12-31"),
        ("TO_TIMESTAMP", "TO_TIMESTAMP('2017 JUN', 'YYYY MON')", "2017-06-01 00:00:00"),
        ("WEEK", "WEEK('2016-01-03')", "2"),
        ("WEEK_ISO", "WEEK_ISO('2012-01-01')", "52"),
        ("YEAR", "YEAR('2011-09-22')", "2011"),
        ("YEAR_ISO", "YEAR_ISO('2012-01-01')", "2011"),
    ],
    "Numbers": [
        ("ABS", "ABS(-28.7)", "28.7"),
        ("ACOS", "ROUND(ACOS(1))", "0"),
        ("ASIN", "ASIN(1)::NUMERIC(12,10)", "1.5707963268"),
        ("ATAN", "ATAN(1)::NUMERIC(12,10)", "0.7853981634"),
        ("ATAN2", "ATAN2(2, 1)::NUMERIC(12,10)", "1.1071487178"),
        ("CEIL", "CEIL(-42.8)::INTEGER", "-42"),
        ("CEILING", "CEILING(-42.8)::INTEGER", "-42"),
        ("COS", "COS(0)", "1"),
        ("COT", "COT(1)::NUMERIC(12,10)", "0.6420926159"),
        ("DEGREES", "DEGREES(0.5)::NUMERIC(12,10)", "28.6478897565"),
        ("EXP", "EXP(1)::NUMERIC(12,10)", "2.7182818285"),
        ("FLOOR", "FLOOR(-42.8)::INTEGER", "-43"),
        ("LN", "LN(2)::NUMERIC(12,10)", "0.6931471806"),
        ("LOG", "LOG(2, 64)", "6"),
        ("LOG10", "LOG10(100)", "2"),
        ("MOD", "MOD(-9, 4)", "-1"),
        ("PI", "PI()::NUMERIC(12,10)", "3.1415926536"),
        ("POWER", "POWER(9, 3)", "729"),
        ("RADIANS", "RADIANS(45)::NUMERIC(12,10)", "0.7853981634"),
        ("ROUND", "ROUND(42.4382, 2)::NUMERIC(6,2)", "42.44"),
        ("SIGN", "SIGN(-8.4)", "-1"),
        ("SIN", "ROUND(SIN(0))", "0"),
        ("SQRT", "SQRT(4)", "2"),
        ("TAN", "TAN(0)", "0"),
        ("TRUNC", "TRUNC(42.4382, 2)::NUMERIC(6,2)", "42.43"),
    ],
    "NULL and choices": [
        ("COALESCE", "COALESCE(NULL, 'b', 'c')", "b"),
        ("DECODE", "DECODE(NULL, 1, 'one', NULL, 'none', 'other')", "none"),
        ("GREATEST", "GREATEST(7, NULL, 9)", "NULL"),
        ("IFNULL", "IFNULL(NULL, 3)", "3"),
        ("ISNULL", "ISNULL(NULL, 3)", "3"),
        ("LEAST", "LEAST('sit', 'set')", "set"),
        ("NULLIF", "NULLIF('a', 'a')", "NULL"),
        ("NULLIFZERO", "NULLIFZERO(0)", "NULL"),
        ("NVL", "NVL(NULL, 3)", "3"),
        ("NVL2", "NVL2(NULL, 'there', 'missing')", "missing"),
        ("ZEROIFNULL", "ZEROIFNULL(NULL)", "0"),
    ],
}

OPERATORS = [
    ("`+` `-` `*`", "1 + 2 * 3 - 4", "3"),
    ("`/`", "(5 / 2)::NUMERIC(3,1)", "2.5"),
    ("`/` of numbers, to 18 digits", "(2 / 3)::NUMERIC(19,18)", "0.666666666666666667"),
    ("`%`", "-9 % 4", "-1"),
    ("`^`", "2 ^ 3 ^ 2", "64"),
    ("`&` `\\|` `#` `~` `<<` `>>`", "17 # 5", "20"),
    ("`\\|\\|`", "'a' || 1 || NULL", "NULL"),
    ("`=` `<>` `!=` `<` `<=` `>` `>=`", "2 < 10.5", "true"),
    ("`<=>`", "NULL <=> 'a'", "false"),
    ("`AND` `OR` `NOT`", "NOT (TRUE AND FALSE)", "true"),
    ("`IS [NOT] NULL`, `TRUE`, `FALSE`", "NULL IS NOT NULL", "false"),
    ("`[NOT] BETWEEN`", "2 BETWEEN 1 AND 3", "true"),
    ("`[NOT] IN (…)`", "'a' NOT IN ('b', 'c')", "true"),
    ("`[NOT] LIKE`, `ILIKE`, `ESCAPE`", "'10%' LIKE '__\\%'", "true"),
    ("`CASE`", "CASE 2 WHEN 1 THEN 'one' WHEN 2 THEN 'two' END", "two"),
    ("`DATE` ± days", "DATE '2024-02-28' + 2", "2024-03-01"),
    ("`DATE` - `DATE`", "DATE '2024-03-01' - DATE '2024-02-28'", "2"),
    ("`±` `INTERVAL 'n unit'`", "'2024-02-28'::DATE + INTERVAL '36 hours'", "2024-02-29 12:00:00"),
    ("`POSITION(… IN …)`", "POSITION('b' IN 'abc')", "2"),
    ("`TRIM([BOTH] … FROM …)`", "TRIM(LEADING 'x' FROM 'xax')", "ax"),
    ("`EXTRACT(… FROM …)`", "EXTRACT(DOW FROM DATE '2024-01-07')", "0"),
    ("`E'…'`: backslash escapes", "LENGTH(E'\\t')", "1"),
    ("`ARRAY[…]` for an ARRAY column", "ARRAY[1, 2]", "[1,2]"),
]

CASTS = [
    ("`VARCHAR`", "5::VARCHAR || '!'", "5!"),
    ("`VARCHAR(n)`: at most n octets, whole characters only", "'été'::VARCHAR(2)", "é"),
    ("`INTEGER`, `INT`, `BIGINT`, `SMALLINT`", "'12'::INT + 2.5::INT", "15"),
    ("`NUMERIC(p,s)`, `DECIMAL`, `NUMBER`", "'1.005'::NUMERIC(5,2)", "1.01"),
    ("`NUMERIC`: 37 digits, 15 after the point", "1::NUMERIC", "1.000000000000000"),
    ("`FLOAT`, `DOUBLE PRECISION`", "'1e3'::FLOAT", "1000"),
    ("`BOOLEAN`", "'yes'::BOOLEAN", "true"),
    ("`DATE`", "'19990506'::DATE", "1999-05-06"),
    ("`TIMESTAMP`", "'2024-05-06 07:08'::TIMESTAMP", "2024-05-06 07:08:00"),
    ("`TIMESTAMPTZ`", "'2024-05-06 07:08+02'::TIMESTAMPTZ", "2024-05-06 05:08:00+00"),
    ("`TIME`", "'07:08'::TIME", "07:08:00"),
    ("`::!TYPE`: NULL instead of an error", "'2024-02-30'::!DATE", "NULL"),
]

# Pattern, and the result of TO_CHAR for MOMENT.
PATTERNS = [
    ("HH24", "14"),
    ("HH", "14"),
    ("HH12", "02"),
    ("MI", "05"),
    ("SS", "09"),
    ("MS", "123"),
    ("US", "123456"),
    ("SSSS", "50709"),
    ("AM", "PM"),
    ("PM", "PM"),
    ("A.M.", "P.M."),
    ("P.M.", "P.M."),
    ("Y,YYY", "2,024"),
    ("YYYY", "2024"),
    ("YYY", "024"),
    ("YY", "24"),
    ("Y", "4"),
    ("IYYY", "2024"),
    ("IYY", "024"),
    ("IY", "24"),
    ("I", "4"),
    ("AD", "AD"),
    ("BC", "AD"),
    ("A.D.", "A.D."),
    ("B.C.", "A.D."),
    ("MONTH", "MARCH    "),
    ("Month", "March    "),
    ("month", "march    "),
    ("MON", "MAR"),
    ("Mon", "Mar"),
    ("mon", "mar"),
    ("MM", "03"),
    ("DAY", "TUESDAY  "),
    ("Day", "Tuesday  "),
    ("day", "tuesday  "),
    ("DY", "TUE"),
    ("Dy", "Tue"),
    ("dy", "tue"),
    ("DDD", "065"),
    ("DD", "05"),
    ("D", "3"),
    ("ID", "2"),
    ("W", "1"),
    ("WW", "10"),
    ("IW", "10"),
    ("CC", "21"),
    ("J", "2460375"),
    ("Q", "1"),
    ("RM", "III "),
    ("rm", "iii "),
]

# Pattern, template, text, and the result of TO_TIMESTAMP. Other patterns cannot be parsed.
READS = [
    ("HH24, HH", "YYYYMMDD HH24", "20240305 07", "2024-03-05 07:00:00"),
    ("HH12 with AM, PM", "YYYY-MM-DD HH12 AM", "2024-03-05 12 am", "2024-03-05 00:00:00"),
    ("A.M., P.M.", "YYYY-MM-DD HH12 A.M.", "2024-03-05 01 p.m.", "2024-03-05 13:00:00"),
    ("MI, SS", "YYYY-MM-DD HH24:MI:SS", "2024-3-5 7:08:09", "2024-03-05 07:08:09"),
    ("MS", "YYYY SS.MS", "2024 1.5", "2024-01-01 00:00:01.5"),
    ("US", "YYYY SS.US", "2024 1.000005", "2024-01-01 00:00:01.000005"),
    ("SSSS", "YYYY-MM-DD SSSS", "2024-03-05 3661", "2024-03-05 01:01:01"),
    ("YYYY", "YYYY", "0024", "0024-01-01 00:00:00"),
    ("YY: 70 to 99 are 1970 to 1999", "DD.MM.YY", "05.03.69", "2069-03-05 00:00:00"),
    ("MONTH", "DD MONTH YYYY", "5 march 2024", "2024-03-05 00:00:00"),
    ("MON", "DD-MON-YY", "05-Mar-70", "1970-03-05 00:00:00"),
    ("MM, DD", "YYYYMMDD", "20240305", "2024-03-05 00:00:00"),
    ("RM", "DD/RM/YYYY", "5/III/2024", "2024-03-05 00:00:00"),
    ("DDD", "YYYY-DDD", "2024-366", "2024-12-31 00:00:00"),
    ("J", "J", "2451545", "2000-01-01 00:00:00"),
    ("DAY, DY: read and ignored", "DY, DD MON YYYY", "Tue, 05 Mar 2024", "2024-03-05 00:00:00"),
    ('"text"', 'YYYY-MM-DD"T"HH24', "2024-03-05T07", "2024-03-05 07:00:00"),
    ("th", "DDth MON YYYY", "5th Mar 2024", "2024-03-05 00:00:00"),
]

# Template, a text that it rejects, and the reason.
MISREADS = [
    ("YYYYMMDD", "2021111", "seven digits; adjacent numbers require all digits"),
    ("DD MONTH YYYY", "5 Maybe 2024", "Maybe is not a month"),
    ("DD MONTH YYYY", "5 Mar 2024", "MONTH requires the full name of the month"),
    ("YYYY-MM-DD", "2024-02-30", "February 2024 has 29 days"),
    ("YYYY-DDD", "2023-366", "2023 has 365 days"),
    ("YYYY-MM-DD", "2024-02-03 x", "text follows the date"),
    ("YYYY-MM-DD", "24-02-03", "YYYY has four digits"),
    ("YYYY HH12 AM", "2024 13 AM", "HH12 requires 1 to 12"),
    ("YYYY HH24:MI", "2024 24:00", "hours are 0 to 23"),
]

MODIFIERS = [
    ("FM before a pattern: no blanks and zeros around", "FMMonth FMDD", "March 5"),
    ("th", "DDth", "05th"),
    ("TH", "MMTH", "03RD"),
    ('"text": literal', '"Day" D', "Day 3"),
    ('\\": a quote', 'YYYY\\"', '2024"'),
    ("other signs: literal", "YYYY/MM'DD", "2024/03'05"),
]

# Format, text, and the bytes in hexadecimal. None is a reject.
BINARIES = [
    ("octal", "141142143144145", "6162636465"),
    ("octal", "14114", None),
    ("octal", "400", None),
    ("hex", "0x6162636465", "6162636465"),
    ("hex", "616", None),
    ("bitstring", "0110000101100010", "6162"),
    ("bitstring", "011", None),
]


def table() -> str:
    """Return the generated part of the page."""
    parts = []
    for heading, lines in FUNCTIONS.items():
        parts += [f"## {heading}", "", *_rows(("function", "example", "result"), lines), ""]
    parts += ["## Operators", "", *_rows(("operator", "example", "result"), OPERATORS), ""]
    parts += ["## Casts", "", *_rows(("type", "example", "result"), CASTS), ""]
    parts += [
        "## Patterns that TO_CHAR writes",
        "",
        f"The results are those of `{MOMENT}`. {_PATTERN_CASES}",
        "",
        *_rows(("pattern", "written"), PATTERNS),
        "",
        *_rows(("modifier", "template", "written"), MODIFIERS),
        "",
        "## Patterns that FORMAT, TO_DATE and TO_TIMESTAMP read",
        "",
        *_rows(("pattern", "template", "text", "value"), READS),
        "",
        "Not read, so that the record is rejected or the expression fails:",
        "",
        *_rows(("template", "text", "reason"), MISREADS, plain=2),
        "",
        "## FORMAT of binary columns",
        "",
        *_rows(("format", "text", "bytes"), [_binary(*line) for line in BINARIES]),
        "",
        "## Rejected patterns",
        "",
        *_rows(("pattern", "reason"), sorted(REJECTED_PATTERNS.items()), plain=1),
        "",
        "## Rejected functions",
        "",
        *_rows(("function", "reason"), sorted(REJECTED_FUNCTIONS.items()), plain=1),
        "",
    ]
    return "\n".join(parts)


def _binary(form: str, text: str, data: str | None) -> tuple[str, str, str]:
    return form, text, "rejected" if data is None else f"0x{data}"


def _code(cell: str) -> str:
    return cell if "`" in cell else f"`{_escaped(cell)}`"


def _rows(
    header: tuple[str, ...], lines: Sequence[tuple[str, ...]], plain: int | None = None
) -> list[str]:
    """Return a table. The cells of column `plain` are sentences."""
    rows = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for line in lines:
        cells = [
            cell.replace("||", "\\|\\|") if place == plain else _code(cell)
            for place, cell in enumerate(line)
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
