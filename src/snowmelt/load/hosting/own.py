"""Filters as this project writes them: generators, and plain functions of bytes."""

from __future__ import annotations

import inspect
import queue
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from snowmelt.errors import SnowmeltError
from snowmelt.load.hosting.guest import place_of
from snowmelt.load.hosting.progress import is_ctrl_c
from snowmelt.load.hosting.vertica.states import InputState, StreamState
from snowmelt.load.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from snowmelt.load.hosting.guest import Host
    from snowmelt.load.hosting.vertica.buffers import InputBuffer, OutputBuffer
    from snowmelt.load.hosting.vertica.server import ServerInterface
    from snowmelt.load.hosting.vertica.states import Answer
    from snowmelt.load.phases import Filter


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
