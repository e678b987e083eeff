"""Where the blocks' outcomes come together, in the order of the object."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from snowmelt.select.errors import SelectError
from snowmelt.select.execution.block_executor import Outcome, Passed
from snowmelt.select.limits import EngineSettings, MemoryBudget
from snowmelt.select.scalar.aggregates import make
from snowmelt.select.scalar.evaluator import Scope, evaluate, holds
from snowmelt.select.scalar.ordering import SortedRows, comparable
from snowmelt.select.sql.ast import Aggregate, Column, parts, replace, without_aliases
from snowmelt.select.vectors import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from snowmelt.select.errors import ErrorBudget
    from snowmelt.select.execution.serializer import RecordWriter
    from snowmelt.select.scalar.aggregates import Accumulator
    from snowmelt.select.sql.ast import Expression
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.timestamps import Timestamp
    from snowmelt.select.vectors import Rows

Piece: TypeAlias = "tuple[bytes, NDArray[np.int64]]"


class Sink(Protocol):
    """Takes what passes, in order. `wants` says how many more records it needs; None: all."""

    @property
    def wants(self) -> int | None:
        """How many more passing records can change the answer."""

    def take(self, outcome: Outcome, count: int) -> Iterator[Piece]:
        """Take the first `count` records of an outcome; yield what can be sent already."""

    def finish(self) -> Iterator[Piece]:
        """Yield what can be sent only now that all is seen."""


class Window:
    """OFFSET and LIMIT over records that come one after the other."""

    def __init__(self, offset: int, limit: int | None) -> None:
        self._skip = offset
        self._left = limit

    @property
    def wants(self) -> int | None:
        """How many more records are needed, those to be skipped included."""
        return None if self._left is None else (self._skip + self._left if self._left else 0)

    def cut(self, output: bytes, ends: NDArray[np.int64]) -> Piece:
        """Return what of these records lies in the window."""
        skipped = min(self._skip, len(ends))
        self._skip -= skipped
        last = len(ends) if self._left is None else min(len(ends), skipped + self._left)
        if self._left is not None:
            self._left -= last - skipped
        if skipped == 0 and last == len(ends):
            return output, ends
        start = int(ends[skipped - 1]) if skipped else 0
        end = int(ends[last - 1]) if last > skipped else start
        return output[start:end], ends[skipped:last] - start


class StreamSink:
    """Records go out as they come."""

    def __init__(self, query: Query) -> None:
        self._window = Window(query.offset, query.limit)

    @property
    def wants(self) -> int | None:
        """How many more records the window takes."""
        return self._window.wants

    def take(self, outcome: Outcome, count: int) -> Iterator[Piece]:
        """Yield the records that lie in the window."""
        end = int(outcome.ends[count - 1]) if count else 0
        yield self._window.cut(outcome.output[:end], outcome.ends[:count])

    def finish(self) -> Iterator[Piece]:
        """Yield nothing: all has gone out."""
        return iter(())


class ListSink:
    """DISTINCT and ORDER BY over records: `passed` has the outputs, then the order's keys."""

    def __init__(self, query: Query, settings: EngineSettings, *, outputs: int) -> None:
        self._outputs = outputs
        self._window = Window(query.offset, query.limit)
        self._seen: set[object] | None = set() if query.distinct else None
        self._budget = MemoryBudget(
            settings.group_memory_bytes, what="DISTINCT", setting="select_group_memory_bytes"
        )
        first = None if query.limit is None else query.offset + query.limit
        self._sorted = (
            SortedRows(query.order_by, first, settings.sort_memory_bytes)
            if query.order_by
            else None
        )
        self._place = 0

    @property
    def wants(self) -> int | None:
        """All records where they are sorted or may be repeated; none behind the window."""
        return None if self._sorted or self._window.wants else self._window.wants

    def take(self, outcome: Outcome, count: int) -> Iterator[Piece]:
        """Keep or yield the records not seen before."""
        chosen = self._new(outcome, count)
        bounds = np.concatenate((np.zeros(1, np.int64), outcome.ends))
        if self._sorted is None:
            parts = [outcome.output[bounds[place] : bounds[place + 1]] for place in chosen]
            yield self._window.cut(*joined(parts))
            return
        passed = outcome.passed
        total = len(passed.vectors) or len(passed.slow_values[0]) if count else 0
        columns = [[comparable(v) for v in passed.values(at)] for at in range(self._outputs, total)]
        for place in chosen:
            keys = tuple(column[place] for column in columns)
            output = outcome.output[bounds[place] : bounds[place + 1]]
            self._sorted.add(keys, self._place + place, output)
        self._place += count

    def finish(self) -> Iterator[Piece]:
        """Yield the sorted records."""
        if self._sorted is not None:
            yield self._window.cut(*joined(self._sorted.finish()))

    def _new(self, outcome: Outcome, count: int) -> list[int]:
        if self._seen is None:
            return list(range(count))
        chosen = []
        for place, values in enumerate(self._shown(outcome, count)):
            identity = tuple(comparable(each) for each in values)
            if identity not in self._seen:
                self._budget.take(_size(values))
                self._seen.add(identity)
                chosen.append(place)
        return chosen

    def _shown(self, outcome: Outcome, count: int) -> Iterator[tuple[object, ...]]:
        """Yield what makes each record the same as another: its values; of `*` its bytes."""
        if self._outputs:
            columns = [outcome.passed.values(at)[:count] for at in range(self._outputs)]
            yield from zip(*columns, strict=True)
            return
        start = 0
        for end in outcome.ends[:count].tolist():
            yield (outcome.output[start:end],)
            start = end


class FoldSink:
    """Aggregates, with or without keys; groups come out in the order they were first seen."""

    def __init__(
        self,
        query: Query,
        now: Timestamp,
        writer: RecordWriter,
        settings: EngineSettings,
        errors: ErrorBudget,
    ) -> None:
        """Begin; rows that an aggregate cannot take are counted in `errors`."""
        self._query = query
        self._errors = errors
        self._now = now
        self._writer = writer
        self._settings = settings
        self._shape = FoldShape(query)
        self._arguments = self._shape.argument_places()
        self._groups: dict[object, tuple[tuple[object, ...], list[Accumulator]]] = {}
        self._last: tuple[object, ...] = (None,) * len(self._shape.last)
        self._budget = MemoryBudget(
            settings.group_memory_bytes,
            what="GROUP BY or DISTINCT",
            setting="select_group_memory_bytes",
        )
        if not self._shape.keys:
            self._groups[()] = ((), accumulators(query, self._budget))

    @property
    def wants(self) -> int | None:
        """All of them."""
        return None

    def take(self, outcome: Outcome, count: int) -> Iterator[Piece]:
        """Fold the records; nothing can be sent yet."""
        if count:
            self._fold(outcome, count)
        return iter(())

    def finish(self) -> Iterator[Piece]:
        """Yield a record for each group that HAVING lets pass."""
        query, shape = self._query, self._shape
        outputs = [output.expression for output in query.outputs]
        orders = [order.expression for order in query.order_by]
        sink = ListSink(query, self._settings, outputs=len(outputs))
        found: list[tuple[object, ...]] = []
        records = []
        row = KeptRow(dict(zip(shape.last, self._last, strict=True))) if self._last else None
        scope = Scope(query, self._now)
        for keys, folded in self._groups.values():
            scope.begin_group(shape.results(keys, folded))
            if query.having is not None and not holds(query.having, row, scope):
                continue
            values = tuple(evaluate(each, row, scope) for each in (*outputs, *orders))
            found.append(values)
            records.append(self._writer.record(values[: len(outputs)]))
        yield from sink.take(listed(found, records), len(records))
        yield from sink.finish()

    def _fold(self, outcome: Outcome, count: int) -> None:
        passed = outcome.passed
        every = len(self._shape.expressions)
        first_last = every - len(self._shape.last)
        self._last = tuple(passed.values(at)[count - 1] for at in range(first_last, every))
        if not self._shape.keys and all(folds_at_once(passed, at) for at in self._arguments):
            _, folded = self._groups[()]
            if _take_numbers(folded):
                for accumulator, at in zip(folded, self._arguments, strict=True):
                    fold(accumulator, passed, at, count)
                return
        keys = [passed.values(at)[:count] for at in range(len(self._shape.keys))]
        at_once = bool(keys) and groups_at_once(passed, len(keys), self._arguments)
        if not (at_once and self._fold_groups(passed, keys, count)):
            self._fold_rows(outcome, keys, count)

    def _fold_rows(self, outcome: Outcome, keys: list[list[object]], count: int) -> None:
        passed = outcome.passed
        arguments = [None if at is None else passed.values(at) for at in self._arguments]
        for place in range(count):
            values = tuple(column[place] for column in keys)
            identity = tuple(comparable(each) for each in values)
            is_first = bool(keys) and identity not in self._groups
            folded = self._group(values, identity)
            try:
                # A row that one aggregate refuses is left out of all.
                for accumulator, argument in zip(folded, arguments, strict=True):
                    if argument is not None and len(folded) > 1:
                        accumulator.check(argument[place])
                for accumulator, argument in zip(folded, arguments, strict=True):
                    if argument is None:
                        accumulator.add_rows(1)
                    else:
                        accumulator.add(argument[place])
            except SelectError as error:
                if is_first:
                    del self._groups[identity]
                self._errors.spend(outcome.told(error, place))

    def _fold_groups(self, passed: Passed, keys: list[list[object]], count: int) -> bool:
        """Fold each group's records at once; False where a group may refuse some."""
        sorted_out = [
            (self._group(values, tuple(comparable(each) for each in values)), places)
            for values, places in by_key(keys, count)
        ]
        if not all(_take_numbers(folded) for folded, _ in sorted_out):
            return False
        for folded, places in sorted_out:
            for accumulator, at in zip(folded, self._arguments, strict=True):
                if at is None:
                    accumulator.add_rows(len(places))
                else:
                    vector = passed.vectors[at]
                    accumulator.add_vector(vector.array[places], vector.null[places])
        return True

    def _group(self, values: tuple[object, ...], identity: object) -> list[Accumulator]:
        group = self._groups.get(identity)
        if group is None:
            self._budget.take(_size(values) + 200 * len(self._arguments))
            group = self._groups[identity] = (values, accumulators(self._query, self._budget))
        return group[1]


def _take_numbers(folded: list[Accumulator]) -> bool:
    return all(accumulator.takes_numbers for accumulator in folded)


def joined(records: list[bytes]) -> Piece:
    """Return records as one output with the end of each."""
    return b"".join(records), np.cumsum([len(record) for record in records], dtype=np.int64)


def listed(values: list[tuple[object, ...]], records: list[bytes]) -> Outcome:
    """Return records that were made one by one as an outcome."""
    places = np.arange(len(values))
    output, ends = joined(records)
    return Outcome(Passed(places, (), places, values), output, ends)


def _size(values: tuple[object, ...]) -> int:
    """Estimate what a row of values holds as the key of a table, on the high side."""
    return 200 + sum(180 + sys.getsizeof(value) for value in values)


# --- Aggregates folded in row order, and what the record they make in the end reads.


class KeptRow:
    """The fields of one record that outlive it."""

    def __init__(self, fields: Mapping[Column, object]) -> None:
        self._fields = fields

    def field(self, column: Column) -> object:
        """Return a kept field, NULL for others."""
        return self._fields.get(column)


class FoldShape:
    """Where keys, arguments and last fields stand among the expressions a worker evaluates.

    First the keys, then the arguments of the aggregates that have one, then the fields that are
    read of the last record.
    """

    def __init__(self, query: Query) -> None:
        self._projections = [output.expression for output in query.outputs]
        self._keys = query.group_by
        self.keys = tuple(without_aliases(key, self._projections) for key in query.group_by)
        self.aggregates = query.aggregates
        self.last = self._last_fields(query) if query.last_row else ()
        arguments = tuple(
            without_aliases(each.argument, self._projections)
            for each in query.aggregates
            if each.argument is not None
        )
        self.expressions: tuple[Expression, ...] = (*self.keys, *arguments, *self.last)

    def argument_places(self) -> list[int | None]:
        """Return for each aggregate the place of its argument among the expressions."""
        places: list[int | None] = []
        at = len(self.keys)
        for aggregate in self.aggregates:
            places.append(None if aggregate.argument is None else at)
            at += aggregate.argument is not None
        return places

    def results(
        self, keys: Sequence[object], folded: Sequence[Accumulator]
    ) -> dict[Expression, object]:
        """Return what keys and aggregates of a group are worth, by their expressions."""
        found: dict[Expression, object] = {}
        for written, plain, value in zip(self._keys, self.keys, keys, strict=True):
            found[written] = found[plain] = value
        for aggregate, accumulator in zip(self.aggregates, folded, strict=True):
            found[aggregate] = accumulator.result()
        return found

    def _last_fields(self, query: Query) -> tuple[Column, ...]:
        found: dict[Column, None] = {}
        for output in query.outputs:
            expression = without_aliases(output.expression, self._projections)
            outside = replace(expression, lambda part: _NOTHING if _folds(part) else None)
            found.update(
                (part, None)
                for part in parts(outside)
                if isinstance(part, Column) and part is not _NOTHING
            )
        return tuple(found)


_NOTHING = Column(None, "")


def _folds(expression: Expression) -> bool:
    return isinstance(expression, Aggregate)


def accumulators(query: Query, budget: MemoryBudget) -> list[Accumulator]:
    """Return a fresh accumulator for each aggregate of the query."""
    return [make(aggregate, query.dialect, budget) for aggregate in query.aggregates]


def folds_at_once(passed: Passed, at: int | None) -> bool:
    """Tell whether an argument is numbers in every record, which no aggregate refuses."""
    if at is None:
        return True
    if not passed.vectors or passed.vectors[at].kind not in (Kind.INT, Kind.FLOAT):
        return False
    return all(
        values[at] is None or type(values[at]) in (int, float, Decimal)
        for values in passed.slow_values
    )


def fold(accumulator: Accumulator, passed: Passed, at: int | None, count: int) -> None:
    """Add the first `count` records, in order; `at` is the argument's place, None for count(*).

    Only for what `folds_at_once`.
    """
    if at is None:
        accumulator.add_rows(count)
        return
    data, null = passed.vectors[at].array, passed.vectors[at].null
    start = 0
    for place, values in zip(passed.slow.tolist(), passed.slow_values, strict=True):
        if place >= count:
            break
        if place > start:
            accumulator.add_vector(data[start:place], null[start:place])
        accumulator.add(values[at])
        start = place + 1
    if start < count:
        accumulator.add_vector(data[start:count], null[start:count])


def groups_at_once(passed: Passed, keys: int, arguments: Sequence[int | None]) -> bool:
    """Tell whether records can be sorted into groups by key first, each group folded at once."""
    return (
        not len(passed.slow)
        and all(passed.vectors[at].kind is not Kind.FLOAT for at in range(keys))
        and all(folds_at_once(passed, at) for at in arguments)
    )


def by_key(
    keys: Sequence[Sequence[object]], count: int
) -> Iterator[tuple[tuple[object, ...], Rows]]:
    """Yield each key among the first `count` records with the places of its records, in order.

    Keys come in the order in which they are first seen.
    """
    codes: dict[tuple[object, ...], int] = {}
    coded = np.fromiter(
        (codes.setdefault(key, len(codes)) for key in zip(*keys, strict=True)), np.int64, count
    )
    order = np.argsort(coded, kind="stable")
    ends = np.cumsum(np.bincount(coded, minlength=len(codes)))
    yield from zip(codes, np.split(order, ends[:-1]), strict=True)
