"""Run queries of the statement API with DuckDB in child processes, with limits.

If a query exceeds the time limit, its process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING

import msgspec

from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.config import Settings
from snowmelt.errors import (
    ServiceBusy,
    StatementFailed,
    Unsupported,
)
from snowmelt.server.request_process import (
    ProcessResponse,
    RequestProcess,
    make_failure,
    serve_requests,
    write_response,
)
from snowmelt.wire.statements import StatementResponse, encode_rows

if TYPE_CHECKING:
    from snowmelt.query.duckdb_engine import DuckDBEngine

_log = logging.getLogger("snowmelt.server")

# Maximum number of running and waiting queries. When it is reached, requests wait until one of
# these ends.
_THREAD_COUNT = 16
_NICE = 5
# Reserves one query slot. No user has this name.
_WARM_UP_USER = "(warm-up)"
# Maximum size of the values of one result before they are encoded.
_MAX_RESULT_BYTES = 64 * 1024 * 1024


class QueryRequest(msgspec.Struct):
    """A query, and parameters of its response. `namespace` completes short names."""

    text: str
    role: str
    namespace: list[str]
    handle: str
    created_on: int


class QueryProcesses:
    """Runs queries in at most `query_processes` processes, one query per user at a time. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[_QueryProcess] = []
        self._running: dict[str, _QueryProcess | None] = {}
        self._closed = False
        # Queries wait here, so that they do not occupy threads that handle other requests.
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="query")

    async def run(
        self, text: str, *, user: str, role: str, namespace: Sequence[str], handle: str
    ) -> bytes:
        """Run a query and return the body of the response.

        Args:
            text: The query.
            user: The user of the request. A running query of the same user must end first.
            role: The role whose privileges apply.
            namespace: Database and schema for short names.
            handle: Identifier of the statement in the response.

        Raises:
            ServiceBusy: If no process became free within the time limit of a query.
            StatementFailed: If the query exceeds the limits of time or rows.
            Unsupported: If the query needs Spark, or the service runs no queries.
        """
        if not self._settings.query_processes:
            raise Unsupported(
                what="A query over the statement API",
                instead="set query_processes of the service to 1 or greater",
            )
        request = QueryRequest(text, role, list(namespace), handle, to_epoch_ms(self._clock.now()))
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(
            self._threads, self._request_in_turn, user, msgspec.json.encode(request)
        )
        return response.get_body()

    def warm_up(self) -> None:
        """Start a process in the background unless one exists, because the start takes seconds."""
        if self._settings.query_processes:
            self._threads.submit(self._start_idle)

    def close(self) -> None:
        """Stop the processes. Running queries fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            processes = [*self._idle, *filter(None, self._running.values())]
            self._idle.clear()
        for process in processes:
            process.kill()
        self._threads.shutdown()
        for process in processes:
            process.stop()

    def _request_in_turn(self, user: str, request: bytes) -> ProcessResponse:
        with self._turn(user):
            return self._request(user, request)

    def _start_idle(self) -> None:
        with self._changed:
            if self._idle or self._running:
                return
        with self._turn(_WARM_UP_USER):
            process = _QueryProcess(self._settings)
            with self._changed:
                if not self._closed:
                    self._idle.append(process)
                    return
            process.stop()

    @contextlib.contextmanager
    def _turn(self, user: str) -> Iterator[None]:
        def is_free() -> bool:
            most = self._settings.query_processes
            return self._closed or (user not in self._running and len(self._running) < most)

        with self._changed:
            if not self._changed.wait_for(is_free, self._settings.query_timeout_s):
                raise ServiceBusy(reason="other queries are running. Retry later")
            if self._closed:
                raise ServiceBusy(reason="it is stopping")
            self._running[user] = None
        try:
            yield
        finally:
            with self._changed:
                del self._running[user]
                self._changed.notify_all()

    def _request(self, user: str, request: bytes) -> ProcessResponse:
        # An idle process may have ended just now. Repeating a query is safe.
        for _ in range(2):
            process = self._take_idle() or _QueryProcess(self._settings)
            with self._changed:
                self._running[user] = process
                closed = self._closed
            if closed:
                process.stop()
                raise ServiceBusy(reason="it is stopping")
            response = process.run_query(request, self._settings.query_timeout_s)
            if response is not None:
                with self._changed:
                    if not self._closed:
                        self._idle.append(process)
                return response
        raise StatementFailed(
            reason="the process of the query was killed. The log of the service has the reason"
        )

    def _take_idle(self) -> _QueryProcess | None:
        while True:
            with self._changed:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.is_running():
                return process
            process.stop()


class _QueryProcess(RequestProcess):
    """Handle of a query process in the service."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "snowmelt.server.query_process")

    def run_query(self, request: bytes, timeout_s: float) -> ProcessResponse | None:
        """Return the response, or None if the process has ended.

        Raises:
            StatementFailed: If the query exceeded the time limit.
        """
        response = self.request(request, timeout_s)
        if response is None and self.timed_out:
            raise StatementFailed(
                reason=f"the query was canceled after {timeout_s:g} s (setting query_timeout_s)."
                " Read fewer rows, or run it with Spark"
            )
        return response


def run_queries(settings: Settings, requests: IO[bytes], responses: IO[bytes]) -> None:
    """Run the queries in `requests` until it ends or no request arrives for five minutes."""
    # Imported here, because the service itself does not load DuckDB.
    from snowmelt.catalog.db.database import open_and_upgrade_database, open_catalog_clock
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
    from snowmelt.query.duckdb_engine import DuckDBEngine

    os.nice(_NICE)
    database = open_and_upgrade_database(settings.catalog_url)
    keyring = open_or_create_keyring(database, settings.keys_dir)
    clock = open_catalog_clock(database)
    for message in serve_requests(requests, responses):
        request = msgspec.json.decode(message, type=QueryRequest)
        engine = DuckDBEngine(
            database,
            keyring,
            settings.stage_url,
            role=request.role,
            clock=clock,
            namespace=request.namespace,
            memory_bytes=settings.query_memory_bytes,
        )
        write_response(responses, _respond(engine, request, settings.query_rows))


def _respond(engine: DuckDBEngine, request: QueryRequest, max_rows: int) -> ProcessResponse:
    from snowmelt.query.plain_query import QueryColumnMissing, QueryNotPlain

    try:
        return ProcessResponse(_run_query(engine, request, max_rows))
    except QueryColumnMissing as raised:
        return make_failure(raised, request.handle)
    except QueryNotPlain as raised:
        error = Unsupported(
            what="This query over the statement API",
            instead=f"{raised.fields['reason']}. Query with Spark, or write a plain query of one"
            " table",
        )
    except Exception as raised:  # noqa: BLE001 - the service goes on
        return make_failure(raised, f"query {request.handle}")
    return make_failure(error, request.handle)


def _run_query(engine: DuckDBEngine, request: QueryRequest, max_rows: int) -> bytes:
    rows: list[tuple[object, ...]] = []
    size = 0
    with engine.running(request.text) as result:
        for row in result.rows:
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if len(rows) > max_rows or size > _MAX_RESULT_BYTES:
                limit = f"{max_rows:,} rows" if len(rows) > max_rows else "64 MiB"
                raise StatementFailed(
                    reason=f"the result has more than {limit}. Add LIMIT or a condition"
                )
        types = [each.value.lower() for each in result.types]
    metadata, data = encode_rows(result.columns, rows, types)
    response = StatementResponse(metadata, data, request.handle, request.created_on)
    return msgspec.json.encode(response)


if __name__ == "__main__":
    import sys

    from snowmelt.server.logs import configure_logging

    _settings = Settings.load()
    configure_logging(_settings)
    run_queries(_settings, sys.stdin.buffer, sys.stdout.buffer)
