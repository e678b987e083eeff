from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from snowmelt.select.errors import SelectError
from snowmelt.select.sql.ast import (
    AggregateExpr,
    AliasRef,
    BinaryOp,
    ColumnRef,
    KeyStep,
    LiteralExpr,
    StarExpr,
)
from snowmelt.select.sql.binder import bind_statement
from snowmelt.select.sql.bound_query import OutputColumn, ParquetFields
from snowmelt.select.sql.parser import parse_statement
from snowmelt.select.values import MISSING
from support.reference_select import (
    ALL,
    AWS,
    CEPH,
    CEPH_2020,
    CEPHS,
    answer,
    query_of,
    refusal,
    values,
)

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


HEADER = ("id", "Name", "name", "customer-id", "order-date", "covid-19", "x y", "a-b-c", "_3")


def columns(
    statement: str, dialect: Dialect = AWS, header: tuple[str, ...] | None = HEADER
) -> tuple[int, ...]:
    return query_of(statement, dialect, header=header).columns


@pytest.mark.parametrize("dialect", ALL)
def test_positions_count_from_one_with_and_without_header(dialect: Dialect) -> None:
    for header in (None, HEADER):
        assert columns("select _1, _3 from stdin where _2 = 'x'", dialect, header) == (0, 1, 2)
    assert columns('select "_3" from stdin', dialect) == (8,)
    for position in ("_0", "_99999999999999999999"):
        assert refusal(f"select {position} from stdin", dialect) == "InvalidColumnIndex"


def test_names_ignore_case_in_aws_unless_quoted() -> None:
    assert columns("select ID from s3object") == (0,)
    assert columns('select "Name" from s3object') == (1,)
    assert columns('select s."name" from s3object s') == (2,)
    assert refusal("select NAME from s3object", header=HEADER) == "AmbiguousFieldName"
    assert refusal('select "ID" from s3object', header=HEADER) == "MissingHeaders"
    assert refusal("select nothing from s3object", header=HEADER) == "MissingHeaders"
    assert refusal("select t.id from s3object s", header=HEADER) == "EvaluatorBindingDoesNotExist"
    assert refusal("select s.id.x from s3object s", header=HEADER) == "InvalidKeyPath"


@pytest.mark.parametrize("dialect", CEPHS)
def test_names_are_exact_in_ceph_and_unknown_ones_are_told_in_its_words(dialect: Dialect) -> None:
    assert columns("select Name, name from stdin", dialect) == (1, 2)
    with pytest.raises(SelectError, match=r"alias \{c11\} or column not exist in schema"):
        query_of("select c11 from stdin", dialect, header=HEADER)
    assert columns('select "x y" from stdin', dialect) == (6,)
    assert answer('select "no such" from stdin', [[]], dialect, header=HEADER) == [["no such"]]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("customer-id", (3,)),
        ("s.customer-id", (3,)),
        ("order-date", (4,)),
        ("covid-19", (5,)),
        ("a-b-c", (7,)),
        ("2*int(covid-19)-int(id)", (0, 5)),
        ("customer-id||order-date", (3, 4)),
    ],
)
def test_word_with_hyphens_is_a_column_where_the_header_has_it(
    expression: str, expected: tuple[int, ...], dialect: Dialect
) -> None:
    assert columns(f"select {expression} from s3object s", dialect) == expected


def test_hyphen_is_a_minus_where_it_is_no_name() -> None:
    header = ("a", "b", "c", "a-b")
    rows = [["9", "3", "1", "x"]]
    assert answer("select a-c from stdin", rows, header=header) == [["8"]]
    assert answer("select a - b from stdin", rows, header=header) == [["6"]]
    assert answer("select a-b from stdin", rows, header=header) == [["x"]]
    assert answer("select A-B from stdin", rows, header=header) == [["x"]]
    assert answer("select a-b-c from stdin", rows, header=("a", "b", "c")) == [["5"]]
    assert refusal("select a-b-c from stdin", AWS, rows, header=header) == "InvalidDataType"


@pytest.mark.parametrize("dialect", ALL)
def test_alias_is_known_in_where_in_other_values_and_in_order_by(dialect: Dialect) -> None:
    query = query_of(
        "select int(_1) as a, b+1, a*2 as b from stdin where a > 1 order by b", dialect
    )
    assert isinstance(query.where, BinaryOp)
    assert query.where.left == AliasRef(0)
    second, third = (cast("BinaryOp", query.outputs[place].expression) for place in (1, 2))
    assert second.left == AliasRef(2)
    assert third.left == AliasRef(0)
    assert query.order_by[0].expression == query.outputs[2].expression


def test_alias_beside_a_column_of_its_name() -> None:
    statement = "select int(id)+1 as id from stdin where id = '4'"
    assert answer(statement, [["4"], ["5"]], header=("id",)) == [["5"]]
    assert answer(statement, [["4"], ["5"]], CEPH_2020, header=("id",)) == [["5"]]
    with pytest.raises(SelectError, match=r"multiple definition of column \{id\} as schema-column"):
        query_of(statement, CEPH, header=("id",))
    assert query_of("select _2 as id from stdin order by id", header=("id",)).columns == (1,)
    assert refusal("select _1 as a, _2 as a from stdin where a = 1") == "AmbiguousFieldName"
    assert refusal("select _1 as a, _2 as a from stdin") is None


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ALL)
def test_aliases_that_double_are_refused_before_they_fill_the_memory(dialect: Dialect) -> None:
    doubling = ", ".join(f"a{n} || a{n} as a{n + 1}" for n in range(60))
    assert refusal(f"select _1 as a0, {doubling} from stdin", dialect) == "InvalidQuery"
    chain = ", ".join(f"a{n} || 'x' as a{n + 1}" for n in range(3000))
    assert refusal(f"select _1 as a0, {chain} from stdin", dialect) == "InvalidQuery"


def test_outputs_are_called_by_alias_by_column_or_by_their_place() -> None:
    statement = 'select ID, _2, 1+1, count, customer-id as "C", lower(id) x from s3object'
    query = query_of(statement, header=(*HEADER, "count"))
    names = [output.name for output in query.outputs]
    assert names == ["id", "_2", "_3", "count", "C", "x"]


def test_star_alone_is_the_record_itself() -> None:
    for statement in ("select * from stdin", "select s.* from s3object s where s._1 = '1'"):
        query = query_of(statement)
        assert query.star
        assert query.outputs == ()
    both = query_of("select *, _1 from stdin", CEPH)
    assert both.outputs == (OutputColumn("*", StarExpr()), OutputColumn("_1", ColumnRef(0, "_1")))
    assert refusal("select t.* from s3object s") == "EvaluatorBindingDoesNotExist"


def test_aggregates_are_bound_once_each() -> None:
    query = query_of("select sum(int(_1)), sum(int(_1))/count(*), count(1) from stdin")
    assert len(query.aggregates) == 2
    assert query.aggregates[1] == AggregateExpr("count", None)
    assert query.grouped
    assert not query.last_row
    assert query_of("select sum(int(_1)), _2 from stdin", CEPH_2020).last_row
    for literal in ("null", "missing"):
        (counted,) = query_of(f"select count({literal}) from stdin").aggregates
        assert counted.argument is not None


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    "statement",
    [
        "select _1 from stdin where count(*) > 1",
        "select count(*) as c from stdin where c > 1",
        "select _1 from stdin group by count(*)",
        "select sum(c) , count(*) as c from stdin",
        "select _1, _2 from stdin group by _1",
        "select * from stdin group by _1",
        "select _1 from stdin group by _1 having _2 = 'x'",
        "select _1 from stdin group by _1 order by _2",
    ],
)
def test_what_folds_and_what_does_not_may_not_mix(statement: str, dialect: Dialect) -> None:
    assert refusal(statement, dialect) == "UnsupportedSqlStructure"


def test_group_by_takes_expressions_aliases_and_numbers() -> None:
    for statement in (
        "select lower(_1) as k, count(*) from stdin group by lower(_1)",
        "select lower(_1) as k, count(*) from stdin group by k order by k",
        "select lower(_1) as k, count(*) from stdin group by 1 order by 1",
    ):
        query = query_of(statement)
        assert query.group_by == (query.outputs[0].expression,)
    assert refusal("select _1 from stdin group by 2") == "ParseUnsupportedLiteralsGroupBy"
    assert refusal("select _1 from stdin group by 'x'") == "ParseUnsupportedLiteralsGroupBy"


DOCUMENT = {"a": {"B": [{"c": 1}, {"c": 2.5}]}, "name": "x", "Name": "y", "n": None, "t": True}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("s.a.B[1].c", 2.5),
        ("s.A.b[0].C", 1),
        ("a.B[0].c", 1),
        ("s.a.\"B\"[0]['c']", 1),
        ('s.a."b"', MISSING),
        ("s.a.B[9]", MISSING),
        ("s.n", None),
        ("s.nothing.deeper", MISSING),
        ('s."Name"', "y"),
        ("s.a.B[*].c", [1, 2.5]),
        ("s", DOCUMENT),
        ("s.t = true", True),
        ("s.nothing is missing", True),
        ("s.n is missing", False),
        ("s.nothing is null", True),
        ("1 in s.a.B[*].c", True),
    ],
)
def test_path_leads_into_json(expression: str, expected: Any) -> None:
    found = values(f"select {expression} from s3object s", [DOCUMENT], AWS, json=True)
    assert found == [[expected]]


def test_name_that_fits_two_fields_of_json_is_ambiguous_in_aws_only() -> None:
    statement = "select s.name from s3object s"
    assert refusal(statement, AWS, [DOCUMENT], json=True) == "AmbiguousFieldName"
    assert values(statement, [DOCUMENT], CEPH, json=True) == [["x"]]


def test_first_position_is_the_whole_document_in_ceph() -> None:
    found = values("select _1.a.B[0].c from s3object", [DOCUMENT], CEPH, json=True)
    assert found == [[1]]


def test_field_of_json_wins_over_an_alias_made_of_it() -> None:
    statement = "select upper(s.name) as name from s3object s where name = 'x'"
    assert values(statement, [{"name": "x"}, {"name": "X"}], json=True) == [["X"]]
    statement = "select s.price * 2 as total from s3object s where total > 3"
    assert values(statement, [{"price": 1}, {"price": 2}], json=True) == [[4]]


def test_columns_of_parquet_are_known_and_may_be_nested() -> None:
    schema = pa.schema([("id", pa.int64()), ("place", pa.struct([("city", pa.string())]))])
    fields = ParquetFields(("id", "place"), schema)
    query = bind_statement(
        parse_statement("select s.place.city, _1 from s3object s", AWS), dialect=AWS, fields=fields
    )
    assert query.outputs[0].expression == ColumnRef(1, "city", (KeyStep("city"),))
    for statement, code in [
        ("select _3 from s3object", "InvalidColumnIndex"),
        ("select town from s3object", "EvaluatorBindingDoesNotExist"),
        ("select * from s3object[*].id", "InvalidKeyPath"),
    ]:
        with pytest.raises(SelectError) as refused:
            bind_statement(parse_statement(statement, AWS), dialect=AWS, fields=fields)
        assert refused.value.s3_code == code


def test_text_in_double_quotes_is_a_string_in_ceph_where_no_column_is_called_so() -> None:
    query = query_of('select "abc" from stdin', CEPH, header=("abc",))
    assert query.outputs[0].expression == ColumnRef(0, "abc")
    query = query_of('select "abc" from stdin', CEPH, header=("x",))
    assert query.outputs[0].expression == LiteralExpr("abc")


@pytest.mark.parametrize("dialect", CEPHS)
def test_text_in_double_quotes_is_no_alias_and_no_field_of_json_in_ceph(dialect: Dialect) -> None:
    rows = [["1", "a"], ["2", "b"]]
    assert answer('select _1 as a from stdin where _2 = "a"', rows, dialect) == [["1"]]
    documents = [{"k": "x"}, {"k": "y"}]
    found = values('select _1.k from stdin where _1.k = "y"', documents, dialect, json=True)
    assert found == [["y"]]
