"""Each batch is worked on once, and nobody waits longer than announced."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import Any

import pytest

from snowmelt.functions.service import MemoryStore, RemoteService, SqliteStore
from support import functions_service as kit


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    opened = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "b.db")
    with closing(opened):
        yield opened


@pytest.fixture
def loop():
    with closing(asyncio.new_event_loop()) as made:
        yield made


class Counted:
    """A service whose functions count their calls and wait until they are let go."""

    def __init__(self, store, **options):
        self.calls: list[Any] = []
        self.gate = threading.Event()
        self.svc = RemoteService("counted", store=store, **options)

        @self.svc.function
        def threaded(n: int) -> int:
            self.calls.append(n)
            self.gate.wait(200)
            return n

        @self.svc.function(blocking=False)
        def quick(n: int) -> int:
            self.calls.append(n)
            if n == 0:
                raise ValueError
            return n

        @self.svc.function(mode="async")
        def later(n: int) -> int:
            self.calls.append(n)
            self.gate.wait(200)
            if n == 0:
                raise ValueError
            return n


@pytest.mark.parametrize("path", ["/quick", "/threaded"])
def test_an_attempt_that_comes_again_gets_the_answer_without_work(store, path, loop):
    counted = Counted(store)
    counted.gate.set()
    for _ in range(3):
        assert kit.values(kit.ask(counted.svc, [7], path=path, batch_id="b", loop=loop)) == [7]
    assert counted.calls == [7]


def test_attempts_at_the_same_time_share_the_work(store, loop):
    counted = Counted(store)

    async def all_at_once():
        import json

        from snowmelt.functions.service.request_response_types import ServiceRequest

        request = ServiceRequest(
            "POST", "/threaded", {kit.BATCH: "b"}, json.dumps({"data": [[0, 7]]}).encode()
        )
        tasks = [asyncio.create_task(counted.svc.handle_request(request)) for _ in range(5)]
        await asyncio.sleep(0.05)
        counted.gate.set()
        return await asyncio.gather(*tasks)

    for response in loop.run_until_complete(all_at_once()):
        assert kit.values(response) == [7]
    assert counted.calls == [7]


@pytest.mark.parametrize("path", ["/quick", "/threaded"])
def test_a_batch_id_with_another_body_is_refused(store, path, loop):
    counted = Counted(store)
    counted.gate.set()
    kit.ask(counted.svc, [7], path=path, batch_id="b", loop=loop)
    other = kit.ask(counted.svc, [8], path=path, batch_id="b", loop=loop)
    assert (other.status, kit.message(other)) == (
        400,
        "Batch ID was already used with a different body.",
    )


def test_a_failed_batch_is_worked_on_again(store, loop):
    counted = Counted(store)
    for _ in range(2):
        assert kit.ask(counted.svc, [0], path="/quick", batch_id="b", loop=loop).status == 500
    assert counted.calls == [0, 0]


def test_without_a_batch_id_every_request_is_work(store, loop):
    counted = Counted(store)
    for _ in range(2):
        kit.ask(counted.svc, [7], path="/quick", loop=loop)
    assert counted.calls == [7, 7]


def poll(counted, loop, batch="b", path="/later"):
    return kit.ask(counted.svc, path=path, method="GET", body=b"", batch_id=batch, loop=loop)


def finish(counted, loop, batch="b", path="/later"):
    counted.gate.set()
    for _ in range(10_000):
        found = poll(counted, loop, batch, path)
        if found.status != 202:
            return found
        loop.run_until_complete(asyncio.sleep(0.01))
    raise AssertionError("still running")


def test_an_async_job_is_asked_for_until_it_is_done(store, loop):
    counted = Counted(store)
    assert kit.ask(counted.svc, [7], path="/later", batch_id="b", loop=loop).status == 202
    assert poll(counted, loop).status == 202
    assert kit.ask(counted.svc, [7], path="/later", batch_id="b", loop=loop).status == 202
    assert kit.values(finish(counted, loop)) == [7]
    assert kit.values(poll(counted, loop)) == [7]
    assert counted.calls == [7]


def test_a_failed_async_job_says_so_when_asked(store, loop):
    counted = Counted(store)
    assert kit.ask(counted.svc, [0], path="/later", batch_id="b", loop=loop).status == 202
    assert finish(counted, loop).status == 500


def test_polling_for_an_unknown_batch_is_404(store, loop):
    assert poll(Counted(store), loop, "nobody's").status == 404


def test_work_that_outlives_the_deadline_turns_asynchronous(store, loop):
    counted = Counted(store, deadline="50ms")
    assert kit.ask(counted.svc, [7], path="/threaded", batch_id="b", loop=loop).status == 202
    assert kit.values(finish(counted, loop, path="/threaded")) == [7]
    assert kit.values(kit.ask(counted.svc, [8], path="/threaded", batch_id="c", loop=loop)) == [8]


def test_more_batches_than_allowed_are_429_and_leave_no_trace(store, loop):
    counted = Counted(store, max_concurrency=1)
    assert kit.ask(counted.svc, [1], path="/later", batch_id="a", loop=loop).status == 202
    refused = kit.ask(counted.svc, [2], path="/later", batch_id="b", loop=loop)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert kit.values(finish(counted, loop, "a")) == [1]
    # Let in now, whether it is done before or after it is asked for again.
    assert kit.ask(counted.svc, [2], path="/later", batch_id="b", loop=loop).status in {200, 202}
    assert kit.values(finish(counted, loop)) == [2]
    assert counted.calls == [1, 2]
