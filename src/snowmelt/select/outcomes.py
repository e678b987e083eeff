"""What a worker found in one block: the records that pass, with the values that were asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from snowmelt.select.instants import utc_micros
from snowmelt.select.refusals import SelectError
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.vectors import Kind, Slices, Vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from snowmelt.select.vectors import Instants, Row, Rows


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


def plain_values(vector: Vector) -> list[object]:
    """Return a vector's values as the evaluator would give them; deferred ones are None."""
    found: list[object]
    if isinstance(vector.data, Slices):
        slices = vector.data
        whole = slices.buffer.tobytes()
        bounds = zip(slices.start.tolist(), slices.end.tolist(), strict=True)
        found = [whole[start:end].decode("utf-8", "surrogateescape") for start, end in bounds]
        if vector.kind is Kind.NUMERAL:
            known = ~(vector.null | vector.deferred)
            found = [
                _number(str(text)) if there else None
                for text, there in zip(found, known.tolist(), strict=True)
            ]
    elif vector.kind is Kind.INSTANT:
        found = _timestamps(vector.instants)
    else:
        found = vector.array.tolist()
    for place in np.flatnonzero(vector.null | vector.deferred).tolist():
        found[place] = None
    return found


def _number(text: str) -> int | Decimal:
    return Decimal(text) if "." in text else int(text)


def _timestamps(instants: Instants) -> list[object]:
    form = instants.form
    if form is None:
        raise TypeError(Kind.INSTANT)
    micros = utc_micros(instants).tolist()
    return [Timestamp(each * 1000, 0, form.precision, form.digits) for each in micros]
