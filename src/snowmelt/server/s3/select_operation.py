"""SelectObjectContent: run a query and stream its events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from snowmelt.buckets.errors import S3Error
from snowmelt.config import Settings
from snowmelt.select import xml_request_and_event_stream
from snowmelt.select.client import DIALECT_HEADER, OBJECTS_HEADER
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.execution.engine import Payload, SelectExecution, open_select
from snowmelt.select.formats.read_units import SourceSequence
from snowmelt.select.request import (
    CsvOutput,
    JsonOutput,
    SelectRequest,
)
from snowmelt.select.resource_limits import EngineSettings
from snowmelt.select.warmup import KernelWarmer
from snowmelt.select.xml_request_and_event_stream import parse_select_request
from snowmelt.server.object_source import BucketObjectSource, make_object_source
from snowmelt.server.s3.object_operations import check_version_id
from snowmelt.server.s3.request_context import AuthorizedS3Request
from snowmelt.server.s3.responses import (
    WRITE_CHUNK,
    ChunkWriter,
    make_start_message,
    wait_for_disconnect,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


_log = logging.getLogger("snowmelt.server")

# Maximum interval in seconds between two events while a query runs.
_KEEP_ALIVE_INTERVAL_S = 1.0
# Maximum number of frame batches that wait for the event loop. If the client is slow, the transport
# buffers about the same amount.
_MAX_QUEUED_BATCHES = 2
_MAX_OBJECTS = 100_000
_EVENT_STREAM_TYPE = "application/vnd.amazon.eventstream"
_PLAIN_TYPES = ("text/csv", "application/x-ndjson")


class SelectOperation:
    """Handler of SelectObjectContent. Each running query has its own thread."""

    def __init__(self, settings: Settings) -> None:
        """Create the handler with the limits in the settings. It must be closed."""
        self._dialect = Dialect(settings.select_dialect)
        self._engine_settings = EngineSettings.from_settings(settings)
        self._free_slots = threading.BoundedSemaphore(settings.select_queries)
        self._threads = ThreadPoolExecutor(settings.select_queries, thread_name_prefix="s3-select")
        self._kernel_warmer = KernelWarmer()
        self._counts_lock = threading.Lock()
        self._running = self._ended = self._scanned = 0

    def start_kernel_warmup(self) -> None:
        """Compile kernels in a thread. Queries do not wait for it."""
        self._kernel_warmer.start()

    def close(self) -> None:
        """Wait for the running queries."""
        self._kernel_warmer.close()
        self._threads.shutdown()

    def get_query_counts(self) -> tuple[int, int, int]:
        """Return the numbers of running and ended queries, and the bytes that ended queries scanned."""
        with self._counts_lock:
            return self._running, self._ended, self._scanned

    async def __call__(
        self, call: AuthorizedS3Request, bucket: str, key: str, body: bytes
    ) -> ASGIApp:
        """Start a query. Raise errors that occur before its first record.

        Raises:
            SelectError: If the request, the statement or the start of the object is invalid, or
                `select_queries` queries are running.
            S3Error: If the object does not exist.
        """
        del bucket
        if not self._free_slots.acquire(blocking=False):
            raise SelectError("Busy", "Too many queries are running. Retry later.")
        loop = asyncio.get_running_loop()
        try:
            query = _RunningQuery(
                *await loop.run_in_executor(self._threads, self._open_query, call, key, body),
                self._threads,
            )
        except BaseException:
            self._free_slots.release()
            raise
        with self._counts_lock:
            self._running += 1
        # Wait for the first frames, so that an error before them becomes an error response. A slow
        # query starts its event stream after the keep-alive interval.
        await query.wait_for_frames()
        if (failure := query.find_failure()) is not None and not query.has_frames:
            await asyncio.to_thread(self.close_query, query)
            raise _translate_for_dialect(failure, query.dialect)
        return _SelectResponse(self, query)

    def _open_query(
        self, call: AuthorizedS3Request, key: str, body: bytes
    ) -> tuple[SelectExecution, SelectRequest, str | None]:
        check_version_id(call)
        if "range" in call.headers:
            raise SelectError(
                "UnsupportedRangeHeader", "Use ScanRange in the request, not the header Range."
            )
        plain = _parse_plain_type(call.headers.get("accept", ""))
        dialect = self._requested_dialect(call)
        request = _adapt_output(parse_select_request(body, dialect=dialect), plain)
        many = call.headers.get(OBJECTS_HEADER, "one").lower()
        if many not in {"one", "many"}:
            raise SelectError(
                "InvalidRequestParameter",
                f"Invalid {OBJECTS_HEADER} {many!r}. Expected one or many.",
            )
        source = _open_matching_objects(call, key) if many == "many" else _open_object(call, key)
        try:
            execution = open_select(request, source, settings=self._engine_settings)
        except SelectError as error:
            raise _translate_for_dialect(error, dialect) from error
        return execution, request, plain

    def _requested_dialect(self, call: AuthorizedS3Request) -> Dialect:
        named = call.headers.get(DIALECT_HEADER) or call.select_dialect or self._dialect
        try:
            return Dialect(named.strip().lower())
        except ValueError:
            known = ", ".join(Dialect)
            raise SelectError(
                "InvalidRequestParameter", f"{DIALECT_HEADER} is {named!r}; it is one of {known}."
            ) from None

    def close_query(self, query: _RunningQuery) -> None:
        """Release a query that has ended or was canceled. No thread may be running it."""
        execution = query.execution
        execution.close()
        self._free_slots.release()
        with self._counts_lock:
            self._running -= 1
            self._ended += 1
            self._scanned += execution.scanned_bytes
        _log.debug(
            "select scanned %d, processed %d, returned %d bytes",
            execution.scanned_bytes,
            execution.processed_bytes,
            execution.returned_bytes,
        )


class _RunningQuery:
    """A running query. Its thread splits the output into frames.

    The thread pauses while `_MAX_QUEUED_BATCHES` batches wait for the event loop.
    """

    def __init__(
        self,
        execution: SelectExecution,
        request: SelectRequest,
        plain_type: str | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        """Start the query. Methods must be called in the event loop."""
        self.execution = execution
        self.plain_type = plain_type
        self.wants_progress = request.progress and plain_type is None
        self.dialect = request.dialect
        self._batches: deque[list[Payload]] = deque()
        self._free_places = threading.Semaphore(_MAX_QUEUED_BATCHES)
        self._closed = False
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread_end = self._loop.run_in_executor(threads, self._run)
        self._thread_end.add_done_callback(self.wake)

    @property
    def has_frames(self) -> bool:
        return bool(self._batches)

    @property
    def has_ended(self) -> bool:
        return self._thread_end.done()

    def find_failure(self) -> BaseException | None:
        """Return the error that ended the query, or None."""
        return self._thread_end.exception() if self._thread_end.done() else None

    def wake(self, _: object = None) -> None:
        """Make `wait_for_frames` return."""
        self._changed.set()

    async def wait_for_frames(self) -> bool:
        """Wait for frames, the end or `wake`. Return False if a keep-alive frame is due first."""
        self._changed.clear()
        if self._batches or self.has_ended:
            return True
        try:
            async with asyncio.timeout(_KEEP_ALIVE_INTERVAL_S):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def pop_frames(self) -> list[Payload]:
        """Remove and return the payloads of all frames that are ready."""
        frames: list[Payload] = []
        while self._batches:
            frames += self._batches.popleft()
            self._free_places.release()
        return frames

    async def close(self) -> None:
        """Stop the thread, which then releases its resources."""
        self._closed = True
        self.execution.close()
        self._free_places.release()
        await asyncio.wait([self._thread_end])
        self._thread_end.exception()

    def _run(self) -> None:
        with contextlib.closing(self.execution.stream_payload_batches()) as batches:
            for payloads in batches:
                self._free_places.acquire()
                if self._closed:
                    return
                self._batches.append(
                    payloads
                    if self.plain_type
                    else xml_request_and_event_stream.encode_records_events(payloads)
                )
                if not self._changed.is_set():
                    self._loop.call_soon_threadsafe(self._changed.set)

    def make_progress_frame(self) -> bytes:
        return xml_request_and_event_stream.encode_progress_event(*self._byte_counts())

    def make_keep_alive_frame(self) -> bytes:
        if self.plain_type:
            return b""
        return (
            self.make_progress_frame()
            if self.wants_progress
            else xml_request_and_event_stream.CONTINUATION_FRAME
        )

    def make_final_frames(self, error: SelectError | None) -> bytes:
        if self.plain_type:
            return b""
        if error is not None:
            return xml_request_and_event_stream.encode_error_event(
                error.wire_code(self.dialect), str(error)
            )
        progress = self.make_progress_frame() if self.wants_progress else b""
        return (
            progress
            + xml_request_and_event_stream.encode_stats_event(*self._byte_counts())
            + xml_request_and_event_stream.END_FRAME
        )

    def _byte_counts(self) -> tuple[int, int, int]:
        return (
            self.execution.scanned_bytes,
            self.execution.processed_bytes,
            self.execution.returned_bytes,
        )


@dataclass(frozen=True, slots=True)
class _SelectResponse:
    """Response of a query that is already running."""

    _operation: SelectOperation
    _query: _RunningQuery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames as they arrive, and keep-alive frames during pauses."""
        query = self._query
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        gone.add_done_callback(query.wake)
        try:
            content_type = query.plain_type or _EVENT_STREAM_TYPE
            await send(make_start_message(200, {"content-type": content_type}))
            await self._stream_frames(gone, send, scope["extensions"][WRITE_CHUNK])
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await query.close()
            await asyncio.to_thread(self._operation.close_query, query)

    async def _stream_frames(
        self, disconnected: asyncio.Future[None], send: Send, write_chunk: ChunkWriter
    ) -> None:
        query, loop = self._query, asyncio.get_running_loop()
        told = loop.time()
        while not disconnected.done():
            in_time = await query.wait_for_frames()
            ended = query.has_ended
            if frames := query.pop_frames():
                if query.wants_progress and loop.time() - told >= _KEEP_ALIVE_INTERVAL_S:
                    told = loop.time()
                    frames.append(query.make_progress_frame())
                await write_chunk(frames)
            elif ended:
                await _send_body(send, query.make_final_frames(self._find_error()), last=True)
                return
            elif not in_time:
                await _send_body(send, query.make_keep_alive_frame())

    def _find_error(self) -> SelectError | None:
        failure = self._query.find_failure()
        if failure is None or (isinstance(failure, SelectError) and not self._query.plain_type):
            return failure
        if self._query.plain_type:
            # For a client without an event decoder, only a broken connection signals an incomplete
            # result.
            raise failure
        _log.error("a query failed", exc_info=failure)
        return SelectError("InternalError", str(S3Error("InternalError")))


async def _send_body(send: Send, content: bytes, *, last: bool = False) -> None:
    if content or last:
        await send({"type": "http.response.body", "body": content, "more_body": not last})


def _translate_for_dialect(error: BaseException, dialect: Dialect) -> BaseException:
    """Return an error with the code that clients of the dialect expect."""
    if not isinstance(error, SelectError):
        return error
    return SelectError(error.wire_code(dialect), str(error), status=error.status_code)


def _open_matching_objects(call: AuthorizedS3Request, pattern: str) -> SourceSequence:
    found = islice(_list_matching_keys(call, pattern), _MAX_OBJECTS + 1)
    openers = [functools.partial(_open_object, call, each) for each in found]
    if len(openers) > _MAX_OBJECTS:
        raise SelectError(
            "InvalidRequestParameter", f"More than {_MAX_OBJECTS} objects match {pattern}."
        )
    return SourceSequence(openers)


def _open_object(call: AuthorizedS3Request, key: str) -> BucketObjectSource:
    return make_object_source(key, call.open_object(key)[1])


def _list_matching_keys(call: AuthorizedS3Request, pattern: str) -> Iterator[str]:
    """Yield the keys that match a prefix or a pattern with `*`, `**` and `?`."""
    prefix = re.split(r"[*?]", pattern, maxsplit=1)[0]
    matcher = None if prefix == pattern else compile_key_pattern(pattern)
    for facts in call.list_objects(prefix):
        if matcher is None or matcher.fullmatch(facts.key):
            yield facts.key


def compile_key_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of keys: `**` matches any text, `*` any text without `/`, `?` one character but `/`.

    Text between two stars is matched where it occurs first, and never again. A later occurrence
    leaves less text for the rest. With backtracking, a pattern with several stars could block the
    service for hours.
    """
    first, *rest = pattern.split("**")
    middle = "".join(f"(?>.*?{_path_to_regex(each, is_last=False)})" for each in rest[:-1])
    last = "".join(f".*{_path_to_regex(each, is_last=True)}" for each in rest[-1:])
    expression = _path_to_regex(first, is_last=not rest) + middle + last
    return re.compile(expression, re.DOTALL)


def _path_to_regex(pattern: str, *, is_last: bool) -> str:
    """Convert a pattern without `**` to a regular expression. `is_last`: it must match up to the end of the key."""
    pieces = [
        "".join("[^/]" if each == "?" else re.escape(each) for each in piece)
        for piece in pattern.split("*")
    ]
    first, *rest = pieces
    middle = "".join(f"(?>[^/]*?{piece})" for piece in (rest[:-1] if is_last else rest))
    return first + middle + "".join(f"[^/]*{piece}" for piece in rest[-1:] if is_last)


def _parse_plain_type(accept: str) -> str | None:
    """Return the media type that a client without an event decoder accepts, or None."""
    asked = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if _EVENT_STREAM_TYPE in asked:
        return None
    return next((each for each in _PLAIN_TYPES if each in asked), None)


def _adapt_output(request: SelectRequest, plain_type: str | None) -> SelectRequest:
    """Change the output format of the request to the media type that the client accepts."""
    if plain_type == "text/csv" and not isinstance(request.output, CsvOutput):
        return replace(request, output=CsvOutput())
    if plain_type == "application/x-ndjson" and not isinstance(request.output, JsonOutput):
        return replace(request, output=JsonOutput())
    return request
