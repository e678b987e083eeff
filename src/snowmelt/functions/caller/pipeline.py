"""Calls for the rows of one task. Keeps batches in flight, and returns results in row order.

`call_function` is the entry point. `CallPipeline` keeps several batches in flight, translates
requests and responses, splits requests that are too large, and writes the call log.

`Demand` limits the batches in flight by the values that the consumer reads. The consumer may need
only a few values, as Spark does for a LIMIT, but the pipeline notices this only several arrays
later. Without a limit, a fast service would receive many useless calls until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import RemoteError, SnowmeltError
from snowmelt.functions.caller.arrow_types import to_arrow_type, to_try_result_arrow_type
from snowmelt.functions.caller.attempts import (
    HTTP_OK,
    RetryingSender,
    display_url,
    make_call_failed,
)
from snowmelt.functions.caller.batcher import CallBatcher
from snowmelt.functions.caller.http_client import InFlightCalls
from snowmelt.functions.caller.http_request import TranslatedRequest
from snowmelt.functions.caller.plan import BatchStatus, CallLog, CallPlan, CallRecord, QueryPosition
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    CallBudget,
    FailedBatchCache,
    RateLimiter,
    get_circuit_breaker,
)
from snowmelt.functions.caller.request_deduplication import (
    BatchRequest,
    BatchWork,
    RequestBuilder,
    SplitRequest,
    ValueCache,
    get_size_limits,
    get_value_cache,
)
from snowmelt.functions.caller.response_decoder import ResponseDecoder
from snowmelt.functions.caller.translators import TranslatorPair
from snowmelt.functions.definition import FailureAction, NullInputAction
from snowmelt.functions.errors import CallFailed, PayloadTooLarge, ResponseInvalid, TranslatorFailed
from snowmelt.functions.wire.messages import RowFailure

# The last bytes of an array are sent with the next array, so reading one array requires two.
_MIN_READABLE_ARRAYS = 2
# Number of arrays after which the consumer is assumed to read all.
_PROBATION_ARRAYS = 64
_FIRST_POLL_DELAY_S = 0.01
_POLL_INTERVAL_S = 0.001
_MAX_POLLS = 1_000
# Poll intervals. Consumers usually read immediately, so short polls keep all batches in flight.
_GRACE_POLLS = 3


class ValueConsumer(Protocol):
    """Consumer that reads values after they were taken from the pipeline."""

    def is_open(self) -> bool:
        """Return True if the consumer still reads values. A wrong result does not lose data."""

    def unread_bytes(self) -> int | None:
        """Return the number of bytes that were taken but not read, or None if unknown."""


class Demand:
    """Limit of the total number of batches of one task that are in flight or unread.

    The limit applies to the first arrays. A consumer that has read these is assumed to read all
    others until it closes.
    """

    def __init__(self, max_in_flight: int, clock: Clock, consumer: ValueConsumer | None) -> None:
        self.max_batches = max_in_flight
        # True if many more values are expected. While False, each array is one batch.
        self.is_confirmed = False
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._consumer = consumer
        self._taken_arrays = 0
        self._unread_arrays = 0
        self._remaining_polls = _MAX_POLLS

    def update_after_array(self) -> None:
        """Update the demand from the consumer's reads, after an array was taken."""
        self._taken_arrays += 1
        if self._consumer is None:
            self.is_confirmed = True
        elif self._taken_arrays >= _MIN_READABLE_ARRAYS:
            is_wanted = self._is_more_wanted(self._consumer)
            self.is_confirmed = is_wanted and self._taken_arrays > _PROBATION_ARRAYS
            self.max_batches = max(self._max_in_flight - self._unread_arrays, 1) if is_wanted else 1

    def _is_more_wanted(self, consumer: ValueConsumer) -> bool:
        if self._taken_arrays > _PROBATION_ARRAYS:
            self._unread_arrays = 0
            return consumer.is_open()
        self._unread_arrays += 1
        if self._taken_arrays == _MIN_READABLE_ARRAYS:
            self._clock.sleep(_FIRST_POLL_DELAY_S)
        enough = self._remaining_polls - _GRACE_POLLS
        while consumer.is_open():
            if not consumer.unread_bytes():
                self._unread_arrays = 0
                return True
            may_go_on = (
                self._taken_arrays > _MIN_READABLE_ARRAYS
                and self._unread_arrays < self._max_in_flight
            )
            if (may_go_on and self._remaining_polls <= enough) or not self._remaining_polls:
                return True
            self._remaining_polls -= 1
            self._clock.sleep(_POLL_INTERVAL_S)
        return False


# Maximum total size of sent bodies whose responses were not taken.
_MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
# Small arrays are merged up to this size, because each array has a cost for the consumer.
_MAX_MERGED_ROWS = 1_000


@dataclass(slots=True)
class BatchPart:
    """One request of a batch and its result: one value per row, NULL if there is none."""

    request: BatchRequest
    record: CallRecord
    # Position of the request's first row among the rows that the batch sends.
    first_row: int = 0
    split: SplitRequest | None = None
    in_flight_call: Future[bytes] | None = None
    # Data that the request translator passes to the response translator.
    translator_data: bytes | None = None
    values: pa.Array | None = None
    failures: Mapping[int, RowFailure] = field(default_factory=dict)
    error: SnowmeltError | None = None
    # True if the service caused the error, by its response or by not responding.
    is_service_error: bool = False

    url: str = ""

    def make_error(self, reason: str) -> CallFailed:
        """Return the error of this request."""
        return make_call_failed(self.record, reason, self.url)


@dataclass(slots=True)
class BatchOutcome:
    """A batch and its requests: one, several after a split, or none if no row must be sent."""

    work: BatchWork
    parts: list[BatchPart]
    body_bytes: int = 0


class CallPipeline:
    """Pipeline for the batches of one task. Single use; must be closed."""

    def __init__(
        self,
        plan: CallPlan,
        position: QueryPosition,
        call_log: CallLog,
        clock: Clock,
        consumer: ValueConsumer | None,
    ) -> None:
        """Prepare the calls. Sends nothing until `run_batches` is iterated."""
        function, options = plan.function, plan.options
        self._plan, self._position, self._call_log, self._clock = plan, position, call_log, clock
        self._budget = CallBudget(plan, position, clock)
        # Use an empty, separate cache in a dry run: its values are NULL, and other calls must not
        # get them.
        if options.dry_run and function.cache_bytes:
            cache: ValueCache | None = ValueCache(function.cache_bytes)
        else:
            cache = get_value_cache(plan)
        self._request_builder = RequestBuilder(plan, position, cache)
        self._response_decoder = ResponseDecoder(
            function.signature.returns,
            plan.zone,
            binary=options.binary,
            nullable=function.returns_null,
            lenient=True,
        )
        self._translators = TranslatorPair(plan)
        self._calls = InFlightCalls()
        self._sender = RetryingSender(
            plan, self._calls.client, clock, RateLimiter(plan, clock), self._budget
        )
        self._result_type = to_arrow_type(function.signature.returns, plan.zone)
        self._batcher = CallBatcher(
            function.max_batch_rows or options.max_batch_rows,
            function.max_batch_bytes or options.max_batch_bytes,
            skip_null_rows=function.null_input is NullInputAction.STRICT,
        )
        most = function.max_in_flight or options.max_in_flight
        self._demand = Demand(most, clock, consumer)
        self._in_flight: deque[BatchOutcome] = deque()
        self._in_flight_bytes = 0
        # Batch to send after the next response. Prepared only if its values are certain to be
        # needed.
        self._prepared_work: BatchWork | None = None
        self._size_limits = get_size_limits(function)
        self._circuit_breaker = get_circuit_breaker(function.url, clock)
        self._failed_batches = FailedBatchCache(position, clock)
        self._url = display_url(plan)

    def run_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[BatchOutcome]]:
        """Yield the outcomes of batches in order, with small finished batches merged."""
        works = map(
            self._request_builder.build_work,
            self._batcher.split_batches(each.columns for each in batches),
        )
        while True:
            self._start_batches(works)
            if not self._in_flight:
                return
            if self._demand.is_confirmed:
                self._prepared_work = self._next_work(works)
            yield self._collect_finished(works)
            # If there are no more rows, skip the update, which may wait for the consumer.
            if not self._in_flight:
                self._prepared_work = self._next_work(works)
            if self._in_flight or self._prepared_work is not None:
                self._demand.update_after_array()

    def _start_batches(self, works: Iterator[BatchWork]) -> None:
        while (
            len(self._in_flight) < self._demand.max_batches
            and (self._in_flight_bytes < _MAX_IN_FLIGHT_BYTES or not self._in_flight)
            and (work := self._next_work(works)) is not None
        ):
            self._start_batch(work)

    def _next_work(self, works: Iterator[BatchWork]) -> BatchWork | None:
        ahead, self._prepared_work = self._prepared_work, None
        return ahead or next(works, None)

    def _collect_finished(self, works: Iterator[BatchWork]) -> list[BatchOutcome]:
        """Wait for the next batch, and return it with the finished batches after it."""
        found: list[BatchOutcome] = []
        rows = 0
        while self._in_flight:
            outcome = self._in_flight[0]
            calls = [each.in_flight_call for each in outcome.parts if each.in_flight_call]
            if not all(call.done() for call in calls):
                if found:
                    break
                wait_for_all(calls)
            if (
                self._prepared_work is not None
                and len(self._in_flight) <= self._demand.max_batches
                and self._in_flight_bytes < _MAX_IN_FLIGHT_BYTES
            ):
                # Release the in-flight slot before decoding the response.
                work, self._prepared_work = self._prepared_work, None
                self._start_batch(work)
            rows += outcome.work.batch.rows
            if found and rows > _MAX_MERGED_ROWS:
                break
            self._finish_batch(outcome)
            self._in_flight.popleft()
            self._in_flight_bytes -= outcome.body_bytes
            found.append(outcome)
            if not self._demand.is_confirmed:
                break
            # Start more batches now: some may finish in time to be merged.
            self._start_batches(works)
        return found

    def get_values(self, part: BatchPart) -> pa.Array:
        """Return the values of a request. Raise its error unless the clauses make it NULL."""
        error, function = part.error, self._plan.function
        if error is None and part.failures and function.row_errors is FailureAction.ABORT:
            at, failure = next(iter(part.failures.items()))
            error = part.make_error(
                f"row {at} of {part.request.rows}: {failure.code}"
                + (f": {failure.message}" if self._plan.options.debug_payload else "")
            )
        elif function.on_batch_failure is FailureAction.RETURN_NULL and isinstance(
            error, RemoteError
        ):
            error = None
        if error is None:
            return part.values
        if isinstance(error, CallFailed):
            # Cache the failure, so that the next attempt of the task fails without a call.
            self._failed_batches.cache_failure(part.request.batch_id, error)
        raise error

    def close(self) -> None:
        """Cancel all calls in flight and log them as cancelled."""
        self._calls.close()
        self._budget.close()
        self._translators.close()
        for outcome in self._in_flight:
            for part in outcome.parts:
                if part.in_flight_call is not None and part.values is None:
                    self._log_part(part, BatchStatus.CANCELLED)
        self._in_flight.clear()

    def _start_batch(self, work: BatchWork) -> None:
        outcome = BatchOutcome(work, [])
        self._in_flight.append(outcome)
        place, request = self._position, work.request
        record = CallRecord(
            self._plan.function.signature.name,
            place.query_id,
            "" if request is None else request.batch_id,
            place.stage,
            place.partition,
            place.attempt,
            rows=work.batch.rows,
            cache_hits=work.cache_hits,
        )
        if request is None:
            record.outcome = BatchStatus.NOT_SENT
            record.started_at = self._clock.now().isoformat()
            self._call_log.add_record(record)
            return
        record.rows_sent = request.rows
        outcome.body_bytes = len(request.body)
        self._in_flight_bytes += outcome.body_bytes
        outcome.parts.extend(self._split_oversized(BatchPart(request, record, url=self._url)))
        for part in outcome.parts:
            self._send_part(part, rows=part.request.rows)

    def _split_oversized(self, part: BatchPart) -> Iterator[BatchPart]:
        if self._size_limits.is_too_large(part.request):
            for half in self._split_part(part, None):
                yield from self._split_oversized(half)
        else:
            yield part

    def _send_part(self, part: BatchPart, *, rows: int) -> None:
        """Send a request. If it cannot be sent, store the reason as its error."""
        if self._plan.options.dry_run:
            part.record.bytes_out = len(part.request.body)
            return
        try:
            self._failed_batches.raise_cached_failure(part.request.batch_id)
            self._circuit_breaker.check_call_allowed(part.record.function)
            self._budget.spend(rows=rows)
            translated = self._translators.translate_request(part.request.body)
        except TranslatorFailed as error:
            part.error = part.make_error(_format_translator_error(error))
            return
        except SnowmeltError as error:
            part.error = error
            return
        part.translator_data = translated.translator_data
        outgoing = TranslatedRequest(part.request.batch_id, translated.body, translated.url_suffix)
        part.in_flight_call = self._calls.start(
            partial(self._sender.send_batch, outgoing, part.record)
        )

    def _finish_batch(self, outcome: BatchOutcome) -> None:
        """Wait for the responses of a batch. Splits requests that are too large in two."""
        parts, at = outcome.parts, 0
        while at < len(parts):
            part = parts[at]
            try:
                self._receive_part(part)
            except PayloadTooLarge as error:
                if part.request.rows > 1:
                    parts[at : at + 1] = halves = self._split_part(part, error)
                    for half in halves:
                        self._send_part(half, rows=0)
                    continue
                part.error = part.make_error(f"row {part.first_row} alone is too large: {error}")
                part.is_service_error = True
            if part.values is None:
                part.values = pa.nulls(part.request.rows, self._result_type)
            if part.in_flight_call is not None:
                if part.error is None:
                    self._circuit_breaker.record_success()
                    if part.split is not None:
                        part.split.lower_limit_after_both_halves()
                elif part.is_service_error:
                    self._circuit_breaker.record_failure(str(part.error), part.record.status)
            if part.error is not None:
                part.record.error = str(part.error)
                self._log_part(part, BatchStatus.FAILED)
            elif self._plan.options.dry_run:
                self._log_part(part, BatchStatus.DRY_RUN)
            else:
                part.record.row_errors = len(part.failures)
                self._log_part(part, BatchStatus.OK)
            at += 1
        work = outcome.work
        if work.cache_keys and len(parts) == 1 and parts[0].error is None and not parts[0].failures:
            self._request_builder.cache_values(work, parts[0].values)

    def _receive_part(self, part: BatchPart) -> None:
        """Wait for a response and decode it.

        Raises:
            PayloadTooLarge: If the request or the response is too large. Halves may fit.
        """
        if part.in_flight_call is None:
            return
        try:
            body = self._calls.wait_for_result(part.in_flight_call)
            body = self._translators.translate_response(body, part.translator_data)
            answers = self._response_decoder.decode(body, part.request.rows)
        except PayloadTooLarge:
            raise
        except ResponseInvalid as error:
            part.error, part.is_service_error = part.make_error(str(error)), True
        except TranslatorFailed as error:
            part.error = part.make_error(_format_translator_error(error))
        except SnowmeltError as error:
            part.error, part.is_service_error = error, isinstance(error, RemoteError)
        else:
            part.values, part.failures = answers.values, answers.failures

    def _log_part(self, part: BatchPart, status: BatchStatus) -> None:
        part.record.outcome = status
        self._call_log.add_record(part.record)

    def _split_part(self, part: BatchPart, error: PayloadTooLarge | None) -> list[BatchPart]:
        """Split a request in two. The first record includes the cost until the split."""
        split = None
        if error is not None:
            is_reply = error.fields.get("status") == HTTP_OK
            split = SplitRequest(part.request, is_reply, self._size_limits)
        whole = part.record
        first, second = self._request_builder.split_request(part.request)
        first_record = replace(
            whole, batch_id=first.batch_id, rows=first.rows, rows_sent=first.rows, status=None,
            started_at="",
        )  # fmt: skip
        second_record = CallRecord(
            whole.function, whole.query_id, second.batch_id, whole.stage, whole.partition,
            whole.attempt, rows=second.rows, rows_sent=second.rows,
        )  # fmt: skip
        return [
            BatchPart(first, first_record, part.first_row, split, url=part.url),
            BatchPart(second, second_record, part.first_row + first.rows, split, url=part.url),
        ]


def _format_translator_error(error: TranslatorFailed) -> str:
    """Format the message without the function, because the error of the batch names it."""
    fields = error.fields
    return f"its {fields['which']} translator {fields['translator']} failed: {fields['reason']}"


def call_function(
    plan: CallPlan,
    position: QueryPosition,
    batches: Iterable[pa.RecordBatch],
    call_log: CallLog,
    clock: Clock | None = None,
    consumer: ValueConsumer | None = None,
    *,
    trying: bool = False,
) -> Generator[pa.Array, None, None]:
    """Yield the function's values in arrays, one value per row, in row order.

    Arrays end where batches end. Small batches are merged, up to 1,000 rows. Calls are at most the
    batches in flight and one such array ahead of the values taken. A caller that stops early must
    close the iterator, which cancels the remaining calls.

    Args:
        plan: Plan of the calls.
        position: Position of the rows in the query.
        batches: Arguments by position. Further columns are not sent. A function without arguments
            needs one column, for the number of rows.
        call_log: Receives one record per batch.
        clock: Clock. None: the system's clock.
        consumer: Reader of the values taken. None: the caller itself. While the consumer does not
            read, batches are called one at a time.
        trying: Return a record of value, error, status and batch ID for each row, instead of
            raising CallFailed or CircuitOpen. The record is NULL for a row that STRICT does not
            send.

    Raises:
        CallFailed: If a batch has no response or a row has an error, unless the function's clauses
            have RETURN_NULL. The message has function, batch, status, attempts and time.
        CircuitOpen: If the circuit breaker of the service is open, unless the clauses have
            RETURN_NULL.
        SnowmeltError: If no call is possible: the budget is spent, the URL is rejected, or a secret
            is missing. No clause converts these errors to NULL.
    """
    pipeline = CallPipeline(plan, position, call_log, clock or SystemClock(), consumer)
    make_form = to_try_result_arrow_type if trying else to_arrow_type
    form: pa.DataType = make_form(plan.function.signature.returns, plan.zone)
    get_answers = partial(_make_try_results, result_type=form) if trying else pipeline.get_values
    try:
        for outcomes in pipeline.run_batches(batches):
            arrays = []
            for outcome in outcomes:
                answers = _concat_arrays([get_answers(part) for part in outcome.parts], form)
                known = outcome.work.cached_values
                if trying and known is not None:
                    empty = [pa.nulls(len(known), each.type) for each in list(form)[1:]]
                    known = pa.StructArray.from_arrays([known, *empty], fields=list(form))
                arrays.append(outcome.work.spread_to_rows(answers, known))
            yield _concat_arrays(arrays, form)
    finally:
        pipeline.close()


def _make_try_results(part: BatchPart, result_type: pa.StructType) -> pa.StructArray:
    rows = part.request.rows
    if part.error is not None:
        if not isinstance(part.error, RemoteError):
            raise part.error
        errors = pa.repeat(pa.scalar(str(part.error), pa.string()), rows)
    elif part.failures:
        texts: list[str | None] = [None] * rows
        for at, failure in part.failures.items():
            texts[at] = f"{failure.code}: {failure.message}"
        errors = pa.array(texts, pa.string())
    else:
        errors = pa.nulls(rows, pa.string())
    status = pa.repeat(pa.scalar(part.record.status, pa.int32()), rows)
    ids = pa.repeat(pa.scalar(part.request.batch_id, pa.string()), rows)
    return pa.StructArray.from_arrays([part.values, errors, status, ids], fields=list(result_type))


def _concat_arrays(arrays: list[pa.Array], arrow_type: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, arrow_type)
