"""Registrar: group commit of many registrations in one transaction.

Registrations pass two steps. First, verify threads check them against the stage. Then one commit
thread takes all pending registrations, makes their blobs durable with one `sync`, registers them in
one transaction, and sends the responses. It pauses between groups so that others can write to the
catalog. The module also builds the responses from commit decisions (specification of v1, §2.5).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from snowmelt import failpoints
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.streaming import registration
from snowmelt.catalog.streaming.registration import CommitDecision
from snowmelt.clock import Clock
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    RegistrationRefused,
    ServiceBusy,
    SnowmeltError,
    StageUnavailable,
    UnknownOutcome,
)
from snowmelt.ingest.batch_worker_pool import WorkerPool
from snowmelt.ingest.metrics import RequestMetrics
from snowmelt.ingest.registration_structure_check import (
    RequestRejection,
    check_request_names_channels,
)
from snowmelt.ingest.registration_verifier import (
    BLOB_NOT_DURABLE,
    ChunkCandidate,
    Registrant,
    RegistrationVerifier,
)
from snowmelt.ingest.stage_sync import StageSync
from snowmelt.wire.streaming import (
    BlobRegistrationResult,
    ChannelRegistrationResult,
    ChunkMetadata,
    ChunkRegistrationResult,
    RegisterBlobsRequest,
    RegisterBlobsResponse,
    ResponseCode,
)

_log = logging.getLogger("snowmelt.ingest")

# Callback of a registration. Called once in a thread of the registrar, with the response or an
# exception.
ResponseCallback: TypeAlias = "Callable[[RegisterBlobsResponse | Exception], None]"

_QUEUE_FULL = RequestRejection(
    ResponseCode.QUEUE_FULL, "Too many registrations are waiting. Retry later."
)
# Maximum registrations per batch of a verify thread. A higher number wakes the commit thread less
# often. A lower number distributes slow blobs over the threads.
_VERIFY_BATCH_REQUESTS = 16
# After these errors, every further transaction would also wait for the timeout.
_OUTAGE_ERRORS = (CatalogBusy, CatalogUnavailable)


@dataclass(frozen=True, slots=True)
class GroupCommitSettings:
    """Settings of group commit: minimum pause between groups, and size limits."""

    pause_s: float = 0.002
    max_group_requests: int = 512
    max_queued_requests: int = 20_000
    verify_threads: int = 2


@dataclass(frozen=True, slots=True)
class _PendingRegistration:
    request: RegisterBlobsRequest
    registrant: Registrant
    respond: ResponseCallback
    submitted_at: float


@dataclass(frozen=True, slots=True)
class _VerifiedRegistration:
    """A verified registration. `sync_failures_before` is the number of failed syncs before its checks."""

    pending: _PendingRegistration
    chunks: list[ChunkCandidate]
    sync_failures_before: int


class Registrar:
    """Registers chunks, and responds to each registration exactly once. Thread-safe."""

    def __init__(
        self,
        database: Database,
        stage_sync: StageSync,
        verifier: RegistrationVerifier,
        *,
        clock: Clock,
        settings: GroupCommitSettings,
    ) -> None:
        self._database = database
        self._stage_sync = stage_sync
        self._verifier = verifier
        self._clock = clock
        self._settings = settings
        self._commit_cache = registration.CommitCache()
        self._pending_requests = 0
        self._metrics: RequestMetrics[int] = RequestMetrics()
        self._lock = threading.Lock()
        self._commit_workers: WorkerPool[_VerifiedRegistration] = WorkerPool(
            self._commit_and_pause,
            max_batch_items=settings.max_group_requests,
            thread_names=["register"],
        )
        # Take a part of the queue, so that threads wake each other once per batch and not per item.
        self._verify_workers: WorkerPool[_PendingRegistration] = WorkerPool(
            self._verify_batch,
            max_batch_items=_VERIFY_BATCH_REQUESTS,
            thread_names=[f"verify-{number}" for number in range(max(settings.verify_threads, 1))],
        )

    def submit(
        self, request: RegisterBlobsRequest, registrant: Registrant, respond: ResponseCallback
    ) -> None:
        """Queue a registration. `respond` receives the response, possibly before this returns.

        Raises:
            RegistrationRefused: If the whole request is invalid. `respond` is not called.
            ServiceBusy: If the registrar is closed. `respond` is not called.
        """
        check_request_names_channels(request)
        now = self._clock.monotonic()
        with self._lock:
            is_full = self._pending_requests >= self._settings.max_queued_requests
            if not is_full:
                if not self._verify_workers.submit_all(
                    [_PendingRegistration(request, registrant, respond, now)]
                ):
                    raise ServiceBusy(reason="it is stopping")
                self._pending_requests += 1
        if is_full:
            answer = build_uniform_response(request, _QUEUE_FULL)
            with self._lock:
                self._metrics.record_response(_list_codes(answer), 0.0)
            respond(answer)

    def get_metrics_snapshot(self) -> RequestMetrics[int]:
        """Return the counters since the start."""
        with self._lock:
            return self._metrics.snapshot(self._pending_requests)

    def close(self) -> None:
        """Respond to the queued registrations, then stop. Later submissions are rejected."""
        self._verify_workers.close()
        self._commit_workers.close()

    def _verify_batch(self, submissions: Sequence[_PendingRegistration]) -> None:
        failed_syncs = self._stage_sync.failure_count
        checked: list[_VerifiedRegistration] = []
        failed: list[tuple[_PendingRegistration, RegisterBlobsResponse | Exception]] = []
        try:
            all_found = self._verifier.verify_all(
                [(each.request, each.registrant) for each in submissions]
            )
        except Exception as error:  # noqa: BLE001 - answered; the thread lives on
            all_found = [error] * len(submissions)
        for submission, found in zip(submissions, all_found, strict=True):
            if isinstance(found, Exception):
                failed.append((submission, _build_failure_response(submission, found)))
            else:
                checked.append(_VerifiedRegistration(submission, found, failed_syncs))
        self._commit_workers.submit_all(checked)
        if failed:
            self._send_responses(failed)

    def _commit_and_pause(self, group: Sequence[_VerifiedRegistration]) -> None:
        self._commit_group(group)
        # Without a pause, this thread would starve all other writers of the catalog.
        self._clock.sleep(self._settings.pause_s)

    def _commit_group(self, group: Sequence[_VerifiedRegistration]) -> None:
        """Register a group. After a failure, register each of its members alone."""
        try:
            answers: list[RegisterBlobsResponse | Exception] = list(self._register_group(group))
        except Exception as error:  # noqa: BLE001 - answered one by one
            if len(group) == 1:
                answers = [_build_failure_response(group[0].pending, error)]
            else:
                _log.warning("group of %d registrations failed: %r", len(group), error)
                self._commit_one_by_one(group)
                return
        self._send_responses(
            [(member.pending, answer) for member, answer in zip(group, answers, strict=True)]
        )

    def _commit_one_by_one(self, group: Sequence[_VerifiedRegistration]) -> None:
        outage: Exception | None = None
        for member in group:
            answer: RegisterBlobsResponse | Exception
            if outage is not None:
                answer = _build_failure_response(member.pending, outage)
            else:
                try:
                    answer = self._register_group([member])[0]
                except Exception as error:  # noqa: BLE001 - answered per registration
                    if isinstance(error, _OUTAGE_ERRORS):
                        outage = error
                    answer = _build_failure_response(member.pending, error)
            self._send_responses([(member.pending, answer)])

    def _register_group(
        self, group: Sequence[_VerifiedRegistration]
    ) -> list[RegisterBlobsResponse]:
        if any(candidate.is_acceptable for member in group for candidate in member.chunks):
            self._stage_sync.sync(self._stage_sync.failure_count)
        checked = [
            (
                member.pending.request,
                # Reject registrations whose blobs were read before a sync failed.
                member.chunks
                if member.sync_failures_before == self._stage_sync.failure_count
                else [candidate.with_rejection(BLOB_NOT_DURABLE) for candidate in member.chunks],
            )
            for member in group
        ]
        offers = [
            candidate.offer
            for _, candidates in checked
            for candidate in candidates
            if candidate.offer is not None
        ]
        decisions: list[tuple[CommitDecision, ...]] = []
        awaits_replication = False
        if offers:
            failpoints.hit_failpoint(failpoints.Failpoint.BEFORE_REGISTRATION)
            with self._database.writing(urgent=True) as connection:
                # Read the time here, because the group may have waited for other writers.
                decisions = registration.register_chunks(
                    connection, offers, now=self._clock.now(), commit_cache=self._commit_cache
                )
                failpoints.hit_failpoint(failpoints.Failpoint.INSIDE_REGISTRATION)
            failpoints.hit_failpoint(failpoints.Failpoint.AFTER_REGISTRATION)
            if any(request.with_replication for request, _ in checked):
                # Read this after the commit. If protection begins later, the state that makes the
                # first follower promotable is read later still, and contains these rows.
                with self._database.reading() as connection:
                    awaits_replication = failover_groups.are_tokens_protected(connection)
            # Only this thread updates the counters. A chunk is accepted completely or not at all.
            for offer, (first, *_) in zip(offers, decisions, strict=True):
                if not first.code and not first.is_replay:
                    self._metrics.rows += offer.rows
                    self._metrics.stored_bytes += offer.length
        remaining = iter(decisions)
        responses = [
            build_response(request, candidates, remaining) for request, candidates in checked
        ]
        for (request, _), response in zip(checked, responses, strict=True):
            if request.with_replication:
                response.awaits_replication = awaits_replication
        return responses

    def _send_responses(
        self, responses: Sequence[tuple[_PendingRegistration, RegisterBlobsResponse | Exception]]
    ) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._pending_requests -= len(responses)
            for submission, answer in responses:
                self._metrics.record_response(_list_codes(answer), now - submission.submitted_at)
        for submission, answer in responses:
            try:
                submission.respond(answer)
            except Exception:  # noqa: BLE001 - the next one can
                _log.exception("Delivery of a registration response failed")


def _list_codes(response: RegisterBlobsResponse | Exception) -> list[int]:
    """Return the codes of a response, one for each channel of a chunk."""
    if isinstance(response, SnowmeltError):
        return [int(getattr(response, "wire_code", response.response_code))]
    if isinstance(response, Exception):
        return [int(ResponseCode.TRY_AGAIN)]
    return [
        channel.status_code
        for blob in response.blobs
        for chunk in blob.chunks
        for channel in chunk.channels
    ]


def _build_failure_response(
    submission: _PendingRegistration, error: Exception
) -> RegisterBlobsResponse | Exception:
    """Return a response after which the client retries, and does not drop rows."""
    match error:
        case UnknownOutcome():
            _log.warning("unknown outcome of a registration: %s", error)
            reason = str(error).rstrip(".")
            message = f"Unknown outcome of the registration: {reason}. Send the same bytes again."
            rejection = RequestRejection(ResponseCode.TRY_AGAIN, message)
            return build_uniform_response(submission.request, rejection)
        case StageUnavailable() | RegistrationRefused():
            return error
        case SnowmeltError() if error.retryable:
            return error
        case _:
            _log.error("a registration failed", exc_info=error)
            return build_uniform_response(submission.request, RETRY_REGISTRATION)


RETRY_REGISTRATION = RequestRejection(
    ResponseCode.TRY_AGAIN,
    "The service failed on this registration. Its log has the reason. Retry.",
)


def build_response(
    request: RegisterBlobsRequest,
    candidates: Iterable[ChunkCandidate],
    decisions: Iterator[tuple[CommitDecision, ...]],
) -> RegisterBlobsResponse:
    """Build the response to one request. Consumes one item of `decisions` per candidate with an offer."""
    remaining = iter(candidates)

    def build_result(chunk: ChunkMetadata) -> ChunkRegistrationResult:
        candidate, channels = next(remaining), chunk.channels or []
        results: list[tuple[int, str | None]]
        if candidate.offer is None:
            # A candidate without offer and rejection was not registered, and must not be reported
            # as committed.
            rejection = candidate.rejection or RETRY_REGISTRATION
            results = [(rejection.code, rejection.message)] * len(channels)
        else:
            results = [(decision.code, decision.message) for decision in next(decisions)]
        return ChunkRegistrationResult(
            chunk.database,
            chunk.schema,
            chunk.table,
            [
                ChannelRegistrationResult(
                    int(code), channel.channel_name, channel.client_sequencer, message
                )
                for channel, (code, message) in zip(channels, results, strict=True)
            ],
        )

    blobs = [
        BlobRegistrationResult([build_result(chunk) for chunk in blob.chunks or []])
        for blob in request.blobs or []
    ]
    return RegisterBlobsResponse(status_code=0, message="Success", blobs=blobs)


def build_uniform_response(
    request: RegisterBlobsRequest, rejection: RequestRejection
) -> RegisterBlobsResponse:
    """Return a response with the same rejection for every channel."""
    return build_response(request, itertools.repeat(ChunkCandidate(None, rejection)), iter(()))
