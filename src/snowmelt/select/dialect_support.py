"""Table of language features and their support status in each dialect.

Documentation pages and tests are generated from this table. It lists every function, operator,
clause, type, date part, format symbol and request option exactly once. A construct that differs
from its dialect is either rejected with an error that names it, or its entry states the
difference and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterable


class FeatureTopic(StrEnum):
    """What a feature is; the value is a heading."""

    CLAUSE = "Clauses"
    LITERAL = "Literals and names"
    OPERATOR = "Operators"
    AGGREGATE = "Aggregates"
    FUNCTION = "Functions"
    TYPE = "Types of CAST"
    EXTRACT = "Parts of a date: EXTRACT"
    DATE_ADD = "Parts of a date: DATE_ADD, DATE_DIFF, DATEADD, DATEDIFF"
    FORMAT_SYMBOL = "Symbols of TO_STRING"
    INPUT = "InputSerialization"
    OUTPUT = "OutputSerialization"
    REQUEST = "Other elements of a request"


class FeatureStatus(StrEnum):
    """How a dialect stands to a feature."""

    EXACT = "exact"
    """Part of the dialect, and the same."""

    ADDED = "added"
    """No part of the dialect; means what it means where it is one."""

    DIFFERS = "differs"
    """Part of the dialect, and deliberately other; the note says how and why."""

    REJECTED = "refused"
    """Answered with an error that names it."""


@dataclass(frozen=True, slots=True)
class DialectFeature:
    """One line: a status for each dialect, in the order of `Dialect`.

    `example` is an expression, or a whole statement. `expected_outputs` are what it prints in each dialect,
    `!Code` where it is refused with that code; empty where the example is tested elsewhere.
    """

    topic: FeatureTopic
    name: str
    statuses: tuple[FeatureStatus, FeatureStatus, FeatureStatus]
    example: str = ""
    expected_outputs: tuple[str, ...] = ()
    note: str = ""

    def status(self, dialect: Dialect) -> FeatureStatus:
        """Return how a dialect stands to the feature."""
        return self.statuses[list(Dialect).index(dialect)]

    def expected_output(self, dialect: Dialect) -> str | None:
        """Return what the example prints in a dialect, None where it has no answer of its own."""
        if not self.expected_outputs:
            return None
        return self.expected_outputs[
            list(Dialect).index(dialect) if len(self.expected_outputs) > 1 else 0
        ]


_STATUS_BY_LETTER = {status.value[0].upper(): status for status in FeatureStatus}


def _make_feature(
    topic: FeatureTopic,
    name: str,
    statuses: str,
    example: str = "",
    *expected_outputs: str,
    note: str = "",
) -> DialectFeature:
    """Make a line; `statuses` are the first letters for aws, ceph and ceph-2020."""
    first, second, third = (_STATUS_BY_LETTER[letter] for letter in statuses.split())
    return DialectFeature(topic, name, (first, second, third), example, expected_outputs, note)


def _make_features(
    topic: FeatureTopic, statuses: str, names: str, note: str = ""
) -> Iterable[DialectFeature]:
    return (_make_feature(topic, name, statuses, note=note) for name in names.split())


_CLAUSE, _LITERAL, _OPERATOR = FeatureTopic.CLAUSE, FeatureTopic.LITERAL, FeatureTopic.OPERATOR
_AGGREGATE, _FUNCTION, _TYPE = FeatureTopic.AGGREGATE, FeatureTopic.FUNCTION, FeatureTopic.TYPE
_EXAMPLE_TIMESTAMP = "`2010-02-03T04:05:06.789-08:30`"
_COUNT_QUERY_PREFIX = "select count(*) from stdin "
_FORMAT_EXAMPLES = """
y=2010 yy=10 yyyy=2010 M=2 MM=02 MMM=Feb MMMM=February MMMMM=F d=3 dd=03 a=AM h=4 hh=04 H=4 HH=04
m=5 mm=05 s=6 ss=06 S=7 n=789000000 X=-0830 XX=-0830 XXX=-08:30 XXXX=-0830 XXXXX=-08:30 x=-0830
xx=-0830 xxx=-08:30 xxxx=-0830 xxxxx=-08:30
"""

FEATURES: tuple[DialectFeature, ...] = (
    # --- clauses
    _make_feature(_CLAUSE, "SELECT", "E E E", "select 1 from stdin", "1"),
    _make_feature(_CLAUSE, "*", "E E E", note="Ceph shows empty fields of `*` empty, not `null`."),
    _make_feature(
        _CLAUSE,
        "* beside values",
        "R E E",
        "select *, 1 from stdin",
        "!ParseAsteriskIsNotAloneInSelectList",
        "x,1",
        "x,1",
    ),
    _make_feature(_CLAUSE, "AS", "E E E", "select 1 as a from stdin", "1"),
    _make_feature(_CLAUSE, "alias without AS", "E A A", "select 1 a from stdin", "1"),
    _make_feature(
        _CLAUSE,
        "alias in WHERE and in other values",
        "A E E",
        "select 1 as a, a + 1 as b from stdin where b = 2",
        "1,2",
    ),
    _make_feature(_CLAUSE, "ALL", "A A A", "select all 1 from stdin", "1"),
    _make_feature(_CLAUSE, "DISTINCT", "A A A", "select distinct 1 from stdin", "1"),
    _make_feature(_CLAUSE, "FROM S3Object", "E E E", "select 1 from S3Object", "1"),
    _make_feature(_CLAUSE, "FROM stdin", "A E E", "select 1 from stdin", "1"),
    _make_feature(
        _CLAUSE,
        "FROM /path",
        "R D D",
        "select 1 from /a/b.csv",
        "!DataSourcePathUnsupported",
        "1",
        "1",
        note="The request names the object; Ceph reads a file of its own there, for debugging.",
    ),
    _make_feature(
        _CLAUSE, "FROM S3Object[*].path", "E E A", note="Ceph: each element of an array is a row."
    ),
    _make_feature(
        _CLAUSE, "alias of the object", "E E A", "select s._1 from s3object s where 1 = 1", "x"
    ),
    _make_feature(_CLAUSE, "AT", "R R R", "select 1 from stdin at a", "!ParseUnsupportedSyntax"),
    _make_feature(_CLAUSE, "WHERE", "E E E", _COUNT_QUERY_PREFIX + "where 1 <> 1", "0"),
    _make_feature(_CLAUSE, "GROUP BY", "A A A", "select 1, count(*) from stdin group by _1", "1,1"),
    _make_feature(_CLAUSE, "HAVING", "A A A", _COUNT_QUERY_PREFIX + "having count(*) > 5", ""),
    _make_feature(
        _CLAUSE, "ORDER BY", "A A A", "select 1 from stdin order by _1 desc nulls first", "1"
    ),
    _make_feature(
        _CLAUSE,
        "LIMIT",
        "E D A",
        "select 1 from stdin limit 0",
        "",
        note="Counts records returned; Ceph counts records read, so WHERE may leave it none.",
    ),
    _make_feature(
        _CLAUSE,
        "LIMIT of an aggregate",
        "E R A",
        _COUNT_QUERY_PREFIX + "limit 1",
        "1",
        "!UnsupportedSyntax",
        "1",
        note="Ceph stops reading there.",
    ),
    _make_feature(_CLAUSE, "OFFSET", "A A A", "select 1 from stdin offset 1", ""),
    _make_feature(_CLAUSE, "; at the end", "E E E", "select 1 from stdin;", "1"),
    _make_feature(
        _CLAUSE, "JOIN", "R R R", "select 1 from stdin join stdin", "!ParseMalformedJoin"
    ),
    _make_feature(
        _CLAUSE, "UNION", "R R R", "select 1 from stdin union select 2", "!UnsupportedSyntax"
    ),
    _make_feature(
        _CLAUSE,
        "INTERSECT",
        "R R R",
        "select 1 from stdin intersect select 2",
        "!UnsupportedSyntax",
    ),
    _make_feature(
        _CLAUSE, "EXCEPT", "R R R", "select 1 from stdin except select 2", "!UnsupportedSyntax"
    ),
    _make_feature(
        _CLAUSE, "subquery", "R R R", "(select 1 from stdin)", "!UnsupportedSqlStructure"
    ),
    _make_feature(
        _CLAUSE,
        "-- comment",
        "R A A",
        "2 --1",
        "!UnsupportedSyntax",
        "3",
        "3",
        note="No comment in any dialect; in Ceph the signs are two minuses.",
    ),
    # --- literals and names
    _make_feature(_LITERAL, "'text'", "E E A", "'a'", "a"),
    _make_feature(
        _LITERAL,
        '"text"',
        "R E E",
        '"a"',
        "!MissingHeaders",
        "a",
        "a",
        note="A column's name in aws.",
    ),
    _make_feature(_LITERAL, "integer", "E E E", "9223372036854775807", "9223372036854775807"),
    _make_feature(
        _LITERAL,
        "decimal point",
        "E E E",
        "0.1 + 0.2",
        "0.3",
        "0.30000000000000004",
        "0.30000000000000004",
        note="A decimal of 38 digits in aws, a double in Ceph.",
    ),
    _make_feature(_LITERAL, "`timestamp`", "E E A", "extract(year from `2010-02-03T`)", "2010"),
    _make_feature(_LITERAL, "[list], (list)", "E A A", "2 in [1, 2]", "true", "true", "1"),
    _make_feature(_LITERAL, "NULL", "E E A", "null", "", "null", ""),
    _make_feature(_LITERAL, "MISSING", "E A A", "missing is missing", "true", "true", "1"),
    _make_feature(_LITERAL, "TRUE, FALSE", "E E A", "true", "true", "true", "1"),
    _make_feature(_LITERAL, "nan", "R E A", "nan", "!MissingHeaders", "nan", "nan"),
    _make_feature(_LITERAL, "_1", "E E E", "_1", "x"),
    _make_feature(
        _LITERAL,
        "_2 past the end of a row",
        "E D E",
        "_2",
        "",
        "null",
        "!InvalidColumnIndex",
        note="Ceph shows an earlier row's field.",
    ),
    _make_feature(
        _LITERAL,
        "empty field",
        "E E E",
        note="An empty text in aws and ceph-2020; NULL in ceph, but for `*`.",
    ),
    _make_feature(_LITERAL, "names of JSON", "E E A", note="In any case; Ceph: quoted ones too."),
    _make_feature(_LITERAL, "path behind an array", "E R R", note="Ceph takes the last element's."),
    # --- operators
    _make_feature(_OPERATOR, "+", "E E E", "1 + 2", "3"),
    _make_feature(_OPERATOR, "-", "E E E", "1 - 2", "-1"),
    _make_feature(_OPERATOR, "*", "E E E", "2 * 3", "6"),
    _make_feature(_OPERATOR, "/", "E E E", "7 / 2", "3"),
    _make_feature(
        _OPERATOR,
        "%",
        "E E A",
        "7.5 % 2",
        "1.5",
        "1",
        "1",
        note="Ceph cuts the left side to an integer, and takes an integer alone on the right.",
    ),
    _make_feature(_OPERATOR, "^", "A E E", "2 ^ 10", "1024"),
    _make_feature(
        _OPERATOR,
        "integers beyond 64 bits",
        "E D D",
        "9223372036854775807 + 1",
        "!IntegerOverflow",
        note="Refused; Ceph converts a double, which C++ does not define.",
    ),
    _make_feature(_OPERATOR, "||", "A A A", "'a' || 1", "a1"),
    _make_feature(_OPERATOR, "=", "E E A", "1 = 1.0", "true", "true", "1"),
    _make_feature(_OPERATOR, "==", "A A E", "1 == 1.0", "true", "true", "1"),
    _make_feature(_OPERATOR, "<>", "E E A", "1 <> 1", "false", "false", "0"),
    _make_feature(_OPERATOR, "!=", "E E E", "1 != 1", "false", "false", "0"),
    _make_feature(_OPERATOR, "<", "E E E", "'a' < 'b'", "true", "true", "1"),
    _make_feature(_OPERATOR, "<=", "E E E", "2 <= 1", "false", "false", "0"),
    _make_feature(_OPERATOR, ">", "E E E", "2 > 1", "true", "true", "1"),
    _make_feature(_OPERATOR, ">=", "E E E", "2 >= 3", "false", "false", "0"),
    _make_feature(
        _OPERATOR,
        "types that differ",
        "E D E",
        "1 < 'a'",
        "",
        "!InvalidDataType",
        "!InvalidDataType",
        note="Unknown in aws; costs the row in ceph-2020. Ends the query in ceph, where Ceph drops "
        "up to 100 rows without a word.",
    ),
    _make_feature(_OPERATOR, "AND", "E E E", "1 = 1 and 1 = 2", "false", "false", "0"),
    _make_feature(
        _OPERATOR,
        "OR",
        "E E E",
        "1 = 1 or 1 = 1 and 1 = 2",
        "true",
        "true",
        "0",
        note="From left to right with AND in ceph-2020.",
    ),
    _make_feature(_OPERATOR, "NOT", "E E A", "not 1 = 2", "true", "true", "1"),
    _make_feature(
        _OPERATOR,
        "NOT … AND, NOT … OR",
        "E R A",
        "not 1 = 2 and 1 = 2",
        "false",
        "!UnsupportedSyntax",
        "0",
        note="Ceph negates all that follows; brackets say what is meant.",
    ),
    _make_feature(_OPERATOR, "IS", "E E A", "1 is not null", "true", "true", "1"),
    _make_feature(_OPERATOR, "IN", "E E A", "1 in (2, 1)", "true", "true", "1"),
    _make_feature(_OPERATOR, "BETWEEN", "E E A", "2 not between 3 and 4", "true", "true", "1"),
    _make_feature(
        _OPERATOR,
        "LIKE",
        "E D A",
        "'y' like '[x-z]'",
        "false",
        "true",
        "1",
        note="Classes and the backslash in Ceph; its other signs of regular expressions stand for "
        "themselves. NULL is unknown, where Ceph ends the query.",
    ),
    _make_feature(
        _OPERATOR,
        "repeated class in LIKE",
        "E R R",
        "'yy' like '[x-z]+'",
        "false",
        "!LikeInvalidInputs",
        "!LikeInvalidInputs",
    ),
    _make_feature(
        _OPERATOR, "ESCAPE", "E E A", "'10%' like '10$%' escape '$'", "true", "true", "1"
    ),
    _make_feature(_OPERATOR, "CASE", "E E A", "case 2 when 2 then 'a' else 'b' end", "a"),
    # --- aggregates
    _make_feature(_AGGREGATE, "count", "E E E", "count(*)", "1"),
    _make_feature(
        _AGGREGATE,
        "count(value)",
        "E E E",
        "count(null)",
        "0",
        "0",
        "1",
        note="ceph-2020 counts rows, whatever the value.",
    ),
    _make_feature(
        _AGGREGATE,
        "sum",
        "E D E",
        "sum(case when _1 = 'x' then 0.5 end)",
        "0.5",
        note="NULL is passed over; today's Ceph begins anew behind one.",
    ),
    _make_feature(
        _AGGREGATE,
        "avg",
        "E D A",
        "avg(3)",
        "3",
        note="NULL is passed over; today's Ceph has NULL from there on.",
    ),
    _make_feature(
        _AGGREGATE,
        "min",
        "E D D",
        "min(_1)",
        "x",
        note="NULL is passed over, where today's Ceph ends the query. Texts have one too, which "
        "the first engine compares with a number.",
    ),
    _make_feature(_AGGREGATE, "max", "E D D", "max(_1)", "x", note="As min."),
    _make_feature(
        _AGGREGATE,
        "aggregates of no rows",
        "E E E",
        "select sum(int(_1)) from stdin where 1 = 2",
        "",
        "null",
        "0",
    ),
    _make_feature(_AGGREGATE, "aggregate (DISTINCT …)", "A A A", "count(distinct _1)", "1"),
    _make_feature(
        _AGGREGATE,
        "columns beside aggregates",
        "R R E",
        "select count(*), _1 from stdin",
        "!UnsupportedSqlStructure",
        "!UnsupportedSqlStructure",
        "1,x",
    ),
    # --- functions
    _make_feature(_FUNCTION, "add", "A E A", "add(2, 3)", "5"),
    _make_feature(_FUNCTION, "cast", "E E A", "cast('5' as int) + 1", "6"),
    _make_feature(
        _FUNCTION,
        "char_length",
        "E D A",
        "char_length('größe')",
        "5",
        note="Counts characters, as its page says; Ceph counts bytes.",
    ),
    _make_feature(
        _FUNCTION,
        "character_length",
        "E D A",
        "character_length('ab')",
        "2",
        note="As char_length.",
    ),
    _make_feature(_FUNCTION, "coalesce", "E E A", "coalesce(null, 1/1, 2)", "1"),
    _make_feature(
        _FUNCTION,
        "date_add",
        "E E A",
        "extract(month from date_add(month, 1, `2011-01-31T`))",
        "2",
        note="Keeps the day, or takes the month's last.",
    ),
    _make_feature(
        _FUNCTION,
        "date_diff",
        "E D A",
        "date_diff(month, `2011-01-31T`, `2011-02-01T`)",
        "0",
        note="Whole units passed; within one year Ceph counts months of the calendar, and years "
        "by the day of the year.",
    ),
    _make_feature(
        _FUNCTION, "dateadd", "A A E", 'extract("day", dateadd("month", 1, `2000-02-29T`))', "31"
    ),
    _make_feature(
        _FUNCTION, "datediff", "A A E", 'datediff("month", `2011-01-31T`, `2011-02-01T`)', "1"
    ),
    _make_feature(
        _FUNCTION,
        "engine_version",
        "A D A",
        note="Says which Snowmelt answers.",
    ),
    _make_feature(
        _FUNCTION, "extract", "E E E", f"extract(year from {_EXAMPLE_TIMESTAMP})", "2010"
    ),
    _make_feature(_FUNCTION, "float", "A E E", "float('1.5')", "1.5"),
    _make_feature(
        _FUNCTION,
        "int",
        "A E E",
        "int('12abc')",
        "!CastFailed",
        "!CastFailed",
        "12",
        note="strtol in Ceph: in ceph nothing may stand behind the number.",
    ),
    _make_feature(
        _FUNCTION,
        "lower",
        "E D A",
        "lower('ÄB')",
        "äb",
        note="All letters; Ceph's are those of ASCII.",
    ),
    _make_feature(_FUNCTION, "nullif", "E E A", "nullif(1, '1')", "1"),
    _make_feature(_FUNCTION, "string", "A E A", "string(1) || 'x'", "1x"),
    _make_feature(
        _FUNCTION,
        "substr",
        "A A E",
        "substr('abc', 2, 9)",
        "bc",
        "bc",
        "!EvaluatorInvalidArguments",
        note="The third argument is a length; in ceph-2020 a part that is not all inside costs "
        "the row.",
    ),
    _make_feature(
        _FUNCTION,
        "substring",
        "E D A",
        "substring('abc', 0, 2)",
        "ab",
        "a",
        "a",
        note="Counts characters, where Ceph counts bytes. A start before the first moves to it in "
        "aws.",
    ),
    _make_feature(
        _FUNCTION, "timestamp", "A A E", "extract(day from timestamp('1999:10:11 12:23:44'))", "11"
    ),
    _make_feature(
        _FUNCTION,
        "to_bool",
        "A D A",
        "to_bool('true')",
        "true",
        "true",
        "1",
        note="Reads texts, which are all false in Ceph.",
    ),
    _make_feature(
        _FUNCTION, "to_string", "E E A", f"to_string({_EXAMPLE_TIMESTAMP}, 'd/M/y')", "3/2/2010"
    ),
    _make_feature(
        _FUNCTION,
        "to_timestamp",
        "E E A",
        "extract(year from to_timestamp('2007T'))",
        "2007",
        "2007",
        "2007",
    ),
    _make_feature(_FUNCTION, "trim", "E E A", "trim(leading '1' from '112')", "2"),
    _make_feature(_FUNCTION, "upper", "E D A", "upper('äb')", "ÄB", note="As lower."),
    _make_feature(
        _FUNCTION, "utcnow", "E E E", "extract(year from utcnow()) > 2000", "true", "true", "1"
    ),
    _make_feature(_FUNCTION, "version", "A D A", note="As engine_version."),
    # --- types
    _make_feature(
        _TYPE, "BOOL", "E D A", "cast('false' as bool)", "false", "false", "0", note="As to_bool."
    ),
    _make_feature(_TYPE, "BOOLEAN", "A A A", "cast(1 as boolean)", "true", "true", "1"),
    _make_feature(_TYPE, "INT", "E E A", "cast('7' as int)", "7"),
    _make_feature(_TYPE, "INTEGER", "E A A", "cast('7' as integer)", "7"),
    _make_feature(_TYPE, "BIGINT", "A A A", "cast('7' as bigint)", "7"),
    _make_feature(_TYPE, "FLOAT", "E E A", "cast('2.5' as float)", "2.5"),
    _make_feature(_TYPE, "DOUBLE", "A A A", "cast('2.5' as double precision)", "2.5"),
    _make_feature(
        _TYPE,
        "DECIMAL",
        "E D A",
        "cast('1.239' as decimal(10, 2))",
        "1.239",
        "1.24",
        "1.24",
        note="Precision and scale are ignored in aws, as documented; Ceph swaps them.",
    ),
    _make_feature(_TYPE, "NUMERIC", "E A A", "cast('1.5' as numeric)", "1.5"),
    _make_feature(_TYPE, "STRING", "E E A", "cast(7 as string)", "7"),
    _make_feature(_TYPE, "TEXT", "A A A", "cast(7 as text)", "7"),
    _make_feature(_TYPE, "VARCHAR", "A A A", "cast(7 as varchar)", "7"),
    _make_feature(_TYPE, "VARCHAR(n)", "R R R", "cast(7 as varchar(2))", "!ParseInvalidTypeParam"),
    _make_feature(_TYPE, "CHAR", "R R R", "cast(7 as char)", "!ParseExpectedTypeName"),
    _make_feature(_TYPE, "SMALLINT", "R R R", "cast(7 as smallint)", "!ParseExpectedTypeName"),
    _make_feature(_TYPE, "REAL", "R R R", "cast(7 as real)", "!ParseExpectedTypeName"),
    _make_feature(_TYPE, "DATE", "R R R", "cast('2010-01-01' as date)", "!ParseExpectedTypeName"),
    _make_feature(
        _TYPE, "TIMESTAMP", "E E A", "extract(year from cast('2010-01-02' as timestamp))", "2010"
    ),
    # --- parts of a date
    *(
        _make_feature(
            FeatureTopic.EXTRACT,
            name,
            statuses,
            f"extract({name} from {_EXAMPLE_TIMESTAMP})",
            answer,
            note=note,
        )
        for name, statuses, answer, note in (
            ("year", "E E E", "2010", ""),
            ("month", "E E E", "2", ""),
            (
                "day",
                "E E D",
                "3",
                "Of the month; the first engine gives that of the year, see doy.",
            ),
            ("hour", "E E A", "4", ""),
            ("minute", "E E A", "5", ""),
            ("second", "E E A", "6", ""),
            ("timezone_hour", "E E A", "-8", ""),
            ("timezone_minute", "E E A", "-30", ""),
            ("week", "A E E", "5", "Of ISO 8601."),
            ("dow", "A A A", "3", "From Sunday, 0."),
            ("doy", "A A A", "34", ""),
        )
    ),
    _make_feature(
        FeatureTopic.EXTRACT,
        "quarter",
        "R R R",
        f"extract(quarter from {_EXAMPLE_TIMESTAMP})",
        "!ParseExpectedDatePart",
    ),
    *(
        _make_feature(
            FeatureTopic.DATE_ADD,
            name,
            statuses,
            f"date_diff({name}, `2010T`, date_add({name}, 2, `2010T`))",
            "2",
        )
        for name, statuses in (
            ("year", "E E E"),
            ("month", "E E E"),
            ("week", "A A A"),
            ("day", "E E E"),
            ("hour", "E E E"),
            ("minute", "E E A"),
            ("second", "E E A"),
        )
    ),
    _make_feature(
        FeatureTopic.DATE_ADD,
        "millisecond",
        "R R R",
        "date_add(millisecond, 1, `2010T`)",
        "!ParseExpectedDatePart",
    ),
    # --- pictures
    *(
        _make_feature(
            FeatureTopic.FORMAT_SYMBOL,
            name,
            "E E A",
            f"to_string({_EXAMPLE_TIMESTAMP}, '{name}')",
            answer,
        )
        for name, answer in (pair.split("=") for pair in _FORMAT_EXAMPLES.split())
    ),
    _make_feature(
        FeatureTopic.FORMAT_SYMBOL,
        "yyy, yyyyy",
        "R E A",
        f"to_string({_EXAMPLE_TIMESTAMP}, 'yyyyy')",
        "!EvaluatorInvalidTimestampFormatPatternToken",
        "02010",
        "02010",
    ),
    _make_feature(
        FeatureTopic.FORMAT_SYMBOL,
        "other letters",
        "R E A",
        f"to_string({_EXAMPLE_TIMESTAMP}, 'dTh')",
        "!EvaluatorInvalidTimestampFormatPatternSymbol",
        "3T4",
        "3T4",
        note="Stand for themselves in Ceph.",
    ),
    _make_feature(
        FeatureTopic.FORMAT_SYMBOL,
        "'text'",
        "E E A",
        f"to_string({_EXAMPLE_TIMESTAMP}, '''T''')",
        "T",
        "'T'",
        "'T'",
        note="Quotes stand for themselves in Ceph.",
    ),
    # --- requests
    _make_feature(FeatureTopic.INPUT, "CompressionType NONE", "E E E"),
    *_make_features(FeatureTopic.INPUT, "E A A", "GZIP BZIP2"),
    *_make_features(FeatureTopic.INPUT, "A A A", "ZSTD"),
    *_make_features(
        FeatureTopic.INPUT,
        "E E E",
        "CSV.FileHeaderInfo CSV.RecordDelimiter CSV.FieldDelimiter CSV.QuoteCharacter "
        "CSV.QuoteEscapeCharacter",
    ),
    _make_feature(
        FeatureTopic.INPUT, "CSV.Comments", "E E A", note="None by default in Ceph, # in aws."
    ),
    _make_feature(
        FeatureTopic.INPUT,
        "CSV.AllowQuotedRecordDelimiter",
        "E D A",
        note="Quoted record delimiters are data in ceph, whatever it says.",
    ),
    _make_feature(FeatureTopic.INPUT, "JSON.Type LINES", "E A A"),
    _make_feature(FeatureTopic.INPUT, "JSON.Type DOCUMENT", "E E A"),
    _make_feature(FeatureTopic.INPUT, "Parquet", "E E A"),
    *_make_features(
        FeatureTopic.OUTPUT, "E E A", "CSV.RecordDelimiter CSV.FieldDelimiter CSV.QuoteCharacter"
    ),
    _make_feature(
        FeatureTopic.OUTPUT,
        "CSV.QuoteEscapeCharacter",
        "E D A",
        note="Today's Ceph takes the input's.",
    ),
    _make_feature(FeatureTopic.OUTPUT, "CSV.QuoteFields ALWAYS", "E E A"),
    _make_feature(
        FeatureTopic.OUTPUT,
        "CSV.QuoteFields ASNEEDED",
        "E R R",
        note="No Ceph has it; without QuoteFields its dialects quote nothing.",
    ),
    _make_feature(
        FeatureTopic.OUTPUT,
        "JSON.RecordDelimiter",
        "E D A",
        note="Texts are quoted, which Ceph leaves out; an aggregate is bare in both Ceph dialects.",
    ),
    _make_feature(FeatureTopic.REQUEST, "ExpressionType SQL", "E E E"),
    _make_feature(FeatureTopic.REQUEST, "RequestProgress", "E E A"),
    _make_feature(
        FeatureTopic.REQUEST,
        "ScanRange",
        "E D A",
        note="Records that begin inside; Ceph cuts bytes.",
    ),
)


def list_features(topic: FeatureTopic) -> tuple[DialectFeature, ...]:
    """Return the lines of a topic, in their order."""
    return tuple(feature for feature in FEATURES if feature.topic is topic)
