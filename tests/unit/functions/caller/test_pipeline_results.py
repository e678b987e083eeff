"""Each row gets its value, in order, and nothing is asked for that nobody wants."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.functions.caller import pipeline
from snowmelt.functions.caller.plan import BatchStatus
from snowmelt.functions.definition import (
    FailureAction,
    NullInputAction,
    Volatility,
)
from snowmelt.functions.errors import BudgetExceeded, CallFailed, CircuitOpen, UrlRefused
from snowmelt.functions.proxy.faults import parse_fault
from snowmelt.functions.proxy.http1 import HttpMessage, encode_message
from snowmelt.functions.proxy.relay import FaultProxy, LoopbackHttpServer
from snowmelt.functions.service import RemoteService
from support import call_plans, function_calls
from support import functions_service as kit
from support.call_logs import InMemoryCallLog

LETTERS = [f"row {at}" for at in range(10)]


@pytest.fixture(autouse=True)
def own_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Log:
    """What a service saw: batch ids and rows, in the order of arrival."""

    def __init__(self):
        self.batches = []

    def clear(self):
        self.batches.clear()

    @property
    def rows(self):
        return [row for _, rows in self.batches for row in rows]

    @property
    def ids(self):
        return [batch for batch, _ in self.batches]


@pytest.fixture(scope="module")
def log():
    return Log()


@pytest.fixture(scope="module")
def service(log):
    """Echo, by a server that answers later batches first, and has row errors for some texts."""

    async def answer(request, writer):
        rows = json.loads(request.body)["data"]
        log.batches.append((request.headers[kit.BATCH], [row[1:] for row in rows]))
        await asyncio.sleep(random.random() * 0.01 if "late" in request.target else 0)
        if "limited" in request.target and len(request.body) > 100:
            writer.write(encode_message(HttpMessage("HTTP/1.1 413 Content Too Large")))
            return True
        values = [[row[0], row[1] if len(row) > 1 else "none"] for row in rows]
        reply = {"data": values}
        if "picky" in request.target:
            bad = [row[0] for row in rows if row[1] in LETTERS[3:5]]
            reply["errors"] = [[at, "ValueError", "it is bad"] for at in bad]
            for at in bad:
                values[at][1] = None
        if "huge" in request.target:
            for value in values:
                value[1] = value[1] * 100_000
        writer.write(encode_message(HttpMessage("HTTP/1.1 200 OK", {}, json.dumps(reply).encode())))
        return True

    with LoopbackHttpServer(answer) as server:
        yield server.url


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 100])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_values_are_in_the_rows_order_however_the_rows_arrive(service, log, count, size):
    log.clear()
    texts = [f"{at}" for at in range(count)]
    plan = function_calls.plan(f"{service}/late", max_batch_rows=7, max_in_flight=4)
    assert function_calls.ask(plan, function_calls.rows(texts, size=size)) == texts
    assert len(log.batches) == -(-count // 7)


def test_ids_depend_on_the_rows_and_not_on_how_they_arrive(service, log):
    seen = set()
    for size in (1, 4, 10):
        log.clear()
        plan = function_calls.plan(f"{service}/late", max_batch_rows=3)
        function_calls.ask(
            plan, function_calls.rows(LETTERS, size=size), place=call_plans.place(attempt=size)
        )
        seen.add(tuple(sorted(log.ids)))
    assert len(seen) == 1


def test_no_more_batches_are_asked_than_are_in_flight_beyond_those_taken(service, log):
    log.clear()
    ledger = InMemoryCallLog()
    taken = []

    def arriving():
        for text in LETTERS * 10:
            taken.append(text)
            yield from function_calls.rows([text])

    plan = function_calls.plan(f"{service}/", max_batch_rows=1, max_in_flight=4)
    values = pipeline.call_function(plan, call_plans.place(), arriving(), ledger)
    assert log.batches == []
    got = next(values).to_pylist()
    values.close()
    assert LETTERS[: len(got)] == got
    assert len(log.batches) <= 4
    assert len(taken) == 4
    outcomes = [record.outcome for record in ledger.records]
    assert outcomes == [*[BatchStatus.OK] * len(got), *[BatchStatus.CANCELLED] * (4 - len(got))]


@pytest.mark.slow
def test_small_batches_that_are_answered_leave_together_while_others_are_asked(service, log):
    log.clear()
    texts = [str(number) for number in range(20_000)]
    plan = function_calls.plan(f"{service}/", max_batch_rows=100, max_in_flight=4)
    values = pipeline.call_function(
        plan, call_plans.place(), function_calls.rows(texts), InMemoryCallLog()
    )
    arrays = [next(values) for _ in range(8)]
    values.close()
    got = [each for array in arrays for each in array.to_pylist()]
    assert got == texts[: len(got)]
    assert max(map(len, arrays)) <= 1_000
    assert len(log.batches) * 100 <= len(got) + 1_000 + 400


def test_what_nobody_reads_is_called_for_one_batch_at_a_time(service, log):
    log.clear()
    plan = function_calls.plan(f"{service}/", max_batch_rows=1, max_in_flight=4)
    batches = iter(function_calls.rows(LETTERS))
    values = pipeline.call_function(
        plan,
        call_plans.place(),
        batches,
        InMemoryCallLog(),
        function_calls.clock(),
        function_calls.Connection(open=False),
    )
    got: list[Any] = []
    while len(got) < 4:
        got += next(values).to_pylist()
    # Those that were read, and as many in flight: on a busy machine none of these may have ended.
    assert len(log.batches) <= 8 < len(LETTERS)
    # It may be wrong: nothing is lost.
    assert [*got, *(each for array in values for each in array.to_pylist())] == LETTERS


def test_values_flow_before_all_rows_are_there(service):
    asked_for_more = []

    def arriving():
        yield from function_calls.rows(LETTERS[:4])
        asked_for_more.append(True)
        yield from function_calls.rows(LETTERS[4:])

    plan = function_calls.plan(f"{service}/", max_batch_rows=2, max_in_flight=2)
    values = pipeline.call_function(plan, call_plans.place(), arriving(), InMemoryCallLog())
    got = next(values).to_pylist()
    assert not asked_for_more
    assert [*got, *(each for array in values for each in array.to_pylist())] == LETTERS


@pytest.mark.parametrize("by_error", [False, True])
def test_who_stops_leaves_no_connection_and_no_thread(by_error):
    open_requests, ended = threading.Semaphore(0), threading.Semaphore(0)

    async def answer(request, writer):
        number = int(request.headers[kit.BATCH].split(":")[3])
        if number == 0:
            status = "403 Forbidden" if by_error else "200 OK"
            writer.write(
                encode_message(HttpMessage(f"HTTP/1.1 {status}", {}, b'{"data": [[0, "a"]]}'))
            )
            return True
        open_requests.release()
        while not writer.transport.is_closing():
            # Not an answer yet; a connection that is gone is noticed by writing to it.
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(0.01)
        ended.release()
        return False

    threads = threading.active_count()
    with LoopbackHttpServer(answer) as server:
        plan = function_calls.plan(f"{server.url}/", max_batch_rows=1, max_in_flight=5)
        values = pipeline.call_function(
            plan, call_plans.place(), iter(function_calls.rows(LETTERS)), InMemoryCallLog()
        )
        if by_error:
            with pytest.raises(CallFailed):
                next(values)
        else:
            next(values)
            for _ in range(4):
                assert open_requests.acquire(timeout=60)
            values.close()
        for _ in range(4 if not by_error else 0):
            assert ended.acquire(timeout=60)
    names = {thread.name for thread in threading.enumerate()}
    assert threading.active_count() <= threads + ("snowmelt-calls" in names)


def test_rows_with_null_of_a_strict_function_never_leave(service, log):
    log.clear()
    ledger = InMemoryCallLog()
    texts = ["a", None, "b", None, None, "c"]
    plan = function_calls.plan(f"{service}/", null_input=NullInputAction.STRICT, max_batch_rows=2)
    assert function_calls.ask(plan, function_calls.rows(texts), ledger=ledger) == texts
    assert sorted(log.rows) == [["a"], ["b"], ["c"]]
    assert sum(record.rows for record in ledger.records) == 6
    assert sum(record.rows_sent for record in ledger.records) == 3
    assert [len(rows) for _, rows in log.batches] == [2, 1]


def test_rows_that_are_all_null_cost_no_call(service, log):
    log.clear()
    ledger = InMemoryCallLog()
    plan = function_calls.plan(f"{service}/", null_input=NullInputAction.STRICT)
    nothing = [pa.record_batch([pa.array([None] * 3, pa.string())], names=["a"])]
    assert function_calls.ask(plan, nothing, ledger=ledger) == [None] * 3
    assert function_calls.ask(plan, nothing, trying=True) == [None] * 3
    assert log.batches == []
    assert [(each.outcome, each.rows_sent) for each in ledger.records] == [
        (BatchStatus.NOT_SENT, 0)
    ]
    assert ledger.records[0].started_at


def test_null_is_sent_to_a_function_that_is_called_on_it(service, log):
    log.clear()
    assert function_calls.ask(
        function_calls.plan(f"{service}/"), function_calls.rows(["a", None])
    ) == ["a", None]
    assert log.rows == [["a"], [None]]


def test_an_immutable_function_is_asked_once_for_equal_rows_and_never_for_known_ones(service, log):
    log.clear()
    ledger = InMemoryCallLog()
    plan = function_calls.plan(
        f"{service}/", volatility=Volatility.IMMUTABLE, cache_bytes=1_000_000, max_batch_rows=8
    )
    texts = ["a", "b", "a", None, "b", None, "a", "a"]
    assert function_calls.ask(plan, function_calls.rows(texts), ledger=ledger) == texts
    assert log.rows == [["a"], ["b"], [None]]
    more = ["b", "c", None, "c"]
    assert function_calls.ask(plan, function_calls.rows(more), ledger=ledger) == more
    assert log.rows[3:] == [["c"]]
    assert function_calls.ask(plan, function_calls.rows(["c", "a"]), ledger=ledger) == ["c", "a"]
    assert len(log.batches) == 2
    assert [each.cache_hits for each in ledger.records] == [0, 2, 2]
    tried = function_calls.ask(plan, function_calls.rows(["c", "d"]), trying=True)
    assert [each["value"] for each in tried] == ["c", "d"]


def test_a_function_without_arguments_is_asked_for_each_row(service, log):
    log.clear()
    plan = function_calls.plan(f"{service}/", arguments=())
    assert function_calls.ask(plan, function_calls.rows([1, 2, 3])) == ["none"] * 3
    assert log.rows == [[], [], []]


def test_an_error_of_a_row_ends_the_query_and_names_the_row(service):
    with pytest.raises(CallFailed, match="row 3 of 10: ValueError") as caught:
        function_calls.ask(function_calls.plan(f"{service}/picky"), function_calls.rows(LETTERS))
    assert "it is bad" not in str(caught.value)
    plan = function_calls.plan(f"{service}/picky", options={"debug_payload": True})
    with pytest.raises(CallFailed, match="ValueError: it is bad"):
        function_calls.ask(plan, function_calls.rows(LETTERS))


def test_an_error_of_a_row_is_null_where_the_function_says_so(service):
    ledger = InMemoryCallLog()
    plan = function_calls.plan(f"{service}/picky", row_errors=FailureAction.RETURN_NULL)
    values = function_calls.ask(plan, function_calls.rows(LETTERS), ledger=ledger)
    assert values == [*LETTERS[:3], None, None, *LETTERS[5:]]
    assert ledger.records[0].row_errors == 2


def test_errors_of_rows_and_of_batches_stand_beside_the_values(service):
    with FaultProxy(service, [parse_fault("403:first=1")]) as proxy:
        plan = function_calls.plan(f"{proxy.url}/picky", max_batch_rows=3, max_in_flight=1)
        found = function_calls.ask(plan, function_calls.rows(LETTERS), trying=True)
    assert [each["value"] for each in found] == [*[None] * 5, *LETTERS[5:]]
    assert all("remote service error: 403" in each["error"] for each in found[:3])
    assert [each["error"] for each in found[3:6]] == [*["ValueError: it is bad"] * 2, None]
    assert [each["status"] for each in found] == [*[403] * 3, *[200] * 7]
    assert [each["batch_id"].split(":")[3] for each in found] == [*"000111222", "3"]


def test_a_batch_that_is_too_large_goes_in_halves_and_its_size_never_again(service, log):
    log.clear()
    ledger = InMemoryCallLog()
    plan = function_calls.plan(f"{service}/limited", max_batch_rows=8, max_in_flight=1)
    texts = ["x" * 10] * 8
    assert function_calls.ask(plan, function_calls.rows(texts), ledger=ledger) == texts
    assert [len(rows) for _, rows in log.batches] == [8, 4, 4]
    whole = log.ids[0]
    assert log.ids[1:] == [f"{whole}/0", f"{whole}/1"]
    assert [(each.batch_id, each.rows) for each in ledger.records] == [
        (f"{whole}/0", 4),
        (f"{whole}/1", 4),
    ]
    assert sum(each.attempts for each in ledger.records) == 3
    log.clear()
    assert function_calls.ask(plan, function_calls.rows(texts)) == texts
    assert log.ids == [f"{whole}/0", f"{whole}/1"]


def test_only_the_row_that_is_too_large_fails(service, log):
    log.clear()
    texts = [*"abcde", "x" * 100, "g"]
    plan = function_calls.plan(f"{service}/limited?one", on_batch_failure=FailureAction.RETURN_NULL)
    assert function_calls.ask(plan, function_calls.rows(texts)) == [*"abcde", None, "g"]
    with pytest.raises(CallFailed, match="row 5 alone is too large"):
        function_calls.ask(
            function_calls.plan(f"{service}/limited?one"), function_calls.rows(texts)
        )
    log.clear()
    # One huge row says nothing about the size of others' batches.
    function_calls.ask(plan, function_calls.rows(["a"] * 8))
    assert [len(rows) for _, rows in log.batches] == [8]


@pytest.mark.slow
def test_a_reply_that_is_too_large_is_asked_for_in_halves(service, log):
    log.clear()
    plan = function_calls.plan(f"{service}/huge")
    values = function_calls.ask(plan, function_calls.rows(LETTERS * 3))
    assert [value[:5] for value in values] == [text[:5] for text in LETTERS * 3]
    assert [len(rows) for _, rows in log.batches] == [30, 15, 15]


def test_a_dry_run_calls_nothing_and_tells_what_it_would(service, log):
    log.clear()
    ledger = InMemoryCallLog()
    plan = function_calls.plan(f"{service}/", options={"dry_run": True}, max_batch_rows=6)
    assert function_calls.ask(plan, function_calls.rows(LETTERS), ledger=ledger) == [None] * 10
    assert log.batches == []
    assert [(each.outcome, each.rows_sent) for each in ledger.records] == [
        (BatchStatus.DRY_RUN, 6),
        (BatchStatus.DRY_RUN, 4),
    ]
    assert ledger.records[0].bytes_out > 60


def test_a_dry_run_leaves_no_values_in_the_cache_and_takes_none(service, log):
    log.clear()
    plan = function_calls.plan(
        f"{service}/",
        volatility=Volatility.IMMUTABLE,
        cache_bytes=1_000_000,
        max_batch_rows=5,
        max_in_flight=1,
    )
    dry = replace(plan, options=replace(plan.options, dry_run=True))
    values = ["dry 1", "dry 2"] * 5
    for _ in range(2):
        ledger = InMemoryCallLog()
        assert function_calls.ask(dry, function_calls.rows(values), ledger=ledger) == [None] * 10
        assert [each.rows_sent for each in ledger.records] == [2, 0]
        assert function_calls.ask(plan, function_calls.rows(values)) == values
    assert [len(rows) for _, rows in log.batches] == [2]


def test_a_service_that_fails_again_and_again_is_left_alone(service):
    with FaultProxy(service, [parse_fault("403")]) as proxy:
        plan = function_calls.plan(f"{proxy.url}/", max_batch_rows=1, max_in_flight=1)
        found = function_calls.ask(plan, function_calls.rows(LETTERS), trying=True)
        # The sixth was on its way before the fifth's answer was read.
        asked = len(proxy.requests)
        assert asked in {5, 6}
        assert "Circuit breaker open for echo" in found[asked]["error"]
        assert found[asked]["status"] is None
        with pytest.raises(CircuitOpen):
            function_calls.ask(plan, function_calls.rows(LETTERS))
        assert len(proxy.requests) == asked


@pytest.mark.parametrize("trying", [False, True])
@pytest.mark.parametrize("clause", list(FailureAction))
def test_a_budget_ends_the_query_before_it_is_exceeded(service, log, clause, trying):
    log.clear()
    plan = function_calls.plan(
        f"{service}/",
        max_batch_rows=2,
        options={"max_calls_per_task": 3},
        on_batch_failure=clause,
    )
    with pytest.raises(BudgetExceeded, match="max_calls_per_task = 3"):
        function_calls.ask(plan, function_calls.rows(LETTERS), trying=trying)
    assert len(log.batches) <= 3


@pytest.mark.parametrize("trying", [False, True])
def test_a_refused_url_ends_the_query_whatever_its_clauses_say(service, log, trying):
    log.clear()
    plan = function_calls.plan(f"{service}/", on_batch_failure=FailureAction.RETURN_NULL)
    elsewhere = replace(plan.integration, allowed_prefixes=("https://x.example/",))
    with pytest.raises(UrlRefused):
        function_calls.ask(
            replace(plan, integration=elsewhere), function_calls.rows(LETTERS), trying=trying
        )
    assert log.batches == []


def test_a_response_translator_that_fails_does_not_close_the_service(service, log):
    log.clear()

    def read(event):
        raise KeyError("secret")

    plan = function_calls.plan(
        f"{service}/", max_batch_rows=1, max_in_flight=1, response_translator=read,
        on_batch_failure=FailureAction.RETURN_NULL,
    )  # fmt: skip
    assert function_calls.ask(plan, function_calls.rows(LETTERS)) == [None] * 10
    assert len(log.batches) == 10
    with pytest.raises(
        CallFailed, match=r"its response translator \S+read failed: KeyError"
    ) as caught:
        function_calls.ask(
            replace(plan, function=_aborting(plan)), function_calls.rows(LETTERS[:1])
        )
    assert caught.value.fields["batch"] == log.ids[-1]
    assert log.ids[-1] in str(caught.value)
    assert "secret" not in str(caught.value)


def _aborting(plan):
    return replace(plan.function, on_batch_failure=FailureAction.ABORT)


def test_the_next_attempt_at_a_task_does_not_repeat_what_failed_for_good(service):
    with FaultProxy(service, [parse_fault("403")]) as proxy:
        plan = function_calls.plan(f"{proxy.url}/")
        texts = []
        for attempt in range(3):
            with pytest.raises(CallFailed) as caught:
                function_calls.ask(
                    plan, function_calls.rows(LETTERS), place=call_plans.place(attempt)
                )
            texts.append(str(caught.value))
        assert len(proxy.requests) == 1
        assert len(set(texts)) == 1
        with pytest.raises(CallFailed):
            function_calls.ask(plan, function_calls.rows(LETTERS))
        assert len(proxy.requests) == 2


def test_translators_speak_to_a_service_of_another_format():
    svc = RemoteService("behind")

    @svc.function(blocking=False)
    def double(n: int) -> int:
        return 2 * n

    def ask(event):
        rows = event["body"]["data"]
        return {
            "body": {"data": [[at, value + 1] for at, value in rows]},
            "urlSuffix": "/double",
            "translatorData": len(rows),
        }

    def read(event):
        rows = event["body"]["data"]
        return {"body": {"data": [[at, value + event["translatorData"]] for at, value in rows]}}

    with kit.hosted(svc.asgi()) as url:
        plan = function_calls.plan(
            f"{url}/a", name="double", arguments=("NUMBER",), returns="NUMBER(18,0)",
            request_translator=ask, response_translator=read,
        )  # fmt: skip
        assert function_calls.ask(plan, function_calls.rows([1, 2, 3])) == [7, 9, 11]


def test_tasks_in_several_threads_have_values_of_their_own(service):
    plan = function_calls.plan(f"{service}/late", max_batch_rows=3)
    found = {}

    def task(number):
        texts = [f"{number}-{at}" for at in range(50)]
        place = call_plans.place(query_id=f"q{number}")
        found[number] = function_calls.ask(plan, function_calls.rows(texts), place=place) == texts

    threads = [threading.Thread(target=task, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)
