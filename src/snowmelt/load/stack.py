"""Execution of one portion of a load through source, filters, parser and expressions.

Each step pulls slices from the previous one, so a run holds about one slice per step in memory.
Errors name the file, portion, step, byte and record. Cancelling a load ends every step.

`Prefetcher` runs a step, such as decompression, on a thread ahead of its consumer. Only steps that
release the interpreter lock benefit.

`check_step_chain` verifies the order of steps. A record source provides record boundaries. Record
filters preserve the boundaries or write them into the bytes. A byte filter drops them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa

from snowmelt.errors import (
    InternalError,
    LoadCancelled,
    LoadFailed,
    LoadRefused,
    PhaseFailed,
    SnowmeltError,
)
from snowmelt.load.phase_protocols import (
    ByteReader,
    Filter,
    ParsedBatch,
    Parser,
    RecordFilter,
    RecordParser,
    RecordSource,
    Source,
    join_records,
)
from snowmelt.load.phase_registry import LoadFunctions
from snowmelt.load.portion import Portion
from snowmelt.load.projection import ColumnProjector
from snowmelt.load.task import LoadStep, LoadTask, PortionCounts, StackPlan
from snowmelt.load.udx import shared_progress_page
from snowmelt.schema.types import to_display_name

_MAX_PREFETCHED = 2
# Maximum wait for the thread. A source that waits for the network ends only when the load is
# cancelled.
_JOIN_TIMEOUT_S = 5.0


class Prefetcher:
    """Single-use iterator that reads up to two slices ahead, on a thread."""

    def __init__(self, slices: Iterable[bytes]) -> None:
        self._slices = slices
        self._ready: deque[bytes] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._prefetch, name="snowmelt-ahead", daemon=True)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the slices, then raise the error of the iterable, if any."""
        self._thread.start()
        while (piece := self._pop()) is not None:
            yield piece

    def close(self) -> None:
        """Stop reading ahead and wait up to 5 s for the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)

    def _pop(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            return None

    def _prefetch(self) -> None:
        try:
            for piece in self._slices:
                if not self._push(piece):
                    return
        except BaseException as error:  # noqa: BLE001 - `_pop` raises it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _push(self, data: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < _MAX_PREFETCHED or self._closed)
            if not self._closed:
                self._ready.append(data)
            self._changed.notify_all()
            return not self._closed


_FORMAT_OPTION_NAMES = {
    "delimiter": "DELIMITER",
    "enclosed_by": "ENCLOSED BY",
    "escape": "ESCAPE",
    "null": "NULL",
}


def check_step_chain(
    plan: StackPlan,
    source: Source | RecordSource,
    filters: Sequence[Filter | RecordFilter],
    parser: Parser | RecordParser,
) -> None:
    """Raise LoadRefused if a step cannot read the output of the previous one."""
    before = plan.source
    records = isinstance(source, RecordSource)
    for step, each in zip(plan.filters, filters, strict=True):
        if not consumes_records(each, has_record_input=records) and not isinstance(each, Filter):
            raise _make_record_input_error(step, before)
        records = emits_records(each, has_record_input=records)
        before = step
    if records and not isinstance(parser, RecordParser):
        raise LoadRefused(
            what=str(plan.parser),
            reason=f"expected a byte stream, got records from {before}. Add FILTER "
            "KafkaInsertDelimiters(delimiter = E'\\n'), or use a message parser such as "
            "KafkaJSONParser",
        )
    if not records and not isinstance(parser, Parser):
        raise _make_record_input_error(plan.parser, before)


def _make_record_input_error(step: LoadStep, before: LoadStep) -> LoadRefused:
    return LoadRefused(
        what=str(step),
        reason=f"Input is not from Kafka source: expected records, got bytes without record "
        f"boundaries from {before}",
    )


def check_column_options(plan: StackPlan, parser: Parser | RecordParser) -> None:
    """Raise LoadRefused if a column has an option that the built-in parser would ignore."""
    known: frozenset[str] = getattr(parser, "column_marks", frozenset())
    for name, options in plan.target.options.items():
        for mark, written in _FORMAT_OPTION_NAMES.items():
            if getattr(options, mark) is not None and mark not in known:
                raise LoadRefused(
                    what=f"{written} of column {to_display_name(name)}",
                    reason=f"{plan.parser} does not support this option for a column. Remove it",
                )


def consumes_records(phase: object, *, has_record_input: bool) -> bool:
    """Return True if a filter or parser reads its input as records."""
    return has_record_input and isinstance(phase, RecordFilter | RecordParser)


def emits_records(phase: object, *, has_record_input: bool) -> bool:
    """Return True if a filter's output is records."""
    return has_record_input and isinstance(phase, RecordFilter) and not phase.ends_records


class FailureLocator:
    """Locator of errors in one portion. It keeps the first failure.

    The run reports the first failure even if a later step suppresses its exception.
    """

    def __init__(self, portion: Portion) -> None:
        self._portion = portion
        self.failure: LoadFailed | None = None
        self.cancelled = False

    def raise_if_cancelled(self) -> None:
        """Raise LoadCancelled if the load was cancelled."""
        if self.cancelled:
            raise LoadCancelled

    def make_failure(
        self, step: LoadStep, error: Exception, bytes_read: int, *, is_file_offset: bool
    ) -> LoadFailed:
        """Return the located error for an exception of a step.

        Args:
            step: The step that failed.
            error: What it raised.
            bytes_read: Number of bytes that the step had read (for a source: emitted).
            is_file_offset: True if `bytes_read` counts unfiltered bytes of the file.
        """
        portion = self._portion
        where = portion.file.path
        if not portion.is_whole:
            end = "its end" if portion.size is None else f"{portion.offset + portion.size:,}"
            where += f" (bytes {portion.offset:,} to {end})"
        fields = error.fields if isinstance(error, SnowmeltError) else {}
        if isinstance(error, SnowmeltError):
            reason = str(error).rstrip(".")
        else:
            reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        start = portion.offset if is_file_offset else 0
        offset = fields.get("offset")
        where += f", {step}, " + (
            f"at byte {start + offset:,} of "
            if isinstance(offset, int)
            else f"after {start + bytes_read:,} bytes of "
        )
        where += "the file" if is_file_offset else "its input"
        if fields.get("record") is not None:
            where += f", record {fields['record']:,}"
        # Remove the path, because errors of sources begin with it.
        reason = reason.removeprefix(f"{portion.file.path}: ")
        failure = LoadFailed(where=where, reason=reason, file=portion.file.path, step=str(step))
        self.failure = self.failure or failure
        return failure


Item = TypeVar("Item")

_END_OF_ITEMS = object()


class StepOutput(Generic[Item]):
    """The items that one step yields.

    `handed` is the number of bytes yielded. `ended` is True after the last item.
    """

    def __init__(
        self,
        step: LoadStep,
        items: Iterator[Item],
        locator: FailureLocator,
        upstream: StepOutput[object] | None,
        *,
        is_user_code: bool = False,
    ) -> None:
        """Wrap the items of a step. `upstream` is its input, None for a source."""
        self.handed = 0
        self.is_source_output = upstream is None
        self.ended = False
        self._step = step
        self._items = items
        self._locator = locator
        self._upstream = upstream
        self._label = shared_progress_page.encode_label(str(step)) if is_user_code else b""
        self._limits = shared_progress_page.get_user_code_limits() if is_user_code else None
        self._checked_items = self._iter_checked_items()

    def __iter__(self) -> Iterator[Item]:
        """Yield the items. Raises the errors of `PortionRun.__iter__`."""
        return self._checked_items

    def close(self) -> None:
        """Close the step. Idempotent."""
        # An Arrow thread may still run the generator. Cancelling the load ends it.
        with suppress(ValueError):
            self._checked_items.close()

    def _iter_checked_items(self) -> Generator[Item]:
        items = iter(self._items)
        try:
            while (item := self._next_item(items)) is not _END_OF_ITEMS:
                self._locator.raise_if_cancelled()
                self.handed += _count_item_bytes(item)
                self._check_output_limit()
                yield cast("Item", item)
            self.ended = True
        except (LoadFailed, LoadCancelled, InternalError):
            raise
        except Exception as error:
            self._locator.raise_if_cancelled()
            raise self._make_failure(error) from error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()

    def _next_item(self, items: Iterator[Item]) -> Item | object:
        ran = shared_progress_page.enter_step(self._label)
        try:
            return next(items, _END_OF_ITEMS)
        except (GeneratorExit, KeyboardInterrupt, SystemExit) as error:
            # In a worker process, only user code raises these: Ctrl-C does not reach the process.
            if not shared_progress_page.is_isolated():
                raise
            self._locator.raise_if_cancelled()
            raise self._make_failure(RuntimeError(f"it raised {type(error).__name__}")) from error
        finally:
            shared_progress_page.enter_step(ran)

    def _check_output_limit(self) -> None:
        if self._limits is None or self._upstream is None:
            return
        limit = self._limits.max_output_bytes(self._upstream.handed)
        if self.handed > limit:
            raise PhaseFailed(
                reason=f"it has emitted {self.handed:,} bytes for {self._upstream.handed:,} bytes of "
                f"input, more than the limit of {limit:,} (`user_code_output_bytes`)"
            )

    def _make_failure(self, error: Exception) -> LoadFailed:
        before = self._upstream
        read = self.handed if before is None else before.handed
        of_file = before is None or before.is_source_output
        return self._locator.make_failure(self._step, error, read, is_file_offset=of_file)


def _count_item_bytes(item: object) -> int:
    if isinstance(item, bytes):
        return len(item)
    if isinstance(item, pa.BinaryArray):
        if item.null_count:
            raise TypeError("a record is null; expected bytes, which may be empty")
        size: int = item.total_values_length
        return size
    if hasattr(item, "rows"):
        return 0
    raise TypeError(f"expected bytes or records, got {type(item).__name__}")


class LoadStack:
    """Steps of a load. They process one portion at a time."""

    def __init__(self, plan: StackPlan, functions: LoadFunctions) -> None:
        """Build the steps. Raises the errors of `run_portion`."""
        self._projector = ColumnProjector(plan)
        self.source = functions.make_phase(plan.source)
        self.filters = [functions.make_phase(step) for step in plan.filters]
        self.parser = functions.make_phase(plan.parser)
        self._user_code_flags = tuple(
            functions.is_user_function(step) for step in (plan.source, *plan.filters, plan.parser)
        )
        check_step_chain(plan, self.source, self.filters, self.parser)
        if not self._user_code_flags[-1]:
            check_column_options(plan, self.parser)

    @property
    def splittable(self) -> bool:
        """True if an uncompressed file can be split into portions."""
        bytewise = not self.filters and not isinstance(self.source, RecordSource)
        return bytewise and bool(getattr(self.parser, "splittable", False))

    def make_run(self, task: LoadTask) -> PortionRun:
        """Return the run of one portion. Only one run of a stack may be active."""
        filters = self.filters
        of_user = self._user_code_flags
        if task.compression is not None:
            # Use the built-in filter, even if a user-defined filter has the same name.
            step = LoadStep("filter", task.compression.value)
            filters = [LoadFunctions().make_phase(step), *filters]
            of_user = (of_user[0], False, *of_user[1:])
        return PortionRun(task, (self.source, *filters, self.parser), self._projector, of_user)


def run_portion(task: LoadTask, functions: LoadFunctions | None = None) -> PortionRun:
    """Build the steps of a task and return its single-use run.

    Raises:
        LoadRefused: If a step is unknown, its parameters are invalid, or it cannot read the output
            of the previous step.
    """
    return LoadStack(task.plan, functions or LoadFunctions()).make_run(task)


class PortionRun:
    """Single-use execution of one portion. Iterating yields blocks of rows of the table.

    `counts` is complete after the last block. Leaving the iteration early, or `cancel`, closes all
    steps, the source last. Only `cancel` is thread-safe.
    """

    def __init__(
        self,
        task: LoadTask,
        steps: Sequence[Any],
        projector: ColumnProjector,
        user_code_flags: Sequence[bool],
    ) -> None:
        self.counts = PortionCounts()
        self._task = task
        self._steps = steps
        self._user_code_flags = user_code_flags
        self._projector = projector
        self._locator = FailureLocator(task.portion)
        self._prefetchers: list[Prefetcher] = []

    def __iter__(self) -> Iterator[ParsedBatch]:
        """Yield blocks of consecutive records: rows in the table's native form, and rejects.

        Ends early and sets `counts.reject_limit_reached` if the limit of rejects is reached.

        Raises:
            LoadFailed: If a step failed.
            LoadCancelled: If `cancel` was called.
        """
        flows, task = self._connect_steps(), self._task
        try:
            for block in flows[-1]:
                if block.records != block.rows.num_rows + len(block.rejects):
                    raise InternalError(
                        f"{task.portion.file.path}, {task.plan.parser}: {block.records} records "
                        f"are not {block.rows.num_rows} rows and {len(block.rejects)} rejects"
                    )
                shaped = self._projector.project(block, self.counts.records, task.portion.file)
                self._add_batch_to_counts(shaped, flows)
                yield shaped
                if self.counts.reject_limit_reached:
                    return
            self._check_completeness(flows)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            self.cancel()
            raise
        finally:
            for ahead in self._prefetchers:
                ahead.close()
            for flow in reversed(flows):
                flow.close()

    @property
    def source(self) -> Any:
        """The source. A Kafka source also reports offsets."""
        return self._steps[0]

    def cancel(self) -> None:
        """Make the run end with LoadCancelled. Thread-safe and idempotent."""
        if not self._locator.cancelled:
            self._locator.cancelled = True
            for step in self._steps:
                cancel = getattr(step, "cancel", None)
                if cancel is not None:
                    cancel()

    def _connect_steps(self) -> list[StepOutput[Any]]:
        task, placer = self._task, self._locator
        source, *filters, parser = self._steps
        records = isinstance(source, RecordSource)
        items = source.read_records(task.portion) if records else source.read(task.portion)
        own = iter(self._user_code_flags)
        flows: list[StepOutput[Any]] = [
            StepOutput(task.plan.source, items, placer, None, is_user_code=next(own))
        ]
        before: Any = source
        for step, each in zip(task.filters, filters, strict=True):
            if consumes_records(each, has_record_input=records):
                items = each.run_records(iter(flows[-1]))
            else:
                items = each.run(self._make_reader(flows[-1], before, has_record_output=records))
            records = emits_records(each, has_record_input=records)
            before = each
            flows.append(StepOutput(step, items, placer, flows[-1], is_user_code=next(own)))
        if consumes_records(parser, has_record_input=records):
            items = parser.parse_records(iter(flows[-1]), task.plan.target)
        else:
            reader = self._make_reader(flows[-1], before, has_record_output=False)
            items = parser.parse(reader, task.plan.target, task.portion)
        return [
            *flows,
            StepOutput(task.plan.parser, items, placer, flows[-1], is_user_code=next(own)),
        ]

    def _make_reader(
        self, output: StepOutput[Any], phase: object, *, has_record_output: bool
    ) -> ByteReader:
        """Return a reader of a step's output.

        Prefetches on two or more processors if the phase has the attribute `overlaps`.
        """
        if has_record_output:
            return ByteReader(map(join_records, output))
        if not getattr(phase, "overlaps", False) or (os.cpu_count() or 1) < 2:
            return ByteReader(output)
        ahead = Prefetcher(output)
        self._prefetchers.append(ahead)
        return ByteReader(ahead)

    def _add_batch_to_counts(self, batch: ParsedBatch, outputs: Sequence[StepOutput[Any]]) -> None:
        counts, limit = self.counts, self._task.plan.reject_limit
        counts.records += batch.records
        counts.rows += batch.rows.num_rows
        counts.rejects += len(batch.rejects)
        counts.truncated_values += batch.truncated_values
        counts.header_mismatch = counts.header_mismatch or batch.header_mismatch
        counts.reject_limit_reached = limit is not None and counts.rejects >= limit
        self._update_byte_counts(outputs)

    def _update_byte_counts(self, outputs: Sequence[StepOutput[Any]]) -> None:
        size = self._task.portion.size
        handed = outputs[0].handed
        self.counts.bytes_in = handed if size is None else min(handed, size)
        self.counts.bytes_parsed = outputs[-2].handed

    def _check_completeness(self, outputs: Sequence[StepOutput[Any]]) -> None:
        """Raise LoadFailed if a step suppressed an error, or the file changed its size."""
        self._update_byte_counts(outputs)
        placer, portion = self._locator, self._task.portion
        placer.raise_if_cancelled()
        if placer.failure is not None:
            raise placer.failure
        size = portion.file.size
        if portion.is_whole and outputs[0].ended and size not in {None, outputs[0].handed}:
            raise LoadFailed(
                where=f"{portion.file.path}, {self._task.plan.source}",
                reason=f"expected {size:,} bytes as listed, read {outputs[0].handed:,} bytes",
            )
