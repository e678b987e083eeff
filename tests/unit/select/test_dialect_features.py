"""The table of features names everything there is, and its examples are true in each dialect."""

from __future__ import annotations

import io
import re

import pytest

from snowmelt.select import protocol, timestamps
from snowmelt.select.dialect import Dialect
from snowmelt.select.dialect_features import FEATURES, Status, Topic, features
from snowmelt.select.errors import SelectError
from snowmelt.select.local import run_locally
from snowmelt.select.request import Compression, CsvInput, SelectRequest
from snowmelt.select.scalar import patterns
from snowmelt.select.sql import expression_parser
from snowmelt.select.sql.function_arity import ARITIES


def names(topic, *, but_refused=True):
    return {
        each.name
        for each in features(topic)
        if not (but_refused and set(each.statuses) == {Status.REFUSED})
    }


def answer(example, dialect, rows=1):
    """Return what the engine prints for an example, without the dialect's delimiters."""
    is_statement = example.startswith("select ")
    sql = example if is_statement else f"select {example} from stdin"
    execution = run_locally(
        SelectRequest(sql, CsvInput(), dialect=dialect), io.BytesIO(b"x\n" * rows)
    )
    out = b"".join(execution.payloads()).decode().removesuffix("\n")
    return out.removesuffix(",") if dialect is Dialect.CEPH_2020 else out


EXAMPLES = [
    (feature, dialect)
    for feature in FEATURES
    for dialect in Dialect
    if feature.example and feature.answers
]


@pytest.mark.parametrize(
    ("feature", "dialect"), EXAMPLES, ids=[f"{f.name}-{dialect}" for f, dialect in EXAMPLES]
)
def test_an_example_is_true_in_each_dialect(feature, dialect):
    expected = feature.answer(dialect)
    if expected.startswith("!"):
        # What costs the row ends the query with the hundredth.
        with pytest.raises(SelectError) as refused:
            answer(feature.example, dialect, rows=100)
        assert refused.value.s3_code == expected[1:]
    else:
        assert answer(feature.example, dialect) == expected


def test_what_is_refused_in_a_dialect_has_an_example_that_is():
    for feature in FEATURES:
        for dialect in Dialect:
            said = feature.answer(dialect)
            if feature.status(dialect) is Status.REFUSED and said is not None:
                assert said.startswith("!"), (feature.name, dialect)
            if feature.status(dialect) is Status.DIFFERS:
                assert feature.note, (feature.name, dialect)
        assert len(feature.answers) in {0, 1, 3}, feature.name


def test_no_line_stands_twice():
    found = [(feature.topic, feature.name) for feature in FEATURES]
    assert len(found) == len(set(found))


def test_every_function_aggregate_and_type_has_its_line():
    assert names(Topic.FUNCTION) == {*ARITIES, *expression_parser.CONVERSIONS, "cast"}
    aggregates = {name for name in names(Topic.AGGREGATE) if name.isalpha()}
    assert aggregates == set(expression_parser.AGGREGATES)
    assert names(Topic.TYPE) == set(expression_parser.TYPES)


def test_every_operator_has_its_line():
    known = {each.name for each in features(Topic.OPERATOR)}
    assert set(expression_parser.OPERATORS) <= known
    assert {"ESCAPE", "CASE"} <= known


def test_every_part_of_a_date_and_symbol_of_a_picture_has_its_line():
    assert names(Topic.EXTRACT) == set(timestamps.PARTS)
    assert names(Topic.DATE_ADD) == set(expression_parser.ADDED_PARTS)
    symbols = {name for name in names(Topic.PICTURE) if name.isalpha()}
    assert symbols == set(patterns.FORMAT_SYMBOLS)


def test_every_option_of_a_request_has_its_line():
    said = {name.split(" ")[0] for name in names(Topic.INPUT)}
    assert {f"CSV.{name}" for name in protocol.CSV_INPUT} <= said
    assert {f"JSON.{name}" for name in protocol.JSON_INPUT} | {"Parquet"} <= said
    written = {name.split(" ")[0] for name in names(Topic.OUTPUT)}
    assert written == {
        *(f"CSV.{name}" for name in protocol.CSV_OUTPUT),
        *(f"JSON.{name}" for name in protocol.JSON_OUTPUT),
    }
    packed = {name.split(" ")[-1] for name in names(Topic.INPUT)}
    assert {str(each) for each in Compression} <= packed
    others = {name.split(" ")[0] for name in names(Topic.REQUEST)}
    elements = set(protocol.REQUEST) - {"Expression", "InputSerialization", "OutputSerialization"}
    assert others == elements


def test_clauses_that_are_refused_are_refused_by_name():
    for feature in features(Topic.CLAUSE):
        word = re.fullmatch(r"[A-Z]+", feature.name)
        if word and set(feature.statuses) == {Status.REFUSED}:
            with pytest.raises(SelectError) as refused:
                answer(feature.example, Dialect.AWS)
            assert "support" in str(refused.value) or "one SELECT" in str(refused.value)
