"""Batches on their way through a service, answered in the order in which they were made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.errors import RemoteError, SnowmeltError
from snowmelt.functions.calling.attempts import call_failed, shown_url
from snowmelt.functions.calling.batching import Batcher
from snowmelt.functions.calling.breaker import breaker_of
from snowmelt.functions.calling.budget import Budget
from snowmelt.functions.calling.demand import Demand
from snowmelt.functions.calling.exchange import Exchange
from snowmelt.functions.calling.failures import Failures
from snowmelt.functions.calling.flights import Flights
from snowmelt.functions.calling.forms import arrow_form
from snowmelt.functions.calling.ledger import CallRecord, Result
from snowmelt.functions.calling.splitting import Split, sizes_of
from snowmelt.functions.definition import NullInput
from snowmelt.functions.refusals import CallFailed, ReplyInvalid, TooLarge, TranslatorFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.demand import Reader
    from snowmelt.functions.calling.flights import Flight
    from snowmelt.functions.calling.ledger import Ledger
    from snowmelt.functions.calling.plan import CallPlan, Place
    from snowmelt.functions.calling.sending import Request, Work
    from snowmelt.functions.wire.replies import RowFailure

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
