"""User-defined filters: SDK state machines over bytes or records, and generator filters.

Record filters use the SDK's side channel, which passes record boundaries beside the bytes.
`GeneratorFilter` runs filters in Snowmelt's own style: generators and plain functions of bytes.
"""

from __future__ import annotations

import inspect
import queue
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from snowmelt.errors import SnowmeltError
from snowmelt.load.phase_protocols import ByteReader
from snowmelt.load.udx.input_window import ByteWindow, RecordWindow
from snowmelt.load.udx.instance import (
    DESTROY_ROLES,
    PROCESS_RECORDS_ROLES,
    PROCESS_ROLES,
    CallLoop,
    UdxInstance,
    describe_user_code_line,
)
from snowmelt.load.udx.shared_progress_page import is_ctrl_c
from snowmelt.load.udx.vertica_sdk.buffers import LengthBuffer, OutputBuffer
from snowmelt.load.udx.vertica_sdk.states import InputState, StreamState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from snowmelt.load.phase_protocols import Filter, Records
    from snowmelt.load.udx.instance import UdxHost
    from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer
    from snowmelt.load.udx.vertica_sdk.server_interface import ServerInterface
    from snowmelt.load.udx.vertica_sdk.states import ReturnedState


class UdxFilter:
    """A filter with `setup`, `process` and `destroy`; the same object filters stream after stream.

    `process` may say INPUT_NEEDED with unread input in front, write without reading and the other
    way round. The rules are the SDK's; where they leave something open, a small input comes as a
    whole with the first call.
    """

    def __init__(self, host: UdxHost, make: Callable[[], object]) -> None:
        self.instance = UdxInstance(host, make)
        self.host = host

    @property
    def user_object(self) -> object:
        """The object of user code."""
        return self.instance.user_object

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        try:
            with self.instance.running_stream(DESTROY_ROLES):
                yield from self._run_stream(reader)
        finally:
            reader.close()

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self.instance.cancel()

    def _run_stream(self, reader: ByteReader) -> Iterator[bytes]:
        limits, server = self.host.limits, self.host.server
        feed, output = ByteWindow(reader, limits), OutputBuffer(limits.window_bytes)
        source = feed.buffer
        process = self.instance.bind_state_method("process", PROCESS_ROLES)
        flow = CallLoop(self.instance, feed, output)
        flow.fetch_first()
        done = False
        while not done:
            read, written = source.consumed, output.written
            answer = process(server, source, feed.report_state(), output)
            if data := output.pop_written():
                yield data
            done = flow.handle_state(
                answer.code, has_read=source.consumed > read, has_written=output.written > written
            )
        output.close()


# --- Filters that see where records end: the side channel, as state machines use it.


class UdxRecordFilter:
    """A filter with `useSideChannel` and `processWithMetadata`.

    What it writes are records with their lengths, unless it has `endsSideChannel`, which returns
    true: then it writes plain bytes.
    """

    def __init__(self, byte_filter: UdxFilter) -> None:
        self._byte_filter = byte_filter
        ends = getattr(byte_filter.user_object, "endsSideChannel", None)
        self.ends_records = callable(ends) and bool(ends())

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or wrote lengths whose sum is not
                the number of bytes that it wrote.
        """
        return (
            self._iter_bytes(records)
            if self.ends_records
            else assemble_records(self._byte_filter.host, self._run_stream(records))
        )

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._byte_filter.cancel()

    def _iter_bytes(self, records: Iterator[Records]) -> Iterator[bytes]:
        host = self._byte_filter.host
        for data, lengths in self._run_stream(records):
            if len(lengths):
                raise host.make_error(
                    "it wrote lengths of records, and its endsSideChannel() is true"
                )
            yield data

    def _run_stream(self, records: Iterator[Records]) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
        guest = self._byte_filter.instance
        host = guest.host
        with guest.running_stream(DESTROY_ROLES):
            feed = RecordWindow(records, host.limits)
            output, output_lengths = OutputBuffer(host.limits.window_bytes), LengthBuffer()
            source, lengths = feed.buffer, feed.lengths
            process = guest.bind_state_method("processWithMetadata", PROCESS_RECORDS_ROLES)
            flow = CallLoop(guest, feed, output)
            flow.fetch_first()
            done = False
            while not done:
                taken, written = feed.consumed, output.written
                answer = process(
                    host.server, source, lengths, feed.report_state(), output, output_lengths
                )  # fmt: skip
                wrote = output.written > written or output_lengths.offset > 0
                if wrote:
                    yield output.pop_written(), output_lengths.pop_written()
                done = flow.handle_state(
                    answer.code, has_read=feed.consumed > taken, has_written=wrote
                )
            output.close()


class UdxDualFilter(UdxRecordFilter):
    """One that has `process`, too: where there is no side channel, it filters bytes."""

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: As HostedFilter.
        """
        return self._byte_filter.run(reader)


def make_udx_record_filter(byte_filter: UdxFilter) -> UdxRecordFilter:
    """Return a filter of records, which filters bytes, too, if user code can."""
    either = callable(getattr(byte_filter.user_object, "process", None))
    return UdxDualFilter(byte_filter) if either else UdxRecordFilter(byte_filter)


def assemble_records(
    host: UdxHost, written: Iterator[tuple[bytes, NDArray[np.uint32]]]
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
            yield _make_record_array(data[:end], ends[:whole])
            data, lengths = data[end:], lengths[whole:]
    if len(lengths) or data:
        claimed = total - len(data) + int(lengths.sum())
        hint = "" if len(lengths) else "; endsSideChannel() would say that it writes no lengths"
        raise host.make_error(
            f"it wrote {total} bytes in records of {claimed} bytes together{hint}"
        )


def _make_record_array(data: bytes, ends: NDArray[np.int64]) -> Records:
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


# --- Filters as this project writes them: generators, and plain functions of bytes.


class _GeneratorSignal(Enum):
    WANTS = "wants input"
    DONE = "done"


_NEEDS_INPUT, _DONE = _GeneratorSignal.WANTS, _GeneratorSignal.DONE
_GeneratorOutput: TypeAlias = bytes | Exception | _GeneratorSignal


class GeneratorFilter:
    """A filter with `run(reader)`, a generator; what it raises is placed."""

    def __init__(
        self, host: UdxHost, run: Callable[[ByteReader], Iterator[bytes]], owner: object
    ) -> None:
        self._host = host
        self._run = run
        self._owner = owner
        self._cancelled = False

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: User code raised an error, or yielded something else than bytes.
        """
        try:
            pieces = iter_checked_bytes(self._host, iter(self._run(reader)), lambda: reader.offset)
            for piece in pieces:
                yield piece
                if self._cancelled:
                    raise self._host.make_error("it was cancelled")
        finally:
            reader.close()

    def cancel(self) -> None:
        """End what runs as cancelled at its next piece; tell the filter, if it wants to know."""
        self._cancelled = True
        cancel = getattr(self._owner, "cancel", None)
        if callable(cancel):
            cancel()


class GeneratorStateMachine:
    """A filter of ours as a state machine, for a host that knows nothing else.

    The generator runs on a thread of its own, which waits whenever it reads and there is nothing.
    """

    def __init__(self, phase: Filter) -> None:
        self._phase = phase
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._output: queue.SimpleQueue[_GeneratorOutput] = queue.SimpleQueue()
        self._needs_input = False

    def setup(self, server: ServerInterface) -> None:  # noqa: ARG002 - as hosts call it
        """Begin a stream."""
        self._input, self._output = queue.SimpleQueue(), queue.SimpleQueue()
        self._needs_input = False
        streams = (self._input, self._output)
        threading.Thread(
            target=self._run_generator, args=streams, name="snowmelt-generator", daemon=True
        ).start()

    def process(
        self,
        server: ServerInterface,  # noqa: ARG002 - as hosts call it
        source: InputBuffer,
        state: InputState,
        output: OutputBuffer,
    ) -> ReturnedState:
        """Hand input on if it is waited for, and output as it comes.

        Raises:
            Exception: What the filter raised.
        """
        if self._needs_input:
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
        self._needs_input = step is _NEEDS_INPUT
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

    def _run_generator(
        self,
        input_queue: queue.SimpleQueue[bytes | None],
        output_queue: queue.SimpleQueue[_GeneratorOutput],
    ) -> None:
        def pieces() -> Iterator[bytes]:
            while True:
                output_queue.put(_NEEDS_INPUT)
                piece = input_queue.get()
                if piece is None:
                    return
                yield piece

        try:
            for piece in self._phase.run(ByteReader(pieces())):
                output_queue.put(piece)
            output_queue.put(_DONE)
        except Exception as error:  # noqa: BLE001 - it is raised in process
            output_queue.put(error)


def iter_checked_bytes(
    host: UdxHost, slices: Iterator[Any], get_offset: Callable[[], int | None]
) -> Iterator[bytes]:
    """Yield pieces as bytes.

    Raises:
        PhaseFailed: User code raised an error, at an `get_offset` of its input; or yields other things.
    """
    try:
        while (piece := _next_slice(host, slices, get_offset)) is not _DONE:
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                text = f"it yielded {type(piece).__name__}, not bytes"
                raise host.make_error(text, offset=get_offset())
            yield bytes(piece)
    finally:
        close = getattr(slices, "close", None)
        if close is not None:
            close()


def _next_slice(host: UdxHost, slices: Iterator[Any], get_offset: Callable[[], int | None]) -> Any:
    try:
        return next(slices, _DONE)
    except SnowmeltError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        text = f"it raised {type(error).__name__}: {error}{describe_user_code_line(error)}"
        raise host.make_error(text, offset=get_offset()) from error


def make_generator_filter(host: UdxHost, user_object: Any) -> GeneratorFilter | None:
    """Return a filter for a generator function, an object with `run`, or a function of bytes.

    A function of bytes is given the whole input, since what it makes of a part is not known to be
    a part of what it makes of the whole; unless `whole_input` is false.
    """
    if callable(getattr(user_object, "run", None)):
        return GeneratorFilter(host, user_object.run, user_object)
    if inspect.isgeneratorfunction(getattr(user_object, "func", user_object)):
        return GeneratorFilter(host, user_object, user_object)
    if callable(user_object):
        return GeneratorFilter(host, _wrap_bytes_function(host, user_object), user_object)
    return None


def _wrap_bytes_function(
    host: UdxHost, function: Callable[[bytes], bytes]
) -> Callable[[ByteReader], Iterator[bytes]]:
    def whole(reader: ByteReader) -> Iterator[bytes]:
        limit = host.limits.window_bytes
        data = reader.read(limit + 1)
        if len(data) > limit:
            raise host.make_error(
                f"its input is longer than {limit} bytes, which is the most that is given as a whole"
            )
        yield function(data)

    def by_piece(reader: ByteReader) -> Iterator[bytes]:
        for piece in reader:
            yield function(piece)

    return whole if host.limits.whole_input else by_piece
