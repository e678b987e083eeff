"""The table of features names everything there is, and its examples are true in each dialect."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from snowmelt.select import timestamps, xml_request_and_event_stream
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import CsvInput, ObjectCompression, SelectRequest
from snowmelt.select.scalar import timestamp_formats
from snowmelt.select.sql import expression_parser
from support.dialect_support import (
    FEATURES,
    DialectFeature,
    FeatureStatus,
    FeatureTopic,
    list_features,
)


def names(topic: FeatureTopic, *, but_refused: bool = True) -> set[Any]:
    return {
        each.name
        for each in list_features(topic)
        if not (but_refused and set(each.statuses) == {FeatureStatus.REJECTED})
    }


def answer(example: str, dialect: Dialect, rows: int = 1) -> str:
    """Return what the engine prints for an example, without the dialect's delimiters."""
    is_statement = example.startswith("select ")
    sql = example if is_statement else f"select {example} from stdin"
    execution = open_local_select(
        SelectRequest(sql, CsvInput(), dialect=dialect), io.BytesIO(b"x\n" * rows)
    )
    out = b"".join(execution.stream_payloads()).decode().removesuffix("\n")
    return out.removesuffix(",") if dialect is Dialect.CEPH_2020 else out


EXAMPLES = [
    (feature, dialect)
    for feature in FEATURES
    for dialect in Dialect
    if feature.example and feature.expected_outputs
]


@pytest.mark.parametrize(
    ("feature", "dialect"), EXAMPLES, ids=[f"{f.name}-{dialect}" for f, dialect in EXAMPLES]
)
def test_an_example_is_true_in_each_dialect(feature: DialectFeature, dialect: Dialect) -> None:
    expected = feature.expected_output(dialect)
    assert expected is not None
    if expected.startswith("!"):
        # What costs the row ends the query with the hundredth.
        with pytest.raises(SelectError) as refused:
            answer(feature.example, dialect, rows=100)
        assert refused.value.s3_code == expected[1:]
    else:
        assert answer(feature.example, dialect) == expected


def test_what_is_refused_in_a_dialect_has_an_example_that_is() -> None:
    for feature in FEATURES:
        for dialect in Dialect:
            said = feature.expected_output(dialect)
            if feature.status(dialect) is FeatureStatus.REJECTED and said is not None:
                assert said.startswith("!"), (feature.name, dialect)
            if feature.status(dialect) is FeatureStatus.DIFFERS:
                assert feature.note, (feature.name, dialect)
        assert len(feature.expected_outputs) in {0, 1, 3}, feature.name


def test_no_line_stands_twice() -> None:
    found = [(feature.topic, feature.name) for feature in FEATURES]
    assert len(found) == len(set(found))


def test_every_function_aggregate_and_type_has_its_line() -> None:
    assert names(FeatureTopic.FUNCTION) == {
        *expression_parser.FUNCTION_ARITIES,
        *expression_parser.CONVERSION_FUNCTIONS,
        "cast",
    }
    aggregates = {name for name in names(FeatureTopic.AGGREGATE) if name.isalpha()}
    assert aggregates == set(expression_parser.AGGREGATE_FUNCTIONS)
    assert names(FeatureTopic.TYPE) == set(expression_parser.CAST_TYPES)


def test_every_operator_has_its_line() -> None:
    known = {each.name for each in list_features(FeatureTopic.OPERATOR)}
    assert set(expression_parser.OPERATORS) <= known
    assert {"ESCAPE", "CASE"} <= known


def test_every_part_of_a_date_and_symbol_of_a_picture_has_its_line() -> None:
    assert names(FeatureTopic.EXTRACT) == set(timestamps.DATE_PARTS)
    assert names(FeatureTopic.DATE_ADD) == set(expression_parser.DATE_ADD_PARTS)
    symbols = {name for name in names(FeatureTopic.FORMAT_SYMBOL) if name.isalpha()}
    assert symbols == set(timestamp_formats.FORMAT_SYMBOLS)


def test_every_option_of_a_request_has_its_line() -> None:
    said = {name.split(" ")[0] for name in names(FeatureTopic.INPUT)}
    assert {f"CSV.{name}" for name in xml_request_and_event_stream.CSV_INPUT_ELEMENTS} <= said
    assert {f"JSON.{name}" for name in xml_request_and_event_stream.JSON_INPUT_ELEMENTS} | {
        "Parquet"
    } <= said
    written = {name.split(" ")[0] for name in names(FeatureTopic.OUTPUT)}
    assert written == {
        *(f"CSV.{name}" for name in xml_request_and_event_stream.CSV_OUTPUT_ELEMENTS),
        *(f"JSON.{name}" for name in xml_request_and_event_stream.JSON_OUTPUT_ELEMENTS),
    }
    packed = {name.split(" ")[-1] for name in names(FeatureTopic.INPUT)}
    assert {str(each) for each in ObjectCompression} <= packed
    others = {name.split(" ")[0] for name in names(FeatureTopic.REQUEST)}
    elements = set(xml_request_and_event_stream.REQUEST_ELEMENTS) - {
        "Expression",
        "InputSerialization",
        "OutputSerialization",
    }
    assert others == elements


def test_clauses_that_are_refused_are_refused_by_name() -> None:
    for feature in list_features(FeatureTopic.CLAUSE):
        word = re.fullmatch(r"[A-Z]+", feature.name)
        if word and set(feature.statuses) == {FeatureStatus.REJECTED}:
            with pytest.raises(SelectError) as refused:
                answer(feature.example, Dialect.AWS)
            assert "support" in str(refused.value) or "one SELECT" in str(refused.value)
