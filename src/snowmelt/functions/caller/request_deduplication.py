"""Makes the requests of batches, with distinct and uncached inputs only, and splits large requests.

Values of IMMUTABLE functions are cached in this process. The cache is limited in bytes and evicts
the least recently used values.

`RequestSizeLimits` records the request sizes that a function's service could not process. Requests
of at least that size are split before they are sent.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snowmelt.functions.caller.arrow_types import to_arrow_type
from snowmelt.functions.caller.batcher import BatchIdGenerator, CallBatch
from snowmelt.functions.caller.plan import CallPlan, QueryPosition
from snowmelt.functions.caller.request_encoder import RequestEncoder
from snowmelt.functions.definition import ExternalFunction, Volatility

Int64Array: TypeAlias = NDArray[np.int64]

_json_encoder = msgspec.json.Encoder(decimal_format="number")
_DEFAULT_VALUE_BYTES = 16


class CacheMiss:
    """Type of the marker for a value that is not cached. None is a valid value."""


CACHE_MISS: Final = CacheMiss()


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Rows to send in one POST. Retries have the same batch ID."""

    batch_id: str
    body: bytes
    rows: int
    columns: tuple[pa.Array, ...]


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A batch, its request, and the mapping of the response to its rows.

    `request` is None if no request is needed. `cached_values` are values of earlier calls.
    """

    batch: CallBatch
    request: BatchRequest | None
    cached_values: pa.Array | None = None
    cache_keys: tuple[bytes, ...] = ()
    row_indices: pa.Array | None = None

    @property
    def cache_hits(self) -> int:
        """Number of inputs whose values are cached."""
        return 0 if self.cached_values is None else len(self.cached_values)

    def spread_to_rows(self, values: pa.Array, cached_values: pa.Array | None = None) -> pa.Array:
        """Return one value per row of the batch, NULL for rows that were not sent.

        Args:
            values: One value per row of the request, of any type.
            cached_values: Values of earlier calls.
        """
        if cached_values is not None and len(cached_values):
            values = pa.concat_arrays([values, cached_values])
        return values if self.row_indices is None else values.take(self.row_indices)


class RequestBuilder:
    """Builder of the requests of one function at one position of a query."""

    def __init__(
        self, plan: CallPlan, position: QueryPosition, cache: ValueCache | None = None
    ) -> None:
        function, options = plan.function, plan.options
        self._request_encoder = RequestEncoder(
            function.signature.arguments,
            plan.zone,
            binary=options.binary,
            array_as_string=options.array_as_string,
        )
        self._argument_count = len(function.signature.arguments)
        self._result_type = to_arrow_type(function.signature.returns, plan.zone)
        self._batch_ids = BatchIdGenerator(position, function)
        # Part of each cache key: the settings on which values depend, besides function and
        # arguments.
        scope = [plan.zone, options.binary, options.array_as_string, sorted(plan.context.items())]
        self._scope = hashlib.blake2b(msgspec.json.encode(scope), digest_size=12).digest()
        self._is_immutable = function.volatility is Volatility.IMMUTABLE
        self._cache = cache if self._is_immutable else None

    def build_work(self, batch: CallBatch) -> BatchWork:
        """Return the request of a batch and the mapping of its response.

        Raises:
            BatchInvalid: If a column does not fit its argument.
        """
        columns, rows = batch.columns[: self._argument_count], batch.sent_rows
        index: Int64Array | None = None
        if self._is_immutable and rows > 1:
            first, index = find_distinct_rows(columns, rows)
            if index is not None:
                columns, rows = _take_rows(columns, first), len(first)
        keys: list[bytes] = []
        known = None
        if self._cache is not None and rows:
            keys, known, slots = self._find_cached_values(columns, rows, self._cache)
            if known is not None:
                asked = np.flatnonzero(slots < len(keys))
                columns, rows = _take_rows(columns, asked), len(asked)
                index = slots if index is None else slots[index]
        request = None
        if rows:
            body = self._request_encoder.encode_body(rows, columns)
            batch_id = self._batch_ids.make_batch_id(batch.ordinal, body)
            request = BatchRequest(batch_id, body, rows, columns)
        return BatchWork(batch, request, known, tuple(keys), _map_rows_to_values(batch, index))

    def cache_values(self, work: BatchWork, response_values: pa.Array) -> None:
        """Cache the values of a response for later calls."""
        if self._cache is None or not work.cache_keys:
            return
        if pa.types.is_timestamp(response_values.type):
            # Python cannot represent all instants in all zones, and pyarrow lacks zones of Spark.
            response_values = response_values.view(pa.int64())
        values = response_values.to_pylist()
        sizes = [
            len(each) if isinstance(each, (str, bytes)) else _DEFAULT_VALUE_BYTES for each in values
        ]
        self._cache.put_many(work.cache_keys, values, sizes)

    def split_request(self, request: BatchRequest) -> list[BatchRequest]:
        """Split a request of at least two rows in two."""
        middle = request.rows // 2
        halves = []
        for at, (start, rows) in enumerate(((0, middle), (middle, request.rows - middle))):
            columns = tuple(column.slice(start, rows) for column in request.columns)
            body = self._request_encoder.encode_body(rows, columns)
            halves.append(BatchRequest(f"{request.batch_id}/{at}", body, rows, columns))
        return halves

    def _find_cached_values(
        self, columns: Sequence[pa.Array], row_count: int, cache: ValueCache
    ) -> tuple[list[bytes], pa.Array | None, Int64Array]:
        """Return the keys of missing rows, the cached values, and the index of each row's value."""
        texts = self._request_encoder.to_json_values(columns)
        encode, scope = _json_encoder.encode, self._scope
        keys = [
            scope + encode(row) for row in (zip(*texts, strict=True) if texts else [()] * row_count)
        ]
        found = cache.get_many(keys)
        missing = [key for key, value in zip(keys, found, strict=True) if value is CACHE_MISS]
        if len(missing) == row_count:
            return keys, None, np.arange(row_count)
        is_known = np.fromiter((value is not CACHE_MISS for value in found), np.bool_, row_count)
        slots = np.empty(row_count, np.int64)
        slots[~is_known] = np.arange(len(missing))
        slots[is_known] = np.arange(len(missing), row_count)
        values = [value for value in found if value is not CACHE_MISS]
        if pa.types.is_timestamp(self._result_type):
            return missing, pa.array(values, pa.int64()).view(self._result_type), slots
        return missing, pa.array(values, self._result_type), slots


def find_distinct_rows(
    columns: Sequence[pa.Array], row_count: int
) -> tuple[Int64Array, Int64Array | None]:
    """Return the first row of each set of equal rows, and the index of each row's set.

    The indexes are None if no two rows are equal.
    """
    codes = np.zeros(row_count, np.int64)
    for at, column in enumerate(columns):
        # Compare bits: equal floats may have different JSON, such as 0.0 and -0.0.
        bits = column.view(pa.int64()) if pa.types.is_float64(column.type) else column
        encoded = bits.dictionary_encode(null_encoding="encode")
        found = encoded.indices.to_numpy().astype(np.int64)
        if at:
            # Both codes are below the number of rows, so the product fits into 64 bits.
            both = pa.array(codes * len(encoded.dictionary) + found).dictionary_encode()
            found = both.indices.to_numpy().astype(np.int64)
        codes = found
        if int(codes.max()) + 1 == row_count:
            return codes, None
    highest = np.maximum.accumulate(codes)
    is_first = np.ones(row_count, np.bool_)
    is_first[1:] = highest[1:] > highest[:-1]
    return np.flatnonzero(is_first), codes


def _take_rows(columns: Sequence[pa.Array], row_indices: Int64Array) -> tuple[pa.Array, ...]:
    indices = pa.array(row_indices)
    return tuple(column.take(indices) for column in columns)


def _map_rows_to_values(batch: CallBatch, value_index: Int64Array | None) -> pa.Array | None:
    """Return the index of each row's value, or None if the order is the same."""
    if batch.sent_positions is None:
        return None if value_index is None else pa.array(value_index)
    places = np.zeros(batch.rows, np.int64)
    missing = np.ones(batch.rows, np.bool_)
    places[batch.sent_positions] = (
        np.arange(batch.sent_rows) if value_index is None else value_index
    )
    missing[batch.sent_positions] = False
    return pa.array(places, mask=missing)


@dataclass(slots=True)
class RequestSizeLimits:
    """The smallest sizes of requests that had to be split. Thread-safe."""

    too_large_rows: float = math.inf
    too_large_body_bytes: float = math.inf

    def is_too_large(self, request: BatchRequest) -> bool:
        """Return True if a request is at least as large as one that was too large."""
        return request.rows > 1 and (
            request.rows >= self.too_large_rows or len(request.body) >= self.too_large_body_bytes
        )


@dataclass(slots=True)
class SplitRequest:
    """A request that was too large.

    Its size becomes a limit if both halves succeed without a further split.

    The cause may be the size of the request, or a large response to one of its rows. A single huge
    row must not set a limit. The half with such a row is split further, so the sizes of these
    requests set no limit.
    """

    request: BatchRequest
    is_response_too_large: bool
    size_limits: RequestSizeLimits
    completed_halves: int = 0

    def lower_limit_after_both_halves(self) -> None:
        """Count a successful half. After the second half, set this request's size as a limit."""
        self.completed_halves += 1
        if self.completed_halves < 2:
            return
        limits, request = self.size_limits, self.request
        if self.is_response_too_large:
            limits.too_large_rows = min(limits.too_large_rows, request.rows)
        else:
            limits.too_large_body_bytes = min(limits.too_large_body_bytes, len(request.body))


_size_limits: dict[tuple[int, str, str], RequestSizeLimits] = {}


def get_size_limits(function: ExternalFunction) -> RequestSizeLimits:
    """Return this process's size limits of a function."""
    return _size_limits.setdefault(
        (os.getpid(), function.url, function.signature.name), RequestSizeLimits()
    )


# Overhead of an entry in bytes: Python objects and table slots, without key and value.
_ENTRY_OVERHEAD_BYTES = 200


class ValueCache:
    """Cache of values by encoded arguments, limited in bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[bytes, tuple[object, int]] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Size of the contents, including an estimate of Python's overhead."""
        return self._bytes

    def get_many(self, keys: Iterable[bytes]) -> list[object]:
        """Return the value, or CACHE_MISS, of each key."""
        entries = self._entries
        found: list[object] = []
        with self._lock:
            for key in keys:
                entry = entries.pop(key, None)
                if entry is None:
                    found.append(CACHE_MISS)
                else:
                    entries[key] = entry  # Move to the end, as the last used entry.
                    found.append(entry[0])
        return found

    def put_many(
        self, keys: Sequence[bytes], values: Sequence[object], sizes_bytes: Sequence[int]
    ) -> None:
        """Store values, except those larger than an eighth of the cache.

        Args:
            keys: Keys of the values.
            values: Values. They must not be modified afterwards.
            sizes_bytes: Size of each value in bytes.
        """
        entries = self._entries
        largest = self._max_bytes // 8
        with self._lock:
            for key, value, size in zip(keys, values, sizes_bytes, strict=True):
                whole = size + len(key) + _ENTRY_OVERHEAD_BYTES
                if whole > largest:
                    continue
                before = entries.pop(key, None)
                if before is not None:
                    self._bytes -= before[1]
                entries[key] = (value, whole)
                self._bytes += whole
            while self._bytes > self._max_bytes:
                oldest = next(iter(entries))
                self._bytes -= entries.pop(oldest)[1]


_caches: dict[Hashable, ValueCache] = {}
_MAX_CACHED_FUNCTIONS = 64


def get_value_cache(plan: CallPlan) -> ValueCache | None:
    """Return this process's cache of a plan's function, or None if the function has no cache.

    Plans with the same arguments share a cache only if the service gets the same headers, and the
    response is translated and decoded in the same way.
    """
    function = plan.function
    if not function.cache_bytes:
        return None
    key = (
        *(os.getpid(), function.version, plan.zone, frozenset(plan.context.items())),
        *(plan.request_translator, plan.response_translator),
    )
    found = _caches.get(key)
    if found is None:
        while len(_caches) >= _MAX_CACHED_FUNCTIONS:
            _caches.pop(next(iter(_caches)), None)
        found = _caches.setdefault(key, ValueCache(function.cache_bytes))
    return found
