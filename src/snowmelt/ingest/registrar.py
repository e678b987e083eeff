"""The registrar: many registrations, one transaction (group commit).

Submissions pass two stages. Verifying threads check them against the stage; then one writing
thread takes all that wait, makes their blobs durable with one `sync`, registers them in one
transaction, and answers. A pause between groups lets other writers of the catalog through.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt import failpoints as faults
from snowmelt.catalog.streaming import registration
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    RegistrationRefused,
    ServiceBusy,
    SnowmeltError,
    StageUnavailable,
    UnknownOutcome,
)
from snowmelt.ingest.metrics import Tally
from snowmelt.ingest.request_validation import Refusal, check_request
from snowmelt.ingest.verifier import NOT_DURABLE
from snowmelt.ingest.work_queue import Consumers
from snowmelt.wire.streaming import (
    BlobRegistrationResult,
    ChannelRegistrationResult,
    ChunkRegistrationResult,
    RegisterResponse,
    ResponseCode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.streaming.registration import ChunkOffer, CommitDecision
    from snowmelt.clock import Clock
    from snowmelt.ingest.durability import Durability
    from snowmelt.ingest.metrics import Tallied
    from snowmelt.ingest.verifier import Candidate, Sender, Verifier
    from snowmelt.wire.streaming import ChunkMetadata, RegisterRequest

_log = logging.getLogger("snowmelt.ingest")

# Called once, from a thread of the registrar's, with the answer or with what to raise.
Respond: TypeAlias = "Callable[[RegisterResponse | Exception], None]"

_FULL = Refusal(
    ResponseCode.QUEUE_FULL, "Too many registrations are waiting; send it again in a moment."
)
# Enough to wake the writer seldom, few enough to share slow blobs among the threads.
_VERIFIED_AT_ONCE = 16
# After these every further transaction would only wait for the same thing again.
_OUTAGES = (CatalogBusy, CatalogUnavailable)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the registrar groups: least pause between groups, and limits."""

    pause_s: float = 0.002
    group_limit: int = 512
    queue_limit: int = 20_000
    verify_threads: int = 2


@dataclass(frozen=True, slots=True)
class _Submission:
    request: RegisterRequest
    sender: Sender
    respond: Respond
    submitted_at: float


@dataclass(frozen=True, slots=True)
class _Checked:
    """A submission after its checks; `failed_syncs` is how many there had been when they began."""

    submission: _Submission
    candidates: list[Candidate]
    failed_syncs: int


class Registrar:
    """Takes registrations from any thread and answers each exactly once."""

    def __init__(
        self,
        database: Database,
        durability: Durability,
        verifier: Verifier,
        *,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._database = database
        self._durability = durability
        self._verifier = verifier
        self._clock = clock
        self._pace = pace
        self._remembered = registration.CommitCache()
        self._waiting = 0
        self._tally = Tally()
        self._lock = threading.Lock()
        self._writing: Consumers[_Checked] = Consumers(
            self._write, limit=pace.group_limit, names=["register"]
        )
        # A share of what waits, so that threads wake each other once and not for each.
        self._verifying: Consumers[_Submission] = Consumers(
            self._verify,
            limit=_VERIFIED_AT_ONCE,
            names=[f"verify-{number}" for number in range(max(pace.verify_threads, 1))],
        )

    def submit(self, request: RegisterRequest, sender: Sender, respond: Respond) -> None:
        """Queue a registration; `respond` gets the answer, from another thread or at once.

        Raises:
            RegistrationRefused: The request as a whole is wrong; `respond` is not called.
            ServiceBusy: The registrar is closed; `respond` is not called.
        """
        check_request(request)
        now = self._clock.monotonic()
        with self._lock:
            is_full = self._waiting >= self._pace.queue_limit
            if not is_full:
                if not self._verifying.put([_Submission(request, sender, respond, now)]):
                    raise ServiceBusy(reason="it is stopping")
                self._waiting += 1
        if is_full:
            answer = same_answer(request, _FULL)
            with self._lock:
                self._tally.answered(answer, 0.0)
            respond(answer)

    def tally(self) -> Tallied:
        """Return what has been registered and answered since the start."""
        with self._lock:
            return self._tally.taken(self._waiting)

    def close(self) -> None:
        """Answer what was submitted, then stop; further submissions are refused."""
        self._verifying.close()
        self._writing.close()
        self._verifier.close()

    def _verify(self, submissions: Sequence[_Submission]) -> None:
        failed_syncs = self._durability.failures
        checked: list[_Checked] = []
        failed: list[tuple[_Submission, RegisterResponse | Exception]] = []
        for submission, found in zip(submissions, self._check(submissions), strict=True):
            if isinstance(found, Exception):
                failed.append((submission, _failure_answer(submission, found)))
            else:
                checked.append(_Checked(submission, found, failed_syncs))
        self._writing.put(checked)
        if failed:
            self._answer(failed)

    def _check(self, submissions: Sequence[_Submission]) -> list[list[Candidate] | Exception]:
        """Return what the stage says of each submission, or what failed; it never raises."""
        try:
            return self._verifier.check_all([(each.request, each.sender) for each in submissions])
        except Exception as error:  # noqa: BLE001 - answered; the thread lives on
            return [error] * len(submissions)

    def _write(self, group: Sequence[_Checked]) -> None:
        self._settle(group)
        # A writer back to back would starve everybody else who writes to the catalog.
        self._clock.sleep(self._pace.pause_s)

    def _settle(self, group: Sequence[_Checked]) -> None:
        """Register a group; on any failure each of its members alone."""
        try:
            answers: list[RegisterResponse | Exception] = list(self._register(group))
        except Exception as error:  # noqa: BLE001 - answered one by one
            if len(group) == 1:
                answers = [_failure_answer(group[0].submission, error)]
            else:
                _log.warning("group of %d registrations failed: %r", len(group), error)
                self._settle_one_by_one(group)
                return
        self._answer(
            [(member.submission, answer) for member, answer in zip(group, answers, strict=True)]
        )

    def _settle_one_by_one(self, group: Sequence[_Checked]) -> None:
        outage: Exception | None = None
        for member in group:
            answer: RegisterResponse | Exception
            if outage is not None:
                answer = _failure_answer(member.submission, outage)
            else:
                try:
                    answer = self._register([member])[0]
                except Exception as error:  # noqa: BLE001 - answered per registration
                    if isinstance(error, _OUTAGES):
                        outage = error
                    answer = _failure_answer(member.submission, error)
            self._answer([(member.submission, answer)])

    def _register(self, group: Sequence[_Checked]) -> list[RegisterResponse]:
        if any(candidate.is_open for member in group for candidate in member.candidates):
            self._durability.sync(self._durability.failures)
        checked = [(member.submission.request, self._trusted(member)) for member in group]
        offers = [
            candidate.offer
            for _, candidates in checked
            for candidate in candidates
            if candidate.offer is not None
        ]
        verdicts: list[tuple[CommitDecision, ...]] = []
        if offers:
            faults.hit_failpoint(faults.Failpoint.BEFORE_REGISTRATION)
            with self._database.writing(urgent=True) as connection:
                # The time is read here: a group may have waited for others who write.
                verdicts = registration.register_chunks(
                    connection, offers, now=self._clock.now(), commit_cache=self._remembered
                )
                faults.hit_failpoint(faults.Failpoint.INSIDE_REGISTRATION)
            faults.hit_failpoint(faults.Failpoint.AFTER_REGISTRATION)
            self._count(offers, verdicts)
        remaining = iter(verdicts)
        return [answer_of(request, candidates, remaining) for request, candidates in checked]

    def _count(
        self, offers: Sequence[ChunkOffer], verdicts: Sequence[tuple[CommitDecision, ...]]
    ) -> None:
        rows = size = 0
        for offer, (first, *_) in zip(offers, verdicts, strict=True):
            # A chunk is taken whole or not at all.
            if not first.code and not first.is_replay:
                rows += offer.rows
                size += offer.length
        # This thread alone writes them.
        self._tally.rows += rows
        self._tally.bytes += size

    def _trusted(self, member: _Checked) -> list[Candidate]:
        """Return the candidates, refused when a sync has failed since their blobs were read."""
        if member.failed_syncs == self._durability.failures:
            return member.candidates
        return [candidate.refused(NOT_DURABLE) for candidate in member.candidates]

    def _answer(self, answers: Sequence[tuple[_Submission, RegisterResponse | Exception]]) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._waiting -= len(answers)
            for submission, answer in answers:
                self._tally.answered(answer, now - submission.submitted_at)
        for submission, answer in answers:
            try:
                submission.respond(answer)
            except Exception:  # noqa: BLE001 - the next one can
                _log.exception("an answer could not be delivered")


def _unknown(error: UnknownOutcome) -> Refusal:
    return Refusal(
        ResponseCode.TRY_AGAIN,
        f"It is not known whether this was registered; send the same bytes again. {error}",
    )


def _failure_answer(submission: _Submission, error: Exception) -> RegisterResponse | Exception:
    """Return what a client may send again; never what would make it drop rows."""
    match error:
        case UnknownOutcome():
            _log.warning("unknown outcome of a registration: %s", error)
            return same_answer(submission.request, _unknown(error))
        case StageUnavailable() | RegistrationRefused():
            return error
        case SnowmeltError() if error.retryable:
            return error
        case _:
            _log.error("a registration failed", exc_info=error)
            return same_answer(submission.request, UNSETTLED)


# --- The answer to a registration, built from verdicts (specification of v1, §2.5).

UNSETTLED = Refusal(
    ResponseCode.TRY_AGAIN,
    "The service failed on this registration; its log says why. Send it again.",
)


def answer_of(
    request: RegisterRequest,
    candidates: Iterable[Candidate],
    verdicts: Iterator[tuple[CommitDecision, ...]],
) -> RegisterResponse:
    """Return the answer to one request; takes one item of `verdicts` per candidate with an offer."""
    chunks = [
        _chunk_verdict(
            candidate.chunk,
            [(verdict.code, verdict.message) for verdict in next(verdicts)]
            if candidate.offer is not None
            else _same(candidate.chunk, candidate.refusal),
        )
        for candidate in candidates
    ]
    return _response(request, chunks)


def same_answer(request: RegisterRequest, refusal: Refusal) -> RegisterResponse:
    """Return an answer that tells every channel the same."""
    chunks = [
        _chunk_verdict(chunk, _same(chunk, refusal))
        for blob in request.blobs or []
        for chunk in blob.chunks or []
    ]
    return _response(request, chunks)


def _response(
    request: RegisterRequest, chunks: Sequence[ChunkRegistrationResult]
) -> RegisterResponse:
    remaining = iter(chunks)
    blobs = [
        BlobRegistrationResult([next(remaining) for _ in blob.chunks or []])
        for blob in request.blobs or []
    ]
    return RegisterResponse(status_code=0, message="Success", blobs=blobs)


def _same(chunk: ChunkMetadata, refusal: Refusal | None) -> list[tuple[int, str | None]]:
    # Without offer and without refusal nothing was registered: never to be told as committed.
    refusal = refusal or UNSETTLED
    return [(int(refusal.code), refusal.message)] * len(chunk.channels or [])


def _chunk_verdict(
    chunk: ChunkMetadata, results: Sequence[tuple[int, str | None]]
) -> ChunkRegistrationResult:
    channels = [
        ChannelRegistrationResult(
            int(code), channel.channel_name, channel.client_sequencer, message
        )
        for channel, (code, message) in zip(chunk.channels or [], results, strict=True)
    ]
    return ChunkRegistrationResult(chunk.database, chunk.schema, chunk.table, channels)
