"""Call plan: one use of a function in a query, without secrets; the record of each of its batches.

Plans are pickled and travel to executors.
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


@dataclass(frozen=True, slots=True)
class CallerOptions:
    """What a deployment or a session decides about all its calls.

    Sizes are in bytes, times in seconds; a budget of None has no end. One of a query holds for the
    worker processes of each executor, and is divided by the number of executors, as a rate is.
    """

    style: HeaderStyle = field(default_factory=HeaderStyle)
    binary: BinaryForm = BinaryForm.HEX
    array_as_string: bool = False
    debug_payload: bool = False
    # Characters of a body with which a service refuses that an error shows; 0 for none.
    error_body_chars: int = 300
    dry_run: bool = False
    max_batch_rows: int = 1_000
    max_batch_bytes: int = 4_000_000
    max_in_flight: int = 16
    retry_timeout_s: float = 600.0
    poll_timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    # A reply that trickles is no answer: so long may pass between two of its bytes, and from the
    # request to its last byte.
    idle_timeout_s: float = 60.0
    reply_timeout_s: float = 300.0
    max_rows_per_task: int | None = None
    max_calls_per_task: int | None = None
    max_rows_per_query: int | None = None
    max_calls_per_query: int | None = None
    # Where `file:` references lead, on the machines that make calls; nowhere without it.
    secrets_dir: str | None = None
    # Rates and a query's budgets are divided by it. Executors of one machine share what they have
    # in its folder of temporary files, so they count once; containers each have their own folder.
    executors: int = 1


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One function as a query calls it.

    `context` has a value for each of the function's context headers. `zone` is the session's time
    zone. Translators are definitions with their source, or callables that can be pickled.
    """

    function: ExternalFunction
    integration: ApiIntegration
    zone: str
    context: Mapping[str, str] = field(default_factory=dict)
    options: CallerOptions = field(default_factory=CallerOptions)
    request_translator: TranslatorSource | None = None
    response_translator: TranslatorSource | None = None
    # Of the trace that the query belongs to, as W3C's header of that name.
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class QueryPosition:
    """Where in a query rows are: the same again for each attempt at the same work.

    `call_site` tells calls of one function in a statement or program apart. `task_attempt_id` is the attempt's own
    id: calls that share a site have numbers within it. Empty where a task makes one call only.
    """

    query_id: str
    stage: int
    partition: int
    attempt: int = 0
    call_site: str = ""
    task_attempt_id: str = ""


# Call log: one record per batch with its status, counts, times and error.


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
