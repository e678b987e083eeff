"""Chunkers: user code that finds ends of records, so that a parser is given whole records only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.load.hosting.binding import ALIGN, CHUNK, PARSER_DESTROY, PARSER_SETUP
from snowmelt.load.hosting.feed import Feed, Window
from snowmelt.load.hosting.flow import Flow
from snowmelt.load.hosting.vertica.states import InputState
from snowmelt.load.states import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from snowmelt.load.hosting.guest import Guest
    from snowmelt.load.hosting.vertica.columns import SizedColumnTypes
    from snowmelt.load.hosting.vertica.states import Answer
    from snowmelt.load.portion import Portion
    from snowmelt.load.reader import Reader

_ALIGNED = (StreamState.CHUNK_ALIGNED, StreamState.DONE)


class ChunkedFeed(Window):
    """The input of a parser in blocks of whole records, each told with END_OF_CHUNK.

    The portion's borders are the chunker's: `alignPortion` finds the first end of a record, once
    where the portion begins within a file, and once behind its end.
    """

    def __init__(
        self, guest: Guest, types: SizedColumnTypes, reader: Reader, portion: Portion
    ) -> None:
        super().__init__(guest.host.limits)
        self._guest = guest
        self._types = types
        self._portion = portion
        self._input = Feed(reader, guest.host.limits, end=portion.size, first=portion.is_first)
        self._blocks = self._cut()

    def begin(self) -> None:
        """Fetch the first block."""
        self._append(1)

    def close(self) -> None:
        """End the chunker's stream."""
        self._blocks.close()

    def _append(self, wanted: int) -> None:  # noqa: ARG002 - a block is as long as it is
        block = next(self._blocks, None)
        self._state = InputState.END_OF_FILE if block is None else InputState.END_OF_CHUNK
        self._put([] if block is None else [block])

    def _cut(self) -> Generator[bytes]:
        guest, feed = self._guest, self._input
        with guest.stream(PARSER_DESTROY, PARSER_SETUP, self._types):
            flow = Flow(guest, feed, None)
            flow.begin()
            if not self._portion.is_first and self._aligned(flow) is None:
                return
            process = guest.function("process", CHUNK)
            server, source = guest.host.server, feed.buffer
            while True:
                window, before = source.peek(), source.consumed
                state = feed.tell()
                code = process(server, source, state).code
                read = source.consumed - before
                if read and code in _ALIGNED:
                    yield bytes(window[:read])  # type: ignore[arg-type]
                if code is StreamState.DONE:
                    return
                if code is StreamState.CHUNK_ALIGNED and read:
                    continue
                if code is not StreamState.INPUT_NEEDED or read:
                    raise guest.host.failed(f"it returned {code.name} after reading {read} bytes")
                if state in {InputState.END_OF_FILE, InputState.END_OF_PORTION}:
                    break
                flow.after(code, read=False, wrote=False)
            # What is left has no end of a record: it is in the next portion, or was forgotten.
            rest = self._aligned(flow) if feed.told_end_of_portion else source.read()
            if rest:
                yield bytes(rest)  # type: ignore[arg-type]

    def _aligned(self, flow: Flow) -> bytes | None:
        """Return what is there up to the first end of a record; None if the portion has none."""
        guest, feed = self._guest, self._input
        align: Callable[..., Answer] = guest.function("alignPortion", ALIGN)
        server, source = guest.host.server, feed.buffer
        behind = feed.told_end_of_portion
        while True:
            window, before, state = source.peek(), source.consumed, feed.tell()
            code = align(server, source, state).code
            read = source.consumed - before
            if code in _ALIGNED:
                return bytes(window[:read])  # type: ignore[arg-type]
            if code is not StreamState.INPUT_NEEDED or read:
                return None
            if state is InputState.END_OF_FILE:
                return bytes(source.read()) if behind else None  # type: ignore[arg-type]
            if state is InputState.END_OF_PORTION and not behind:
                return None
            flow.after(code, read=False, wrote=False)
