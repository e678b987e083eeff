"""Call plan of one use of a function in a query, without secrets; and call log records.

Plans are pickled and sent to executors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from snowmelt.functions.definition import ApiIntegration, ExternalFunction, Translator
from snowmelt.functions.signature import HeaderStyle
from snowmelt.functions.wire.values import BinaryForm

TranslatorSource: TypeAlias = Translator | Callable[[dict[str, object]], Mapping[str, object]]


# Part of the log message of a batch that waits, by which other processes recognize it.
WAIT_REPORT = "is waiting for its service"


@dataclass(frozen=True, slots=True)
class CallerOptions:
    """Options for all calls of an installation or a session.

    Sizes are in bytes, times in seconds. A budget of None is unlimited. Rates, and the budgets of a
    query, are divided by the number of executors. The worker processes of an executor use its share
    together.
    """

    style: HeaderStyle = field(default_factory=HeaderStyle)
    binary: BinaryForm = BinaryForm.HEX
    array_as_string: bool = False
    debug_payload: bool = False
    # Maximum number of characters of an error response in an error message. 0: none.
    error_body_chars: int = 300
    dry_run: bool = False
    max_batch_rows: int = 1_000
    max_batch_bytes: int = 4_000_000
    max_in_flight: int = 16
    retry_timeout_s: float = 600.0
    # Limit of retries while the process has never had a connection to the service.
    unreachable_timeout_s: float = 60.0
    poll_timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    # Timeouts for slow responses: between two bytes, and from the request to the last byte.
    idle_timeout_s: float = 60.0
    reply_timeout_s: float = 300.0
    max_rows_per_task: int | None = None
    max_calls_per_task: int | None = None
    max_rows_per_query: int | None = None
    max_calls_per_query: int | None = None
    # Folder of `file:` references on the machines that make calls. None: reject such references.
    secrets_dir: str | None = None
    # Divisor of rates and budgets. Executors of one machine count once, because they share their
    # state in its temporary folder. Each container has its own folder.
    executors: int = 1


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Plan for the calls of one function in a query.

    `context` has a value for each context header of the function. `zone` is the session's time zone.
    Translators are definitions with their source, or callables that can be pickled.
    """

    function: ExternalFunction
    integration: ApiIntegration
    zone: str
    context: Mapping[str, str] = field(default_factory=dict)
    options: CallerOptions = field(default_factory=CallerOptions)
    request_translator: TranslatorSource | None = None
    response_translator: TranslatorSource | None = None
    # W3C header of the trace that the query belongs to.
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class QueryPosition:
    """Position of rows in a query, the same for each attempt at the same work.

    `call_site` distinguishes calls of one function in a statement or program. `task_attempt_id` is
    the ID of the attempt, within which calls at the same site are numbered. It is empty if a task
    makes only one call.
    """

    query_id: str
    stage: int
    partition: int
    attempt: int = 0
    call_site: str = ""
    task_attempt_id: str = ""


# Call log: one record per batch with its status, counts, times and error.


class BatchStatus(StrEnum):
    """Outcome of a batch."""

    OK = "ok"
    FAILED = "failed"
    # No request was needed, because all rows are NULL or cached.
    NOT_SENT = "not sent"
    # The task ended before the response. The service may have run the batch.
    CANCELLED = "cancelled"
    DRY_RUN = "dry run"


@dataclass(slots=True)
class CallRecord:
    """Record of one batch. Times are in milliseconds. `status` is None if there was no response.

    `rows_sent` excludes rows with NULL, repeated inputs and cached results. A batch that was split has
    a record for each half that was sent. The record of the first half includes the cost until the split.
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
    """Destination of records. Called once per batch, in the thread that yields its values."""

    def add_record(self, record: CallRecord) -> None:
        """Store a record. The caller does not modify it afterwards."""
