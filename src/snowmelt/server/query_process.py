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
    ProcessEnded,
    ProcessResponse,
    RequestProcessPool,
    make_failure,
    run_request_child,
    serve_requests,
    write_response,
)
from snowmelt.wire.statements import StatementResponse, encode_rows

if TYPE_CHECKING:
    from snowmelt.query.duckdb_engine import DuckDBEngine

_log = logging.getLogger("snowmelt.server")

_MODULE = "snowmelt.server.query_process"
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
        self._running_users: set[str] = set()
        self._closed = False
        # Queries wait in its threads, so that they do not occupy threads that handle other requests.
        self._pool = RequestProcessPool(settings, _MODULE, _THREAD_COUNT, "query")

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
        return await loop.run_in_executor(
            self._pool.threads, self._request_in_turn, user, msgspec.json.encode(request)
        )

    def warm_up(self) -> None:
        """Start a process in the background unless one exists, because the start takes seconds."""
        if self._settings.query_processes and self._pool.is_empty:
            self._pool.threads.submit(self._start_idle)

    def close(self) -> None:
        """Stop the processes. Running queries fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.close()

    def _request_in_turn(self, user: str, request: bytes) -> bytes:
        timeout_s = self._settings.query_timeout_s
        with self._turn(user):
            # An idle process may have ended just now. Repeating a query is safe.
            for _ in range(2):
                try:
                    return self._pool.request(request, timeout_s)
                except ProcessEnded as ended:
                    if ended.timed_out:
                        raise StatementFailed(
                            reason=f"the query was canceled after {timeout_s:g} s (setting "
                            "query_timeout_s). Read fewer rows, or run it with Spark"
                        ) from None
        raise StatementFailed(
            reason="the process of the query was killed. The log of the service has the reason"
        )

    def _start_idle(self) -> None:
        with self._turn(_WARM_UP_USER):
            self._pool.start_idle()

    @contextlib.contextmanager
    def _turn(self, user: str) -> Iterator[None]:
        def is_free() -> bool:
            running, most = self._running_users, self._settings.query_processes
            return self._closed or (user not in running and len(running) < most)

        with self._changed:
            if not self._changed.wait_for(is_free, self._settings.query_timeout_s):
                raise ServiceBusy(reason="other queries are running. Retry later")
            if self._closed:
                raise ServiceBusy(reason="it is stopping")
            self._running_users.add(user)
        try:
            yield
        finally:
            with self._changed:
                self._running_users.discard(user)
                self._changed.notify_all()


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
            settings.warehouse_url,
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
    run_request_child(run_queries)
