"""Runs one portion of a load through source, filters, parser and expressions.

Each step pulls from the one before it, so that memory is bounded by what one piece needs. What
a step raises is placed: the error names file, portion, step, byte and record.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from snowmelt.errors import (
    InternalError,
    LoadCancelled,
    LoadFailed,
    LoadRefused,
    PhaseFailed,
    SnowmeltError,
)
from snowmelt.load.function_registry import Functions
from snowmelt.load.phases import Filter, Parser, Reader, RecordFilter, RecordParser, RecordSource
from snowmelt.load.projection import Shaper
from snowmelt.load.task import Counts, Step
from snowmelt.load.udx import worker_progress as progress
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from snowmelt.load.copy_ast import Compression
    from snowmelt.load.phases import Parsed, Records, Source
    from snowmelt.load.portion import Portion
    from snowmelt.load.task import LoadTask, StackPlan

# --- Pieces made by a thread of their own before they are asked for: inflating beside parsing.
#
# Only for steps that work without the interpreter's lock; others would but take turns.

_MOST = 2
# A source that waits for the network hears of its end by the load's cancel.
_PATIENCE_S = 5.0


class Ahead:
    """What an iterable yields, a few pieces early; to be iterated once."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._ready: deque[bytes] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="snowmelt-ahead", daemon=True)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; what their making raised is raised behind those before it."""
        self._thread.start()
        while (piece := self._next()) is not None:
            yield piece

    def close(self) -> None:
        """Make no more of them and wait for the one that is being made; again is harmless."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_S)

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            return None

    def _work(self) -> None:
        try:
            for piece in self._pieces:
                if not self._put(piece):
                    return
        except BaseException as error:  # noqa: BLE001  whoever takes the pieces raises it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, piece: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < _MOST or self._closed)
            if not self._closed:
                self._ready.append(piece)
            self._changed.notify_all()
            return not self._closed


# --- Which step may follow which: streams of bytes, and records with their ends beside them.
#
# A source of records begins the side channel; filters that work on records keep it up, or end it
# by writing the ends into the bytes. A filter of bytes ends it, too: what follows sees one stream.

_MARKS = {
    "delimiter": "DELIMITER",
    "enclosed_by": "ENCLOSED BY",
    "escape": "ESCAPE",
    "null": "NULL",
}


def check_chain(
    plan: StackPlan,
    source: Source | RecordSource,
    filters: Sequence[Filter | RecordFilter],
    parser: Parser | RecordParser,
) -> None:
    """Check that each step can read what the one before it hands on.

    Raises:
        LoadRefused: One cannot; says what to put between them.
    """
    before = plan.source
    records = isinstance(source, RecordSource)
    for step, each in zip(plan.filters, filters, strict=True):
        if not reads_records(each, records=records) and not isinstance(each, Filter):
            raise LoadRefused(
                what=str(step),
                reason=f"Input is not from Kafka source: it works on records, and {before} hands "
                "on bytes without the ends of records",
            )
        records = keeps_records(each, records=records)
        before = step
    if records and not isinstance(parser, RecordParser):
        raise LoadRefused(
            what=str(plan.parser),
            reason=f"it reads one stream of bytes, and {before} hands on records whose ends are "
            "not in the bytes: put FILTER KafkaInsertDelimiters(delimiter = E'\\n') before it, or "
            "use a parser of messages such as KafkaJSONParser",
        )
    if not records and not isinstance(parser, Parser):
        raise LoadRefused(
            what=str(plan.parser),
            reason=f"Input is not from Kafka source: it parses records, and {before} hands on "
            "bytes without the ends of records",
        )


def check_column_options(plan: StackPlan, parser: Parser | RecordParser) -> None:
    """Check that a parser built in knows the marks that columns have for themselves.

    Raises:
        LoadRefused: If it would ignore one.
    """
    known: frozenset[str] = getattr(parser, "column_marks", frozenset())
    for name, options in plan.target.options.items():
        for mark, written in _MARKS.items():
            if getattr(options, mark) is not None and mark not in known:
                raise LoadRefused(
                    what=f"{written} of column {display_name(name)}",
                    reason=f"{plan.parser} has no such option for a column. Leave it out",
                )


def reads_records(step: object, *, records: bool) -> bool:
    """Tell whether a filter or parser works on records when it is given some."""
    return records and isinstance(step, RecordFilter | RecordParser)


def keeps_records(step: object, *, records: bool) -> bool:
    """Tell whether there are records behind a filter."""
    return records and isinstance(step, RecordFilter) and not step.ends_records


# --- Says where a load failed: file, portion, step with its parameters, byte and record.


class Placer:
    """Knows the portion that is loaded, and keeps the first failure of it.

    A step that swallows what its input raises does not make the failure unseen.
    """

    def __init__(self, portion: Portion) -> None:
        self._portion = portion
        self.failure: LoadFailed | None = None
        self.cancelled = False

    def go_on(self) -> None:
        """Do nothing, unless the load was cancelled.

        Raises:
            LoadCancelled: It was.
        """
        if self.cancelled:
            raise LoadCancelled

    def failed(self, step: Step, error: Exception, read: int, *, of_file: bool) -> LoadFailed:
        """Return the error that says what a step raised, and where; the caller raises it.

        `read` counts the bytes that the step was given (a source: that it gave) before;
        `of_file` says that these are the bytes of the file as they are.
        """
        fields = error.fields if isinstance(error, SnowmeltError) else {}
        place = [self._named(), str(step), self._byte(fields.get("offset"), read, of_file=of_file)]
        if fields.get("record") is not None:
            place.append(f"record {fields['record']:,}")
        reason = str(error).rstrip(".") if isinstance(error, SnowmeltError) else _described(error)
        # A source's own error begins with the path, too.
        reason = reason.removeprefix(f"{self._portion.file.path}: ")
        failure = LoadFailed(
            where=", ".join(place), reason=reason, file=self._portion.file.path, step=str(step)
        )
        self.failure = self.failure or failure
        return failure

    def _named(self) -> str:
        portion = self._portion
        if portion.is_whole:
            return portion.file.path
        end = "its end" if portion.size is None else f"{portion.offset + portion.size:,}"
        return f"{portion.file.path} (bytes {portion.offset:,} to {end})"

    def _byte(self, offset: object, read: int, *, of_file: bool) -> str:
        start = self._portion.offset if of_file else 0
        whose = "the file" if of_file else "its input"
        if isinstance(offset, int):
            return f"at byte {start + offset:,} of {whose}"
        return f"after {start + read:,} bytes of {whose}"


def _described(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- What one step of a load hands to the next: counted, placed when it fails, ended by a cancel.

Item = TypeVar("Item")

_END = object()


class Flow(Generic[Item]):
    """The items of one step; `handed` counts the bytes in them, `ended` tells that all came."""

    def __init__(
        self,
        step: Step,
        items: Iterator[Item],
        placer: Placer,
        before: Flow[object] | None,
        *,
        of_user: bool = False,
    ) -> None:
        """Take the items of a step.

        Args:
            step: The step.
            items: What it yields.
            placer: Says where a failure is.
            before: The flow that the step reads, None for a source.
            of_user: The step is code of a user, with its limits.
        """
        self.handed = 0
        self.ended = False
        self._step = step
        self._items = items
        self._placer = placer
        self._before = before
        self._label = progress.label_of(str(step)) if of_user else b""
        self._most_output = progress.limits().most_output if of_user and before else None
        self._watched = self._watch()

    @property
    def is_first(self) -> bool:
        """Whether it is the source's."""
        return self._before is None

    def __iter__(self) -> Iterator[Item]:
        """Yield the items.

        Raises:
            LoadFailed: The step failed, or one before it.
            LoadCancelled: The load was cancelled.
        """
        return self._watched

    def close(self) -> None:
        """Close the step; again is harmless."""
        # A thread of Arrow may still be inside; it finds the load cancelled.
        with suppress(ValueError):
            self._watched.close()

    def _watch(self) -> Generator[Item]:
        items = iter(self._items)
        try:
            while (item := self._next(items)) is not _END:
                self._placer.go_on()
                self.handed += _measured(item)
                self._check_output()
                yield cast("Item", item)
            self.ended = True
        except (LoadFailed, LoadCancelled, InternalError):
            raise
        except Exception as error:
            self._placer.go_on()
            raise self._failed(error) from error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()

    def _next(self, items: Iterator[Item]) -> Item | object:
        ran = progress.enter(self._label)
        try:
            return next(items, _END)
        except (GeneratorExit, KeyboardInterrupt, SystemExit) as error:
            # In a process of their own they come from user code, not from Ctrl-C.
            if not progress.is_isolated():
                raise
            self._placer.go_on()
            raise self._failed(RuntimeError(f"it raised {type(error).__name__}")) from error
        finally:
            progress.enter(ran)

    def _check_output(self) -> None:
        most = self._most_output
        if most is None or self._before is None:
            return
        limit = most(self._before.handed)
        if self.handed > limit:
            raise PhaseFailed(
                reason=f"it has emitted {self.handed:,} bytes for {self._before.handed:,} bytes of "
                f"input, more than the limit of {limit:,} (`user_code_output_bytes`)"
            )

    def _failed(self, error: Exception) -> LoadFailed:
        before = self._before
        read = self.handed if before is None else before.handed
        of_file = before is None or before.is_first
        return self._placer.failed(self._step, error, read, of_file=of_file)


def size_of_records(records: Records) -> int:
    """Return the number of bytes in a batch of records."""
    if not len(records):
        return 0
    offsets = np.frombuffer(records.buffers()[1], dtype=np.int32)
    return int(offsets[records.offset + len(records)] - offsets[records.offset])


def stream_of(records: Iterator[Records]) -> Iterator[bytes]:
    """Yield the bytes of records without their ends."""
    for batch in records:
        if size := size_of_records(batch):
            offsets = np.frombuffer(batch.buffers()[1], dtype=np.int32)
            start = int(offsets[batch.offset])
            yield batch.buffers()[2].slice(start, size).to_pybytes()


def _measured(item: object) -> int:
    if isinstance(item, bytes):
        return len(item)
    if isinstance(item, pa.BinaryArray):
        if item.null_count:
            raise TypeError("a record is null; a record without bytes is empty")
        return size_of_records(item)
    if hasattr(item, "rows"):
        return 0
    raise TypeError(f"it hands on {type(item).__name__}; bytes or records are expected")


class Stack:
    """The steps of a load, made once and used for one portion after the other."""

    def __init__(self, plan: StackPlan, functions: Functions) -> None:
        """Make the steps.

        Raises:
            LoadRefused: A step is unknown, its parameters are refused, or it cannot follow the
                one before it.
        """
        self._shaper = Shaper(plan)
        self.source = functions.source(plan.source)
        self.filters = [functions.filter(step) for step in plan.filters]
        self.parser = functions.parser(plan.parser)
        self._of_user = tuple(
            functions.is_of_user(step) for step in (plan.source, *plan.filters, plan.parser)
        )
        self._decompressors: dict[Compression, Filter | RecordFilter] = {}
        check_chain(plan, self.source, self.filters, self.parser)
        if not self._of_user[-1]:
            check_column_options(plan, self.parser)

    @property
    def splittable(self) -> bool:
        """Whether a file that is not compressed can be cut into portions."""
        bytewise = not self.filters and not isinstance(self.source, RecordSource)
        return bytewise and bool(getattr(self.parser, "splittable", False))

    def run(self, task: LoadTask) -> PortionRun:
        """Return the run of one portion; one at a time for each stack."""
        filters = self.filters
        of_user = self._of_user
        if task.compression is not None:
            filters = [self._decompressor(task.compression), *filters]
            of_user = (of_user[0], False, *of_user[1:])
        return PortionRun(task, (self.source, *filters, self.parser), self._shaper, of_user)

    def _decompressor(self, compression: Compression) -> Filter | RecordFilter:
        if compression not in self._decompressors:
            step = Step("filter", compression.value)
            # Not what a user may have registered under this name.
            self._decompressors[compression] = Functions().filter(step)
        return self._decompressors[compression]


def run_portion(task: LoadTask, functions: Functions | None = None) -> PortionRun:
    """Make the steps of a task and return the run of its portion, to be iterated once.

    Raises:
        LoadRefused: A step is unknown, its parameters are refused, or it cannot follow the one
            before it.
    """
    return Stack(task.plan, functions or Functions()).run(task)


class PortionRun:
    """One portion on its way through the steps; yields what it holds, as rows of the table.

    `counts` is complete after the last item. Leaving early, or `cancel` from any thread, closes
    all steps, the source last.
    """

    def __init__(
        self, task: LoadTask, steps: Sequence[Any], shaper: Shaper, of_user: Sequence[bool]
    ) -> None:
        self.counts = Counts()
        self._task = task
        self._steps = steps
        self._of_user = of_user
        self._shaper = shaper
        self._placer = Placer(task.portion)
        self._ahead: list[Ahead] = []

    def __iter__(self) -> Iterator[Parsed]:
        """Yield blocks of consecutive records: rows in native form of the table, and rejects.

        After the limit of rejects nothing more comes, and `counts.limited` is set.

        Raises:
            LoadFailed: A step failed; says which, and where.
            LoadCancelled: `cancel` was called.
        """
        flows, task = self._connected(), self._task
        try:
            for block in flows[-1]:
                self._check(block)
                shaped = self._shaper.shape(block, self.counts.records, task.portion.file.path)
                self._count(shaped, flows)
                yield shaped
                if self.counts.limited:
                    return
            self._check_end(flows)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            self.cancel()
            raise
        finally:
            for ahead in self._ahead:
                ahead.close()
            for flow in reversed(flows):
                flow.close()

    @property
    def source(self) -> Any:
        """The source, which may know more of what it read than its bytes."""
        return self._steps[0]

    def cancel(self) -> None:
        """Make the run end with LoadCancelled soon; from any thread, again is harmless."""
        if not self._placer.cancelled:
            self._placer.cancelled = True
            for step in self._steps:
                cancel = getattr(step, "cancel", None)
                if cancel is not None:
                    cancel()

    def _connected(self) -> list[Flow[Any]]:
        """Let each step read from the one before it."""
        task, placer = self._task, self._placer
        source, *filters, parser = self._steps
        records = isinstance(source, RecordSource)
        items = source.read_records(task.portion) if records else source.read(task.portion)
        own = iter(self._of_user)
        flows: list[Flow[Any]] = [Flow(task.plan.source, items, placer, None, of_user=next(own))]
        before: Any = source
        for step, each in zip(task.filters, filters, strict=True):
            if reads_records(each, records=records):
                items = each.run_records(iter(flows[-1]))
            else:
                items = each.run(self._reader(flows[-1], before, records=records))
            records = keeps_records(each, records=records)
            before = each
            flows.append(Flow(step, items, placer, flows[-1], of_user=next(own)))
        if reads_records(parser, records=records):
            items = parser.parse_records(iter(flows[-1]), task.plan.target)
        else:
            reader = self._reader(flows[-1], before, records=False)
            items = parser.parse(reader, task.plan.target, task.portion)
        return [*flows, Flow(task.plan.parser, items, placer, flows[-1], of_user=next(own))]

    def _reader(self, flow: Flow[Any], step: object, *, records: bool) -> Reader:
        """Return what reads the bytes that a step hands on; some are made before they are read."""
        if records:
            return Reader(stream_of(iter(flow)))
        if not getattr(step, "overlaps", False) or (os.cpu_count() or 1) < 2:
            return Reader(flow)
        ahead = Ahead(flow)
        self._ahead.append(ahead)
        return Reader(ahead)

    def _check(self, block: Parsed) -> None:
        if block.records != block.rows.num_rows + len(block.rejects):
            raise InternalError(
                f"{self._task.portion.file.path}, {self._task.plan.parser}: {block.records} "
                f"records are not {block.rows.num_rows} rows and {len(block.rejects)} rejects"
            )

    def _count(self, block: Parsed, flows: Sequence[Flow[Any]]) -> None:
        counts, limit = self.counts, self._task.plan.reject_limit
        counts.records += block.records
        counts.rows += block.rows.num_rows
        counts.rejects += len(block.rejects)
        counts.limited = limit is not None and counts.rejects >= limit
        self._count_bytes(flows)

    def _count_bytes(self, flows: Sequence[Flow[Any]]) -> None:
        size = self._task.portion.size
        handed = flows[0].handed
        self.counts.bytes_in = handed if size is None else min(handed, size)
        self.counts.bytes_parsed = flows[-2].handed

    def _check_end(self, flows: Sequence[Flow[Any]]) -> None:
        """Nothing was swallowed on the way, and the file is as long as it was."""
        self._count_bytes(flows)
        placer, portion = self._placer, self._task.portion
        placer.go_on()
        if placer.failure is not None:
            raise placer.failure
        size = portion.file.size
        if portion.is_whole and flows[0].ended and size not in {None, flows[0].handed}:
            raise LoadFailed(
                where=f"{portion.file.path}, {self._task.plan.source}",
                reason=f"it had {size:,} bytes when it was listed and has {flows[0].handed:,} now",
            )
