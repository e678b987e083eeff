"""Staged chunks become committed rows: requests, verdicts, and what a refusal costs.

An unknown outcome (no answer, codes 7 and 10) is asked again with the same bytes; with an answer
only the tables that it concerns wait. A definite refusal alone lets a chunk be rebuilt: without the
channels that have ended, with the rows of others brought into their table's new columns. Client and
row sequencers stay, so that rows which were committed after all, or whose channel somebody else has
opened, cannot be committed.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from snowmelt import failpoints as faults
from snowmelt import tracing
from snowmelt.backoff import Backoff
from snowmelt.client.channel_state import Failure
from snowmelt.client.chunk_planner import MAX_CHUNKS, ChunkPlan, plan_chunks
from snowmelt.client.row_buffer import misfit
from snowmelt.client.transport import TRANSIENT, reason_of
from snowmelt.clock import SystemClock
from snowmelt.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ServiceUnavailable,
    SnowmeltError,
)
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChannelRegistrationResult,
    RegisterRequest,
    RegisterResponse,
    ResponseCode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from snowmelt.client.channel_state import Entry, Target
    from snowmelt.client.encoder import Encoder, StagedChunk
    from snowmelt.client.pending_rows import Backlog
    from snowmelt.client.schema_refresh import Columns
    from snowmelt.client.settings import ClientSettings
    from snowmelt.client.transport import Transport
    from snowmelt.clock import Clock

_log = logging.getLogger(__name__)

_PATH = "/v1/streaming/channels/write/blobs/"
_SIBLING_OR_NOTHING = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.SIBLING_REFUSED)})

# The table was altered since the rows were encoded.
_ALTERED = frozenset({int(ResponseCode.REOPEN), int(ResponseCode.EP_COLUMN_MISSING)})
# The blob is too old, or is not on the stage as it was written; its rows are still here.
_BLOB_ONLY = frozenset(
    {
        int(ResponseCode.CHUNK_MD5_MISSING),
        int(ResponseCode.CHUNK_LENGTH_INVALID),
        int(ResponseCode.BLOB_NAME_WRONG),
        int(ResponseCode.BLOB_FORMAT_WRONG),
        int(ResponseCode.BLOB_MD5_MISSING),
    }
)
# Beyond this the fault is not one that sending anew mends.
_MOST_REFUSALS = 5

Identity: TypeAlias = tuple[str | None, str | None, str | None, str | None, int | None]


class Identified(NamedTuple):
    """How requests of a client name themselves."""

    role: str | None
    name: str
    client_prefix: str
    next_request_id: Callable[[], str]


class Registrar:
    """Registers staged chunks; for one thread, so that each channel's order is kept."""

    def __init__(
        self,
        transport: Transport,
        who: Identified,
        encoder: Encoder,
        columns: Columns,
        backlog: Backlog,
        settings: ClientSettings,
    ) -> None:
        self._transport = transport
        self._who = who
        self._encoder = encoder
        self._columns = columns
        self._backlog = backlog
        self._give_up_s = settings.give_up_s
        self._lanes = Lanes(backlog, settings.clock, settings.give_up_s)
        self.on_trouble: Callable[[SnowmeltError], None] | None = None
        # What the service takes no rows for any more.
        self._outdated: set[Target] = set()

    @property
    def trouble(self) -> SnowmeltError | None:
        """Why the service takes nothing of a table now, None where it takes all."""
        return self._lanes.trouble

    def register(self, staged: Sequence[StagedChunk]) -> None:
        """Return when the rows of every channel are committed, or it is invalid, or its table waits.

        Whatever goes wrong, it is told to the channels that it concerns, and nothing is raised.
        """
        self._settle(self._lanes.join(staged))

    def retry(self) -> float | None:
        """Ask again for what waits, as far as it is due.

        Returns after how many seconds something is due, None where nothing waits.
        """
        while due := self._lanes.take_due():
            self._settle(due)
        return self._lanes.pause_s()

    def _settle(self, staged: Sequence[StagedChunk]) -> None:
        patience = self._transport.patience(self._give_up_s)
        waiting = list(staged)
        try:
            while waiting := self._without_invalid(self._up_to_date(waiting)):
                count = request_size(waiting)
                waiting = self._attempt(waiting[:count], patience) + waiting[count:]
        except Exception as error:  # noqa: BLE001 - the thread must live on for other channels
            _log.exception("Rows could not be registered.")
            states = [entry.state for chunk in staged for entry in chunk.plan.entries]
            reason = f"its rows could not be registered: {type(error).__name__}: {error}"
            self._backlog.fail(states, Failure(reason))
        for chunks, trouble in self._lanes.rest():
            reason = f"{trouble.fields['reason']}; given up after {self._give_up_s:g} s"
            self._give_up(chunks, self._transport.unavailable(reason))

    def _up_to_date(self, chunks: list[StagedChunk]) -> list[StagedChunk]:
        """Rebuild chunks that would be refused, since their table was altered as others told."""
        current: list[StagedChunk] = []
        for chunk in chunks:
            target, entries = chunk.plan.target, chunk.plan.entries
            if chunk.sent or target not in self._outdated:
                current.append(chunk)
                continue
            for entry in entries:
                newer = entry.state.target
                if newer != target and misfit(target.schema, newer.schema) is None:
                    entry.adopt(newer)
            if any(entry.target != target for entry in entries):
                current += self._encoder.stage_all(plan_chunks(entries))
            else:
                current.append(chunk)
        return current

    def _without_invalid(self, chunks: list[StagedChunk]) -> list[StagedChunk]:
        """Rebuild chunks that no request has named yet and some of whose channels are invalid by now.

        Where all are, nobody is left to answer to.
        """
        usable: list[StagedChunk] = []
        for chunk in chunks:
            gone = {entry.state for entry in chunk.plan.entries if entry.state.failure}
            if len(gone) == len(chunk.plan.entries):
                continue
            if chunk.sent or not gone:
                usable.append(chunk)
            else:
                usable += self._rebuilt(chunk.plan.without(gone))
        return usable

    def _rebuilt(self, plan: ChunkPlan | None) -> list[StagedChunk]:
        return self._encoder.stage_all([plan]) if plan is not None else []

    def _attempt(self, chunks: list[StagedChunk], patience: Backoff) -> list[StagedChunk]:
        """Send one request; return the chunks that must be sent (again)."""
        for chunk in chunks:
            chunk.sent = True
        request = RegisterRequest(
            request_id=self._who.next_request_id(),
            role=self._who.role,
            blobs=described(chunks),
            client_name=self._who.name,
            client_key=self._who.client_prefix,
        )
        try:
            with tracing.span("snowmelt.register", chunks[0].path, chunks=len(chunks)):
                answer = self._transport.ask(_PATH, request, RegisterResponse, patience)
        except ServiceUnavailable as error:
            self._give_up(chunks, error)
            return []
        except SnowmeltError as error:
            if not _may_pass(error):
                return self._apart(chunks, error)
            self._wait(error, chunks, patience)
            return chunks
        faults.hit_failpoint(faults.Failpoint.REGISTERED)
        verdicts = verdicts_of(answer)
        patience.reset()
        again: list[StagedChunk] = []
        for chunk in chunks:
            judged = [(entry, verdict_on(entry, verdicts)) for entry in chunk.plan.entries]
            codes = {verdict.status_code for _, verdict in judged}
            if codes == {int(ResponseCode.SUCCESS)}:
                self._backlog.commit(chunk.plan.entries)
            elif codes & TRANSIENT and codes <= TRANSIENT | _SIBLING_OR_NOTHING:
                self._set_aside(chunk, next(v for _, v in judged if v.status_code in TRANSIENT))
            else:
                again += self._refused(chunk, judged)
        return again

    def _set_aside(self, chunk: StagedChunk, verdict: ChannelRegistrationResult) -> None:
        """Let a chunk wait, and what comes of its table: others are not concerned."""
        trouble = self._transport.unavailable(_reason(verdict))
        if self._lanes.trouble is None:
            _log.info("Rows for table %s wait: %s", chunk.plan.target.table, trouble)
            if self.on_trouble is not None:
                self.on_trouble(trouble)
        # It lives and knows that it cannot take more: waiting is what it asks for.
        is_busy = verdict.status_code == ResponseCode.QUEUE_FULL
        self._lanes.set_aside(chunk, trouble, is_busy=is_busy)

    def _wait(
        self, trouble: SnowmeltError, chunks: Sequence[StagedChunk], patience: Backoff
    ) -> None:
        if not isinstance(trouble, ServiceUnavailable):
            trouble = self._transport.unavailable(str(trouble).rstrip("."))
        try:
            self._transport.pause(patience, trouble)
        except ServiceUnavailable as error:
            self._give_up([chunk for chunk in chunks if chunk.sent], error)

    def _apart(self, chunks: list[StagedChunk], error: SnowmeltError) -> list[StagedChunk]:
        """After a refusal that names no channel: ask for each alone, so that one is to blame."""
        entries = [entry for chunk in chunks for entry in chunk.plan.entries]
        if len(entries) == 1:
            self._give_up(chunks, error)
            return []
        _log.warning("A registration was refused as a whole, and is sent in parts: %s", error)
        again: list[StagedChunk] = []
        for entry in entries:
            # One request each: what comes of the others does not matter to it.
            for chunk in self._encoder.stage_all([ChunkPlan(entry.target, (entry,))]):
                again += self._attempt([chunk], self._transport.patience(self._give_up_s))
        return again

    def _refused(
        self, chunk: StagedChunk, judged: list[tuple[Entry, ChannelRegistrationResult]]
    ) -> list[StagedChunk]:
        """Invalidate the channels that have ended, rebuild for the others."""
        culprits = [
            (entry, verdict)
            for entry, verdict in judged
            if verdict.status_code not in _SIBLING_OR_NOTHING | TRANSIENT
        ]
        # Nobody to blame: leaving the chunk as it is would ask the same question for ever.
        blamed = culprits or judged
        ended = {
            entry.state for entry, verdict in blamed if not self._lives_on(chunk, entry, verdict)
        }
        kept = [entry for entry in chunk.plan.entries if entry.state not in ended]
        return self._encoder.stage_all(plan_chunks(kept))

    def _lives_on(
        self, chunk: StagedChunk, entry: Entry, verdict: ChannelRegistrationResult
    ) -> bool:
        """Tell whether a channel's rows can be sent anew; it is invalid from now on if not."""
        state, reason = entry.state, _reason(verdict)
        refused = f"the service refused rows in blob {chunk.path}: {reason}"
        try:
            failure = self._failure(entry, verdict, refused)
        except ServiceUnavailable:
            # Sent as they are, they wait for the service, and are refused once more.
            return True
        except SnowmeltError as error:
            failure = Failure(f"{refused}; {str(error).rstrip('.')}", cause=error)
        if failure is None:
            _log.info("Channel %s: %s. Its rows are sent anew.", state.name, refused)
            return True
        _log.warning("Channel %s: %s", state.name, failure.reason)
        self._backlog.fail([state], failure)
        return False

    def _failure(
        self, entry: Entry, verdict: ChannelRegistrationResult, refused: str
    ) -> Failure | None:
        code = verdict.status_code
        entry.refusals += 1
        if code in _ALTERED and entry.refusals <= _MOST_REFUSALS:
            self._outdated.add(entry.target)
            failure = self._columns.fit(entry)
            return failure and replace(failure, reason=f"{refused}; {failure.reason}")
        if code in _BLOB_ONLY and entry.refusals <= _MOST_REFUSALS:
            return None
        return Failure(refused, fenced=code == ResponseCode.STALE_CLIENT_SEQUENCER)

    def _give_up(self, chunks: Sequence[StagedChunk], error: SnowmeltError) -> None:
        reason = str(error).rstrip(".")
        if isinstance(error, ServiceUnavailable):
            reason += "; whether its last rows were committed is not known"
        _log.error("Rows could not be registered: %s.", reason)
        states = [entry.state for chunk in chunks for entry in chunk.plan.entries]
        self._backlog.fail(states, Failure(reason, cause=error))


def request_size(chunks: Sequence[StagedChunk]) -> int:
    """Return how many of the chunks go into one request: whole blobs and all parts, within the limit."""
    count = parts = 0
    for group in _by_blob(chunks):
        parts += sum(len(chunk.parts) for chunk in group)
        if count and parts > MAX_CHUNKS:
            break
        count += len(group)
    return count


def described(chunks: Sequence[StagedChunk]) -> list[BlobMetadata]:
    """Return the `blobs` of a request; chunks of one blob follow each other."""
    parts = [part for chunk in chunks for part in chunk.parts]
    return [
        group[0].blob_metadata([chunk.metadata for chunk in group]) for group in _by_blob(parts)
    ]


def _by_blob(chunks: Sequence[StagedChunk]) -> Iterator[list[StagedChunk]]:
    for _, group in itertools.groupby(chunks, key=lambda chunk: chunk.path):
        yield list(group)


def verdicts_of(answer: RegisterResponse) -> dict[Identity, ChannelRegistrationResult]:
    """Return the verdicts by names and client sequencer; position means nothing (§2.5).

    Of the verdicts on several parts of a channel's rows it is one that says why, if one does.
    """
    found: dict[Identity, ChannelRegistrationResult] = {}
    for blob in answer.blobs:
        for chunk in blob.chunks:
            where = (chunk.database, chunk.schema, chunk.table)
            for verdict in chunk.channels:
                identity = (*where, verdict.channel, verdict.client_sequencer)
                known = found.get(identity)
                if known is None or _weight(verdict) > _weight(known):
                    found[identity] = verdict
    return found


def _weight(verdict: ChannelRegistrationResult) -> int:
    code = verdict.status_code
    if code in _SIBLING_OR_NOTHING:
        return int(code != ResponseCode.SUCCESS)
    return 2 if code in TRANSIENT else 3


def verdict_on(
    entry: Entry, verdicts: dict[Identity, ChannelRegistrationResult]
) -> ChannelRegistrationResult:
    """Return what the service said about an entry; silence counts as an unknown outcome."""
    # What it was sent for: the channel may have gone on to newer columns or names meanwhile.
    state = entry.state
    identity = (*entry.target.table.display_name, state.name, state.client_sequencer)
    silence = ChannelRegistrationResult(
        int(ResponseCode.TRY_AGAIN),
        state.name,
        state.client_sequencer,
        "its answer does not mention the channel",
    )
    return verdicts.get(identity, silence)


def _reason(verdict: ChannelRegistrationResult) -> str:
    return reason_of(verdict.status_code, verdict.message)


def _may_pass(error: SnowmeltError) -> bool:
    """Tell whether a refusal says nothing about the rows, and so is no reason to lose them.

    Such as while a key or a certificate is being replaced, or a load balancer knows of no service.
    """
    passing = isinstance(error, AuthenticationFailed | ConfigurationError)
    return passing or bool(error.fields.get("elsewhere"))


# --- What waits because the service takes nothing of its table now: in order, with pauses of its own.
#
# Such as of a table with too long a backlog (code 7), or when it is not known what became of a chunk
# (code 10). Rows of other tables are registered meanwhile.

# What is due so soon is asked for by the same request: a thousand tables are not a thousand requests.
_TOGETHER_S = 0.25


@dataclass(slots=True)
class _Lane:
    """Chunks of one table: those of the oldest flush, which are asked for, and later flushes.

    `due_at` is None while they are asked for; `trouble` is why they wait.
    """

    patience: Backoff
    first: list[StagedChunk] = field(default_factory=list)
    later: deque[list[StagedChunk]] = field(default_factory=deque)
    due_at: float | None = None
    trouble: ServiceUnavailable | None = None


class Lanes:
    """A lane for each table that takes nothing now; for one thread.

    At most one flush of a table is asked for at a time, which keeps the order of each channel.
    """

    def __init__(self, backlog: Backlog, clock: Clock, give_up_s: float) -> None:
        self._backlog = backlog
        self._clock = clock
        # Pauses are the machine's, as those between requests, whatever clock the rows go by.
        self._machine = SystemClock()
        self._give_up_s = give_up_s
        self._lanes: dict[int, _Lane] = {}

    @property
    def trouble(self) -> ServiceUnavailable | None:
        """Why a table takes nothing, None where none waits."""
        return next((lane.trouble for lane in list(self._lanes.values())), None)

    def join(self, flush: Iterable[StagedChunk]) -> list[StagedChunk]:
        """Put a flush's chunks behind those that wait; return those that need not wait."""
        behind: dict[int, list[StagedChunk]] = {}
        free: list[StagedChunk] = []
        for chunk in flush:
            unit = chunk.plan.target.unit
            (behind.setdefault(unit, []) if unit in self._lanes else free).append(chunk)
        for unit, chunks in behind.items():
            self._lanes[unit].later.append(chunks)
        return free

    def set_aside(self, chunk: StagedChunk, trouble: ServiceUnavailable, *, is_busy: bool) -> None:
        """Let a chunk wait, which was asked for just now; a busy service is never given up."""
        unit = chunk.plan.target.unit
        lane = self._lanes.get(unit)
        if lane is None:
            lane = self._lanes[unit] = _Lane(Backoff(self._give_up_s, self._clock))
            self._backlog.hold(unit)
        lane.first.append(chunk)
        lane.trouble = trouble
        if is_busy:
            lane.patience.extend_deadline()

    def take_due(self) -> list[StagedChunk]:
        """Return what is to be asked for again, chunks of one blob behind each other."""
        now = self._machine.monotonic()
        if all(lane.due_at is None or lane.due_at > now for lane in self._lanes.values()):
            return []
        taken: list[StagedChunk] = []
        for lane in self._lanes.values():
            if lane.due_at is None or lane.due_at <= now + _TOGETHER_S:
                lane.due_at = None
                taken += lane.first
                lane.first = []
        return sorted(taken, key=lambda chunk: chunk.path)

    def rest(self) -> list[tuple[Sequence[StagedChunk], ServiceUnavailable]]:
        """Say when what was asked for is due again, or what comes after it; return what is given up."""
        given_up: list[tuple[Sequence[StagedChunk], ServiceUnavailable]] = []
        now = self._machine.monotonic()
        for unit, lane in list(self._lanes.items()):
            if lane.due_at is not None:
                continue
            pause_s = lane.patience.next_delay_s() if lane.first else None
            if pause_s is not None:
                lane.due_at = now + pause_s
                continue
            if lane.first and lane.trouble is not None:
                given_up.append((lane.first, lane.trouble))
            if lane.later:
                lane.first = lane.later.popleft()
                lane.due_at = now
                lane.patience.reset()
            else:
                del self._lanes[unit]
                self._backlog.release(unit)
        return given_up

    def pause_s(self) -> float | None:
        """Return after how many seconds something is due, None where nothing waits."""
        due = [lane.due_at for lane in self._lanes.values() if lane.due_at is not None]
        return max(min(due) - self._machine.monotonic(), 0.0) if due else None
