"""User-defined filters: SDK state machines over bytes or records, and generator filters.

Record filters use the SDK's side channel, which passes record boundaries beside the bytes.
`GeneratorFilter` runs filters in Snowmelt's own style: generators and plain functions of bytes.
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
    describe_user_code_line,
)
from snowmelt.load.udx.shared_progress_page import is_ctrl_c
from snowmelt.load.udx.vertica_sdk.buffers import LengthBuffer, OutputBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


def iter_written(
    instance: UdxInstance, method_name: str, roles: Sequence[str], window: InputWindow | None = None
) -> Generator[tuple[bytes, NDArray[np.uint32]]]:
    """Call a method until its stream ends; yield bytes and lengths of records as it writes them."""
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
    """A filter with `setup`, `process` and `destroy`; the same object filters stream after stream.

    `process` may say INPUT_NEEDED with unread input in front, write without reading and the other
    way round. The rules are the SDK's; where they leave something open, a small input comes as a
    whole with the first call.
    """

    def __init__(self, host: UdxHost, make: Callable[[], object]) -> None:
        self.instance = UdxInstance(host, make)

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        window = ByteWindow(reader, self.instance.host.limits)
        stream = iter_written(self.instance, "process", PROCESS_ROLES, window)
        with closing(reader), closing(stream):
            for data, _ in stream:
                yield data

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self.instance.cancel()


class UdxRecordFilter:
    """A filter with `useSideChannel` and `processWithMetadata`.

    What it writes are records with their lengths, unless it has `endsSideChannel`, which returns
    true: then it writes plain bytes.
    """

    def __init__(self, byte_filter: UdxFilter) -> None:
        self._byte_filter = byte_filter
        self.cancel = byte_filter.cancel
        ends = getattr(byte_filter.instance.user_object, "endsSideChannel", None)
        self.ends_records = callable(ends) and bool(ends())

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or wrote lengths whose sum is not
                the number of bytes that it wrote.
        """
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
                    "it wrote lengths of records, and its endsSideChannel() is true"
                )
            yield data


class UdxDualFilter(UdxRecordFilter):
    """One that has `process`, too: where there is no side channel, it filters bytes."""

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream, as `UdxFilter`."""
        return self._byte_filter.run(reader)


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
            offsets = np.zeros(whole + 1, dtype=np.int32)
            offsets[1:] = ends[:whole]
            end = int(offsets[-1])
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[:end])]
            yield pa.BinaryArray.from_buffers(pa.binary(), whole, buffers)
            data, lengths = data[end:], lengths[whole:]
    if len(lengths) or data:
        claimed = total - len(data) + int(lengths.sum())
        hint = "" if len(lengths) else "; endsSideChannel() would say that it writes no lengths"
        raise host.make_error(
            f"it wrote {total} bytes in records of {claimed} bytes together{hint}"
        )


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
        with closing(reader):
            for piece in iter_checked_bytes(self._host, iter(self._run(reader)), reader):
                yield piece
                if self._cancelled:
                    raise self._host.make_error("it was cancelled")

    def cancel(self) -> None:
        """End what runs as cancelled at its next piece; tell the filter, if it wants to know."""
        self._cancelled = True
        cancel = getattr(self._owner, "cancel", None)
        if callable(cancel):
            cancel()


def iter_checked_bytes(
    host: UdxHost, pieces: Iterator[Any], reader: ByteReader | None
) -> Iterator[bytes]:
    """Yield pieces as bytes.

    Raises:
        PhaseFailed: User code raised an error, after what it read of `reader`; or yields other things.
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

    A function of bytes is given the whole input, since what it makes of a part is not known to be
    a part of what it makes of the whole; unless `whole_input` is false.
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
            raise host.make_error(
                f"its input is longer than {limit} bytes, which is the most that is given as a whole"
            )
        yield user_object(data)

    return GeneratorFilter(host, run, user_object)
