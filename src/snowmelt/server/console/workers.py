"""Child processes for SELECTs on objects, replays, traces and call logs.

A process that exceeds its time limit is killed. The service and its other requests continue.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any, TypeVar

import msgspec

from snowmelt.config import Settings
from snowmelt.errors import ServiceBusy, StatementFailed
from snowmelt.server.auth import Authenticator
from snowmelt.server.console.sessions import OPEN_USER, Session
from snowmelt.server.request_process import ProcessEnded, RequestProcessPool

_Result = TypeVar("_Result")

_MODULE = "snowmelt.server.console.worker_process"
_MAX_PROCESSES = 2
_MAX_WAITING_TASKS = 4
_REPLAY_TIMEOUT_S = 300.0
# The first task of a process imports its modules. The first SELECT may compile its kernels.
_FIRST_TASK_ALLOWANCE_S = 60.0


class SelectTask(msgspec.Struct, tag="select"):
    """A SELECT on an object of a bucket, with the privileges of these roles."""

    roles: list[str]
    bucket: str
    key: str
    sql: str
    form: str
    header: str
    max_rows: int


class PreviewTask(msgspec.Struct, tag="preview"):
    """Request for the first records of an object, without starting the S3 Select engine."""

    roles: list[str]
    bucket: str
    key: str
    form: str
    header: str


class PreviewResult(msgspec.Struct):
    """Columns and first records of an object."""

    columns: list[str]
    rows: list[list[str]]


class SelectResult(msgspec.Struct):
    """The first records of a SELECT as JSON, with sizes and duration."""

    rows: list[str]
    is_complete: bool
    scanned_bytes: int
    returned_bytes: int
    seconds: float


class ReplayTask(msgspec.Struct, tag="replay"):
    """A replay of rejected rows through the service at `url`. Without a token: a dry run."""

    table: str
    url: str
    token: str | None


class TraceTask(msgspec.Struct, tag="trace"):
    """A trace in a table: of the rows that satisfy `condition`, or else of a channel.

    Without `token`, the last commits of the channel are traced.
    """

    table: str
    channel: str
    token: str
    condition: str
    limit: int


class CallsTask(msgspec.Struct, tag="calls"):
    """Request for the calls of external functions since a day. None: all functions."""

    functions: list[str] | None
    since: dt.date


class FunctionCalls(msgspec.Struct):
    """Totals of the calls of one function. `retried` counts batches with several attempts."""

    function: str
    batches: int = 0
    rows: int = 0
    retried: int = 0
    failed: int = 0
    row_errors: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class FailedCall(msgspec.Struct):
    """A failed batch of an external function."""

    function: str
    batch_id: str
    query_id: str
    started_at: str
    attempts: int
    status: int | None
    error: str


class CallsResult(msgspec.Struct):
    """Calls by function, and the newest failed batches.

    `is_complete` is False if older records were omitted.
    """

    functions: list[FunctionCalls]
    failed: list[FailedCall]
    is_complete: bool


class ConsoleWorkers:
    """Runner of tasks in at most two child processes. Thread-safe."""

    def __init__(self, settings: Settings, authenticator: Authenticator) -> None:
        self.url = ""
        self._settings = settings
        self._authenticator = authenticator
        self._task_count = 0
        self._pool = RequestProcessPool(settings, _MODULE, _MAX_PROCESSES, "console-worker")

    async def select(self, task: SelectTask) -> SelectResult:
        """Run a SELECT.

        Raises:
            SnowmeltError: If the task fails, or takes longer than `query_timeout_s`.
        """
        return await self._run(task, SelectResult, self._settings.query_timeout_s)

    async def preview(self, task: PreviewTask) -> PreviewResult:
        """Return the first records of an object.

        Raises:
            SnowmeltError: If it cannot be read.
        """
        return await self._run(task, PreviewResult, self._settings.query_timeout_s)

    async def trace(self, task: TraceTask) -> list[dict[str, Any]]:
        """Return traces as JSON objects: chunks of a channel, or rows.

        Raises:
            SnowmeltError: If the task fails, or takes longer than `query_timeout_s`.
        """
        return await self._run(task, list[dict[str, Any]], self._settings.query_timeout_s)

    async def read_calls(self, task: CallsTask) -> CallsResult:
        """Return the calls of external functions.

        Raises:
            SnowmeltError: If the task fails, or takes longer than `query_timeout_s`.
        """
        return await self._run(task, CallsResult, self._settings.query_timeout_s)

    async def replay(self, session: Session, table: str, *, is_dry: bool) -> str:
        """Replay the rejected rows of a table as the user of a session. Return the result as text.

        Raises:
            SnowmeltError: If it fails.
        """
        token = None
        if not is_dry:
            if session.user == OPEN_USER or not self.url.startswith("http:"):
                raise StatementFailed(
                    reason="the console replays for a user who is logged in, at a service without"
                    f" TLS. Run `snowmelt replay {table}` with a key"
                )
            token = self._authenticator.issue_process_token(
                session.user, session.role, _REPLAY_TIMEOUT_S
            )
        task = ReplayTask(table, self.url, token)
        return await self._run(task, str, _REPLAY_TIMEOUT_S)

    def close(self) -> None:
        """End the processes. Running tasks fail."""
        self._pool.close()

    async def _run(
        self, task: msgspec.Struct, result_type: type[_Result], timeout_s: float
    ) -> _Result:
        loop = asyncio.get_running_loop()
        if self._task_count >= _MAX_PROCESSES + _MAX_WAITING_TASKS:
            raise ServiceBusy(
                reason=f"{_MAX_PROCESSES} tasks of the console run and {_MAX_WAITING_TASKS} wait."
                " Retry in a minute, or run the task in a terminal"
            )
        # Only the event loop accesses this counter.
        self._task_count += 1
        try:
            body = await loop.run_in_executor(
                self._pool.threads, self._request, msgspec.json.encode(task), timeout_s
            )
        finally:
            self._task_count -= 1
        return msgspec.json.decode(body, type=result_type)

    def _request(self, request: bytes, timeout_s: float) -> bytes:
        try:
            return self._pool.request(request, timeout_s, start_allowance_s=_FIRST_TASK_ALLOWANCE_S)
        except ProcessEnded as error:
            reason = (
                f"it was canceled after {timeout_s:g} s. Narrow it, for example by LIMIT or WHERE, or"
                " run it in a terminal, which has no limit of time"
                if error.timed_out
                else "its process was ended. The log has the reason"
            )
            raise StatementFailed(reason=reason) from None
