"""Runs one portion of a load through source, filters, parser and expressions.

Each step pulls from the one before it, so that memory is bounded by what one piece needs. What
a step raises is placed: the error names file, portion, step, byte and record.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from snowmelt.errors import InternalError, LoadFailed
from snowmelt.load.ahead import Ahead
from snowmelt.load.chain import check_chain, check_column_options, keeps_records, reads_records
from snowmelt.load.flow import Flow, stream_of
from snowmelt.load.functions import Functions
from snowmelt.load.phases import RecordSource
from snowmelt.load.placing import Placer
from snowmelt.load.reader import Reader
from snowmelt.load.shaping import Shaper
from snowmelt.load.steps import Counts, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.load.copying import Compression
    from snowmelt.load.parsed import Parsed
    from snowmelt.load.phases import Filter, RecordFilter
    from snowmelt.load.steps import LoadTask, StackPlan


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
