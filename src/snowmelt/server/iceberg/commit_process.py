"""Run commits of engines in child processes, which read and write files with PyIceberg."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import msgspec

from snowmelt.config import Settings
from snowmelt.errors import ServiceBusy, UnknownOutcome
from snowmelt.server.request_process import (
    ProcessResponse,
    RequestProcess,
    make_failure,
    serve_requests,
    write_message,
)

_MODULE = "snowmelt.server.iceberg.commit_process"
_MAX_PROCESSES = 2
# Long timeout, because a commit reads and writes all rows of its new files.
_TIMEOUT_S = 3600.0


class CommitMessage(msgspec.Struct):
    """Request to a commit process. `snapshot` has the fields of the Iceberg specification."""

    table_id: int
    role: str
    statement: str
    parent_id: int | None
    snapshot: dict[str, object]


class CommitProcesses:
    """Runs commits in as many processes as `threads` has. Thread-safe. Blocks until the commit ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        # Other commits wait here, so that they do not occupy the threads that handle loads.
        self.threads = ThreadPoolExecutor(_MAX_PROCESSES, thread_name_prefix="engine-commit")
        self._idle: list[RequestProcess] = []
        self._running: set[RequestProcess] = set()
        self._closed = False

    def run(self, message: CommitMessage) -> None:
        """Run a commit.

        Raises:
            ServiceBusy: If the service is stopping.
            UnknownOutcome: If the process ended during the commit.
        """
        process = self._take()
        response = process.request(msgspec.json.encode(message), _TIMEOUT_S)
        with self._lock:
            self._running.discard(process)
            if response is not None and not self._closed:
                self._idle.append(process)
        if response is None:
            raise UnknownOutcome(
                "The process of the commit has ended. Load the table to see whether it has the rows."
            )
        response.get_body()

    def close(self) -> None:
        """Stop the processes."""
        with self._lock:
            self._closed = True
            idle, running = list(self._idle), list(self._running)
            self._idle.clear()
        for process in running:
            process.kill()
        self.threads.shutdown()
        for process in idle:
            process.stop()

    def _take(self) -> RequestProcess:
        with self._lock:
            if self._closed:
                raise ServiceBusy(reason="it is stopping")
            while self._idle:
                process = self._idle.pop()
                if process.is_running():
                    self._running.add(process)
                    return process
                process.stop()
        process = RequestProcess(self._settings, _MODULE)
        with self._lock:
            self._running.add(process)
        return process


def run_commits(settings: Settings, requests: IO[bytes], responses: IO[bytes]) -> None:
    """Run the commits in `requests` until it ends or no request arrives for five minutes."""
    # Imported here, because the service itself does not load Arrow and PyIceberg.
    from snowmelt.catalog.db.database import open_and_upgrade_database, open_catalog_clock
    from snowmelt.loaders.engine_commit import EngineCommit, commit_engine_snapshot

    database = open_and_upgrade_database(settings.catalog_url)
    database.bind_to_history()
    clock = open_catalog_clock(database)
    for body in serve_requests(requests, responses):
        message = msgspec.json.decode(body, type=CommitMessage)
        commit = EngineCommit(
            message.table_id, message.role, message.statement, message.parent_id, message.snapshot
        )
        try:
            commit_engine_snapshot(database, settings.warehouse_url, commit, clock=clock)
            response = ProcessResponse()
        except Exception as error:  # noqa: BLE001 - the service goes on
            response = make_failure(error, f"commit of snapshot {commit.snapshot_id}")
        write_message(responses, msgspec.json.encode(response))


if __name__ == "__main__":
    import sys

    from snowmelt.server.logs import configure_logging

    _settings = Settings.load()
    configure_logging(_settings)
    run_commits(_settings, sys.stdin.buffer, sys.stdout.buffer)
