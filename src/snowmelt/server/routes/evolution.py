"""The conversation about columns that a client's rows have and the table lacks; our own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from snowmelt.ingest.evolving import evolve
from snowmelt.server.front import Lane
from snowmelt.server.problems import json_answer
from snowmelt.server.routes.streaming import decode
from snowmelt.wire.evolution import EvolveRequest

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from snowmelt.catalog.database import Database
    from snowmelt.clock import Clock
    from snowmelt.server.front import Call
    from snowmelt.server.problems import Answer


class EvolutionRoutes:
    """The handler is called in the event loop and blocks in threads only."""

    def __init__(self, database: Database, clock: Clock, threads: Executor) -> None:
        self._database = database
        self._clock = clock
        self._threads = threads

    def lanes(self) -> dict[str, Lane]:
        """Return the routes by path, without trailing slash."""
        return {"/v1/snowmelt/tables/evolve": Lane(self.evolve)}

    async def evolve(self, call: Call) -> Answer:
        """Add columns to a table, or take NOT NULL off."""
        request = decode(call.body, EvolveRequest)
        request.role = call.role(request.role)
        work = partial(evolve, self._database, self._clock, request, call.user)
        loop = asyncio.get_running_loop()
        return json_answer(await loop.run_in_executor(self._threads, work))
