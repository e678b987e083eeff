"""Filters written as state machines, as the host runs them."""

from __future__ import annotations

import inspect
import queue
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from snowmelt.errors import SnowmeltError
from snowmelt.load.phases import Reader
from snowmelt.load.udx.input_window import Feed, RecordFeed
from snowmelt.load.udx.instance import DESTROY, PROCESS, PROCESS_RECORDS, Flow, Guest, place_of
from snowmelt.load.udx.vertica_sdk.buffers import LengthBuffer, OutputBuffer
from snowmelt.load.udx.vertica_sdk.states import InputState, StreamState
from snowmelt.load.udx.worker_progress import is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from snowmelt.load.phases import Filter, Records
    from snowmelt.load.udx.instance import Host
    from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer
    from snowmelt.load.udx.vertica_sdk.server_interface import ServerInterface
    from snowmelt.load.udx.vertica_sdk.states import Answer


class HostedFilter:
    """A filter with `setup`, `process` and `destroy`; the same object filters stream after stream.

    `process` may say INPUT_NEEDED with unread input in front, write without reading and the other
    way round. The rules are the SDK's; where they leave something open, a small input comes as a
    whole with the first call.
    """

    def __init__(self, host: Host, make: Callable[[], object]) -> None:
        self.guest = Guest(host, make)
        self.host = host

    @property
    def made(self) -> object:
        """The object of user code."""
        return self.guest.made

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        try:
            with self.guest.stream(DESTROY):
                yield from self._filtered(reader)
        finally:
            reader.close()

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self.guest.cancel()

    def _filtered(self, reader: Reader) -> Iterator[bytes]:
        limits, server = self.host.limits, self.host.server
        feed, output = Feed(reader, limits), OutputBuffer(limits.window_bytes)
        source = feed.buffer
        process = self.guest.function("process", PROCESS)
        flow = Flow(self.guest, feed, output)
        flow.begin()
        done = False
        while not done:
            read, written = source.consumed, output.written
            answer = process(server, source, feed.tell(), output)
            if data := output.take():
                yield data
            done = flow.after(
                answer.code, read=source.consumed > read, wrote=output.written > written
            )
        output.close()


# --- Filters that see where records end: the side channel, as state machines use it.


class HostedRecordFilter:
    """A filter with `useSideChannel` and `processWithMetadata`.

    What it writes are records with their lengths, unless it has `endsSideChannel`, which returns
    true: then it writes plain bytes.
    """

    def __init__(self, hosted: HostedFilter) -> None:
        self._hosted = hosted
        ends = getattr(hosted.made, "endsSideChannel", None)
        self.ends_records = callable(ends) and bool(ends())

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or wrote lengths whose sum is not
                the number of bytes that it wrote.
        """
        return (
            self._bytes(records)
            if self.ends_records
            else joined_records(self._hosted.host, self._filtered(records))
        )

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._hosted.cancel()

    def _bytes(self, records: Iterator[Records]) -> Iterator[bytes]:
        host = self._hosted.host
        for data, lengths in self._filtered(records):
            if len(lengths):
                raise host.failed("it wrote lengths of records, and its endsSideChannel() is true")
            yield data

    def _filtered(self, records: Iterator[Records]) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
        guest = self._hosted.guest
        host = guest.host
        with guest.stream(DESTROY):
            feed = RecordFeed(records, host.limits)
            output, output_lengths = OutputBuffer(host.limits.window_bytes), LengthBuffer()
            source, lengths = feed.buffer, feed.lengths
            process = guest.function("processWithMetadata", PROCESS_RECORDS)
            flow = Flow(guest, feed, output)
            flow.begin()
            done = False
            while not done:
                taken, written = feed.taken, output.written
                answer = process(
                    host.server, source, lengths, feed.tell(), output, output_lengths
                )  # fmt: skip
                wrote = output.written > written or output_lengths.offset > 0
                if wrote:
                    yield output.take(), output_lengths.take()
                done = flow.after(answer.code, read=feed.taken > taken, wrote=wrote)
            output.close()


class HostedEitherFilter(HostedRecordFilter):
    """One that has `process`, too: where there is no side channel, it filters bytes."""

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: As HostedFilter.
        """
        return self._hosted.run(reader)


def hosted_record_filter(hosted: HostedFilter) -> HostedRecordFilter:
    """Return a filter of records, which filters bytes, too, if user code can."""
    either = callable(getattr(hosted.made, "process", None))
    return HostedEitherFilter(hosted) if either else HostedRecordFilter(hosted)


def joined_records(
    host: Host, written: Iterator[tuple[bytes, NDArray[np.uint32]]]
) -> Iterator[Records]:
    """Yield records from bytes and lengths, of which either may come first.

    Raises:
        PhaseFailed: The sum of the lengths is not the number of bytes.
    """
    data, lengths = b"", np.zeros(0, dtype=np.uint32)
    total = 0
    for more, more_lengths in written:
        data += more
        total += len(more)
        lengths = np.concatenate([lengths, more_lengths])
        ends = np.cumsum(lengths, dtype=np.int64)
        whole = int(np.searchsorted(ends, len(data), side="right"))
        if whole:
            end = int(ends[whole - 1])
            yield _batch(data[:end], ends[:whole])
            data, lengths = data[end:], lengths[whole:]
    if len(lengths) or data:
        claimed = total - len(data) + int(lengths.sum())
        hint = "" if len(lengths) else "; endsSideChannel() would say that it writes no lengths"
        raise host.failed(f"it wrote {total} bytes in records of {claimed} bytes together{hint}")


def _batch(data: bytes, ends: NDArray[np.int64]) -> Records:
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


# --- Filters as this project writes them: generators, and plain functions of bytes.


class _Signal(Enum):
    WANTS = "wants input"
    DONE = "done"


_WANTS, _DONE = _Signal.WANTS, _Signal.DONE
_Step: TypeAlias = bytes | Exception | _Signal


class OwnFilter:
    """A filter with `run(reader)`, a generator; what it raises is placed."""

    def __init__(self, host: Host, run: Callable[[Reader], Iterator[bytes]], owner: object) -> None:
        self._host = host
        self._run = run
        self._owner = owner
        self._cancelled = False

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: User code raised an error, or yielded something else than bytes.
        """
        try:
            pieces = checked_pieces(self._host, iter(self._run(reader)), lambda: reader.offset)
            for piece in pieces:
                yield piece
                if self._cancelled:
                    raise self._host.failed("it was cancelled")
        finally:
            reader.close()

    def cancel(self) -> None:
        """End what runs as cancelled at its next piece; tell the filter, if it wants to know."""
        self._cancelled = True
        cancel = getattr(self._owner, "cancel", None)
        if callable(cancel):
            cancel()


class StateMachine:
    """A filter of ours as a state machine, for a host that knows nothing else.

    The generator runs on a thread of its own, which waits whenever it reads and there is nothing.
    """

    def __init__(self, phase: Filter) -> None:
        self._phase = phase
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._output: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._waiting = False

    def setup(self, server: ServerInterface) -> None:  # noqa: ARG002 - as hosts call it
        """Begin a stream."""
        self._input, self._output = queue.SimpleQueue(), queue.SimpleQueue()
        self._waiting = False
        streams = (self._input, self._output)
        threading.Thread(
            target=self._work, args=streams, name="snowmelt-generator", daemon=True
        ).start()

    def process(
        self,
        server: ServerInterface,  # noqa: ARG002 - as hosts call it
        source: InputBuffer,
        state: InputState,
        output: OutputBuffer,
    ) -> Answer:
        """Hand input on if it is waited for, and output as it comes.

        Raises:
            Exception: What the filter raised.
        """
        if self._waiting:
            data = source.read()
            if data:
                self._input.put(bytes(data) if not isinstance(data, str) else data.encode())
            elif state == InputState.END_OF_FILE:
                self._input.put(None)
            else:
                return StreamState.INPUT_NEEDED
        step = self._output.get()
        if isinstance(step, Exception):
            raise step
        self._waiting = step is _WANTS
        if step is _DONE:
            return StreamState.DONE
        if isinstance(step, bytes):
            output.write(step)
            return StreamState.OUTPUT_NEEDED
        more = source.getOffset() < source.getSize() or state == InputState.END_OF_FILE
        return StreamState.OUTPUT_NEEDED if more else StreamState.INPUT_NEEDED

    def destroy(self, server: ServerInterface) -> None:  # noqa: ARG002 - as hosts call it
        """End the stream; a filter that still reads finds the end of its input."""
        self._input.put(None)

    def _work(
        self, source: queue.SimpleQueue[bytes | None], output: queue.SimpleQueue[_Step]
    ) -> None:
        def pieces() -> Iterator[bytes]:
            while True:
                output.put(_WANTS)
                piece = source.get()
                if piece is None:
                    return
                yield piece

        try:
            for piece in self._phase.run(Reader(pieces())):
                output.put(piece)
            output.put(_DONE)
        except Exception as error:  # noqa: BLE001 - it is raised in process
            output.put(error)


def checked_pieces(
    host: Host, pieces: Iterator[Any], offset: Callable[[], int | None]
) -> Iterator[bytes]:
    """Yield pieces as bytes.

    Raises:
        PhaseFailed: User code raised an error, at an `offset` of its input; or yields other things.
    """
    try:
        while (piece := _piece(host, pieces, offset)) is not _DONE:
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                text = f"it yielded {type(piece).__name__}, not bytes"
                raise host.failed(text, offset=offset())
            yield bytes(piece)
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


def _piece(host: Host, pieces: Iterator[Any], offset: Callable[[], int | None]) -> Any:
    try:
        return next(pieces, _DONE)
    except SnowmeltError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        text = f"it raised {type(error).__name__}: {error}{place_of(error)}"
        raise host.failed(text, offset=offset()) from error


def own_filter(host: Host, made: Any) -> OwnFilter | None:
    """Return a filter for a generator function, an object with `run`, or a function of bytes.

    A function of bytes is given the whole input, since what it makes of a part is not known to be
    a part of what it makes of the whole; unless `whole_input` is false.
    """
    if callable(getattr(made, "run", None)):
        return OwnFilter(host, made.run, made)
    if inspect.isgeneratorfunction(getattr(made, "func", made)):
        return OwnFilter(host, made, made)
    if callable(made):
        return OwnFilter(host, _of_function(host, made), made)
    return None


def _of_function(
    host: Host, function: Callable[[bytes], bytes]
) -> Callable[[Reader], Iterator[bytes]]:
    def whole(reader: Reader) -> Iterator[bytes]:
        limit = host.limits.window_bytes
        data = reader.read(limit + 1)
        if len(data) > limit:
            raise host.failed(
                f"its input is longer than {limit} bytes, which is the most that is given as a whole"
            )
        yield function(data)

    def by_piece(reader: Reader) -> Iterator[bytes]:
        for piece in reader:
            yield function(piece)

    return whole if host.limits.whole_input else by_piece
