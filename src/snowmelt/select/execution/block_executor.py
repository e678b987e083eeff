"""One block worked through: kernels where they are exact, the evaluator for each other record.

A record that a kernel deferred is evaluated whole, in row order, so that values, errors and
their order come from the evaluator alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.evaluator import Scope, evaluate, holds
from snowmelt.select.sql.ast import Star
from snowmelt.select.vector.evaluator import truth, value
from snowmelt.select.vector.operands import Frame, all_null, plain_values
from snowmelt.select.vectors import Instants, Kind, Slices, Vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from snowmelt.select.sql.ast import Expression
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.timestamps import Timestamp
    from snowmelt.select.vectors import Batch, Mask, Row, Rows

# --- What a worker found in one block: the records that pass, with the values that were asked for.


@runtime_checkable
class NamedRow(Protocol):
    """A record whose fields have names of their own."""

    def names(self) -> Sequence[str]:
        """Return the names of all fields, in order."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A record: its place in the batch, and the byte of the object's text where it begins."""

    row: int
    offset: int | None

    def told(self, error: SelectError, before: int, name: str) -> SelectError:
        """Return an error of this record that tells where it is.

        Args:
            error: What is wrong.
            before: How many records of the object were read before the batch.
            name: The object's, empty where there is only one.
        """
        of = f" of {name}" if name else ""
        at = "" if self.offset is None else f", which begins at byte {self.offset}"
        return SelectError(
            error.s3_code,
            f"{error} (in record {before + self.row + 1}{of}{at})",
            status=error.status_code,
            fatal=error.fatal,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that was dropped: `place` records had passed before it."""

    place: int
    error: SelectError
    spot: Spot


@dataclass(frozen=True, slots=True)
class Passed:
    """The records that pass, in order, with the values of some expressions.

    `rows` are their places in the batch. A record in `slow` (ascending places among `rows`) has
    its values in `slow_values`; of all others `vectors` tell the values, one vector for each
    expression, as long as `rows`. There are no vectors when all records are slow.
    """

    rows: Rows
    vectors: Sequence[Vector]
    slow: Rows
    slow_values: Sequence[tuple[object, ...]]
    failures: Sequence[Failure] = ()
    # What ends the query after these records, and the record whose error it is.
    error: SelectError | None = None
    spot: Spot | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, at: int) -> list[object]:
        """Return the values of one expression for all records."""
        if len(self.slow) == len(self.rows):
            return [values[at] for values in self.slow_values]
        found = plain_values(self.vectors[at])
        for place, values in zip(self.slow.tolist(), self.slow_values, strict=True):
            found[place] = values[at]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the sink takes of one block, blocks in order.

    Streams: `output` with the end of each record in it. Folds and sorts: `passed`, too. `read`
    is how many records the block holds; `before` how many of the object were read before it, and
    `name` the object's where there are many, both known once it is the block's turn.
    """

    passed: Passed
    output: bytes = b""
    ends: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    read: int = 0
    before: int = 0
    name: str = ""

    def told(self, error: SelectError, place: int) -> SelectError:
        """Return an error that tells of which record it is: the one that passed at `place`."""
        return Spot(int(self.passed.rows[place]), None).told(error, self.before, self.name)


@dataclass(frozen=True, slots=True)
class AllFields:
    """What `*` is worth beside other outputs: names and values of a record's fields."""

    names: tuple[str, ...]
    values: tuple[object, ...]

    @classmethod
    def of(cls, row: Row) -> AllFields:
        """Take the fields of a record; those of CSV are called by their places."""
        values = tuple(row.fields())
        names = row.names() if isinstance(row, NamedRow) else ()
        numbered = (f"_{place + 1}" for place in range(len(names), len(values)))
        return cls((*names, *numbered), values)


def detached(passed: Passed) -> Passed:
    """Return the same without references to the batch's memory."""
    if not any(isinstance(vector.data, Slices) for vector in passed.vectors):
        return passed
    vectors = [
        _as_values(vector) if isinstance(vector.data, Slices) else vector
        for vector in passed.vectors
    ]
    return replace(passed, vectors=vectors)


def without_values(passed: Passed) -> Passed:
    """Return the same with the records' places and failures alone."""
    return replace(passed, vectors=(), slow_values=())


def _as_values(vector: Vector) -> Vector:
    values = np.empty(len(vector), np.object_)
    values[:] = plain_values(vector)
    return Vector(Kind.VALUES, values, vector.null, vector.deferred)


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
