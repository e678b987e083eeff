"""External functions when services are killed during a query, or two workers do the same work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from snowmelt.functions.caller import pipeline
from snowmelt.functions.caller.plan import BatchStatus, CallPlan
from support import call_plans, function_calls
from support.call_logs import InMemoryCallLog
from support.ports import free_port

SERVICE = """
import time
from pathlib import Path
from snowmelt.functions.service import Context, RemoteService, SqliteStore

svc = RemoteService("killed", store=SqliteStore("batches.db", lease_s=0.5))

def log(what, context):
    with Path("work.log").open("a") as file:
        file.write(f"{what} {context.batch_id}\\n")

def work(n, context):
    log("begun", context)
    time.sleep(0.02)
    log("done", context)
    return [value + 1 for value in n]

@svc.function(mode="batch")
def waited_for(n: list[int], context: Context) -> list[int]:
    return work(n, context)

@svc.function(mode="batch", deadline="1ms")
def polled(n: list[int], context: Context) -> list[int]:
    return work(n, context)
"""
ROWS = list(range(1600))
IN_FLIGHT = 4


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Service:
    """`snowmelt functions serve` in a folder, on the same port each time it is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: Any = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "snowmelt", "functions", "serve", "svc.py",
             "--port", str(self.port)],
            cwd=self.folder, stdout=subprocess.PIPE, text=True,
            env={name: value for name, value in os.environ.items() if "SNOWMELT" not in name},
        )  # fmt: skip
        assert self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def logged(self) -> tuple[Counter[Any], Counter[Any]]:
        """Return how often each batch was begun, and how often done."""
        counts: dict[str, Counter[Any]] = {"begun": Counter(), "done": Counter()}
        for line in (self.folder / "work.log").read_text().splitlines():
            what, batch = line.split()
            counts[what][batch] += 1
        return counts["begun"], counts["done"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "svc.py").write_text(SERVICE)
    service = Service(tmp_path)
    service.start()
    with contextlib.ExitStack() as ending:
        ending.callback(service.kill)
        yield service


def plan(service: Service, name: str) -> CallPlan:
    return function_calls.plan(
        f"http://127.0.0.1:{service.port}/{name}", name=name, arguments=("NUMBER(18,0)",),
        returns="NUMBER(18,0)", max_batch_rows=20, max_in_flight=IN_FLIGHT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["waited_for", "polled"])
def test_a_service_that_is_killed_and_started_again_is_asked_again_and_works_once(
    service: Service, name: str
) -> None:
    ledger = InMemoryCallLog()
    values, killed = [], 0
    for array in pipeline.call_function(
        plan(service, name), call_plans.place(), iter(function_calls.rows(ROWS)), ledger
    ):
        values.extend(array.to_pylist())
        # Small arrays may come joined, so the number may be passed over.
        if killed < 2 and len(values) >= (400, 1000)[killed]:
            service.kill()
            killed += 1
            threading.Timer(0.3, service.start).start()
    assert values == [value + 1 for value in ROWS]
    assert killed == 2
    assert {record.outcome for record in ledger.records} == {BatchStatus.OK}
    begun, done = service.logged()
    assert set(begun) == set(done) == {record.batch_id for record in ledger.records}
    again = [batch for batch, times in begun.items() if times > 1]
    # What it worked on when it was killed is the only work that is done again.
    assert len(again) <= killed * IN_FLIGHT
    assert max(begun.values()) <= 1 + killed
    assert sum(record.attempts for record in ledger.records) > len(ledger.records)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["waited_for", "polled"])
def test_two_attempts_at_the_same_time_are_worked_on_once(service: Service, name: str) -> None:
    context = get_context("spawn")
    results = context.SimpleQueue()
    attempts = [
        context.Process(
            target=function_calls.put_values,
            args=(plan(service, name), ROWS[:600], attempt, results),
        )
        for attempt in range(2)
    ]
    for each in attempts:
        each.start()
    found = [results.get() for _ in attempts]
    for each in attempts:
        each.join(200)
    assert found == [[value + 1 for value in ROWS[:600]]] * 2
    begun, done = service.logged()
    assert set(begun.values()) == set(done.values()) == {1}
    assert len(begun) == 30


@pytest.mark.slow
def test_an_attempt_after_another_is_answered_from_what_is_known(service: Service) -> None:
    for attempt in range(2):
        values = function_calls.ask(
            plan(service, "waited_for"),
            function_calls.rows(ROWS[:200]),
            place=call_plans.place(attempt),
        )
        assert values == [value + 1 for value in ROWS[:200]]
    begun, _ = service.logged()
    assert set(begun.values()) == {1}


@pytest.mark.slow
def test_a_service_that_stays_away_ends_the_query_when_patience_does(service: Service) -> None:
    service.kill()
    began = time.monotonic()
    chosen = plan(service, "waited_for")
    found = function_calls.ask(
        function_calls.plan(
            chosen.function.url, name="waited_for", arguments=("NUMBER",), returns="NUMBER",
            batch_timeout_s=0.5,
        ),
        function_calls.rows([1]), trying=True,
    )  # fmt: skip
    service.start()
    assert "Remote service cannot be reached" in found[0]["error"]
    assert time.monotonic() - began < 60
