"""Table of language features and their support status in each dialect.

Documentation pages and tests are generated from this table. It lists every function, operator,
clause, type, date part, format symbol and request option exactly once. If a construct cannot match
its dialect, it is rejected with an error that names it, or its entry states the difference and the
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from snowmelt.select.dialect import Dialect


class FeatureTopic(StrEnum):
    """Category of a feature. The value is the heading in the documentation."""

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
    """Support of a feature in a dialect."""

    EXACT = "exact"
    """Part of the dialect, with identical behavior."""

    ADDED = "added"
    """Not part of the dialect. Behaves as in the dialects that define it."""

    DIFFERS = "differs"
    """Part of the dialect, with deliberately different behavior. The note gives the reason."""

    REJECTED = "refused"
    """Rejected with an error that names it."""


@dataclass(frozen=True, slots=True)
class DialectFeature:
    """Entry of the table, with a status for each dialect in the order of `Dialect`.

    `example` is an expression or a whole statement. `expected_outputs` contains its output: one for
    all dialects, or one for each. `!Code` means that the example is rejected with that code. It is
    empty if the example is tested elsewhere.
    """

    topic: FeatureTopic
    name: str
    statuses: tuple[FeatureStatus, FeatureStatus, FeatureStatus]
    example: str = ""
    expected_outputs: tuple[str, ...] = ()
    note: str = ""

    def status(self, dialect: Dialect) -> FeatureStatus:
        """Return the status of the feature in a dialect."""
        return self.statuses[list(Dialect).index(dialect)]

    def expected_output(self, dialect: Dialect) -> str | None:
        """Return the output of the example in a dialect, or None if `expected_outputs` is empty."""
        if not self.expected_outputs:
            return None
        return self.expected_outputs[
            list(Dialect).index(dialect) if len(self.expected_outputs) > 1 else 0
        ]


_EXAMPLE_TIMESTAMP = "`2010-02-03T04:05:06.789-08:30`"

# Format of an entry: name, statuses (first letters, for aws, ceph and ceph-2020), example, and
# outputs (one for all dialects or one for each). Indented lines continue an entry. Indented lines
# without a bar are its note.
_TABLE = """
[CLAUSE]
SELECT | E E E | select 1 from stdin | 1
* | E E E
  Ceph writes empty fields of `*` as empty, not as `null`.
* beside values | R E E | select *, 1 from stdin | !ParseAsteriskIsNotAloneInSelectList | x,1 | x,1
AS | E E E | select 1 as a from stdin | 1
alias without AS | E A A | select 1 a from stdin | 1
alias in WHERE and in other values | A E E | select 1 as a, a + 1 as b from stdin where b = 2 | 1,2
ALL | A A A | select all 1 from stdin | 1
DISTINCT | A A A | select distinct 1 from stdin | 1
FROM S3Object | E E E | select 1 from S3Object | 1
FROM stdin | A E E | select 1 from stdin | 1
FROM /path | R D D | select 1 from /a/b.csv | !DataSourcePathUnsupported | 1 | 1
  The request specifies the object. Ceph instead reads the local file at this path, for
  debugging.
FROM S3Object[*].path | E E A
  In Ceph, each element of an array is a row.
alias of the object | E E A | select s._1 from s3object s where 1 = 1 | x
AT | R R R | select 1 from stdin at a | !ParseUnsupportedSyntax
WHERE | E E E | select count(*) from stdin where 1 <> 1 | 0
GROUP BY | A A A | select 1, count(*) from stdin group by _1 | 1,1
HAVING | A A A | select count(*) from stdin having count(*) > 5 | <empty>
ORDER BY | A A A | select 1 from stdin order by _1 desc nulls first | 1
LIMIT | E D A | select 1 from stdin limit 0 | <empty>
  Snowmelt counts the records returned. Ceph counts the records read, before WHERE.
LIMIT of an aggregate | E R A | select count(*) from stdin limit 1 | 1 | !UnsupportedSyntax | 1
  Ceph stops reading after this number of records.
OFFSET | A A A | select 1 from stdin offset 1 | <empty>
; at the end | E E E | select 1 from stdin; | 1
JOIN | R R R | select 1 from stdin join stdin | !ParseMalformedJoin
UNION | R R R | select 1 from stdin union select 2 | !UnsupportedSyntax
INTERSECT | R R R | select 1 from stdin intersect select 2 | !UnsupportedSyntax
EXCEPT | R R R | select 1 from stdin except select 2 | !UnsupportedSyntax
subquery | R R R | (select 1 from stdin) | !UnsupportedSqlStructure
-- comment | R A A | 2 --1 | !UnsupportedSyntax | 3 | 3
  No dialect has comments. Ceph parses `--` as two minus signs.
[LITERAL]
'text' | E E A | 'a' | a
"text" | R E E | "a" | !MissingHeaders | a | a
  In aws, a text in double quotes is a column name.
integer | E E E | 9223372036854775807 | 9223372036854775807
decimal point | E E E | 0.1 + 0.2 | 0.3 | 0.30000000000000004 | 0.30000000000000004
  In aws, the literal is a decimal of 38 digits. In Ceph, it is a double.
`timestamp` | E E A | extract(year from `2010-02-03T`) | 2010
[list], (list) | E A A | 2 in [1, 2] | true | true | 1
NULL | E E A | null | <empty> | null | <empty>
MISSING | E A A | missing is missing | true | true | 1
TRUE, FALSE | E E A | true | true | true | 1
nan | R E A | nan | !MissingHeaders | nan | nan
_1 | E E E | _1 | x
_2 past the end of a row | E D E | _2 | <empty> | null | !InvalidColumnIndex
  Ceph returns the field of an earlier row.
empty field | E E E
  In aws and ceph-2020, an empty field is an empty text. In ceph, it is NULL, except in the
  output of `*`.
names of JSON | E E A
  Names match in any case. In Ceph, quoted names match in any case too.
path behind an array | E R R
  Ceph reads the last element of the array.
[OPERATOR]
+ | E E E | 1 + 2 | 3
- | E E E | 1 - 2 | -1
* | E E E | 2 * 3 | 6
/ | E E E | 7 / 2 | 3
% | E E A | 7.5 % 2 | 1.5 | 1 | 1
  Ceph truncates the left operand to an integer, and accepts only an integer on the right.
^ | A E E | 2 ^ 10 | 1024
integers beyond 64 bits | E D D | 9223372036854775807 + 1 | !IntegerOverflow
  Snowmelt rejects the result. Ceph computes a double and converts it, which C++ leaves
  undefined.
|| | A A A | 'a' || 1 | a1
= | E E A | 1 = 1.0 | true | true | 1
== | A A E | 1 == 1.0 | true | true | 1
<> | E E A | 1 <> 1 | false | false | 0
!= | E E E | 1 != 1 | false | false | 0
< | E E E | 'a' < 'b' | true | true | 1
<= | E E E | 2 <= 1 | false | false | 0
> | E E E | 2 > 1 | true | true | 1
>= | E E E | 2 >= 3 | false | false | 0
types that differ | E D E | 1 < 'a' | <empty> | !InvalidDataType | !InvalidDataType
  In aws, the result is unknown. In ceph-2020, the error drops the row. In ceph, the error ends
  the query, while Ceph silently drops up to 100 rows.
AND | E E E | 1 = 1 and 1 = 2 | false | false | 0
OR | E E E | 1 = 1 or 1 = 1 and 1 = 2 | true | true | 0
  In ceph-2020, AND and OR have equal precedence, from left to right.
NOT | E E A | not 1 = 2 | true | true | 1
NOT … AND, NOT … OR | E R A | not 1 = 2 and 1 = 2 | false | !UnsupportedSyntax | 0
  Ceph negates everything that follows. Use parentheses to make the meaning explicit.
IS | E E A | 1 is not null | true | true | 1
IN | E E A | 1 in (2, 1) | true | true | 1
BETWEEN | E E A | 2 not between 3 and 4 | true | true | 1
LIKE | E D A | 'y' like '[x-z]' | false | true | 1
  The Ceph dialects support character classes and backslash escapes. Other special characters of
  Ceph's regular expressions are literal. With NULL, the result is unknown. Ceph ends the query
  instead.
repeated class in LIKE | E R R | 'yy' like '[x-z]+' | false | !LikeInvalidInputs
  | !LikeInvalidInputs
ESCAPE | E E A | '10%' like '10$%' escape '$' | true | true | 1
CASE | E E A | case 2 when 2 then 'a' else 'b' end | a
[AGGREGATE]
count | E E E | count(*) | 1
count(value) | E E E | count(null) | 0 | 0 | 1
  ceph-2020 counts rows, regardless of the value.
sum | E D E | sum(case when _1 = 'x' then 0.5 end) | 0.5
  Snowmelt ignores NULL. Current Ceph restarts the sum after a NULL.
avg | E D A | avg(3) | 3
  Snowmelt ignores NULL. In current Ceph, the result stays NULL after the first NULL.
min | E D D | min(_1) | x
  Snowmelt ignores NULL. Current Ceph ends the query at a NULL. Snowmelt compares texts with
  texts. Ceph's first engine compares a text with a number.
max | E D D | max(_1) | x
  Snowmelt ignores NULL. Current Ceph ends the query at a NULL. Snowmelt compares texts with
  texts. Ceph's first engine compares a text with a number.
aggregates of no rows | E E E | select sum(int(_1)) from stdin where 1 = 2 | <empty> | null | 0
aggregate (DISTINCT …) | A A A | count(distinct _1) | 1
columns beside aggregates | R R E | select count(*), _1 from stdin | !UnsupportedSqlStructure
  | !UnsupportedSqlStructure | 1,x
[FUNCTION]
add | A E A | add(2, 3) | 5
cast | E E A | cast('5' as int) + 1 | 6
char_length | E D A | char_length('größe') | 5
  Snowmelt counts characters, as documented. Ceph counts bytes.
character_length | E D A | character_length('ab') | 2
  Snowmelt counts characters, as documented. Ceph counts bytes.
coalesce | E E A | coalesce(null, 1/1, 2) | 1
date_add | E E A | extract(month from date_add(month, 1, `2011-01-31T`)) | 2
  Adding months keeps the day of the month, or uses the last day of a shorter month.
date_diff | E D A | date_diff(month, `2011-01-31T`, `2011-02-01T`) | 0
  Snowmelt counts elapsed whole units. Ceph counts calendar months within one year, and counts
  years by the day of the year.
dateadd | A A E | extract("day", dateadd("month", 1, `2000-02-29T`)) | 31
datediff | A A E | datediff("month", `2011-01-31T`, `2011-02-01T`) | 1
engine_version | A D A
  The function returns the version of Snowmelt.
extract | E E E | extract(year from $TS) | 2010
float | A E E | float('1.5') | 1.5
int | A E E | int('12abc') | !CastFailed | !CastFailed | 12
  Ceph parses the text with strtol. In ceph, nothing may follow the number.
lower | E D A | lower('ÄB') | äb
  Snowmelt converts all letters. Ceph converts only ASCII letters.
nullif | E E A | nullif(1, '1') | 1
string | A E A | string(1) || 'x' | 1x
substr | A A E | substr('abc', 2, 9) | bc | bc | !EvaluatorInvalidArguments
  The third argument is a length. In ceph-2020, a range that is not entirely inside the text
  drops the row.
substring | E D A | substring('abc', 0, 2) | ab | a | a
  Snowmelt counts characters. Ceph counts bytes. In aws, a start before the first character
  moves to the first character.
timestamp | A A E | extract(day from timestamp('1999:10:11 12:23:44')) | 11
to_bool | A D A | to_bool('true') | true | true | 1
  Snowmelt parses texts. In Ceph, every text is false.
to_string | E E A | to_string($TS, 'd/M/y') | 3/2/2010
to_timestamp | E E A | extract(year from to_timestamp('2007T')) | 2007 | 2007 | 2007
trim | E E A | trim(leading '1' from '112') | 2
upper | E D A | upper('äb') | ÄB
  Snowmelt converts all letters. Ceph converts only ASCII letters.
utcnow | E E E | extract(year from utcnow()) > 2000 | true | true | 1
version | A D A
  The function returns the version of Snowmelt.
[TYPE]
BOOL | E D A | cast('false' as bool) | false | false | 0
  Snowmelt parses texts. In Ceph, every text is false.
BOOLEAN | A A A | cast(1 as boolean) | true | true | 1
INT | E E A | cast('7' as int) | 7
INTEGER | E A A | cast('7' as integer) | 7
BIGINT | A A A | cast('7' as bigint) | 7
FLOAT | E E A | cast('2.5' as float) | 2.5
DOUBLE | A A A | cast('2.5' as double precision) | 2.5
DECIMAL | E D A | cast('1.239' as decimal(10, 2)) | 1.239 | 1.24 | 1.24
  In aws, precision and scale are ignored, as documented. Ceph swaps them.
NUMERIC | E A A | cast('1.5' as numeric) | 1.5
STRING | E E A | cast(7 as string) | 7
TEXT | A A A | cast(7 as text) | 7
VARCHAR | A A A | cast(7 as varchar) | 7
VARCHAR(n) | R R R | cast(7 as varchar(2)) | !ParseInvalidTypeParam
CHAR | R R R | cast(7 as char) | !ParseExpectedTypeName
SMALLINT | R R R | cast(7 as smallint) | !ParseExpectedTypeName
REAL | R R R | cast(7 as real) | !ParseExpectedTypeName
DATE | R R R | cast('2010-01-01' as date) | !ParseExpectedTypeName
TIMESTAMP | E E A | extract(year from cast('2010-01-02' as timestamp)) | 2010
[EXTRACT]
year | E E E | extract(year from $TS) | 2010
month | E E E | extract(month from $TS) | 2
day | E E D | extract(day from $TS) | 3
  Snowmelt returns the day of the month. Ceph's first engine returns the day of the year, which
  is `doy` in Snowmelt.
hour | E E A | extract(hour from $TS) | 4
minute | E E A | extract(minute from $TS) | 5
second | E E A | extract(second from $TS) | 6
timezone_hour | E E A | extract(timezone_hour from $TS) | -8
timezone_minute | E E A | extract(timezone_minute from $TS) | -30
week | A E E | extract(week from $TS) | 5
  Weeks are those of ISO 8601.
dow | A A A | extract(dow from $TS) | 3
  Sunday is 0.
doy | A A A | extract(doy from $TS) | 34
quarter | R R R | extract(quarter from $TS) | !ParseExpectedDatePart
[DATE_ADD]
year | E E E | date_diff(year, `2010T`, date_add(year, 2, `2010T`)) | 2
month | E E E | date_diff(month, `2010T`, date_add(month, 2, `2010T`)) | 2
week | A A A | date_diff(week, `2010T`, date_add(week, 2, `2010T`)) | 2
day | E E E | date_diff(day, `2010T`, date_add(day, 2, `2010T`)) | 2
hour | E E E | date_diff(hour, `2010T`, date_add(hour, 2, `2010T`)) | 2
minute | E E A | date_diff(minute, `2010T`, date_add(minute, 2, `2010T`)) | 2
second | E E A | date_diff(second, `2010T`, date_add(second, 2, `2010T`)) | 2
millisecond | R R R | date_add(millisecond, 1, `2010T`) | !ParseExpectedDatePart
[FORMAT_SYMBOL]
yyy, yyyyy | R E A | to_string($TS, 'yyyyy') | !EvaluatorInvalidTimestampFormatPatternToken | 02010
  | 02010
other letters | R E A | to_string($TS, 'dTh') | !EvaluatorInvalidTimestampFormatPatternSymbol | 3T4
  | 3T4
  In Ceph, other letters are literal.
'text' | E E A | to_string($TS, '''T''') | T | 'T' | 'T'
  In Ceph, quotes are literal.
[INPUT]
CompressionType NONE | E E E
GZIP | E A A
BZIP2 | E A A
ZSTD | A A A
CSV.FileHeaderInfo | E E E
CSV.RecordDelimiter | E E E
CSV.FieldDelimiter | E E E
CSV.QuoteCharacter | E E E
CSV.QuoteEscapeCharacter | E E E
CSV.Comments | E E A
  The default is `#` in aws, and no comment character in Ceph.
CSV.AllowQuotedRecordDelimiter | E D A
  In ceph, quoted record delimiters are always data, regardless of this element.
JSON.Type LINES | E A A
JSON.Type DOCUMENT | E E A
Parquet | E E A
[OUTPUT]
CSV.RecordDelimiter | E E A
CSV.FieldDelimiter | E E A
CSV.QuoteCharacter | E E A
CSV.QuoteEscapeCharacter | E D A
  Current Ceph uses the escape character of the input.
CSV.QuoteFields ALWAYS | E E A
CSV.QuoteFields ASNEEDED | E R R
  No version of Ceph supports it. Without QuoteFields, the Ceph dialects quote no fields.
JSON.RecordDelimiter | E D A
  Snowmelt quotes texts. Ceph does not. Both Ceph dialects write the result of an aggregate as
  plain CSV.
[REQUEST]
ExpressionType SQL | E E E
RequestProgress | E E A
ScanRange | E D A
  Snowmelt selects the records that begin in the range. Ceph selects exactly the bytes of the
  range.
"""
_FORMAT_EXAMPLES = """
y=2010 yy=10 yyyy=2010 M=2 MM=02 MMM=Feb MMMM=February MMMMM=F d=3 dd=03 a=AM h=4 hh=04 H=4 HH=04
m=5 mm=05 s=6 ss=06 S=7 n=789000000 X=-0830 XX=-0830 XXX=-08:30 XXXX=-0830 XXXXX=-08:30 x=-0830
xx=-0830 xxx=-08:30 xxxx=-0830 xxxxx=-08:30
"""


def _parse_table() -> Iterator[DialectFeature]:
    status_by_letter = {status.value[0].upper(): status for status in FeatureStatus}
    table = _TABLE.replace("$TS", _EXAMPLE_TIMESTAMP).replace("\n  | ", " | ")
    _, *sections = re.split(r"\n\[([A-Z_]+)\]\n", table)
    for topic, lines in zip(sections[::2], sections[1::2], strict=True):
        for entry in re.split(r"\n(?! )", lines.strip()):
            row, *note = entry.split("\n  ")
            name, letters, *answers = row.split(" | ")
            first, second, third = (status_by_letter[each] for each in letters.split())
            yield DialectFeature(
                FeatureTopic[topic],
                name,
                (first, second, third),
                answers[0] if answers else "",
                tuple("" if each == "<empty>" else each for each in answers[1:]),
                " ".join(note),
            )
    for name, answer in (pair.split("=") for pair in _FORMAT_EXAMPLES.split()):
        example = f"to_string({_EXAMPLE_TIMESTAMP}, '{name}')"
        statuses = FeatureStatus.EXACT, FeatureStatus.EXACT, FeatureStatus.ADDED
        yield DialectFeature(FeatureTopic.FORMAT_SYMBOL, name, statuses, example, (answer,))


FEATURES: tuple[DialectFeature, ...] = tuple(_parse_table())


def list_features(topic: FeatureTopic) -> tuple[DialectFeature, ...]:
    """Return the features of a topic in table order."""
    return tuple(feature for feature in FEATURES if feature.topic is topic)
