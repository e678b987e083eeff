"""Call log: one record per batch with its status, counts, times and error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class BatchStatus(StrEnum):
    """What a batch came to."""

    OK = "ok"
    FAILED = "failed"
    # Nothing was to be asked: all its rows hold NULL where that is not sent, or are known.
    NOT_SENT = "not sent"
    # Its task ended before its answer was wanted; the service may have worked on it.
    CANCELLED = "cancelled"
    DRY_RUN = "dry run"


@dataclass(slots=True)
class CallRecord:
    """One batch; times are in milliseconds, `status` is None where no reply came.

    `rows_sent` is what left after rows with NULL, repeated inputs and cached ones were taken out.
    A batch that was split in halves has a record for each half that was sent, and none of its own;
    what it had cost until then is in the first half's.
    """

    function: str
    query_id: str
    batch_id: str
    stage: int = 0
    partition: int = 0
    attempt: int = 0
    rows: int = 0
    rows_sent: int = 0
    cache_hits: int = 0
    row_errors: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    attempts: int = 0
    polls: int = 0
    status: int | None = None
    outcome: str = BatchStatus.OK
    error: str | None = None
    started_at: str = ""
    ms_waiting: float = 0.0
    ms_calling: float = 0.0


class CallLog(Protocol):
    """Where records go; called once per batch, in the thread that yields its values."""

    def add_record(self, record: CallRecord) -> None:
        """Keep a record; it is not changed afterwards."""
