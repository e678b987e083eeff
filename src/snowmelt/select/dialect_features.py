"""What the language has, and how far each dialect has it: the table that pages and tests are made of.

Every function, operator, clause, type, part of a date, symbol of a picture and option of a request
stands here once. A construct that is not exactly its dialect's is refused by its name, or the line
says what differs and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterable


class Topic(StrEnum):
    """What a feature is; the value is a heading."""

    CLAUSE = "Clauses"
    LITERAL = "Literals and names"
    OPERATOR = "Operators"
    AGGREGATE = "Aggregates"
    FUNCTION = "Functions"
    TYPE = "Types of CAST"
    EXTRACT = "Parts of a date: EXTRACT"
    DATE_ADD = "Parts of a date: DATE_ADD, DATE_DIFF, DATEADD, DATEDIFF"
    PICTURE = "Symbols of TO_STRING"
    INPUT = "InputSerialization"
    OUTPUT = "OutputSerialization"
    REQUEST = "Other elements of a request"


class Status(StrEnum):
    """How a dialect stands to a feature."""

    EXACT = "exact"
    """Part of the dialect, and the same."""

    ADDED = "added"
    """No part of the dialect; means what it means where it is one."""

    DIFFERS = "differs"
    """Part of the dialect, and deliberately other; the note says how and why."""

    REFUSED = "refused"
    """Answered with an error that names it."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One line: a status for each dialect, in the order of `Dialect`.

    `example` is an expression, or a whole statement. `answers` are what it prints in each dialect,
    `!Code` where it is refused with that code; empty where the example is tested elsewhere.
    """

    topic: Topic
    name: str
    statuses: tuple[Status, Status, Status]
    example: str = ""
    answers: tuple[str, ...] = ()
    note: str = ""

    def status(self, dialect: Dialect) -> Status:
        """Return how a dialect stands to the feature."""
        return self.statuses[list(Dialect).index(dialect)]

    def answer(self, dialect: Dialect) -> str | None:
        """Return what the example prints in a dialect, None where it has no answer of its own."""
        if not self.answers:
            return None
        return self.answers[list(Dialect).index(dialect) if len(self.answers) > 1 else 0]


_LETTERS = {status.value[0].upper(): status for status in Status}


def _line(
    topic: Topic, name: str, statuses: str, example: str = "", *answers: str, note: str = ""
) -> Feature:
    """Make a line; `statuses` are the first letters for aws, ceph and ceph-2020."""
    first, second, third = (_LETTERS[letter] for letter in statuses.split())
    return Feature(topic, name, (first, second, third), example, answers, note)


def _lines(topic: Topic, statuses: str, names: str, note: str = "") -> Iterable[Feature]:
    return (_line(topic, name, statuses, note=note) for name in names.split())


_C, _L, _O = Topic.CLAUSE, Topic.LITERAL, Topic.OPERATOR
_A, _F, _T = Topic.AGGREGATE, Topic.FUNCTION, Topic.TYPE
_MOMENT = "`2010-02-03T04:05:06.789-08:30`"
_FIRST = "select count(*) from stdin "
_PICTURES = """
y=2010 yy=10 yyyy=2010 M=2 MM=02 MMM=Feb MMMM=February MMMMM=F d=3 dd=03 a=AM h=4 hh=04 H=4 HH=04
m=5 mm=05 s=6 ss=06 S=7 n=789000000 X=-0830 XX=-0830 XXX=-08:30 XXXX=-0830 XXXXX=-08:30 x=-0830
xx=-0830 xxx=-08:30 xxxx=-0830 xxxxx=-08:30
"""

FEATURES: tuple[Feature, ...] = (
    # --- clauses
    _line(_C, "SELECT", "E E E", "select 1 from stdin", "1"),
    _line(_C, "*", "E E E", note="Ceph shows empty fields of `*` empty, not `null`."),
    _line(
        _C,
        "* beside values",
        "R E E",
        "select *, 1 from stdin",
        "!ParseAsteriskIsNotAloneInSelectList",
        "x,1",
        "x,1",
    ),
    _line(_C, "AS", "E E E", "select 1 as a from stdin", "1"),
    _line(_C, "alias without AS", "E A A", "select 1 a from stdin", "1"),
    _line(
        _C,
        "alias in WHERE and in other values",
        "A E E",
        "select 1 as a, a + 1 as b from stdin where b = 2",
        "1,2",
    ),
    _line(_C, "ALL", "A A A", "select all 1 from stdin", "1"),
    _line(_C, "DISTINCT", "A A A", "select distinct 1 from stdin", "1"),
    _line(_C, "FROM S3Object", "E E E", "select 1 from S3Object", "1"),
    _line(_C, "FROM stdin", "A E E", "select 1 from stdin", "1"),
    _line(
        _C,
        "FROM /path",
        "R D D",
        "select 1 from /a/b.csv",
        "!DataSourcePathUnsupported",
        "1",
        "1",
        note="The request names the object; Ceph reads a file of its own there, for debugging.",
    ),
    _line(_C, "FROM S3Object[*].path", "E E A", note="Ceph: each element of an array is a row."),
    _line(_C, "alias of the object", "E E A", "select s._1 from s3object s where 1 = 1", "x"),
    _line(_C, "AT", "R R R", "select 1 from stdin at a", "!ParseUnsupportedSyntax"),
    _line(_C, "WHERE", "E E E", _FIRST + "where 1 <> 1", "0"),
    _line(_C, "GROUP BY", "A A A", "select 1, count(*) from stdin group by _1", "1,1"),
    _line(_C, "HAVING", "A A A", _FIRST + "having count(*) > 5", ""),
    _line(_C, "ORDER BY", "A A A", "select 1 from stdin order by _1 desc nulls first", "1"),
    _line(
        _C,
        "LIMIT",
        "E D A",
        "select 1 from stdin limit 0",
        "",
        note="Counts records returned; Ceph counts records read, so WHERE may leave it none.",
    ),
    _line(
        _C,
        "LIMIT of an aggregate",
        "E R A",
        _FIRST + "limit 1",
        "1",
        "!UnsupportedSyntax",
        "1",
        note="Ceph stops reading there.",
    ),
    _line(_C, "OFFSET", "A A A", "select 1 from stdin offset 1", ""),
    _line(_C, "; at the end", "E E E", "select 1 from stdin;", "1"),
    _line(_C, "JOIN", "R R R", "select 1 from stdin join stdin", "!ParseMalformedJoin"),
    _line(_C, "UNION", "R R R", "select 1 from stdin union select 2", "!UnsupportedSyntax"),
    _line(_C, "INTERSECT", "R R R", "select 1 from stdin intersect select 2", "!UnsupportedSyntax"),
    _line(_C, "EXCEPT", "R R R", "select 1 from stdin except select 2", "!UnsupportedSyntax"),
    _line(_C, "subquery", "R R R", "(select 1 from stdin)", "!UnsupportedSqlStructure"),
    _line(
        _C,
        "-- comment",
        "R A A",
        "2 --1",
        "!UnsupportedSyntax",
        "3",
        "3",
        note="No comment in any dialect; in Ceph the signs are two minuses.",
    ),
    # --- literals and names
    _line(_L, "'text'", "E E A", "'a'", "a"),
    _line(
        _L,
        '"text"',
        "R E E",
        '"a"',
        "!MissingHeaders",
        "a",
        "a",
        note="A column's name in aws.",
    ),
    _line(_L, "integer", "E E E", "9223372036854775807", "9223372036854775807"),
    _line(
        _L,
        "decimal point",
        "E E E",
        "0.1 + 0.2",
        "0.3",
        "0.30000000000000004",
        "0.30000000000000004",
        note="A decimal of 38 digits in aws, a double in Ceph.",
    ),
    _line(_L, "`timestamp`", "E E A", "extract(year from `2010-02-03T`)", "2010"),
    _line(_L, "[list], (list)", "E A A", "2 in [1, 2]", "true", "true", "1"),
    _line(_L, "NULL", "E E A", "null", "", "null", ""),
    _line(_L, "MISSING", "E A A", "missing is missing", "true", "true", "1"),
    _line(_L, "TRUE, FALSE", "E E A", "true", "true", "true", "1"),
    _line(_L, "nan", "R E A", "nan", "!MissingHeaders", "nan", "nan"),
    _line(_L, "_1", "E E E", "_1", "x"),
    _line(
        _L,
        "_2 past the end of a row",
        "E D E",
        "_2",
        "",
        "null",
        "!InvalidColumnIndex",
        note="Ceph shows an earlier row's field.",
    ),
    _line(
        _L,
        "empty field",
        "E E E",
        note="An empty text in aws and ceph-2020; NULL in ceph, but for `*`.",
    ),
    _line(_L, "names of JSON", "E E A", note="In any case; Ceph: quoted ones too."),
    _line(_L, "path behind an array", "E R R", note="Ceph takes the last element's."),
    # --- operators
    _line(_O, "+", "E E E", "1 + 2", "3"),
    _line(_O, "-", "E E E", "1 - 2", "-1"),
    _line(_O, "*", "E E E", "2 * 3", "6"),
    _line(_O, "/", "E E E", "7 / 2", "3"),
    _line(
        _O,
        "%",
        "E E A",
        "7.5 % 2",
        "1.5",
        "1",
        "1",
        note="Ceph cuts the left side to an integer, and takes an integer alone on the right.",
    ),
    _line(_O, "^", "A E E", "2 ^ 10", "1024"),
    _line(
        _O,
        "integers beyond 64 bits",
        "E D D",
        "9223372036854775807 + 1",
        "!IntegerOverflow",
        note="Refused; Ceph converts a double, which C++ does not define.",
    ),
    _line(_O, "||", "A A A", "'a' || 1", "a1"),
    _line(_O, "=", "E E A", "1 = 1.0", "true", "true", "1"),
    _line(_O, "==", "A A E", "1 == 1.0", "true", "true", "1"),
    _line(_O, "<>", "E E A", "1 <> 1", "false", "false", "0"),
    _line(_O, "!=", "E E E", "1 != 1", "false", "false", "0"),
    _line(_O, "<", "E E E", "'a' < 'b'", "true", "true", "1"),
    _line(_O, "<=", "E E E", "2 <= 1", "false", "false", "0"),
    _line(_O, ">", "E E E", "2 > 1", "true", "true", "1"),
    _line(_O, ">=", "E E E", "2 >= 3", "false", "false", "0"),
    _line(
        _O,
        "types that differ",
        "E D E",
        "1 < 'a'",
        "",
        "!InvalidDataType",
        "!InvalidDataType",
        note="Unknown in aws; costs the row in ceph-2020. Ends the query in ceph, where Ceph drops "
        "up to 100 rows without a word.",
    ),
    _line(_O, "AND", "E E E", "1 = 1 and 1 = 2", "false", "false", "0"),
    _line(
        _O,
        "OR",
        "E E E",
        "1 = 1 or 1 = 1 and 1 = 2",
        "true",
        "true",
        "0",
        note="From left to right with AND in ceph-2020.",
    ),
    _line(_O, "NOT", "E E A", "not 1 = 2", "true", "true", "1"),
    _line(
        _O,
        "NOT … AND, NOT … OR",
        "E R A",
        "not 1 = 2 and 1 = 2",
        "false",
        "!UnsupportedSyntax",
        "0",
        note="Ceph negates all that follows; brackets say what is meant.",
    ),
    _line(_O, "IS", "E E A", "1 is not null", "true", "true", "1"),
    _line(_O, "IN", "E E A", "1 in (2, 1)", "true", "true", "1"),
    _line(_O, "BETWEEN", "E E A", "2 not between 3 and 4", "true", "true", "1"),
    _line(
        _O,
        "LIKE",
        "E D A",
        "'y' like '[x-z]'",
        "false",
        "true",
        "1",
        note="Classes and the backslash in Ceph; its other signs of regular expressions stand for "
        "themselves. NULL is unknown, where Ceph ends the query.",
    ),
    _line(
        _O,
        "repeated class in LIKE",
        "E R R",
        "'yy' like '[x-z]+'",
        "false",
        "!LikeInvalidInputs",
        "!LikeInvalidInputs",
    ),
    _line(_O, "ESCAPE", "E E A", "'10%' like '10$%' escape '$'", "true", "true", "1"),
    _line(_O, "CASE", "E E A", "case 2 when 2 then 'a' else 'b' end", "a"),
    # --- aggregates
    _line(_A, "count", "E E E", "count(*)", "1"),
    _line(
        _A,
        "count(value)",
        "E E E",
        "count(null)",
        "0",
        "0",
        "1",
        note="ceph-2020 counts rows, whatever the value.",
    ),
    _line(
        _A,
        "sum",
        "E D E",
        "sum(case when _1 = 'x' then 0.5 end)",
        "0.5",
        note="NULL is passed over; today's Ceph begins anew behind one.",
    ),
    _line(
        _A,
        "avg",
        "E D A",
        "avg(3)",
        "3",
        note="NULL is passed over; today's Ceph has NULL from there on.",
    ),
    _line(
        _A,
        "min",
        "E D D",
        "min(_1)",
        "x",
        note="NULL is passed over, where today's Ceph ends the query. Texts have one too, which "
        "the first engine compares with a number.",
    ),
    _line(_A, "max", "E D D", "max(_1)", "x", note="As min."),
    _line(
        _A,
        "aggregates of no rows",
        "E E E",
        "select sum(int(_1)) from stdin where 1 = 2",
        "",
        "null",
        "0",
    ),
    _line(_A, "aggregate (DISTINCT …)", "A A A", "count(distinct _1)", "1"),
    _line(
        _A,
        "columns beside aggregates",
        "R R E",
        "select count(*), _1 from stdin",
        "!UnsupportedSqlStructure",
        "!UnsupportedSqlStructure",
        "1,x",
    ),
    # --- functions
    _line(_F, "add", "A E A", "add(2, 3)", "5"),
    _line(_F, "cast", "E E A", "cast('5' as int) + 1", "6"),
    _line(
        _F,
        "char_length",
        "E D A",
        "char_length('größe')",
        "5",
        note="Counts characters, as its page says; Ceph counts bytes.",
    ),
    _line(_F, "character_length", "E D A", "character_length('ab')", "2", note="As char_length."),
    _line(_F, "coalesce", "E E A", "coalesce(null, 1/1, 2)", "1"),
    _line(
        _F,
        "date_add",
        "E E A",
        "extract(month from date_add(month, 1, `2011-01-31T`))",
        "2",
        note="Keeps the day, or takes the month's last.",
    ),
    _line(
        _F,
        "date_diff",
        "E D A",
        "date_diff(month, `2011-01-31T`, `2011-02-01T`)",
        "0",
        note="Whole units passed; within one year Ceph counts months of the calendar, and years "
        "by the day of the year.",
    ),
    _line(_F, "dateadd", "A A E", 'extract("day", dateadd("month", 1, `2000-02-29T`))', "31"),
    _line(_F, "datediff", "A A E", 'datediff("month", `2011-01-31T`, `2011-02-01T`)', "1"),
    _line(
        _F,
        "engine_version",
        "A D A",
        note="Says which Snowmelt answers.",
    ),
    _line(_F, "extract", "E E E", f"extract(year from {_MOMENT})", "2010"),
    _line(_F, "float", "A E E", "float('1.5')", "1.5"),
    _line(
        _F,
        "int",
        "A E E",
        "int('12abc')",
        "!CastFailed",
        "!CastFailed",
        "12",
        note="strtol in Ceph: in ceph nothing may stand behind the number.",
    ),
    _line(
        _F, "lower", "E D A", "lower('ÄB')", "äb", note="All letters; Ceph's are those of ASCII."
    ),
    _line(_F, "nullif", "E E A", "nullif(1, '1')", "1"),
    _line(_F, "string", "A E A", "string(1) || 'x'", "1x"),
    _line(
        _F,
        "substr",
        "A A E",
        "substr('abc', 2, 9)",
        "bc",
        "bc",
        "!EvaluatorInvalidArguments",
        note="The third argument is a length; in ceph-2020 a part that is not all inside costs "
        "the row.",
    ),
    _line(
        _F,
        "substring",
        "E D A",
        "substring('abc', 0, 2)",
        "ab",
        "a",
        "a",
        note="Counts characters, where Ceph counts bytes. A start before the first moves to it in "
        "aws.",
    ),
    _line(_F, "timestamp", "A A E", "extract(day from timestamp('1999:10:11 12:23:44'))", "11"),
    _line(
        _F,
        "to_bool",
        "A D A",
        "to_bool('true')",
        "true",
        "true",
        "1",
        note="Reads texts, which are all false in Ceph.",
    ),
    _line(_F, "to_string", "E E A", f"to_string({_MOMENT}, 'd/M/y')", "3/2/2010"),
    _line(
        _F,
        "to_timestamp",
        "E E A",
        "extract(year from to_timestamp('2007T'))",
        "2007",
        "2007",
        "2007",
    ),
    _line(_F, "trim", "E E A", "trim(leading '1' from '112')", "2"),
    _line(_F, "upper", "E D A", "upper('äb')", "ÄB", note="As lower."),
    _line(_F, "utcnow", "E E E", "extract(year from utcnow()) > 2000", "true", "true", "1"),
    _line(_F, "version", "A D A", note="As engine_version."),
    # --- types
    _line(_T, "BOOL", "E D A", "cast('false' as bool)", "false", "false", "0", note="As to_bool."),
    _line(_T, "BOOLEAN", "A A A", "cast(1 as boolean)", "true", "true", "1"),
    _line(_T, "INT", "E E A", "cast('7' as int)", "7"),
    _line(_T, "INTEGER", "E A A", "cast('7' as integer)", "7"),
    _line(_T, "BIGINT", "A A A", "cast('7' as bigint)", "7"),
    _line(_T, "FLOAT", "E E A", "cast('2.5' as float)", "2.5"),
    _line(_T, "DOUBLE", "A A A", "cast('2.5' as double precision)", "2.5"),
    _line(
        _T,
        "DECIMAL",
        "E D A",
        "cast('1.239' as decimal(10, 2))",
        "1.239",
        "1.24",
        "1.24",
        note="Precision and scale are ignored in aws, as documented; Ceph swaps them.",
    ),
    _line(_T, "NUMERIC", "E A A", "cast('1.5' as numeric)", "1.5"),
    _line(_T, "STRING", "E E A", "cast(7 as string)", "7"),
    _line(_T, "TEXT", "A A A", "cast(7 as text)", "7"),
    _line(_T, "VARCHAR", "A A A", "cast(7 as varchar)", "7"),
    _line(_T, "VARCHAR(n)", "R R R", "cast(7 as varchar(2))", "!ParseInvalidTypeParam"),
    _line(_T, "CHAR", "R R R", "cast(7 as char)", "!ParseExpectedTypeName"),
    _line(_T, "SMALLINT", "R R R", "cast(7 as smallint)", "!ParseExpectedTypeName"),
    _line(_T, "REAL", "R R R", "cast(7 as real)", "!ParseExpectedTypeName"),
    _line(_T, "DATE", "R R R", "cast('2010-01-01' as date)", "!ParseExpectedTypeName"),
    _line(_T, "TIMESTAMP", "E E A", "extract(year from cast('2010-01-02' as timestamp))", "2010"),
    # --- parts of a date
    *(
        _line(Topic.EXTRACT, name, statuses, f"extract({name} from {_MOMENT})", answer, note=note)
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
    _line(
        Topic.EXTRACT,
        "quarter",
        "R R R",
        f"extract(quarter from {_MOMENT})",
        "!ParseExpectedDatePart",
    ),
    *(
        _line(
            Topic.DATE_ADD,
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
    _line(
        Topic.DATE_ADD,
        "millisecond",
        "R R R",
        "date_add(millisecond, 1, `2010T`)",
        "!ParseExpectedDatePart",
    ),
    # --- pictures
    *(
        _line(Topic.PICTURE, name, "E E A", f"to_string({_MOMENT}, '{name}')", answer)
        for name, answer in (pair.split("=") for pair in _PICTURES.split())
    ),
    _line(
        Topic.PICTURE,
        "yyy, yyyyy",
        "R E A",
        f"to_string({_MOMENT}, 'yyyyy')",
        "!EvaluatorInvalidTimestampFormatPatternToken",
        "02010",
        "02010",
    ),
    _line(
        Topic.PICTURE,
        "other letters",
        "R E A",
        f"to_string({_MOMENT}, 'dTh')",
        "!EvaluatorInvalidTimestampFormatPatternSymbol",
        "3T4",
        "3T4",
        note="Stand for themselves in Ceph.",
    ),
    _line(
        Topic.PICTURE,
        "'text'",
        "E E A",
        f"to_string({_MOMENT}, '''T''')",
        "T",
        "'T'",
        "'T'",
        note="Quotes stand for themselves in Ceph.",
    ),
    # --- requests
    _line(Topic.INPUT, "CompressionType NONE", "E E E"),
    *_lines(Topic.INPUT, "E A A", "GZIP BZIP2"),
    *_lines(Topic.INPUT, "A A A", "ZSTD"),
    *_lines(
        Topic.INPUT,
        "E E E",
        "CSV.FileHeaderInfo CSV.RecordDelimiter CSV.FieldDelimiter CSV.QuoteCharacter "
        "CSV.QuoteEscapeCharacter",
    ),
    _line(Topic.INPUT, "CSV.Comments", "E E A", note="None by default in Ceph, # in aws."),
    _line(
        Topic.INPUT,
        "CSV.AllowQuotedRecordDelimiter",
        "E D A",
        note="Quoted record delimiters are data in ceph, whatever it says.",
    ),
    _line(Topic.INPUT, "JSON.Type LINES", "E A A"),
    _line(Topic.INPUT, "JSON.Type DOCUMENT", "E E A"),
    _line(Topic.INPUT, "Parquet", "E E A"),
    *_lines(Topic.OUTPUT, "E E A", "CSV.RecordDelimiter CSV.FieldDelimiter CSV.QuoteCharacter"),
    _line(
        Topic.OUTPUT,
        "CSV.QuoteEscapeCharacter",
        "E D A",
        note="Today's Ceph takes the input's.",
    ),
    _line(Topic.OUTPUT, "CSV.QuoteFields ALWAYS", "E E A"),
    _line(
        Topic.OUTPUT,
        "CSV.QuoteFields ASNEEDED",
        "E R R",
        note="No Ceph has it; without QuoteFields its dialects quote nothing.",
    ),
    _line(
        Topic.OUTPUT,
        "JSON.RecordDelimiter",
        "E D A",
        note="Texts are quoted, which Ceph leaves out; an aggregate is bare in both Ceph dialects.",
    ),
    _line(Topic.REQUEST, "ExpressionType SQL", "E E E"),
    _line(Topic.REQUEST, "RequestProgress", "E E A"),
    _line(
        Topic.REQUEST,
        "ScanRange",
        "E D A",
        note="Records that begin inside; Ceph cuts bytes.",
    ),
)


def features(topic: Topic) -> tuple[Feature, ...]:
    """Return the lines of a topic, in their order."""
    return tuple(feature for feature in FEATURES if feature.topic is topic)
