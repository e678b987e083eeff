"""User-defined filters: SDK state machines over bytes or records, and generator filters.

Record filters use the SDK's side channel, which passes record lengths separately from the bytes.
`GeneratorFilter` runs filters of Snowmelt's own API: generators and functions of bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from snowmelt.errors import SnowmeltError
from snowmelt.load.phase_protocols import ByteReader, Records
from snowmelt.load.udx.input_window import ByteWindow, InputWindow, RecordWindow
from snowmelt.load.udx.instance import (
    DESTROY_ROLES,
    PROCESS_RECORDS_ROLES,
    PROCESS_ROLES,
    CallLoop,
    UdxHost,
    UdxInstance,
    call_optional,
    describe_user_code_line,
)
from snowmelt.load.udx.shared_progress_page import is_ctrl_c
from snowmelt.load.udx.vertica_sdk.buffers import LengthBuffer, OutputBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


def iter_written(
    instance: UdxInstance, method_name: str, roles: Sequence[str], window: InputWindow | None = None
) -> Generator[tuple[bytes, NDArray[np.uint32]]]:
    """Call a method until its stream ends; yield the bytes and record lengths it writes.

    Raises:
        PhaseFailed: If user code raises an error, violates the protocol, or stops progressing.
    """
    host = instance.host
    with instance.running_stream(DESTROY_ROLES):
        output, lengths = OutputBuffer(host.limits.window_bytes), LengthBuffer()
        given: dict[str, object] = {"server": host.server, "output": output}
        given["output_lengths"] = lengths
        if window is not None:
            given |= {"input": window.buffer, "input_lengths": window.lengths}
        process = instance.bind_state_method(method_name, roles)
        flow = CallLoop(instance, window, output)
        flow.fetch_first()
        done, taken = False, 0
        while not done:
            written = output.written
            if window is not None:
                taken, given["state"] = window.consumed, window.report_state()
            answer = process(*[given[role] for role in roles])
            wrote = output.written > written or lengths.offset > 0
            if wrote:
                yield output.pop_written(), lengths.pop_written()
            read = window is not None and window.consumed > taken
            done = flow.handle_state(answer.code, has_read=read, has_written=wrote)
        output.close()


class UdxFilter:
    """A filter with `setup`, `process` and `destroy`. One object filters successive streams.

    `process` may return INPUT_NEEDED with unread input, write without reading, and read without
    writing. The first call receives at least `UdxLimits.chunk_bytes` bytes, or the whole input if
    it is smaller. (The SDK does not define this.)
    """

    def __init__(self, host: UdxHost, make: Callable[[], object]) -> None:
        self.instance = UdxInstance(host, make)

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream."""
        window = ByteWindow(reader, self.instance.host.limits)
        stream = iter_written(self.instance, "process", PROCESS_ROLES, window)
        with closing(reader), closing(stream):
            for data, _ in stream:
                yield data

    def cancel(self) -> None:
        """Cancel the running stream and call the user's `cancel` once. Thread-safe."""
        self.instance.cancel()


class UdxRecordFilter:
    """A filter with `useSideChannel` and `processWithMetadata`.

    It writes records with their lengths, or plain bytes if `endsSideChannel` returns true.
    """

    def __init__(self, byte_filter: UdxFilter) -> None:
        self._byte_filter = byte_filter
        self.cancel = byte_filter.cancel
        self.ends_records = bool(call_optional(byte_filter.instance.user_object, "endsSideChannel"))

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`."""
        instance = self._byte_filter.instance
        window = RecordWindow(records, instance.host.limits)
        stream = iter_written(instance, "processWithMetadata", PROCESS_RECORDS_ROLES, window)
        if not self.ends_records:
            return assemble_records(instance.host, stream)
        return self._iter_bytes(stream)

    def _iter_bytes(self, written: Iterator[tuple[bytes, NDArray[np.uint32]]]) -> Iterator[bytes]:
        for data, lengths in written:
            if len(lengths):
                raise self._byte_filter.instance.host.make_error(
                    "it wrote record lengths, but its endsSideChannel() returns true"
                )
            yield data


class UdxDualFilter(UdxRecordFilter):
    """A record filter that also has `process`, for input without record boundaries."""

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream."""
        return self._byte_filter.run(reader)


def assemble_records(
    host: UdxHost, written: Iterator[tuple[bytes, NDArray[np.uint32]]]
) -> Iterator[Records]:
    """Yield records from bytes and record lengths. Lengths may arrive before or after their bytes.

    Raises:
        PhaseFailed: If the sum of the lengths is not the number of bytes.
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
            offsets = np.zeros(whole + 1, dtype=np.int32)
            offsets[1:] = ends[:whole]
            end = int(offsets[-1])
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[:end])]
            yield pa.BinaryArray.from_buffers(pa.binary(), whole, buffers)
            data, lengths = data[end:], lengths[whole:]
    if len(lengths) or data:
        claimed = total - len(data) + int(lengths.sum())
        hint = "" if len(lengths) else ". To write no lengths, return true from endsSideChannel()"
        raise host.make_error(f"it wrote {total} bytes, but record lengths of {claimed}{hint}")


class GeneratorFilter:
    """A filter with a generator `run(reader)`. Its errors carry the input offset."""

    def __init__(
        self, host: UdxHost, run: Callable[[ByteReader], Iterator[bytes]], owner: object
    ) -> None:
        self._host = host
        self._run = run
        self._owner = owner
        self._cancelled = False

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream."""
        with closing(reader):
            for piece in iter_checked_bytes(self._host, iter(self._run(reader)), reader):
                yield piece
                if self._cancelled:
                    raise self._host.make_error("it was cancelled")

    def cancel(self) -> None:
        """Cancel at the next slice, and call the filter's `cancel` if it has one."""
        self._cancelled = True
        cancel = getattr(self._owner, "cancel", None)
        if callable(cancel):
            cancel()


def iter_checked_bytes(
    host: UdxHost, pieces: Iterator[Any], reader: ByteReader | None
) -> Iterator[bytes]:
    """Yield the items of user code as bytes.

    Raises:
        PhaseFailed: If user code raises an error, or yields anything but bytes. The error carries
            the offset of `reader`.
    """
    try:
        while True:
            try:
                piece = next(pieces)
            except StopIteration:
                return
            except SnowmeltError:
                raise
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                text = f"it raised {type(error).__name__}: {error}{describe_user_code_line(error)}"
                raise host.make_error(
                    text, offset=None if reader is None else reader.offset
                ) from error
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                text = f"it yielded {type(piece).__name__}, not bytes"
                raise host.make_error(text, offset=None if reader is None else reader.offset)
            yield bytes(piece)
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


def make_generator_filter(host: UdxHost, user_object: Any) -> GeneratorFilter | None:
    """Return a filter for a generator function, an object with `run`, or a function of bytes.

    A function of bytes receives the whole input, because its results for slices may differ. With
    `whole_input` false, it is called for each slice.
    """
    if callable(getattr(user_object, "run", None)):
        return GeneratorFilter(host, user_object.run, user_object)
    if inspect.isgeneratorfunction(getattr(user_object, "func", user_object)):
        return GeneratorFilter(host, user_object, user_object)
    if not callable(user_object):
        return None

    def run(reader: ByteReader) -> Iterator[bytes]:
        if not host.limits.whole_input:
            yield from map(user_object, reader)
            return
        limit = host.limits.window_bytes
        data = reader.read(limit + 1)
        if len(data) > limit:
            raise host.make_error(f"its input exceeds {limit} bytes, the limit of `whole_input`")
        yield user_object(data)

    return GeneratorFilter(host, run, user_object)
