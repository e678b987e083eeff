"""Ids are the same for the same work, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.functions.calling.identity import BatchIds, query_id, streaming_query_id
from snowmelt.functions.calling.plan import Place
from snowmelt.functions.definition import ExternalFunction
from snowmelt.functions.signature import Argument, Signature
from snowmelt.functions.types import parse_type

SESSION = "6f1f6a5e-9a5f-4f3b-a6c0-33d7c4b6c3f4"
TEXT = parse_type("VARCHAR")
FUNCTION = ExternalFunction(Signature("f", (Argument("a", TEXT),), TEXT), "https://h/f", "I")
PLACE = Place(query_id(SESSION, 7), 2, 9)
BODY = b'{"data":[[0,"a"]]}'


def test_a_query_has_one_id():
    assert query_id(SESSION, 7) == query_id(SESSION, "7") != query_id(SESSION, 8)
    assert streaming_query_id(SESSION, 7) == streaming_query_id(SESSION, 7)
    assert streaming_query_id(SESSION, 7) != query_id(SESSION, 7)
    assert query_id("no uuid", 7) == query_id("no uuid", 7)


def test_an_id_says_where_the_batch_is():
    query, stage, partition, ordinal, digest = BatchIds(PLACE, FUNCTION).of(3, BODY).split(":")
    assert (query, stage, partition, ordinal) == (PLACE.query_id, "2", "9", "3")
    assert len(bytes.fromhex(digest)) == 6


def test_another_attempt_has_the_same_ids():
    again = replace(PLACE, attempt=1)
    assert BatchIds(again, FUNCTION).of(3, BODY) == BatchIds(PLACE, FUNCTION).of(3, BODY)


@pytest.mark.parametrize(
    ("place", "function", "body"),
    [
        (PLACE, FUNCTION, b'{"data":[[0,"b"]]}'),
        (PLACE, FUNCTION, BODY + b" "),
        (PLACE, replace(FUNCTION, url="https://h/g"), BODY),
        (replace(PLACE, partition=8), FUNCTION, BODY),
        (replace(PLACE, query_id=query_id(SESSION, 8)), FUNCTION, BODY),
    ],
)
def test_other_work_has_another_id(place, function, body):
    assert BatchIds(place, function).of(3, body) != BatchIds(PLACE, FUNCTION).of(3, BODY)
