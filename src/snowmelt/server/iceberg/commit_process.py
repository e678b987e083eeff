"""Run commits of engines in child processes, which read and write files with PyIceberg."""

from __future__ import annotations

from typing import IO

import msgspec

from snowmelt.config import Settings
from snowmelt.errors import UnknownOutcome
from snowmelt.server.request_process import (
    ProcessEnded,
    ProcessResponse,
    RequestProcessPool,
    make_failure,
    run_request_child,
    serve_requests,
    write_response,
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
    """Runs commits in at most two processes. Thread-safe. Call `run` in `threads`: it blocks."""

    def __init__(self, settings: Settings) -> None:
        self._pool = RequestProcessPool(settings, _MODULE, _MAX_PROCESSES, "engine-commit")
        self.threads = self._pool.threads

    def run(self, message: CommitMessage) -> None:
        """Run a commit.

        Raises:
            ServiceBusy: If the service is stopping.
            UnknownOutcome: If the process ended during the commit.
        """
        try:
            self._pool.request(msgspec.json.encode(message), _TIMEOUT_S)
        except ProcessEnded:
            raise UnknownOutcome(
                "The process of the commit has ended. Load the table to see whether it has the rows."
            ) from None

    def close(self) -> None:
        """Stop the processes."""
        self._pool.close()


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
        write_response(responses, response)


if __name__ == "__main__":
    run_request_child(run_commits)
