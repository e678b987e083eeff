"""Of equal inputs one is sent, known ones stay here, and each row gets its own answer."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.functions.caller.batcher import CallBatcher
from snowmelt.functions.caller.request_deduplication import RequestBuilder, ValueCache
from snowmelt.functions.definition import NullInputAction, Volatility
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from support.call_plans import place, plan

SIGNATURE = FunctionSignature(
    "f",
    (
        FunctionArgument("a", parse_sql_type_text("VARCHAR")),
        FunctionArgument("b", parse_sql_type_text("FLOAT")),
    ),
    parse_sql_type_text("VARCHAR"),
)
ROWS = st.lists(
    st.tuples(st.sampled_from(["x", "y", None]), st.sampled_from([0.0, -0.0, float("nan"), None])),
    min_size=1,
    max_size=30,
)


def composer(cache=None, **clauses):
    return RequestBuilder(plan(signature=SIGNATURE, **clauses), place(), cache)


def batches(rows, *, strict=False, most=8):
    texts, floats = zip(*rows, strict=True)
    columns = [pa.array(texts, pa.string()), pa.array(floats, pa.float64())]
    return CallBatcher(most, 10**6, skip_null_rows=strict).split_batches([columns])


def answers_to(request):
    """Answer each row with its own JSON, as a service would."""
    rows = json.loads(request.body)["data"]
    assert [row[0] for row in rows] == list(range(request.rows))
    return pa.array([json.dumps(row[1:]) for row in rows], pa.string())


def asked(composer, batch):
    work = composer.build_work(batch)
    answers = pa.array([], pa.string())
    if work.request is not None:
        answers = answers_to(work.request)
        composer.cache_values(work, answers)
    values = work.spread_to_rows(answers, work.cached_values).to_pylist()
    assert len(values) == batch.rows
    return work, values


def shown(row):
    return json.dumps(["NaN" if each != each else each for each in row])


@given(ROWS, st.booleans(), st.booleans(), st.booleans())
def test_each_row_has_the_answer_to_its_own_input(rows, immutable, strict, cached):
    clauses = {
        "volatility": Volatility.IMMUTABLE if immutable else Volatility.VOLATILE,
        "null_input": NullInputAction.STRICT if strict else NullInputAction.CALLED,
    }
    one = composer(ValueCache(10**6) if cached else None, **clauses)
    found, requests = [], []
    for batch in batches(rows, strict=strict):
        work, values = asked(one, batch)
        found += values
        requests += (
            [json.dumps(row[1:]) for row in json.loads(work.request.body)["data"]]
            if work.request
            else []
        )
    assert found == [None if strict and None in row else shown(row) for row in rows]
    if immutable and cached:
        assert len(set(requests)) == len(requests)


def test_equal_inputs_are_sent_once_in_the_order_they_came():
    one = composer(volatility=Volatility.IMMUTABLE)
    (batch,) = batches([("y", 1.0), ("x", 1.0), ("y", 1.0), ("y", 2.0)])
    work, values = asked(one, batch)
    assert work.request.body == b'{"data":[[0,"y",1.0],[1,"x",1.0],[2,"y",2.0]]}'
    assert values == ['["y", 1.0]', '["x", 1.0]', '["y", 1.0]', '["y", 2.0]']


def test_a_volatile_function_is_asked_for_each_row():
    (batch,) = batches([("y", 1.0), ("y", 1.0)])
    assert composer().build_work(batch).request.rows == 2


def test_known_inputs_are_not_sent():
    one = composer(ValueCache(10**6), volatility=Volatility.IMMUTABLE)
    first, second = batches([("a", 1.0), ("b", 1.0), ("b", 1.0), ("c", 1.0)], most=2)
    asked(one, first)
    work, values = asked(one, second)
    assert work.cache_hits == 1
    assert work.request.rows == 1
    assert values == ['["b", 1.0]', '["c", 1.0]']
    assert asked(one, second)[0].request is None


def test_what_a_session_says_belongs_to_what_was_asked():
    cache = ValueCache(10**6)
    (batch,) = batches([("a", 1.0)])
    for user in ("ADA", "BOB"):
        here = plan(signature=SIGNATURE, volatility=Volatility.IMMUTABLE)
        object.__setattr__(here, "context", {"CURRENT_USER": user})
        assert asked(RequestBuilder(here, place(), cache), batch)[0].cache_hits == 0


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata", "UTC+2", "GMT+01:00"])
def test_known_instants_are_the_same_in_each_zone(zone):
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    texts = [str(at) for at in range(4)]
    instants = pa.array([first, 0, last, None], pa.int64()).view(pa.timestamp("us", zone))
    signature = FunctionSignature(
        "f", SIGNATURE.arguments[:1], parse_sql_type_text("TIMESTAMP_LTZ")
    )
    here = plan(signature=signature, volatility=Volatility.IMMUTABLE)
    object.__setattr__(here, "zone", zone)
    one = RequestBuilder(here, place(), ValueCache(10**6))
    (batch,) = CallBatcher(8, 10**6).split_batches([[pa.array(texts, pa.string())]])
    work = one.build_work(batch)
    one.cache_values(work, instants)
    known = one.build_work(batch)
    assert known.request is None
    assert known.spread_to_rows(instants.slice(0, 0), known.cached_values).equals(instants)


def test_halves_ask_what_the_whole_asked():
    (batch,) = batches([("a", 1.0), ("b", 2.0), ("c", 3.0)])
    one = composer()
    work = one.build_work(batch)
    first, second = one.split_request(work.request)
    assert (first.batch_id, second.batch_id) == (
        f"{work.request.batch_id}/0",
        f"{work.request.batch_id}/1",
    )
    answers = pa.concat_arrays([answers_to(first), answers_to(second)])
    assert answers.equals(answers_to(work.request))
    assert one.split_request(second)[1].body == b'{"data":[[0,"c",3.0]]}'
    assert one.split_request(second)[1].batch_id.endswith("/1/1")


def test_the_same_rows_have_the_same_ids():
    rows = [("a", float(at)) for at in range(20)]
    ids = [
        [composer().build_work(each).request.batch_id for each in batches(rows)] for _ in range(2)
    ]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 3


def test_a_function_without_arguments_is_asked_once_where_it_is_immutable():
    nothing = FunctionSignature("f", (), parse_sql_type_text("VARCHAR"))
    for volatility, rows in ((Volatility.VOLATILE, 5), (Volatility.IMMUTABLE, 1)):
        one = RequestBuilder(plan(signature=nothing, volatility=volatility), place())
        (batch,) = CallBatcher(1000, 10**6).split_batches([[pa.nulls(5)]])
        work = one.build_work(batch)
        assert work.request is not None
        assert work.request.rows == rows
        assert len(work.spread_to_rows(answers_to(work.request))) == 5
