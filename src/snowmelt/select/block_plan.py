"""One block worked through: kernels where they are exact, the evaluator for each other record.

A record that a kernel deferred is evaluated whole, in row order, so that values, errors and
their order come from the evaluator alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.evaluator import Scope, evaluate, holds
from snowmelt.select.operands import Frame, all_null
from snowmelt.select.outcomes import AllFields, Failure, Passed, Spot
from snowmelt.select.plan import truth, value
from snowmelt.select.refusals import SelectError
from snowmelt.select.syntax import Star
from snowmelt.select.vectors import Instants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.select.query import Query
    from snowmelt.select.syntax import Expression
    from snowmelt.select.timestamps import Timestamp
    from snowmelt.select.vectors import Batch, Mask, Row, Rows, Vector


@dataclass(slots=True)
class _Slow:
    """What the evaluator found, in row order; `keep` are places among the candidates."""

    places: list[int] = field(default_factory=list)
    values: list[tuple[object, ...]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: list[tuple[int, SelectError]] = field(default_factory=list)
    # The candidates from here on were not looked at: an error, or enough has been found.
    stop: int | None = None
    error: SelectError | None = None


class BlockPlan:
    """WHERE and some expressions of the records that pass; used by all workers at once."""

    def __init__(
        self, query: Query, expressions: Sequence[Expression], now: Timestamp, *, most: int | None
    ) -> None:
        """Prepare a plan.

        Args:
            query: The bound statement.
            expressions: Whose values are wanted of each record that passes.
            now: The instant of `utcnow()`.
            most: How many passing records are enough; None wants all.
        """
        self._query = query
        self._expressions = tuple(expressions)
        self._now = now
        self._most = most

    def run(self, batch: Batch) -> Passed:
        """Return the records of a batch that pass."""
        frame = Frame(batch, self._query, self._now)
        unsure: Mask | None = None
        candidates = np.arange(batch.rows)
        if self._query.where is not None:
            true, deferred = truth(self._query.where, frame)
            candidates = np.flatnonzero(true | deferred)
            unsure = deferred[candidates]
            frame = frame.narrow(candidates)
        frame = frame.for_output()
        vectors = [value(expression, frame) for expression in self._expressions]
        slow = np.zeros(len(candidates), np.bool_) if unsure is None else unsure
        for at, vector in enumerate(vectors):
            slow = slow | vector.deferred
            if isinstance(vector.data, Instants) and vector.data.form is None:
                # Kernels compare and take apart such timestamps; only the evaluator shows them.
                slow = slow | ~vector.null
                vectors[at] = all_null(len(vector))
        if not slow.any():
            none = np.empty(0, np.int64)
            return Passed(candidates, vectors, none, ())
        return self._settle(batch, candidates, vectors, slow, unsure)

    def _settle(
        self,
        batch: Batch,
        candidates: Rows,
        vectors: Sequence[Vector],
        slow: Mask,
        unsure: Mask | None,
    ) -> Passed:
        """Let the evaluator decide about the slow candidates and put both together."""
        found = self._evaluate(batch, candidates, slow, unsure)
        keep = np.ones(len(candidates), np.bool_)
        keep[found.dropped] = False
        if found.stop is not None:
            keep[found.stop :] = False
        before = np.zeros(len(candidates) + 1, np.int64)
        np.cumsum(keep, out=before[1:])
        rows = candidates.tolist()
        failures = [
            Failure(int(before[place]), error, _spot(batch, rows[place]))
            for place, error in found.failed
        ]
        fatal = found.error is not None and found.stop is not None
        spot = _spot(batch, rows[found.stop or 0]) if fatal else None
        kept = np.flatnonzero(keep)
        if len(kept) == len(found.places):
            vectors = ()
        elif len(kept) < len(candidates):
            vectors = [vector.take(kept) for vector in vectors]
        places = before[np.array(found.places, np.int64)]
        return Passed(candidates[kept], vectors, places, found.values, failures, found.error, spot)

    def _evaluate(self, batch: Batch, candidates: Rows, slow: Mask, unsure: Mask | None) -> _Slow:
        found = _Slow()
        scope = Scope(self._query, self._now)
        slow_before = 0
        for place in np.flatnonzero(slow).tolist():
            passed = place - slow_before + len(found.places)
            if self._most is not None and passed >= self._most:
                found.stop = place
                break
            slow_before += 1
            row = batch.row(int(candidates[place]))
            try:
                scope.begin_row()
                where = self._query.where
                asked = unsure is not None and unsure[place]
                if where is not None and asked and not holds(where, row, scope):
                    found.dropped.append(place)
                    continue
                values = tuple(_value(each, row, scope) for each in self._expressions)
            except SelectError as error:
                if error.fatal:
                    found.stop, found.error = place, error
                    break
                found.dropped.append(place)
                found.failed.append((place, error))
                continue
            found.places.append(place)
            found.values.append(values)
        return found


def _spot(batch: Batch, row: int) -> Spot:
    return Spot(row, batch.offset(row))


def _value(expression: Expression, row: Row, scope: Scope) -> object:
    if isinstance(expression, Star):
        return AllFields.of(row)
    return evaluate(expression, row, scope)
