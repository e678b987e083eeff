"""Ids are the same for the same work, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.functions.caller.batcher import (
    BatchIdGenerator,
    make_query_id,
    make_streaming_query_id,
)
from snowmelt.functions.caller.plan import QueryPosition
from snowmelt.functions.definition import ExternalFunction, Volatility
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text

SESSION = "6f1f6a5e-9a5f-4f3b-a6c0-33d7c4b6c3f4"
TEXT = parse_sql_type_text("VARCHAR")
FUNCTION = ExternalFunction(
    FunctionSignature("f", (FunctionArgument("a", TEXT),), TEXT), "https://h/f", "I"
)
PLACE = QueryPosition(make_query_id(SESSION, 7), 2, 9)
BODY = b'{"data":[[0,"a"]]}'


def test_a_query_has_one_id():
    assert make_query_id(SESSION, 7) == make_query_id(SESSION, "7") != make_query_id(SESSION, 8)
    assert make_streaming_query_id(SESSION, 7) == make_streaming_query_id(SESSION, 7)
    assert make_streaming_query_id(SESSION, 7) != make_query_id(SESSION, 7)
    assert make_query_id("no uuid", 7) == make_query_id("no uuid", 7)


def test_an_id_says_where_the_batch_is():
    query, stage, partition, ordinal, digest = (
        BatchIdGenerator(PLACE, FUNCTION).make_batch_id(3, BODY).split(":")
    )
    assert (query, stage, partition, ordinal) == (PLACE.query_id, "2", "9", "3")
    assert len(bytes.fromhex(digest)) == 6


def test_another_attempt_has_the_same_ids():
    again = replace(PLACE, attempt=1)
    assert BatchIdGenerator(again, FUNCTION).make_batch_id(3, BODY) == BatchIdGenerator(
        PLACE, FUNCTION
    ).make_batch_id(3, BODY)


@pytest.mark.parametrize(
    ("place", "function", "body"),
    [
        (PLACE, FUNCTION, b'{"data":[[0,"b"]]}'),
        (PLACE, FUNCTION, BODY + b" "),
        (PLACE, replace(FUNCTION, url="https://h/g"), BODY),
        (replace(PLACE, partition=8), FUNCTION, BODY),
        (replace(PLACE, query_id=make_query_id(SESSION, 8)), FUNCTION, BODY),
    ],
)
def test_other_work_has_another_id(place, function, body):
    assert BatchIdGenerator(place, function).make_batch_id(3, body) != BatchIdGenerator(
        PLACE, FUNCTION
    ).make_batch_id(3, BODY)


def uses(folder, function, *, task, sites=("", "", ""), bodies=(BODY, BODY, BODY)):
    """Return the first two ids of each use of a function in one attempt at a task."""
    made = []
    for site, body in zip(sites, bodies, strict=True):
        ids = BatchIdGenerator(
            replace(PLACE, task_attempt_id=task, call_site=site), function, folder=folder
        )
        made.append((ids.make_batch_id(0, body), ids.make_batch_id(1, BODY)))
    return made


def test_each_use_of_a_volatile_function_has_ids_of_its_own_the_same_in_each_attempt(tmp_path):
    first = uses(tmp_path, FUNCTION, task="attempt 1")
    assert len({each for pair in first for each in pair}) == 6
    assert uses(tmp_path, FUNCTION, task="attempt 2") == first
    # One use alone has the ids that a place without a task has.
    assert first[0][0] == BatchIdGenerator(PLACE, FUNCTION).make_batch_id(0, BODY)


def test_uses_at_sites_of_their_own_keep_their_ids_in_whatever_order_they_begin(tmp_path):
    other = b'{"data":[[0,"b"]]}'
    first = uses(tmp_path, FUNCTION, task="1", sites=("", "1", "1"), bodies=(BODY, BODY, other))
    again = uses(tmp_path, FUNCTION, task="2", sites=("1", "1", ""), bodies=(other, BODY, BODY))
    assert again == first[::-1]
    assert len({each for pair in first for each in pair[:1]}) == 3


def test_uses_of_an_immutable_function_share_ids(tmp_path):
    function = replace(FUNCTION, volatility=Volatility.IMMUTABLE)
    assert len(set(uses(tmp_path, function, task="1", sites=("", "1", "2")))) == 1
    assert list(tmp_path.iterdir()) == []
