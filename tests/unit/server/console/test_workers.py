"""Child processes of the console: how many tasks may wait for them."""

from __future__ import annotations

import asyncio

import pytest

from snowmelt.errors import DatabaseNotFound, ServiceBusy
from snowmelt.server.console.workers import TraceTask
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow


def test_a_task_beyond_those_that_wait_is_rejected_and_later_accepted() -> None:
    task = TraceTask("nothing.public.t", "C", "", "", 1)
    with LocalService(console="read") as service:
        console = service.embedded.service.console
        assert console is not None
        workers = console.parts.workers

        async def run(count: int) -> list[object]:
            tasks = (workers.trace(task) for _ in range(count))
            return list(await asyncio.gather(*tasks, return_exceptions=True))

        *accepted, last = asyncio.run(run(7))
        assert {type(each) for each in accepted} == {DatabaseNotFound}
        assert isinstance(last, ServiceBusy)
        assert "2 tasks of the console run and 4 wait. Retry in a minute" in str(last)
        assert [type(each) for each in asyncio.run(run(1))] == [DatabaseNotFound]
