"""Register uploaded chunks: send requests, process results per channel, and retry.

After an unknown outcome (no response, codes 7 and 10), the client sends the same bytes again. It
rebuilds a chunk only after a definite rejection: it removes the channels that failed, and adapts
the rows of the others to the new columns of their table. Client and row sequencers stay the same,
so rows that are already committed, or whose channel is fenced, cannot be committed again.

If the service currently accepts no rows of a table, its chunks wait in a retry queue per table, in
order and with a backoff. The reason is a long backlog of the table (code 7) or an unknown outcome
(code 10). Rows of other tables are registered meanwhile.

If a failover group protects offset tokens, registered rows count as committed only when all followers
have them: until then, a forced promotion loses them.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from snowmelt import failpoints, tracing
from snowmelt.backoff import Backoff
from snowmelt.client.blob_builder import (
    MAX_BLOB_CHUNKS,
    BlobStager,
    ChunkPlan,
    StagedChunk,
    plan_chunks,
)
from snowmelt.client.channel_state import (
    ChannelFailure,
    ChannelState,
    ChannelTarget,
    ChunkEntry,
)
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.row_buffer import find_schema_mismatch
from snowmelt.client.schema_refresh import SchemaRefresher
from snowmelt.client.settings import ClientSettings
from snowmelt.client.transport import TRANSIENT_CODES, Transport, describe_status
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ServiceUnavailable,
    SnowmeltError,
)
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChannelRegistrationResult,
    RegisterBlobsRequest,
    RegisterBlobsResponse,
    ResponseCode,
)

_log = logging.getLogger(__name__)

_REGISTER_PATH = "/v1/streaming/channels/write/blobs/"
_BLAMELESS_CODES = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SIBLING_REFUSED)})

# Codes after which rows are adapted: the table was altered after they were encoded.
_SCHEMA_CHANGED_CODES = frozenset({int(ResponseCode.REOPEN), int(ResponseCode.EP_COLUMN_MISSING)})
# Codes after which the blob is uploaded again: it is too old, or was modified. The client still has
# its rows.
_INVALID_BLOB_CODES = frozenset(
    {
        int(ResponseCode.CHUNK_MD5_MISSING),
        int(ResponseCode.CHUNK_LENGTH_INVALID),
        int(ResponseCode.BLOB_NAME_WRONG),
        int(ResponseCode.BLOB_FORMAT_WRONG),
        int(ResponseCode.BLOB_MD5_MISSING),
    }
)
# Maximum number of rejections after which rows are sent again.
_MAX_REJECTIONS = 5
# Followers request changes continuously. Half of the states reach a follower within 0.05 s
# (`benchmarks/replication.py`).
_REPLICATION_INTERVAL_S = 0.1
# Delay that is reported as a problem. Only 1 % of states need more than 2.6 s
# (`benchmarks/replication.py`).
_SLOW_REPLICATION_S = 5.0

ChannelResultKey: TypeAlias = tuple[str | None, str | None, str | None, str | None, int | None]


class ClientIdentity(NamedTuple):
    """Identification of a client in requests."""

    role: str | None
    name: str
    client_prefix: str
    next_request_id: Callable[[], str]


class RegistrationSender:
    """Registers uploaded chunks. Not thread-safe: one thread preserves the order of each channel."""

    def __init__(
        self,
        transport: Transport,
        request_identity: ClientIdentity,
        encoder: BlobStager,
        schema_refresher: SchemaRefresher,
        pending_rows: FlushScheduler,
        settings: ClientSettings,
    ) -> None:
        self._transport = transport
        self._request_identity = request_identity
        self._encoder = encoder
        self._schema_refresher = schema_refresher
        self._pending_rows = pending_rows
        self._give_up_after_s = settings.give_up_after_s
        self._retry_queues = TableRetryQueues(
            pending_rows, settings.clock, settings.give_up_after_s
        )
        self._unreplicated = UnreplicatedRows(
            schema_refresher.fetch_replicated_sequencers,
            pending_rows,
            settings.clock,
            transport.make_unavailable_error,
        )
        self.on_trouble: Callable[[SnowmeltError], None] | None = None
        # Table versions that the service rejects.
        self._outdated_targets: set[ChannelTarget] = set()

    @property
    def waiting_reason(self) -> SnowmeltError | None:
        """Reason why rows wait, or None if none do."""
        return self._retry_queues.retry_error or self._unreplicated.delay_error

    def register_chunks(self, staged: Sequence[StagedChunk]) -> None:
        """Register chunks. Afterwards each channel is committed or invalid, or its table waits.

        Errors are recorded in the affected channels and not raised.
        """
        self._register_all(self._retry_queues.queue_behind_waiting(staged))

    def retry_due_chunks(self) -> float | None:
        """Resend the chunks whose backoff has elapsed, and check which rows all followers have.

        Returns the seconds until the next retry, or None if no rows wait.
        """
        while due := self._retry_queues.pop_due_chunks():
            self._register_all(due)
        delays = (self._retry_queues.next_delay_s(), self._unreplicated.record_replicated())
        return min((delay for delay in delays if delay is not None), default=None)

    def _register_all(self, staged: Sequence[StagedChunk]) -> None:
        patience = self._transport.make_backoff(self._give_up_after_s)
        waiting = list(staged)
        try:
            while waiting := self._rebuild_without_invalid_channels(
                self._rebuild_outdated(waiting)
            ):
                count = count_chunks_for_next_request(waiting)
                waiting = self._send_registration(waiting[:count], patience) + waiting[count:]
        except Exception as error:  # noqa: BLE001 - the thread must live on for other channels
            _log.exception("Rows could not be registered.")
            states = [entry.state for chunk in staged for entry in chunk.plan.entries]
            reason = f"its rows could not be registered: {type(error).__name__}: {error}"
            self._pending_rows.fail_channels(states, ChannelFailure(reason))
        for chunks, trouble in self._retry_queues.schedule_retries_and_pop_abandoned():
            reason = f"{trouble.fields['reason']}; given up after {self._give_up_after_s:g} s"
            self._abandon_chunks(chunks, self._transport.make_unavailable_error(reason))

    def _rebuild_outdated(self, chunks: list[StagedChunk]) -> list[StagedChunk]:
        """Rebuild chunks whose table was altered, before the service rejects them."""
        current: list[StagedChunk] = []
        for chunk in chunks:
            target, entries = chunk.plan.target, chunk.plan.entries
            if chunk.is_sent or target not in self._outdated_targets:
                current.append(chunk)
                continue
            for entry in entries:
                newer = entry.state.target
                if newer != target and find_schema_mismatch(target.schema, newer.schema) is None:
                    entry.retarget(newer)
            if any(entry.target != target for entry in entries):
                current += self._encoder.stage_chunks(plan_chunks(entries))
            else:
                current.append(chunk)
        return current

    def _rebuild_without_invalid_channels(self, chunks: list[StagedChunk]) -> list[StagedChunk]:
        """Rebuild unsent chunks without their invalid channels. Drop chunks without other channels."""
        usable: list[StagedChunk] = []
        for chunk in chunks:
            gone = {entry.state for entry in chunk.plan.entries if entry.state.failure}
            if len(gone) == len(chunk.plan.entries):
                continue
            if chunk.is_sent or not gone:
                usable.append(chunk)
            else:
                plan = chunk.plan.without_channels(gone)
                usable += self._encoder.stage_chunks([plan] if plan is not None else [])
        return usable

    def _send_registration(self, chunks: list[StagedChunk], backoff: Backoff) -> list[StagedChunk]:
        """Send one request. Return the chunks to send again."""
        for chunk in chunks:
            chunk.is_sent = True
        request = RegisterBlobsRequest(
            request_id=self._request_identity.next_request_id(),
            role=self._request_identity.role,
            blobs=build_blob_metadata(chunks),
            client_name=self._request_identity.name,
            client_key=self._request_identity.client_prefix,
            with_replication=True,
        )
        try:
            with tracing.span("snowmelt.register", chunks[0].path, chunks=len(chunks)):
                answer = self._transport.send_request(
                    _REGISTER_PATH, request, RegisterBlobsResponse, backoff
                )
        except ServiceUnavailable as error:
            self._abandon_chunks(chunks, error)
            return []
        except SnowmeltError as error:
            if not _is_transient_error(error):
                return self._register_separately(chunks, error)
            self._wait_before_retry(error, chunks, backoff)
            return chunks
        failpoints.hit_failpoint(failpoints.Failpoint.REGISTERED)
        verdicts = index_results(answer)
        backoff.reset()
        again: list[StagedChunk] = []
        for chunk in chunks:
            judged = [(entry, find_entry_result(entry, verdicts)) for entry in chunk.plan.entries]
            codes = {verdict.status_code for _, verdict in judged}
            if codes == {int(ResponseCode.SUCCESS)}:
                if answer.awaits_replication is True or self._unreplicated:
                    # Rows of a channel are committed in order.
                    self._unreplicated.add(chunk.plan.entries)
                else:
                    self._pending_rows.record_commits(chunk.plan.entries)
            elif codes & TRANSIENT_CODES and codes <= TRANSIENT_CODES | _BLAMELESS_CODES:
                self._queue_for_retry(
                    chunk, next(v for _, v in judged if v.status_code in TRANSIENT_CODES)
                )
            else:
                again += self._resend_without_failed_channels(chunk, judged)
        return again

    def _queue_for_retry(self, chunk: StagedChunk, result: ChannelRegistrationResult) -> None:
        """Add a chunk to the retry queue of its table."""
        trouble = self._transport.make_unavailable_error(_describe_result(result))
        if self._retry_queues.retry_error is None:
            _log.info("Rows for table %s wait: %s", chunk.plan.target.table, trouble)
            if self.on_trouble is not None:
                self.on_trouble(trouble)
        # The service responded that the client must wait.
        is_busy = result.status_code == ResponseCode.QUEUE_FULL
        self._retry_queues.queue_chunk(chunk, trouble, is_service_busy=is_busy)

    def _wait_before_retry(
        self, failure: SnowmeltError, chunks: Sequence[StagedChunk], backoff: Backoff
    ) -> None:
        if not isinstance(failure, ServiceUnavailable):
            failure = self._transport.make_unavailable_error(str(failure).rstrip("."))
        try:
            self._transport.wait_before_retry(backoff, failure)
        except ServiceUnavailable as error:
            self._abandon_chunks([chunk for chunk in chunks if chunk.is_sent], error)

    def _register_separately(
        self, chunks: list[StagedChunk], error: SnowmeltError
    ) -> list[StagedChunk]:
        """Register each channel separately, to find the cause of a rejection that names no channel."""
        entries = [entry for chunk in chunks for entry in chunk.plan.entries]
        if len(entries) == 1:
            self._abandon_chunks(chunks, error)
            return []
        _log.warning(
            "A registration was rejected as a whole; its channels are sent separately: %s", error
        )
        again: list[StagedChunk] = []
        for entry in entries:
            # One request per channel, so that the results are independent.
            for chunk in self._encoder.stage_chunks([ChunkPlan(entry.target, (entry,))]):
                again += self._send_registration(
                    [chunk], self._transport.make_backoff(self._give_up_after_s)
                )
        return again

    def _resend_without_failed_channels(
        self, chunk: StagedChunk, results: list[tuple[ChunkEntry, ChannelRegistrationResult]]
    ) -> list[StagedChunk]:
        """Invalidate the failed channels, and rebuild the chunk for the others."""
        culprits = [
            (entry, verdict)
            for entry, verdict in results
            if verdict.status_code not in _BLAMELESS_CODES | TRANSIENT_CODES
        ]
        # No channel has an error. The same chunk would always be rejected, so treat all channels as
        # failed.
        blamed = culprits or results
        ended = {
            entry.state
            for entry, verdict in blamed
            if not self._fail_channel_unless_resendable(chunk, entry, verdict)
        }
        kept = [entry for entry in chunk.plan.entries if entry.state not in ended]
        return self._encoder.stage_chunks(plan_chunks(kept))

    def _fail_channel_unless_resendable(
        self, chunk: StagedChunk, entry: ChunkEntry, result: ChannelRegistrationResult
    ) -> bool:
        """Return True if the rows of a channel can be sent again. Otherwise invalidate the channel."""
        state, reason = entry.state, _describe_result(result)
        refused = f"the service rejected rows in blob {chunk.path}: {reason}"
        try:
            failure = self._adapt_for_resend_or_find_failure(entry, result, refused)
        except ServiceUnavailable:
            # The service does not respond, so resend the rows unchanged. The next rejection repeats
            # this check.
            return True
        except SnowmeltError as error:
            failure = ChannelFailure(f"{refused}; {str(error).rstrip('.')}", cause=error)
        if failure is None:
            _log.info("Channel %s: %s. Its rows are sent again.", state.name, refused)
            return True
        _log.warning("Channel %s: %s", state.name, failure.reason)
        self._pending_rows.fail_channels([state], failure)
        return False

    def _adapt_for_resend_or_find_failure(
        self, entry: ChunkEntry, result: ChannelRegistrationResult, rejection: str
    ) -> ChannelFailure | None:
        code = result.status_code
        entry.rejections += 1
        if code in _SCHEMA_CHANGED_CODES and entry.rejections <= _MAX_REJECTIONS:
            self._outdated_targets.add(entry.target)
            failure = self._schema_refresher.adapt_entry(entry)
            return failure and replace(failure, reason=f"{rejection}; {failure.reason}")
        if code in _INVALID_BLOB_CODES and entry.rejections <= _MAX_REJECTIONS:
            return None
        return ChannelFailure(rejection, is_fenced=code == ResponseCode.STALE_CLIENT_SEQUENCER)

    def _abandon_chunks(self, chunks: Sequence[StagedChunk], error: SnowmeltError) -> None:
        reason = str(error).rstrip(".")
        if isinstance(error, ServiceUnavailable):
            reason += "; the outcome of its last rows is unknown"
        _log.error("Rows could not be registered: %s.", reason)
        states = [entry.state for chunk in chunks for entry in chunk.plan.entries]
        self._pending_rows.fail_channels(states, ChannelFailure(reason, cause=error))


class UnreplicatedRows:
    """Registered rows that a follower of the primary may lack. Not thread-safe."""

    def __init__(
        self,
        fetch_replicated_sequencers: Callable[
            [Sequence[ChannelState]], list[int | ChannelFailure | None]
        ],
        pending_rows: FlushScheduler,
        clock: Clock,
        make_error: Callable[[str], ServiceUnavailable],
    ) -> None:
        """Create an empty collection. `SchemaRefresher` has `fetch_replicated_sequencers`."""
        self._fetch_replicated_sequencers = fetch_replicated_sequencers
        self._pending_rows = pending_rows
        self._clock = clock
        self._make_error = make_error
        self._entries: dict[ChannelState, deque[ChunkEntry]] = {}
        self._next_request_at = self._confirmed_at = 0.0
        self._request_error: SnowmeltError | None = None

    @property
    def delay_error(self) -> ServiceUnavailable | None:
        """Error if a follower has confirmed no rows for `_SLOW_REPLICATION_S`, else None."""
        silent_s = self._clock.monotonic() - self._confirmed_at
        if not self._entries or silent_s < _SLOW_REPLICATION_S:
            return None
        if self._request_error is not None:
            reason = str(self._request_error).rstrip(".")
            return self._make_error(f"the status of registered rows is not known: {reason}")
        return self._make_error(
            f"a follower of its failover group has confirmed no rows for {silent_s:.0f} s. Check SHOW "
            "REPLICAS. If that site is lost, remove it from ALLOWED_ACCOUNTS of the group"
        )

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, entries: Iterable[ChunkEntry]) -> None:
        """Add the rows of a registered chunk, after the rows of earlier chunks."""
        if not self._entries:
            self._confirmed_at = self._clock.monotonic()
            self._next_request_at = self._confirmed_at + _REPLICATION_INTERVAL_S
        for entry in entries:
            self._entries.setdefault(entry.state, deque()).append(entry)

    def record_replicated(self) -> float | None:
        """Record the rows that all followers have as committed.

        Returns the seconds until the next request, or None if no rows are left.
        """
        for state in [state for state in self._entries if state.failure]:
            del self._entries[state]
        if not self._entries:
            return None
        delay_s = self._next_request_at - self._clock.monotonic()
        if delay_s > 0:
            return delay_s
        states = list(self._entries)
        try:
            found = self._fetch_replicated_sequencers(states)
            self._request_error = None
        except SnowmeltError as error:
            # The rows are registered. A later request or another primary determines if they are
            # replicated. `delay_error` reports the error.
            found, self._request_error = [], error
        replicated: list[ChunkEntry] = []
        for state, result in zip(states, found, strict=False):
            if isinstance(result, ChannelFailure):
                self._pending_rows.fail_channels([state], result)
                del self._entries[state]
                continue
            waiting = self._entries[state]
            while waiting and (result is None or waiting[0].row_sequencer <= result):
                replicated.append(waiting.popleft())
            if not waiting:
                del self._entries[state]
        if replicated:
            self._confirmed_at = self._clock.monotonic()
            self._pending_rows.record_commits(replicated)
        self._next_request_at = self._clock.monotonic() + _REPLICATION_INTERVAL_S
        return _REPLICATION_INTERVAL_S if self._entries else None


def count_chunks_for_next_request(chunks: Sequence[StagedChunk]) -> int:
    """Return how many chunks fit into one request. Blobs and commits are not split."""
    count = parts = 0
    for group in _group_by_blob(chunks):
        parts += sum(len(chunk.all_chunks_of_plan) for chunk in group)
        if count and parts > MAX_BLOB_CHUNKS:
            break
        count += len(group)
    return count


def build_blob_metadata(chunks: Sequence[StagedChunk]) -> list[BlobMetadata]:
    """Build the field `blobs` of a request. Chunks of a blob must be adjacent."""
    parts = [part for chunk in chunks for part in chunk.all_chunks_of_plan]
    return [
        group[0].make_blob_metadata([chunk.metadata for chunk in group])
        for group in _group_by_blob(parts)
    ]


def _group_by_blob(chunks: Sequence[StagedChunk]) -> Iterator[list[StagedChunk]]:
    for _, group in itertools.groupby(chunks, key=lambda chunk: chunk.path):
        yield list(group)


def index_results(
    response: RegisterBlobsResponse,
) -> dict[ChannelResultKey, ChannelRegistrationResult]:
    """Index results by names and client sequencer, because their order has no meaning (§2.5).

    Of several results for one channel, the most severe one applies.
    """
    found: dict[ChannelResultKey, ChannelRegistrationResult] = {}
    for blob in response.blobs:
        for chunk in blob.chunks:
            where = (chunk.database, chunk.schema, chunk.table)
            for verdict in chunk.channels:
                identity = (*where, verdict.channel, verdict.client_sequencer)
                known = found.get(identity)
                if known is None or _result_severity(verdict) > _result_severity(known):
                    found[identity] = verdict
    return found


def _result_severity(result: ChannelRegistrationResult) -> int:
    code = result.status_code
    if code in _BLAMELESS_CODES:
        return int(code != ResponseCode.SUCCESS)
    return 2 if code in TRANSIENT_CODES else 3


def find_entry_result(
    entry: ChunkEntry, results: dict[ChannelResultKey, ChannelRegistrationResult]
) -> ChannelRegistrationResult:
    """Return the result of an entry. A missing result means an unknown outcome."""
    # Use the table as sent, because the channel may have newer columns or names now.
    state = entry.state
    identity = (*entry.target.table.display_name, state.name, state.client_sequencer)
    silence = ChannelRegistrationResult(
        int(ResponseCode.TRY_AGAIN),
        state.name,
        state.client_sequencer,
        "its response does not contain the channel",
    )
    return results.get(identity, silence)


def _describe_result(result: ChannelRegistrationResult) -> str:
    return describe_status(result.status_code, result.message)


def _is_transient_error(error: SnowmeltError) -> bool:
    """Return True if a rejection is not caused by the rows.

    Examples: a key or certificate is being replaced, or a load balancer has no service.
    """
    passing = isinstance(error, AuthenticationFailed | ConfigurationError)
    return passing or bool(error.fields.get("elsewhere"))


# Chunks that are due within this time share a request, so that many tables do not need as many
# requests.
_RETRY_BATCHING_WINDOW_S = 0.25


@dataclass(slots=True)
class _TableRetryQueue:
    """Waiting chunks of one table: the chunks of the oldest flush, and later flushes.

    `retry_at` is None while the oldest flush is being sent. `retry_error` is the reason why it
    waits.
    """

    backoff: Backoff
    oldest_flush: list[StagedChunk] = field(default_factory=list)
    later_flushes: deque[list[StagedChunk]] = field(default_factory=deque)
    retry_at: float | None = None
    retry_error: ServiceUnavailable | None = None


class TableRetryQueues:
    """Per-table retry queues, used while the service accepts no rows of a table. Not thread-safe.

    Only one flush of a table is sent at a time, which preserves the order of each channel.
    """

    def __init__(self, pending_rows: FlushScheduler, clock: Clock, give_up_after_s: float) -> None:
        self._pending_rows = pending_rows
        self._clock = clock
        # Delays use the system clock, even if the settings have another clock.
        self._system_clock = SystemClock()
        self._give_up_after_s = give_up_after_s
        self._queues: dict[int, _TableRetryQueue] = {}

    @property
    def retry_error(self) -> ServiceUnavailable | None:
        """Reason why a table waits, or None if no table waits."""
        return next((lane.retry_error for lane in list(self._queues.values())), None)

    def queue_behind_waiting(self, flush: Iterable[StagedChunk]) -> list[StagedChunk]:
        """Queue the chunks of a flush whose tables wait. Return the others."""
        behind: dict[int, list[StagedChunk]] = {}
        free: list[StagedChunk] = []
        for chunk in flush:
            unit = chunk.plan.target.retry_queue_key
            (behind.setdefault(unit, []) if unit in self._queues else free).append(chunk)
        for unit, chunks in behind.items():
            self._queues[unit].later_flushes.append(chunks)
        return free

    def queue_chunk(
        self, chunk: StagedChunk, error: ServiceUnavailable, *, is_service_busy: bool
    ) -> None:
        """Queue a chunk that was just sent. Chunks for a busy service never expire."""
        unit = chunk.plan.target.retry_queue_key
        lane = self._queues.get(unit)
        if lane is None:
            lane = self._queues[unit] = _TableRetryQueue(
                Backoff(self._give_up_after_s, self._clock)
            )
            self._pending_rows.hold_table(unit)
        lane.oldest_flush.append(chunk)
        lane.retry_error = error
        if is_service_busy:
            lane.backoff.restart_deadline()

    def pop_due_chunks(self) -> list[StagedChunk]:
        """Remove and return the chunks whose backoff has elapsed. Chunks of a blob are adjacent."""
        now = self._system_clock.monotonic()
        if all(lane.retry_at is None or lane.retry_at > now for lane in self._queues.values()):
            return []
        taken: list[StagedChunk] = []
        for lane in self._queues.values():
            if lane.retry_at is None or lane.retry_at <= now + _RETRY_BATCHING_WINDOW_S:
                lane.retry_at = None
                taken += lane.oldest_flush
                lane.oldest_flush = []
        return sorted(taken, key=lambda chunk: chunk.path)

    def schedule_retries_and_pop_abandoned(
        self,
    ) -> list[tuple[Sequence[StagedChunk], ServiceUnavailable]]:
        """Schedule the next attempt of each table. Return the chunks whose backoff has ended."""
        given_up: list[tuple[Sequence[StagedChunk], ServiceUnavailable]] = []
        now = self._system_clock.monotonic()
        for unit, lane in list(self._queues.items()):
            if lane.retry_at is not None:
                continue
            pause_s = lane.backoff.next_delay_s() if lane.oldest_flush else None
            if pause_s is not None:
                lane.retry_at = now + pause_s
                continue
            if lane.oldest_flush and lane.retry_error is not None:
                given_up.append((lane.oldest_flush, lane.retry_error))
            if lane.later_flushes:
                lane.oldest_flush = lane.later_flushes.popleft()
                lane.retry_at = now
                lane.backoff.reset()
            else:
                del self._queues[unit]
                self._pending_rows.release_table(unit)
        return given_up

    def next_delay_s(self) -> float | None:
        """Return the seconds until the next attempt, or None if no chunks wait."""
        due = [lane.retry_at for lane in self._queues.values() if lane.retry_at is not None]
        return max(min(due) - self._system_clock.monotonic(), 0.0) if due else None
