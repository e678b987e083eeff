"""Query engine: schedules blocks on workers, feeds results to the sink, streams payloads.

Results reach the sink in object order. The workers read the object if its source supports
concurrent reads; otherwise, the thread that iterates over the payloads reads it. Each query has up
to `blocks_in_flight` blocks in a FIFO worker pool. All executions of the process share the pool. A
client that reads slowly delays only its own query.

The payload cutter ends each payload at the end of a record, within the frame size limit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from snowmelt.clock import Clock, SystemClock
from snowmelt.select.errors import ErrorBudget, SelectError
from snowmelt.select.execution.block_executor import (
    BlockExecutor,
    BlockResult,
    SelectedRecords,
    detach_from_batch,
    keep_positions_and_errors,
)
from snowmelt.select.execution.passthrough import PassthroughSerializer
from snowmelt.select.execution.serializer import (
    RecordSerializer,
    make_record_serializer,
    serialize_records,
)
from snowmelt.select.execution.sort_limit_aggregate import (
    AggregateSink,
    AggregationLayout,
    BufferedSink,
    RecordSink,
    StreamSink,
)
from snowmelt.select.formats.byte_streams import ObjectSource
from snowmelt.select.formats.csv_dialect import make_csv_rules
from snowmelt.select.formats.read_units import (
    MultiObjectReader,
    ObjectReader,
    ReadUnit,
    SourceSequence,
    open_object_reader,
)
from snowmelt.select.request import CsvInput, SelectRequest
from snowmelt.select.resource_limits import EngineSettings
from snowmelt.select.sql.ast import Expression, expand_aliases
from snowmelt.select.sql.binder import bind_statement
from snowmelt.select.sql.bound_query import BoundQuery, CsvFields, ParquetFields
from snowmelt.select.sql.parser import parse_statement
from snowmelt.select.timestamps import Timestamp, timestamp_from_datetime

__all__ = [
    "EngineSettings",
    "SelectExecution",
    "open_select",
]

Payload: TypeAlias = bytes | memoryview

# 128 KiB minus the frame's headers: some clients reject larger frames.
PAYLOAD_BYTES = 128 * 1024 - 256
# Maximum number of payloads in a batch. The sender buffers two batches for a slow client.
_MAX_BATCH_PAYLOADS = 8


class PayloadCutter:
    """Buffer that cuts output into payloads. A record that fits into a payload is never split.

    The cuts depend only on the total output, not on how it was added.
    """

    def __init__(self, max_payload_bytes: int = PAYLOAD_BYTES) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._segments: list[Payload] = []
        self._buffered_bytes = 0

    def add(self, output: Payload, record_ends: NDArray[np.int64]) -> Iterator[Payload]:
        """Add records and yield full payloads. `record_ends` has each record's end in `output`."""
        at = 0
        while len(output) - at > self._max_payload_bytes - self._buffered_bytes:
            place = int(
                np.searchsorted(
                    record_ends, at + self._max_payload_bytes - self._buffered_bytes, side="right"
                )
            )
            end = int(record_ends[place - 1]) if place else 0
            if end > at:
                self._append(output[at:end])
            elif not self._buffered_bytes:
                end = at + self._max_payload_bytes  # The record is longer than a payload.
                self._append(output[at:end])
            else:
                end = at
            yield from self.flush()
            at = end
        if at < len(output):
            self._append(output[at:] if at else output)

    def flush(self) -> Iterator[Payload]:
        """Yield the buffered output, if any. A slice of a single output is not copied."""
        if self._buffered_bytes:
            segments, self._segments, self._buffered_bytes = self._segments, [], 0
            yield segments[0] if len(segments) == 1 else b"".join(segments)

    def _append(self, output: Payload) -> None:
        self._segments.append(output)
        self._buffered_bytes += len(output)


_WORKER_POOLS: dict[int, ThreadPoolExecutor] = {}
_WORKER_POOLS_LOCK = threading.Lock()


def open_select(
    request: SelectRequest,
    source: ObjectSource | SourceSequence,
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
) -> SelectExecution:
    """Start a SELECT. Closes the source when the execution ends, or if this function fails.

    Raises:
        SelectError: If the statement, the request or the start of the object is invalid.
    """
    settings = settings or EngineSettings()
    try:
        statement = parse_statement(request.expression, request.dialect)
        records = _open_object_records(request, source, settings)
        try:
            query = bind_statement(statement, dialect=request.dialect, fields=records.fields)
            now = timestamp_from_datetime((clock or SystemClock()).now())
            job = SelectJob(request, query, records, now, settings)
        except BaseException:
            records.close()
            raise
    except BaseException:
        source.close()
        raise
    return SelectExecution(job, records, source, settings)


def _open_object_records(
    request: SelectRequest, source: ObjectSource | SourceSequence, settings: EngineSettings
) -> ObjectReader:
    if isinstance(source, SourceSequence):
        return MultiObjectReader(request, source, settings)
    return open_object_reader(request, source, settings)


class SelectJob:
    """Plan, writer and sink of a query."""

    def __init__(
        self,
        request: SelectRequest,
        query: BoundQuery,
        records: ObjectReader,
        now: Timestamp,
        settings: EngineSettings,
    ) -> None:
        """Choose plan, writer and sink of a query."""
        self.query = query
        self.errors = ErrorBudget()
        self.writer: RecordSerializer = make_record_serializer(query, request.output)
        projections = [output.expression for output in query.outputs]
        orders = [expand_aliases(order.expression, projections) for order in query.order_by]
        expressions: list[Expression] = [*projections, *orders]
        most: int | None = None
        if query.grouped:
            expressions = list(AggregationLayout(query).expressions)
            self.sink: RecordSink = AggregateSink(query, now, self.writer, settings, self.errors)
        elif query.order_by or query.distinct:
            self.sink = BufferedSink(query, settings, output_count=len(projections))
        else:
            self.sink = StreamSink(query)
            most = self.sink.records_needed
        self._output_count = len(projections)
        # True if the sink needs values in addition to the output.
        self._sink_needs_values = bool(query.order_by or query.distinct)
        self._block_executor = BlockExecutor(query, expressions, now, max_records=most)
        self._passthrough_writer = _make_passthrough_serializer(
            request, query, records, self.writer
        )
        # Row indexes of counted records, shared by all units and never modified.
        self._row_numbers = np.empty(0, np.int64)
        self.counts_only = query.grouped and query.where is None and not expressions

    @property
    def needs_all_fields(self) -> bool:
        """True if the output contains every field separately."""
        return self._passthrough_writer is not None and not self._passthrough_writer.can_copy

    def process_read_unit(self, unit: ReadUnit) -> BlockResult:
        """Process one unit, in a worker or (to count with one worker) in the reading thread."""
        try:
            count = unit.count_records() if self.counts_only else None
            if count is not None:
                if count > len(self._row_numbers):
                    self._row_numbers = np.arange(2 * count)
                rows = self._row_numbers[:count]
                return BlockResult(
                    SelectedRecords(rows, (), self._row_numbers[:0], ()), records_read=count
                )
            batch = unit.decode()
            passed = self._block_executor.select_records(batch)
            if passed.error is None:
                passed = replace(passed, error=batch.failure)
            if self.query.grouped:
                return BlockResult(detach_from_batch(passed), records_read=batch.row_count)
            if self._passthrough_writer is not None:
                output, ends = self._passthrough_writer.serialize_selected(batch, passed)
            else:
                output, ends = serialize_records(passed, self.writer, self._output_count)
            kept = (
                detach_from_batch(passed)
                if self._sink_needs_values
                else keep_positions_and_errors(passed)
            )
            return BlockResult(kept, output, ends, batch.row_count)
        finally:
            unit.release()


def _make_passthrough_serializer(
    request: SelectRequest, query: BoundQuery, records: ObjectReader, writer: RecordSerializer
) -> PassthroughSerializer | None:
    if not query.star:
        return None
    fields = records.fields
    names = fields.names if isinstance(fields, CsvFields | ParquetFields) else None
    rules = None
    if isinstance(request.input, CsvInput):
        ranged = request.scan_range is not None
        rules = make_csv_rules(request.input, request.dialect, has_scan_range=ranged)
    return PassthroughSerializer(writer, rules, names)


class SelectExecution:
    """Running SELECT.

    Iterate over `stream_payloads` once, in one thread. The counters and `close` are thread-safe.
    """

    def __init__(
        self,
        job: SelectJob,
        records: ObjectReader,
        source: ObjectSource | SourceSequence,
        settings: EngineSettings,
    ) -> None:
        self._job = job
        self._records = records
        self._source = source
        self._pool = _get_worker_pool(settings.threads)
        self._max_pending_units = max(1, settings.blocks_in_flight)
        # With one worker, counting in this thread is cheaper than waking the worker.
        self._runs_inline = job.counts_only and _resolve_worker_count(settings.threads) == 1
        self._pending_results: deque[tuple[str, Future[BlockResult]]] = deque()
        self._lock = threading.Lock()
        self._running = False
        self._closed = False
        self._returned_bytes = 0
        # Records read from the current object, and its name if there are several objects.
        self._records_read = 0
        self._object_name = ""

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""
        return self._records.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes read, after decompression."""
        return self._records.processed_bytes

    @property
    def returned_bytes(self) -> int:
        """Bytes of the payloads yielded."""
        return self._returned_bytes

    def stream_payloads(self) -> Generator[bytes]:
        """Yield the output in payloads from `PayloadCutter`. Ends early if closed.

        Raises:
            SelectError: If the query fails. All records before the error were yielded.
        """
        with contextlib.closing(self.stream_payload_batches()) as batches:
            for batch in batches:
                yield from map(bytes, batch)

    def stream_payload_batches(self) -> Generator[list[Payload]]:
        """Yield the payloads of `stream_payloads` in batches of at most 8.

        Raises:
            SelectError: If the query fails. All records before the error were yielded.
        """
        with self._lock:
            if self._closed:
                return
            self._running = True
        cutter = PayloadCutter()
        try:
            failure = yield from self._run_query(cutter)
            yield from self._batch_payloads(cutter.flush())
            if failure is not None:
                raise failure
        finally:
            self._running = False
            self._closed = True
            self._tear_down()

    def close(self) -> None:
        """Stop the query and release its resources. Idempotent.

        If another thread is iterating, that thread stops and releases them.
        """
        with self._lock:
            self._closed = True
            if self._running:
                return
        self._tear_down()

    def _run_query(self, cutter: PayloadCutter) -> Generator[list[Payload], None, Exception | None]:
        sink = self._job.sink
        failure: Exception | None = None
        outcomes = self._iterate_block_results()
        while failure is None and sink.records_needed != 0 and not self._closed:
            try:
                outcome = next(outcomes, None)
                if outcome is None:
                    break
                outcome = replace(
                    outcome, records_before=self._records_read, object_name=self._object_name
                )
                count, failure = self._count_usable_records(outcome)
                for output, ends in sink.consume(outcome, count):
                    yield from self._batch_payloads(cutter.add(output, ends))
            except Exception as error:  # noqa: BLE001  raised after the records before it
                failure = error
        if failure is None and not self._closed:
            try:
                for output, ends in sink.finish():
                    yield from self._batch_payloads(cutter.add(output, ends))
            except SelectError as error:
                failure = error
        return failure

    def _count_usable_records(self, block_result: BlockResult) -> tuple[int, SelectError | None]:
        """Return the number of records before an error that ends the query, and that error or None.

        Counts the dropped records before it.
        """
        passed = block_result.selected
        wants = self._job.sink.records_needed
        count = len(passed) if wants is None else min(len(passed), wants)
        enough = wants is not None and count == wants
        self._records_read += block_result.records_read
        for failure in passed.dropped_records:
            if enough and failure.records_passed >= count:
                return count, None
            try:
                told = failure.position.add_position_to_error(
                    failure.error, block_result.records_before, block_result.object_name
                )
                self._job.errors.count_dropped_row(told)
            except SelectError as error:
                return failure.records_passed, error
        if enough or passed.error is None or passed.error_position is None:
            return count, None if enough else passed.error
        return count, passed.error_position.add_position_to_error(
            passed.error, block_result.records_before, block_result.object_name
        )

    def _iterate_block_results(self) -> Iterator[BlockResult]:
        """Yield the results of the units in order. Up to `_max_pending_units` are in progress."""
        units = self._records.read_units(self._job.query, all_fields=self._job.needs_all_fields)
        failure: Exception | None = None
        more = True
        while more or self._pending_results:
            while (
                more and len(self._pending_results) < self._max_pending_units and not self._closed
            ):
                try:
                    unit = next(units, None)
                except Exception as error:  # noqa: BLE001  raised after the units before it
                    failure, unit = error, None
                if unit is None:
                    more = False
                else:
                    self._pending_results.append(
                        (self._current_object_name(), self._submit_unit(unit))
                    )
            if self._closed:
                return
            if self._pending_results:
                name, work = self._pending_results.popleft()
                if name != self._object_name:
                    self._object_name, self._records_read = name, 0
                yield work.result()
        if failure is not None:
            raise failure

    def _submit_unit(self, unit: ReadUnit) -> Future[BlockResult]:
        """Submit a unit to the workers. With `_runs_inline`, process it in this thread."""
        if self._runs_inline:
            done: Future[BlockResult] = Future()
            try:
                done.set_result(self._job.process_read_unit(unit))
            except Exception as error:  # noqa: BLE001  raised when the result is retrieved
                done.set_exception(error)
            return done
        return self._pool.submit(self._job.process_read_unit, unit)

    def _current_object_name(self) -> str:
        return (
            self._records.current_object_name
            if isinstance(self._records, MultiObjectReader)
            else ""
        )

    def _batch_payloads(self, payloads: Iterator[Payload]) -> Iterator[list[Payload]]:
        """Yield payloads in batches and count their bytes."""
        while batch := list(itertools.islice(payloads, _MAX_BATCH_PAYLOADS)):
            self._returned_bytes += sum(map(len, batch))
            yield batch

    def _tear_down(self) -> None:
        pending, self._pending_results = list(self._pending_results), deque()
        # Wait for the running workers, because they may read the source.
        wait([future for _, future in pending if not future.cancel()])
        self._records.close()
        self._source.close()


def _resolve_worker_count(threads: int) -> int:
    """Return the number of workers. A setting of 0 means the number of processors."""
    return threads or os.cpu_count() or 1


def _get_worker_pool(threads: int) -> ThreadPoolExecutor:
    """Return the process-wide worker pool of this size."""
    size = _resolve_worker_count(threads)
    with _WORKER_POOLS_LOCK:
        if size not in _WORKER_POOLS:
            _WORKER_POOLS[size] = ThreadPoolExecutor(size, thread_name_prefix="snowmelt-select")
        return _WORKER_POOLS[size]
