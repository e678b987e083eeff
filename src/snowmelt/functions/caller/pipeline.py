"""Batches on their way through a service, answered in the order in which they were made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from snowmelt.errors import RemoteError, SnowmeltError
from snowmelt.functions.caller.arrow_types import arrow_form
from snowmelt.functions.caller.attempts import Attempts, call_failed, shown_url
from snowmelt.functions.caller.batcher import Batcher
from snowmelt.functions.caller.call_log import CallRecord, Result
from snowmelt.functions.caller.circuit_breaker import Failures, breaker_of
from snowmelt.functions.caller.event_loop import Flights, background
from snowmelt.functions.caller.http_request import Outgoing
from snowmelt.functions.caller.limits import Budget, Limits
from snowmelt.functions.caller.request_builder import Composer, Split, sizes_of
from snowmelt.functions.caller.response_decoder import AnswerReader
from snowmelt.functions.caller.translators import Translators
from snowmelt.functions.caller.value_cache import cache_of
from snowmelt.functions.definition import NullInput
from snowmelt.functions.errors import CallFailed, ReplyInvalid, TooLarge, TranslatorFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from snowmelt.clock import Clock
    from snowmelt.functions.caller.call_log import Ledger
    from snowmelt.functions.caller.event_loop import Flight
    from snowmelt.functions.caller.event_loop import Work as Calling
    from snowmelt.functions.caller.plan import CallPlan, Place
    from snowmelt.functions.caller.request_builder import Request, Work
    from snowmelt.functions.caller.response_decoder import Answers
    from snowmelt.functions.wire.messages import RowFailure

# --- What is said to a service about a batch, and what its reply says about the batch's rows.


class Exchange:
    """Requests and replies of one function at one place; for the thread of its task."""

    def __init__(self, plan: CallPlan, place: Place, clock: Clock, budget: Budget) -> None:
        function, options = plan.function, plan.options
        self._composer = Composer(plan, place, cache_of(function))
        self._reader = AnswerReader(
            function.signature.returns,
            plan.zone,
            binary=options.binary,
            nullable=function.returns_null,
            lenient=True,
        )
        self._translators = Translators(plan)
        self._attempts = Attempts(plan, background().client, clock, Limits(plan, clock), budget)
        self.work = self._composer.work
        self.halves = self._composer.halves

    def keep(self, work: Work, answers: pa.Array) -> None:
        """Keep answers for equal inputs to come."""
        self._composer.keep(work, answers)

    def close(self) -> None:
        """End what runs for this exchange alone."""
        self._translators.close()

    def outgoing(self, request: Request) -> tuple[Outgoing, bytes | None]:
        """Return a request as it leaves, and what its translator keeps for the reply.

        Raises:
            TranslatorFailed: The request translator did.
        """
        translated = self._translators.request(request.body)
        outgoing = Outgoing(request.batch_id, translated.body, translated.url_suffix)
        return outgoing, translated.data

    def sending(self, outgoing: Outgoing, record: CallRecord) -> Calling:
        """Return what makes the call when it is started."""
        return partial(self._attempts.ask, outgoing, record)

    def answers(self, request: Request, kept: bytes | None, body: bytes) -> Answers:
        """Return the values in a reply.

        Args:
            request: What was asked.
            kept: By the request's translator.
            body: Of the reply.

        Raises:
            ReplyInvalid: It is not what the function's service should say.
            TranslatorFailed: The response translator did.
        """
        return self._reader.read(self._translators.reply(body, kept), request.rows)


# --- How many batches may be asked for, going by who reads their values.
#
# What takes values may hand them on to somebody who has enough of them: Spark, for a LIMIT. That is
# seen some arrays later, which on a fast service would be many calls for nothing.

# The last bytes of an array come with the next one, so it takes two until somebody can read one.
_READABLE = 2
# Whoever has read so many wants many.
_CAREFUL = 64
_FIRST_REACTION_S = 0.01
_REACTION_S = 0.001
_REACTIONS = 1_000
# Who reads at all mostly does so at once: a moment's patience keeps as many in flight as may be.
_PATIENCE = 3


class Reader(Protocol):
    """Whoever reads values after they were taken."""

    def is_open(self) -> bool:
        """Tell whether they are read at all; nothing is lost where that is wrong."""

    def unread_bytes(self) -> int | None:
        """Return how much of what was taken is not read yet; None where that cannot be told."""


class Demand:
    """What one task may ask for: batches in flight and those that nobody has read yet together.

    That is so for the first arrays; who has read them all is trusted to want the others, until
    nobody reads any more.
    """

    def __init__(self, most: int, clock: Clock, reader: Reader | None) -> None:
        """Prepare.

        Args:
            most: Batches in flight.
            clock: Tells how long to wait for a reaction: a second in all.
            reader: None if whoever takes values is who reads them.
        """
        self.allowed = most
        # Whether many more values are wanted; until then an array is one batch.
        self.is_sure = False
        self._most = most
        self._clock = clock
        self._reader = reader
        self._given = 0
        self._unread = 0
        self._reactions = _REACTIONS

    def gave(self) -> None:
        """Look who reads, after an array was taken."""
        self._given += 1
        if self._reader is None:
            self.is_sure = True
        elif self._given >= _READABLE:
            is_wanted = self._is_wanted(self._reader)
            self.is_sure = is_wanted and self._given > _CAREFUL
            self.allowed = max(self._most - self._unread, 1) if is_wanted else 1

    def _is_wanted(self, reader: Reader) -> bool:
        if self._given > _CAREFUL:
            self._unread = 0
            return reader.is_open()
        self._unread += 1
        if self._given == _READABLE:
            self._clock.sleep(_FIRST_REACTION_S)
        enough = self._reactions - _PATIENCE
        while reader.is_open():
            if not reader.unread_bytes():
                self._unread = 0
                return True
            may_go_on = self._given > _READABLE and self._unread < self._most
            if (may_go_on and self._reactions <= enough) or not self._reactions:
                return True
            self._reactions -= 1
            self._clock.sleep(_REACTION_S)
        return False


# Bodies that were sent and whose answers were not taken yet.
_MAX_BYTES_UNDER_WAY = 64 * 1024 * 1024
# What takes the values has costs for each array.
_TOGETHER_ROWS = 1_000


@dataclass(slots=True)
class Part:
    """One request of a batch, and what it came to: values, NULL for rows that have none."""

    request: Request
    record: CallRecord
    # Of its first row among those that the batch sends.
    first_row: int = 0
    split: Split | None = None
    flight: Flight | None = None
    # What the request's translator keeps for the reply's.
    kept: bytes | None = None
    values: pa.Array | None = None
    failures: Mapping[int, RowFailure] = field(default_factory=dict)
    error: SnowmeltError | None = None
    # Whether the service's answer, or that there is none, made the error.
    blames_service: bool = False

    url: str = ""

    def failed(self, reason: str) -> CallFailed:
        """Return the error of this request."""
        return call_failed(self.record, reason, self.url)


@dataclass(slots=True)
class Outcome:
    """A batch and its requests: one, several if it was split, none if nothing was to be asked."""

    work: Work
    parts: list[Part]
    body_bytes: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether nothing needs be waited for."""
        return all(part.flight is None or part.flight.done for part in self.parts)


class Pipeline:
    """The batches of one task; used once, and closed."""

    def __init__(
        self,
        plan: CallPlan,
        place: Place,
        ledger: Ledger,
        clock: Clock,
        reader: Reader | None = None,
    ) -> None:
        """Prepare; nothing is sent before `outcomes` is taken from.

        Args:
            plan: What is called.
            place: Where.
            ledger: Told of each batch.
            clock: Tells the time.
            reader: Who reads values that were taken; None if that is who takes them.
        """
        function, options = plan.function, plan.options
        self._plan, self._place, self._ledger, self._clock = plan, place, ledger, clock
        self._budget = Budget(plan, place, clock)
        self._exchange = Exchange(plan, place, clock, self._budget)
        self._form = arrow_form(function.signature.returns, plan.zone)
        self._batcher = Batcher(
            function.max_batch_rows or options.max_batch_rows,
            function.max_batch_bytes or options.max_batch_bytes,
            strict=function.null_input is NullInput.STRICT,
        )
        most = function.max_in_flight or options.max_in_flight
        self._demand = Demand(most, clock, reader)
        self._flights = Flights()
        self._under_way: deque[Outcome] = deque()
        self._bytes = 0
        # Ready to be sent once an answer is there; not before more values are surely wanted.
        self._ahead: Work | None = None
        self._sizes = sizes_of(function)
        self._breaker = breaker_of(function.url, clock)
        self._failures = Failures(place, clock)
        self._url = shown_url(plan)

    def outcomes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Outcome]]:
        """Return what batches came to, in order; small ones that were answered meanwhile together."""
        works = map(self._exchange.work, self._batcher.batches(each.columns for each in batches))
        while True:
            self._fill(works)
            if not self._under_way:
                return
            if self._demand.is_sure:
                self._ahead = self._next(works)
            yield self._finished(works)
            self._look_who_reads(works)

    def _fill(self, works: Iterator[Work]) -> None:
        while self._has_room() and (work := self._next(works)) is not None:
            self._begin(work)

    def _next(self, works: Iterator[Work]) -> Work | None:
        ahead, self._ahead = self._ahead, None
        return ahead or next(works, None)

    def _look_who_reads(self, works: Iterator[Work]) -> None:
        # Without more rows there is nothing to decide, and nobody to wait for.
        if not self._under_way:
            self._ahead = self._next(works)
        if self._under_way or self._ahead is not None:
            self._demand.gave()

    def _finished(self, works: Iterator[Work]) -> list[Outcome]:
        """Wait for the next batch, and take those after it that need not be waited for."""
        found: list[Outcome] = []
        rows = 0
        while self._under_way:
            outcome = self._under_way[0]
            if not outcome.is_answered:
                if found:
                    break
                for part in outcome.parts:
                    if part.flight is not None:
                        self._flights.land(part.flight)
            if (
                self._ahead is not None
                and len(self._under_way) <= self._demand.allowed
                and self._bytes < _MAX_BYTES_UNDER_WAY
            ):
                # Its place under way is free; reading the answer is not what it should wait for.
                work, self._ahead = self._ahead, None
                self._begin(work)
            rows += outcome.work.batch.rows
            if found and rows > _TOGETHER_ROWS:
                break
            self._finish(outcome)
            self._under_way.popleft()
            self._bytes -= outcome.body_bytes
            found.append(outcome)
            if not self._demand.is_sure:
                break
            # The others are asked meanwhile, so that more may be there to go with these.
            self._fill(works)
        return found

    def remember(self, part: Part, error: SnowmeltError) -> None:
        """Keep an error that ends the task, so that its next attempt does not call in vain."""
        if isinstance(error, CallFailed):
            self._failures.remember(part.request.batch_id, error)

    def close(self) -> None:
        """Cancel what is under way, and write down that it was."""
        self._flights.close()
        self._budget.close()
        self._exchange.close()
        for outcome in self._under_way:
            for part in outcome.parts:
                if part.flight is not None and part.values is None:
                    self._write_down(part, Result.CANCELLED)
        self._under_way.clear()

    def _has_room(self) -> bool:
        return len(self._under_way) < self._demand.allowed and (
            self._bytes < _MAX_BYTES_UNDER_WAY or not self._under_way
        )

    def _begin(self, work: Work) -> None:
        outcome = Outcome(work, [])
        self._under_way.append(outcome)
        request = work.request
        if request is None:
            self._ledger.add(self._record(work, None))
            return
        outcome.body_bytes = len(request.body)
        self._bytes += outcome.body_bytes
        part = Part(request, self._record(work, request), url=self._url)
        if self._sizes.forbid(request):
            outcome.parts.extend(self._small_enough(part))
        else:
            outcome.parts.append(part)
        for part in outcome.parts:
            self._send(part, rows=part.request.rows)

    def _small_enough(self, part: Part) -> Iterator[Part]:
        if self._sizes.forbid(part.request):
            for half in self._halves(part, None):
                yield from self._small_enough(half)
        else:
            yield part

    def _record(self, work: Work, request: Request | None) -> CallRecord:
        place, batch = self._place, work.batch
        record = CallRecord(
            self._plan.function.signature.name,
            place.query_id,
            "" if request is None else request.batch_id,
            place.stage,
            place.partition,
            place.attempt,
            rows=batch.rows,
            cache_hits=work.cache_hits,
        )
        if request is None:
            record.outcome = Result.NOT_SENT
            record.started_at = self._clock.now().isoformat()
        else:
            record.rows_sent = request.rows
        return record

    def _send(self, part: Part, *, rows: int) -> None:
        """Send a request; what forbids that is kept as its error, which is told in its turn."""
        if self._plan.options.dry_run:
            part.record.bytes_out = len(part.request.body)
            return
        try:
            self._failures.recall(part.request.batch_id)
            self._breaker.check(part.record.function)
            self._budget.spend(rows=rows)
            outgoing, part.kept = self._exchange.outgoing(part.request)
        except TranslatorFailed as error:
            part.error = part.failed(_without_function(error))
            return
        except SnowmeltError as error:
            part.error = error
            return
        part.flight = self._flights.start(self._exchange.sending(outgoing, part.record))

    def _finish(self, outcome: Outcome) -> None:
        """Wait for the answers to a batch; requests that are too large become two."""
        parts, at = outcome.parts, 0
        while at < len(parts):
            part = parts[at]
            try:
                self._answer(part)
            except TooLarge as error:
                if part.request.rows > 1:
                    parts[at : at + 1] = halves = self._halves(part, error)
                    for half in halves:
                        self._send(half, rows=0)
                    continue
                part.error = part.failed(f"row {part.first_row} alone is too large: {error}")
                part.blames_service = True
            self._settle(part)
            at += 1
        work = outcome.work
        if work.keys and len(parts) == 1 and parts[0].error is None and not parts[0].failures:
            self._exchange.keep(work, parts[0].values)

    def _answer(self, part: Part) -> None:
        """Wait for a request's answer, and read it.

        Raises:
            TooLarge: Halves of it may do.
        """
        if part.flight is None:
            return
        try:
            body = self._flights.wait(part.flight)
            answers = self._exchange.answers(part.request, part.kept, body)
        except TooLarge:
            raise
        except ReplyInvalid as error:
            part.error, part.blames_service = part.failed(str(error)), True
        except TranslatorFailed as error:
            part.error = part.failed(_without_function(error))
        except SnowmeltError as error:
            part.error, part.blames_service = error, isinstance(error, RemoteError)
        else:
            part.values, part.failures = answers.values, answers.failures

    def _settle(self, part: Part) -> None:
        if part.values is None:
            part.values = pa.nulls(part.request.rows, self._form)
        if part.flight is not None:
            if part.error is None:
                self._breaker.succeeded()
                if part.split is not None:
                    part.split.half_answered()
            elif part.blames_service:
                self._breaker.failed(str(part.error), part.record.status)
        if part.error is not None:
            part.record.error = str(part.error)
            self._write_down(part, Result.FAILED)
        elif self._plan.options.dry_run:
            self._write_down(part, Result.DRY_RUN)
        else:
            part.record.row_errors = len(part.failures)
            self._write_down(part, Result.OK)

    def _write_down(self, part: Part, result: Result) -> None:
        part.record.outcome = result
        self._ledger.add(part.record)

    def _halves(self, part: Part, error: TooLarge | None) -> list[Part]:
        """Return two requests instead of one; what that cost is written down with the first."""
        split = None if error is None else Split.of(part.request, error, self._sizes)
        whole = part.record
        first, second = self._exchange.halves(part.request)
        middle = part.first_row + first.rows
        return [
            Part(
                first, self._half(whole, first, is_first=True), part.first_row, split, url=part.url
            ),
            Part(second, self._half(whole, second, is_first=False), middle, split, url=part.url),
        ]

    def _half(self, whole: CallRecord, request: Request, *, is_first: bool) -> CallRecord:
        record = CallRecord(
            whole.function, whole.query_id, request.batch_id, whole.stage, whole.partition,
            whole.attempt, rows=request.rows, rows_sent=request.rows,
        )  # fmt: skip
        if is_first:
            record.cache_hits = whole.cache_hits
            record.attempts, record.polls = whole.attempts, whole.polls
            record.bytes_out, record.bytes_in = whole.bytes_out, whole.bytes_in
            record.ms_waiting, record.ms_calling = whole.ms_waiting, whole.ms_calling
        return record


def _without_function(error: TranslatorFailed) -> str:
    """The error of the batch names the function."""
    fields = error.fields
    return f"its {fields['which']} translator {fields['translator']} failed: {fields['reason']}"
