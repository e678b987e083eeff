"""A batch is asked for until there is an answer, and what is no answer is said."""

from __future__ import annotations

import datetime as dt
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from snowmelt.clock import ManualClock, SystemClock
from snowmelt.functions.errors import CallFailed
from snowmelt.functions.probe import ServiceProbe
from snowmelt.functions.proxy.faults import parse_fault
from snowmelt.functions.proxy.relay import FaultProxy
from snowmelt.functions.service import RemoteService, ServiceOptions
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from support import functions_service as kit

DOUBLE = FunctionSignature(
    "double", (FunctionArgument("n", parse_sql_type_text("INT")),), parse_sql_type_text("INT")
)
LATER = FunctionSignature("later", DOUBLE.arguments, DOUBLE.returns)
CALLS: list[Any] = []


@pytest.fixture(scope="module")
def service():
    svc = RemoteService("asked", options=ServiceOptions(content_md5=True))

    @svc.function(blocking=False)
    def double(n: int) -> int:
        CALLS.append(n)
        return n * 2

    @svc.function(mode="async")
    def later(n: int) -> int:
        time.sleep(0.1)
        return n

    with kit.hosted(svc.asgi()) as url:
        yield url


def ask(url, *faults, signature=DOUBLE, clock=None, compress=False, rows=2):
    CALLS.clear()
    clock = clock or ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    with FaultProxy(url, [parse_fault(text) for text in faults]) as proxy:
        asker = ServiceProbe(f"{proxy.url}/{signature.name}", signature, clock, compress=compress)
        with closing(asker):
            return list(asker.send_batch(rows, [range(rows)], str(uuid.uuid4()), 7).values), len(
                proxy.requests
            )


def test_a_byte_order_mark_is_taken_as_queries_take_it(service):
    assert ask(service, "bom") == ([0, 2], 1)


@pytest.mark.parametrize("compress", [False, True])
def test_a_batch_is_answered(service, compress):
    assert ask(service, compress=compress, rows=500) == ([at * 2 for at in range(500)], 1)


@pytest.mark.parametrize(
    "fault",
    ["429:first=2,retry-after=1", "503:first=2", "drop:first=2", "lose:first=2", "reset:first=2"],
)
def test_what_passes_is_tried_again_and_worked_on_once(service, fault):
    values, requests = ask(service, fault)
    assert (values, requests) == ([0, 2], 3)
    assert CALLS == [0, 1]


def test_a_202_is_polled_until_it_is_done(service):
    values, requests = ask(service, signature=LATER, clock=SystemClock(), rows=1)
    assert values == [0]
    assert requests >= 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("md5", "Content-MD5"),
        ("order", "out of order"),
        ("html", "not JSON"),
        ("gzip-lie", "not compressed as its header says"),
        ("large", "larger than 10,000,000 bytes"),
        ("302", "remote service error: 302"),
        ("400", "made up by the proxy"),
        ("204", "remote service error: 204"),
        ("503", "no answer in time"),
        ("202:on=any", "no answer in time"),
    ],
)
def test_what_is_no_answer_names_function_batch_status_and_attempts(service, fault, reason):
    with pytest.raises(CallFailed, match=reason) as failed:
        ask(service, fault)
    assert re.match("double, batch [-0-9a-f]{36}:7: ", str(failed.value))
    assert "attempts, " in str(failed.value)


def test_a_failure_while_polling_ends_the_call(service):
    with pytest.raises(CallFailed, match="status 500, 1 attempts, 1 polls"):
        ask(service, "500:on=GET", signature=LATER, clock=SystemClock(), rows=3)


def test_many_callers_through_a_bad_network_get_every_row_and_no_work_is_done_twice(service):
    CALLS.clear()
    faults = ["lose:every=3", "drop:every=4", "503:every=5", "truncate:every=7", "429:each=1"]
    query = str(uuid.uuid4())
    with FaultProxy(service, [parse_fault(text) for text in faults]) as proxy:

        def call(number):
            clock = ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
            with closing(ServiceProbe(f"{proxy.url}/double", DOUBLE, clock)) as asker:
                rows = range(number * 10, number * 10 + 10)
                return list(asker.send_batch(10, [rows], query, number).values)

        with ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(call, range(24)))
        assert len(proxy.requests) > 48
    assert [value for answer in answers for value in answer] == [at * 2 for at in range(240)]
    assert sorted(CALLS) == list(range(240))
