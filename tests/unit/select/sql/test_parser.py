from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.select.errors import ALL_CODES, SelectError
from snowmelt.select.sql.ast import (
    AggregateExpr,
    BinaryOp,
    CaseExpr,
    CastExpr,
    FromClause,
    IndexStep,
    KeyStep,
    LiteralExpr,
    NameRef,
    StarExpr,
    UnaryOp,
    WildcardStep,
)
from snowmelt.select.sql.lexer import MAX_STATEMENT_BYTES
from snowmelt.select.sql.parser import parse_statement
from support.reference_select import ALL, AWS, CEPH, CEPH_2020, query_of, refusal

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


def expression(text: str, dialect: Dialect = AWS) -> Any:
    return parse_statement(f"select {text} from s3object", dialect).projections[0].expression


def name(text: str) -> NameRef:
    return NameRef((KeyStep(text),))


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    "statement",
    [
        "select * from s3object",
        "SELECT * FROM S3Object;",
        "SeLeCt *\nfrom\r\n\tS3OBJECT ;  ",
        "select _1, _2 from stdin limit 5",
        "select s._1 from s3object s where s._2 = 'x'",
        "select s._1 from s3object as s",
        "select s.* from s3object s",
        "select distinct _1 from stdin order by _1 desc limit 3 offset 2 rows",
        "select _1, count(*) from stdin group by _1 having count(*) > 1 order by 2, _1 asc",
        "select case when _1 = 'a' then 1 else 2 end from stdin",
        "select case _1 when 'a' then 1 when 'b' then 2 end x from stdin",
        "select _1 not in ('a','b'), _1 not like 'a%', _1 not between 'a' and 'b' from stdin",
        "select _1 is null, _1 is not null, _1 is missing from stdin",
        "select cast(_1 as decimal(10, 2)), cast(_1 as double precision) from stdin",
        "select trim(leading 'x' from _1), trim(both from _1), trim(_1) from stdin",
        "select substring(_1 from 2 for 3), substring(_1, 2) from stdin",
        "select _1 || '-' || _2 from stdin",
        "select count() from stdin",
        "select all _1 from stdin",
    ],
)
def test_statement_is_read_in_every_dialect(statement: str, dialect: Dialect) -> None:
    parse_statement(statement, dialect)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("path", ["/a/b.csv", "/a/b-c_d.csv"])
def test_path_after_from_is_for_ceph_alone(path: str, dialect: Dialect) -> None:
    if dialect.is_ceph:
        assert parse_statement(f"select _1 from {path};", dialect).source.table == path
    else:
        with pytest.raises(SelectError) as refused:
            parse_statement(f"select _1 from {path};", dialect)
        assert refused.value.s3_code == "DataSourcePathUnsupported"


def test_source_has_a_path_and_an_alias() -> None:
    source = parse_statement("select * from S3Object[*].a.\"B c\"['d'][0].* as s", AWS).source
    steps = (
        WildcardStep.ITEM,
        KeyStep("a"),
        KeyStep("B c", True),
        KeyStep("d", True),
        IndexStep(0),
        WildcardStep.FIELD,
    )
    assert source == FromClause("S3Object", steps, "s")


def test_operators_bind_as_the_table_says() -> None:
    assert expression("1 + 2 * 3") == BinaryOp(
        "+", LiteralExpr(1), BinaryOp("*", LiteralExpr(2), LiteralExpr(3))
    )
    assert expression("2*3^2") == BinaryOp(
        "^", BinaryOp("*", LiteralExpr(2), LiteralExpr(3)), LiteralExpr(2)
    )
    assert expression("a - b - c") == BinaryOp("-", BinaryOp("-", name("a"), name("b")), name("c"))
    assert expression("not a = 1") == UnaryOp("NOT", BinaryOp("=", name("a"), LiteralExpr(1)))
    assert expression("a = b = true") == BinaryOp(
        "=", BinaryOp("=", name("a"), name("b")), LiteralExpr(True)
    )
    assert expression("a == b") == expression("a = b")
    assert expression("a != b") == expression("a <> b")
    assert expression("-a + b") == BinaryOp("+", UnaryOp("-", name("a")), name("b"))
    assert expression("a - -1") == BinaryOp("-", name("a"), LiteralExpr(-1))
    assert expression("-9223372036854775808") == LiteralExpr(-(2**63))


def test_and_goes_before_or_but_not_in_the_first_engine() -> None:
    text = "a or b and c"
    usual = BinaryOp("OR", name("a"), BinaryOp("AND", name("b"), name("c")))
    assert expression(text, AWS) == expression(text, CEPH) == usual
    assert expression(text, CEPH_2020) == BinaryOp(
        "AND", BinaryOp("OR", name("a"), name("b")), name("c")
    )


def test_literals_of_other_types_are_not_equal() -> None:
    assert LiteralExpr(1) != LiteralExpr(True)
    assert LiteralExpr(1) != LiteralExpr(1.0)
    assert expression("1.0") != expression("1.00")
    assert (
        len({AggregateExpr("sum", LiteralExpr(1)), AggregateExpr("sum", LiteralExpr(1), at=9)}) == 1
    )


def test_calls_with_keywords_are_calls_with_commas() -> None:
    assert expression("extract(year from a)") == expression('extract("years", a)')
    assert expression("substring(a from 1 for 2)") == expression("substring(a, 1, 2)")
    assert expression("int(a)") == expression("cast(a as integer)") == CastExpr(name("a"), "INT")
    assert expression("case a when 1 then 2 end") == CaseExpr(
        name("a"), ((LiteralExpr(1), LiteralExpr(2)),), None
    )


@pytest.mark.slow
def test_long_chains_of_and_stay_flat() -> None:
    chain = " and ".join(f"_1 <> '{number}'" for number in range(9000))
    query_of(f"select _1 from stdin where {chain}")


REFUSED = [
    ("", "ParseExpectedKeyword"),
    ("explain select 1", "ParseExpectedKeyword"),
    ("insert into s3object values (1)", "UnsupportedSqlOperation"),
    ("select from s3object", "ParseEmptySelect"),
    ("select _1", "ParseSelectMissingFrom"),
    ("select _1 where _1 = 1", "ParseSelectMissingFrom"),
    ("select _1 from", "BadTableName"),
    ("select _1 from table1", "BadTableName"),
    ("select _1 from s3object as 1", "ParseExpectedIdentForAlias"),
    ("select _1 as from s3object", "ParseExpectedIdentForAlias"),
    ("select _1 from s3object a join s3object b", "ParseMalformedJoin"),
    ("select _1 from s3object, s3object", "ParseMalformedJoin"),
    ("select _1 from s3object union select 1 from s3object", "UnsupportedSyntax"),
    ("select _1 from s3object where", "ParseExpectedExpression"),
    ("select _1 from s3object where (select 1 from stdin) = 1", "UnsupportedSqlStructure"),
    ("select _1 from s3object limit x", "ParseExpectedNumber"),
    ("select _1 from s3object limit -1", "ParseExpectedNumber"),
    ("select _1 from s3object limit 1.5", "ParseExpectedNumber"),
    ("select _1 from s3object group _1", "ParseExpectedKeyword"),
    ("select _1 from s3object where _1 = 'x", "LexerInvalidLiteral"),
    ('select "x from s3object', "LexerInvalidLiteral"),
    ("select `2010T from s3object", "LexerInvalidIONLiteral"),
    ("select `nonsense` from s3object", "LexerInvalidIONLiteral"),
    ("select 12abc from s3object", "LexerInvalidLiteral"),
    ("select 1e999 from s3object", "LexerInvalidLiteral"),
    ("select # from s3object", "LexerInvalidChar"),
    ("select _1 ! _2 from s3object", "LexerInvalidOperator"),
    ("select _1 | _2 from s3object", "LexerInvalidOperator"),
    ("select cast _1 as int from s3object", "ParseExpectedLeftParenAfterCast"),
    ("select cast(_1 int) from s3object", "ParseExpectedKeyword"),
    ("select cast(_1 as shape) from s3object", "ParseExpectedTypeName"),
    ("select cast(_1 as decimal(1,2,3)) from s3object", "ParseCastArity"),
    ("select cast(_1 as decimal(x)) from s3object", "ParseInvalidTypeParam"),
    ("select sum(*) from s3object", "ParseUnsupportedCallWithStar"),
    ("select lower(*) from s3object", "ParseUnsupportedCallWithStar"),
    ("select sum(_1, _2) from s3object", "ParseNonUnaryAgregateFunctionCall"),
    ("select sum() from s3object", "ParseNonUnaryAgregateFunctionCall"),
    ("select _1 from s3object order by _1 nulls", "ParseExpectedKeyword"),
    ("select count(distinct *) from s3object", "ParseUnsupportedCallWithStar"),
    ("select count(distinct) from s3object", "ParseNonUnaryAgregateFunctionCall"),
    ("select count(distinct _1, _2) from s3object", "ParseNonUnaryAgregateFunctionCall"),
    ("select extract(century from _1) from s3object", "ParseExpectedDatePart"),
    ("select date_add(year 1, _1) from s3object", "ParseExpectedArgumentDelimiter"),
    ("select lower(_1 from s3object", "ParseExpectedRightParenBuiltinFunctionCall"),
    ("select lower(_1 _2) from s3object", "ParseExpectedArgumentDelimiter"),
    ("select lowr(_1) from s3object", "UnsupportedFunction"),
    ("select lower(_1, _2) from s3object", "EvaluatorInvalidArguments"),
    ("select case _1 end from s3object", "ParseExpectedWhenClause"),
    ("select case when _1 1 end from s3object", "ParseExpectedKeyword"),
    ("select (_1 from s3object", "ParseExpectedTokenType"),
    ("select () from s3object", "ParseExpectedExpression"),
    ("select s.[0] from s3object s", "ParseExpectedMember"),
    ("select s[x] from s3object s", "ParseInvalidPathComponent"),
    ("select _1 is 5 from s3object", "ParseExpectedKeyword"),
    ("select where from s3object", "ParseUnExpectedKeyword"),
    ("select * / 2 from s3object", "ParseUnexpectedToken"),
    ("select _1 from s3object limit 1 2", "ParseUnexpectedTerm"),
]


@pytest.mark.parametrize(("statement", "code"), REFUSED)
def test_refusal_has_its_code_and_names_the_place(statement: str, code: str) -> None:
    with pytest.raises(SelectError) as refused:
        parse_statement(statement, AWS)
    assert refused.value.s3_code == code
    assert "(line 1, column " in str(refused.value)
    assert refused.value.status_code == 400


def test_star_beside_others_is_refused_in_aws_only() -> None:
    with pytest.raises(SelectError) as refused:
        parse_statement("select *, _1 from stdin", AWS)
    assert refused.value.s3_code == "ParseAsteriskIsNotAloneInSelectList"
    assert parse_statement("select *, _1 from stdin", CEPH).projections[0].expression == StarExpr()


def test_place_counts_lines() -> None:
    with pytest.raises(SelectError, match=r"\(line 3, column 7\)"):
        parse_statement("select _1\nfrom s3object\nwhere ?", AWS)


def test_unknown_function_suggests_the_nearest() -> None:
    with pytest.raises(SelectError, match="did you mean substring"):
        parse_statement("select substrin(_1, 2) from stdin", AWS)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    "statement",
    [
        "select " + "(" * 3_000 + "1" + ")" * 3_000 + " from stdin",
        "select " + "(" * 3_000,
        "select " + "not " * 3_000 + "true from stdin",
        "select " + "- " * 3_000 + "_1 from stdin",
        "select " + "lower(" * 3_000 + "_1" + ")" * 3_000 + " from stdin",
        "select " + "case when true then " * 3_000 + "1 from stdin",
        "select " + "1+" * 3_000 + "1 from stdin",
        "select " + "1*(1+(" * 1_500 + "1 from stdin",
        "select " + "a or b and c = d || e + f * (" * 500 + "1 from stdin",
        "select " + "[" * 3_000 + " from stdin",
        "select _1" + " is null" * 3_000 + " from stdin",
        "select x" + ".y" * 3_000 + " between " * 2000 + " from stdin",
    ],
    ids=range(12),
)
def test_depth_beyond_measure_is_refused(statement: str, dialect: Dialect) -> None:
    with pytest.raises(SelectError):
        query_of(statement, dialect)


def test_statement_beyond_the_limit_is_too_long() -> None:
    with pytest.raises(SelectError) as refused:
        parse_statement("select '" + "é" * (MAX_STATEMENT_BYTES // 2) + "' from stdin", AWS)
    assert refused.value.s3_code == "ExpressionTooLong"
    parse_statement("select '" + "e" * (MAX_STATEMENT_BYTES - 100) + "' from stdin", AWS)


WORDS = """
    select from where and or not in like between is null missing as s3object stdin _1 _2 s name
    ( ) [ ] , . ; * + - / % ^ || = == <> != < <= > >= 'a' "b" `2010T` 1 2.5 1e3 'it''s' count sum
    cast int float extract year substring trim case when then else end limit offset group by order
    having distinct date_add timestamp to_string utcnow coalesce nullif escape \n true false [*] .*
"""


@given(st.lists(st.sampled_from(WORDS.split()), max_size=30).map(" ".join), st.sampled_from(ALL))
@settings(max_examples=settings().max_examples * 3, deadline=None)
def test_any_words_are_answered_or_refused(text: Any, dialect: Any) -> None:
    for statement in (text, "select " + text, f"select {text} from s3object s"):
        code = refusal(statement, dialect, [("x", "1")], header=("name", "b"))
        assert code is None or code in ALL_CODES


@given(st.text(max_size=60), st.binary(max_size=60), st.sampled_from(ALL))
@settings(max_examples=settings().max_examples * 3, deadline=None)
def test_any_text_is_answered_or_refused(text: str, data: bytes, dialect: Any) -> None:
    for written in (text, data.decode("utf-8", "surrogateescape")):
        for frame in ("{}", "select {} from s3object", "select '{}' from stdin"):
            code = refusal(frame.replace("{}", written), dialect)
            assert code is None or code in ALL_CODES
