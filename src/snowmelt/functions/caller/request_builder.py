"""What a batch asks its service: equal inputs once, known ones not at all, and in halves if need be."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from snowmelt.functions.caller.arrow_types import arrow_form
from snowmelt.functions.caller.batcher import BatchIds
from snowmelt.functions.caller.request_encoder import ColumnWriter
from snowmelt.functions.caller.value_cache import MISSING
from snowmelt.functions.definition import Volatility

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from snowmelt.functions.caller.batcher import Batch
    from snowmelt.functions.caller.plan import CallPlan, Place
    from snowmelt.functions.caller.value_cache import ValueCache
    from snowmelt.functions.definition import ExternalFunction
    from snowmelt.functions.errors import TooLarge

if TYPE_CHECKING:
    Integers: TypeAlias = NDArray[np.int64]

_encoder = msgspec.json.Encoder(decimal_format="number")
_SMALL = 16


@dataclass(frozen=True, slots=True)
class Request:
    """Rows as they are sent: one POST, and again with the same id until it is answered."""

    batch_id: str
    body: bytes
    rows: int
    columns: tuple[pa.Array, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A batch, what it asks, and how the answers become values of its rows.

    `request` is None where there is nothing to ask. `known` holds values of earlier calls.
    """

    batch: Batch
    request: Request | None
    known: pa.Array | None = None
    keys: tuple[bytes, ...] = ()
    indices: pa.Array | None = None

    @property
    def cache_hits(self) -> int:
        """How many inputs needed no call."""
        return 0 if self.known is None else len(self.known)

    def restored(self, answers: pa.Array, known: pa.Array | None = None) -> pa.Array:
        """Return one value for each row of the batch; NULL for rows that were not sent.

        Args:
            answers: One for each row of the request, of any type.
            known: Likewise for the work's `known`, of the same type.
        """
        if known is not None and len(known):
            answers = pa.concat_arrays([answers, known])
        return answers if self.indices is None else answers.take(self.indices)


class Composer:
    """Makes requests of the batches of one function at one place of a query."""

    def __init__(self, plan: CallPlan, place: Place, cache: ValueCache | None = None) -> None:
        """Prepare.

        Args:
            plan: Of the function.
            place: In the query.
            cache: Values of earlier calls; used where the function is IMMUTABLE.
        """
        function, options = plan.function, plan.options
        self._writer = ColumnWriter(
            function.signature.arguments,
            plan.zone,
            binary=options.binary,
            array_as_string=options.array_as_string,
        )
        self._arguments = len(function.signature.arguments)
        self._form = arrow_form(function.signature.returns, plan.zone)
        self._ids = BatchIds(place, function)
        self._scope = _scope(plan)
        self._immutable = function.volatility is Volatility.IMMUTABLE
        self._cache = cache if self._immutable else None

    def work(self, batch: Batch) -> Work:
        """Return what to ask for a batch.

        Raises:
            BatchInvalid: A column does not fit its argument.
        """
        columns, rows = batch.columns[: self._arguments], batch.sent
        index: Integers | None = None
        if self._immutable and rows > 1:
            first, index = distinct(columns, rows)
            if index is not None:
                columns, rows = _rows(columns, first), len(first)
        keys: list[bytes] = []
        known = None
        if self._cache is not None and rows:
            keys, known, slots = self._look_up(columns, rows, self._cache)
            if known is not None:
                asked = np.flatnonzero(slots < len(keys))
                columns, rows = _rows(columns, asked), len(asked)
                index = slots if index is None else slots[index]
        request = self._request(batch, columns, rows) if rows else None
        return Work(batch, request, known, tuple(keys), _indices(batch, index))

    def keep(self, work: Work, answers: pa.Array, failed: Collection[int] = ()) -> None:
        """Keep the answers to a request for later calls.

        Args:
            work: What `work` returned.
            answers: One for each row of the request.
            failed: Rows of the request that have no answer.
        """
        if self._cache is None or not work.keys:
            return
        keys, values = list(work.keys), answers.to_pylist()
        for at in sorted(failed, reverse=True):
            del keys[at], values[at]
        sizes = [len(each) if isinstance(each, (str, bytes)) else _SMALL for each in values]
        self._cache.put_many(keys, values, sizes)

    def halves(self, request: Request) -> tuple[Request, Request]:
        """Return two requests that ask what one does, which has two rows at least."""
        middle = request.rows // 2
        first = tuple(column.slice(0, middle) for column in request.columns)
        second = tuple(column.slice(middle) for column in request.columns)
        return (
            self._part(f"{request.batch_id}/0", first, middle),
            self._part(f"{request.batch_id}/1", second, request.rows - middle),
        )

    def _part(self, batch_id: str, columns: tuple[pa.Array, ...], rows: int) -> Request:
        return Request(batch_id, self._writer.body(rows, columns), rows, columns)

    def _request(self, batch: Batch, columns: tuple[pa.Array, ...], rows: int) -> Request:
        body = self._writer.body(rows, columns)
        return Request(self._ids.of(batch.ordinal, body), body, rows, columns)

    def _look_up(
        self, columns: Sequence[pa.Array], rows: int, cache: ValueCache
    ) -> tuple[list[bytes], pa.Array | None, Integers]:
        """Return keys of rows that are not known, known values, and where each row's answer is."""
        texts = self._writer.listed(columns)
        encode, scope = _encoder.encode, self._scope
        keys = [scope + encode(row) for row in (zip(*texts, strict=True) if texts else [()] * rows)]
        found = cache.get_many(keys)
        missing = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
        if len(missing) == rows:
            return keys, None, np.arange(rows)
        is_known = np.fromiter((value is not MISSING for value in found), np.bool_, rows)
        slots = np.empty(rows, np.int64)
        slots[~is_known] = np.arange(len(missing))
        slots[is_known] = np.arange(len(missing), rows)
        values = [value for value in found if value is not MISSING]
        return missing, pa.array(values, self._form), slots


def _scope(plan: CallPlan) -> bytes:
    """Return what values depend on besides the function and its arguments, as a digest."""
    options = plan.options
    spoken = [plan.zone, options.binary, options.array_as_string, sorted(plan.context.items())]
    return hashlib.blake2b(msgspec.json.encode(spoken), digest_size=12).digest()


def distinct(columns: Sequence[pa.Array], rows: int) -> tuple[Integers, Integers | None]:
    """Return the first of each set of equal rows, and which of those each row equals.

    The latter is None if no two rows are equal.
    """
    codes = np.zeros(rows, np.int64)
    for at, column in enumerate(columns):
        # Equal floats may be written differently: 0.0 and -0.0. Equal bits are not.
        bits = column.view(pa.int64()) if pa.types.is_float64(column.type) else column
        encoded = bits.dictionary_encode(null_encoding="encode")
        found = encoded.indices.to_numpy().astype(np.int64)
        if at:
            # Both are below the number of rows, so that the product fits into 64 bits.
            both = pa.array(codes * len(encoded.dictionary) + found).dictionary_encode()
            found = both.indices.to_numpy().astype(np.int64)
        codes = found
        if int(codes.max()) + 1 == rows:
            return codes, None
    highest = np.maximum.accumulate(codes)
    is_first = np.ones(rows, np.bool_)
    is_first[1:] = highest[1:] > highest[:-1]
    return np.flatnonzero(is_first), codes


def _rows(columns: Sequence[pa.Array], rows: Integers) -> tuple[pa.Array, ...]:
    indices = pa.array(rows)
    return tuple(column.take(indices) for column in columns)


def _indices(batch: Batch, index: Integers | None) -> pa.Array | None:
    """Return where each row of a batch finds its answer; None where it is in the same place."""
    if batch.places is None:
        return None if index is None else pa.array(index)
    places = np.zeros(batch.rows, np.int64)
    missing = np.ones(batch.rows, np.bool_)
    places[batch.places] = np.arange(batch.sent) if index is None else index
    missing[batch.places] = False
    return pa.array(places, mask=missing)


# --- Which sizes are too large for a function's service, learnt from what it could not take.


@dataclass(slots=True)
class Sizes:
    """The smallest sizes of requests that had to be sent in halves; for any number of threads."""

    rows: int | None = None
    body_bytes: int | None = None

    def forbid(self, request: Request) -> bool:
        """Tell whether a request is as large as one that was too large."""
        return request.rows > 1 and (
            (self.rows is not None and request.rows >= self.rows)
            or (self.body_bytes is not None and len(request.body) >= self.body_bytes)
        )


@dataclass(slots=True)
class Split:
    """A request that was too large; its size counts once both halves were answered as they were.

    A single huge row says nothing about a size: the half that holds it is too large again, until
    the row is alone, and all that time the other half was not.
    """

    sizes: Sizes
    rows: int | None
    body_bytes: int | None
    answered: int = 0

    @classmethod
    def of(cls, request: Request, error: TooLarge, sizes: Sizes) -> Split:
        """Note what was too large: the reply, which has to do with rows, or the request."""
        if error.fields.get("status") == 200:
            return cls(sizes, request.rows, None)
        return cls(sizes, None, len(request.body))

    def half_answered(self) -> None:
        """Count a half; with the second one, no request of this size is sent again."""
        self.answered += 1
        if self.answered == 2:
            self.sizes.rows = _least(self.sizes.rows, self.rows)
            self.sizes.body_bytes = _least(self.sizes.body_bytes, self.body_bytes)


def _least(known: int | None, found: int | None) -> int | None:
    if known is None or found is None:
        return known if found is None else found
    return min(known, found)


_sizes: dict[tuple[int, str, str], Sizes] = {}


def sizes_of(function: ExternalFunction) -> Sizes:
    """Return what this process knows about a function."""
    return _sizes.setdefault((os.getpid(), function.url, function.signature.name), Sizes())
