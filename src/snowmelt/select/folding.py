"""Aggregates folded in row order, and what the record they make in the end reads."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.accumulators import make
from snowmelt.select.rewriting import parts, replace, without_aliases
from snowmelt.select.syntax import Aggregate, Column
from snowmelt.select.vectors import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from snowmelt.select.accumulators import Accumulator
    from snowmelt.select.limits import MemoryBudget
    from snowmelt.select.outcomes import Passed
    from snowmelt.select.query import Query
    from snowmelt.select.syntax import Expression
    from snowmelt.select.vectors import Rows


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
