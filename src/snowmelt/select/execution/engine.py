"""One SELECT carried out: blocks to workers, their outcomes in order to the sink, payloads out.

The thread that iterates the payloads reads the object, or leaves that to the workers where several
threads can; a few blocks are ahead of it in a pool of workers that all executions of the process
share, first come first served. So a client that reads slowly slows its own query down and nobody
else's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.clock import Clock, SystemClock
from snowmelt.select.errors import ErrorBudget, SelectError
from snowmelt.select.execution.block_executor import (
    BlockPlan,
    Outcome,
    Passed,
    detached,
    without_values,
)
from snowmelt.select.execution.passthrough import WholeRecords
from snowmelt.select.execution.serializer import record_writer, write_passed
from snowmelt.select.execution.sinks import FoldShape, FoldSink, ListSink, StreamSink
from snowmelt.select.formats.csv_dialect import csv_rules
from snowmelt.select.formats.object_reader import ManyRecords, ManySources, open_records
from snowmelt.select.limits import EngineSettings
from snowmelt.select.request import CsvInput
from snowmelt.select.sql.ast import without_aliases
from snowmelt.select.sql.binder import bind
from snowmelt.select.sql.bound_query import CsvFields, ParquetFields
from snowmelt.select.sql.parser import parse
from snowmelt.select.timestamps import of_datetime

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from snowmelt.select.execution.serializer import RecordWriter
    from snowmelt.select.execution.sinks import Sink
    from snowmelt.select.formats.decompression import ObjectSource
    from snowmelt.select.formats.object_reader import Records, Unit
    from snowmelt.select.request import SelectRequest
    from snowmelt.select.sql.ast import Expression
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.timestamps import Timestamp

__all__ = [
    "EngineSettings",
    "Execution",
    "open_select",
]

# --- Output cut into payloads: small enough for one frame, ending where a record ends.

# A frame of 128 KiB, less what its headers may take: larger ones are refused by some clients.
PAYLOAD_BYTES = 128 * 1024 - 256


class PayloadCutter:
    """Gathers output and cuts it: a record that fits into a payload is never split.

    Where the cuts lie depends on the output alone, not on how it was handed in.
    """

    def __init__(self, limit: int = PAYLOAD_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    def add(self, output: bytes, ends: NDArray[np.int64]) -> Iterator[bytes]:
        """Take whole records, `ends` being the end of each in `output`; yield full payloads."""
        at = 0
        while len(output) - at > self._limit - self._held:
            place = int(np.searchsorted(ends, at + self._limit - self._held, side="right"))
            end = int(ends[place - 1]) if place else 0
            if end > at:
                self._hold(output[at:end])
            elif not self._held:
                end = at + self._limit  # a record longer than a payload
                self._hold(output[at:end])
            else:
                end = at
            yield from self.flush()
            at = end
        if at < len(output):
            self._hold(output[at:] if at else output)

    def flush(self) -> Iterator[bytes]:
        """Yield what is held, if anything."""
        if self._held:
            whole = b"".join(self._parts)
            self._parts = []
            self._held = 0
            yield whole

    def _hold(self, part: bytes) -> None:
        self._parts.append(part)
        self._held += len(part)


_POOLS: dict[int, ThreadPoolExecutor] = {}
_POOLS_LOCK = threading.Lock()


def open_select(
    request: SelectRequest,
    source: ObjectSource | ManySources,
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
) -> Execution:
    """Begin a SELECT; the execution owns the source from here on, and closes it.

    Raises:
        SelectError: The statement, the request or the object's front is wrong; nothing is kept.
    """
    settings = settings or EngineSettings()
    try:
        statement = parse(request.expression, request.dialect)
        records = _records(request, source, settings)
        try:
            query = bind(statement, dialect=request.dialect, fields=records.fields)
            now = of_datetime((clock or SystemClock()).now())
            job = Job(request, query, records, now, settings)
        except BaseException:
            records.close()
            raise
    except BaseException:
        source.close()
        raise
    return Execution(job, records, source, settings)


def _records(
    request: SelectRequest, source: ObjectSource | ManySources, settings: EngineSettings
) -> Records:
    if isinstance(source, ManySources):
        return ManyRecords(request, source, settings)
    return open_records(request, source, settings)


class Job:
    """What is done with each unit, and where the outcomes go."""

    def __init__(
        self,
        request: SelectRequest,
        query: Query,
        records: Records,
        now: Timestamp,
        settings: EngineSettings,
    ) -> None:
        """Choose plan, writer and sink of a query."""
        self.query = query
        self.errors = ErrorBudget()
        self.writer: RecordWriter = record_writer(query, request.output)
        projections = [output.expression for output in query.outputs]
        orders = [without_aliases(order.expression, projections) for order in query.order_by]
        expressions: list[Expression] = [*projections, *orders]
        most: int | None = None
        if query.grouped:
            expressions = list(FoldShape(query).expressions)
            self.sink: Sink = FoldSink(query, now, self.writer, settings, self.errors)
        elif query.order_by or query.distinct:
            self.sink = ListSink(query, settings, outputs=len(projections))
        else:
            self.sink = StreamSink(query)
            most = self.sink.wants
        self._outputs = len(projections)
        # Whether the sink wants values besides the output.
        self._looks_back = bool(query.order_by or query.distinct)
        self._plan = BlockPlan(query, expressions, now, most=most)
        self._whole = _whole_records(request, query, records, self.writer)
        # The places of counted records, the same for each unit: they are only looked at.
        self._places = np.empty(0, np.int64)
        self.counts_only = query.grouped and query.where is None and not expressions

    @property
    def needs_all_fields(self) -> bool:
        """Whether output shows all fields, one by one."""
        return self._whole is not None and not self._whole.copies

    def work(self, unit: Unit) -> Outcome:
        """Work one unit through; in a worker."""
        try:
            count = unit.count() if self.counts_only else None
            if count is not None:
                if count > len(self._places):
                    self._places = np.arange(2 * count)
                rows = self._places[:count]
                return Outcome(Passed(rows, (), self._places[:0], ()), read=count)
            batch = unit.decode()
            passed = self._plan.run(batch)
            if passed.error is None:
                passed = replace(passed, error=batch.failure)
            if self.query.grouped:
                return Outcome(detached(passed), read=batch.rows)
            if self._whole is not None:
                output, ends = self._whole.write(batch, passed)
            else:
                output, ends = write_passed(passed, self.writer, self._outputs)
            kept = detached(passed) if self._looks_back else without_values(passed)
            return Outcome(kept, output, ends, batch.rows)
        finally:
            unit.release()


def _whole_records(
    request: SelectRequest, query: Query, records: Records, writer: RecordWriter
) -> WholeRecords | None:
    if not query.star:
        return None
    fields = records.fields
    names = fields.names if isinstance(fields, CsvFields | ParquetFields) else None
    rules = None
    if isinstance(request.input, CsvInput):
        ranged = request.scan_range is not None
        rules = csv_rules(request.input, request.dialect, ranged=ranged)
    return WholeRecords(writer, rules, names)


class Execution:
    """A SELECT under way.

    Iterate `payloads` once, in one thread; the counters and `close` may be used from any.
    """

    def __init__(
        self,
        job: Job,
        records: Records,
        source: ObjectSource | ManySources,
        settings: EngineSettings,
    ) -> None:
        self._job = job
        self._records = records
        self._source = source
        self._pool = _pool(settings.threads)
        self._ahead = max(1, settings.blocks_in_flight)
        # Counting costs less than to wake the one worker there is.
        self._counts_here = job.counts_only and _workers(settings.threads) == 1
        self._pending: deque[tuple[str, Future[Outcome]]] = deque()
        self._lock = threading.Lock()
        self._running = False
        self._closed = False
        self._returned = 0
        # Records read of the object so far, and its name if there are many.
        self._read = 0
        self._name = ""

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far, compressed ones if it is compressed."""
        return self._records.scanned

    @property
    def processed(self) -> int:
        """Bytes of records read so far, inflated."""
        return self._records.processed

    @property
    def returned(self) -> int:
        """Bytes of the payloads handed out so far."""
        return self._returned

    def payloads(self) -> Generator[bytes]:
        """Yield the answer, cut as `PayloadCutter` does; ends early when closed.

        Raises:
            SelectError: What ended the query, after all records before it were yielded.
        """
        with self._lock:
            if self._closed:
                return
            self._running = True
        cutter = PayloadCutter()
        try:
            failure = yield from self._stream(cutter)
            for payload in cutter.flush():
                yield self._counted(payload)
            if failure is not None:
                raise failure
        finally:
            self._running = False
            self._closed = True
            self._tear_down()

    def close(self) -> None:
        """Stop the query and free what it holds. Idempotent.

        While another thread waits for the next payload, that thread frees it, at once.
        """
        with self._lock:
            self._closed = True
            if self._running:
                return
        self._tear_down()

    def _stream(self, cutter: PayloadCutter) -> Generator[bytes, None, Exception | None]:
        sink = self._job.sink
        failure: Exception | None = None
        outcomes = self._outcomes()
        while failure is None and sink.wants != 0 and not self._closed:
            try:
                outcome = next(outcomes, None)
                if outcome is None:
                    break
                outcome = replace(outcome, before=self._read, name=self._name)
                count, failure = self._settle(outcome)
                for output, ends in sink.take(outcome, count):
                    for payload in cutter.add(output, ends):
                        yield self._counted(payload)
            except Exception as error:  # noqa: BLE001  raised behind the records before it
                failure = error
        if failure is None and not self._closed:
            try:
                for output, ends in sink.finish():
                    for payload in cutter.add(output, ends):
                        yield self._counted(payload)
            except SelectError as error:
                failure = error
        return failure

    def _settle(self, outcome: Outcome) -> tuple[int, SelectError | None]:
        """Return how many records of an outcome count, and the error that comes behind them."""
        passed = outcome.passed
        wants = self._job.sink.wants
        count = len(passed) if wants is None else min(len(passed), wants)
        enough = wants is not None and count == wants
        self._read += outcome.read
        for failure in passed.failures:
            if enough and failure.place >= count:
                return count, None
            try:
                told = failure.spot.told(failure.error, outcome.before, outcome.name)
                self._job.errors.spend(told)
            except SelectError as error:
                return failure.place, error
        if enough or passed.error is None or passed.spot is None:
            return count, None if enough else passed.error
        return count, passed.spot.told(passed.error, outcome.before, outcome.name)

    def _outcomes(self) -> Iterator[Outcome]:
        """Yield the units' outcomes in order; a few units are ahead in the workers."""
        units = self._records.units(self._job.query, whole=self._job.needs_all_fields)
        failure: Exception | None = None
        more = True
        while more or self._pending:
            while more and len(self._pending) < self._ahead and not self._closed:
                try:
                    unit = next(units, None)
                except Exception as error:  # noqa: BLE001  comes after what was read before
                    failure, unit = error, None
                if unit is None:
                    more = False
                else:
                    self._pending.append((self._current(), self._submit(unit)))
            if self._closed:
                return
            if self._pending:
                name, work = self._pending.popleft()
                if name != self._name:
                    self._name, self._read = name, 0
                yield work.result()
        if failure is not None:
            raise failure

    def _submit(self, unit: Unit) -> Future[Outcome]:
        """Give a unit to the workers, or work it through here, its bytes still in the cache."""
        if self._counts_here:
            done: Future[Outcome] = Future()
            try:
                done.set_result(self._job.work(unit))
            except Exception as error:  # noqa: BLE001  raised where the outcome is taken
                done.set_exception(error)
            return done
        return self._pool.submit(self._job.work, unit)

    def _current(self) -> str:
        return self._records.current if isinstance(self._records, ManyRecords) else ""

    def _counted(self, payload: bytes) -> bytes:
        self._returned += len(payload)
        return payload

    def _tear_down(self) -> None:
        pending, self._pending = list(self._pending), deque()
        # Workers may be reading the source.
        wait([future for _, future in pending if not future.cancel()])
        self._records.close()
        self._source.close()


def _workers(threads: int) -> int:
    """Return how many workers a setting means; 0 stands for the number of processors."""
    return threads or os.cpu_count() or 1


def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the process's pool of so many workers."""
    size = _workers(threads)
    with _POOLS_LOCK:
        if size not in _POOLS:
            _POOLS[size] = ThreadPoolExecutor(size, thread_name_prefix="snowmelt-select")
        return _POOLS[size]
