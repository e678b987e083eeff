"""Parsers with `process` and a writer of rows, as the host runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snowmelt.load.hosting.binding import PARSE, PARSE_RECORDS, PARSER_DESTROY, PARSER_SETUP
from snowmelt.load.hosting.chunking import ChunkedFeed
from snowmelt.load.hosting.feed import Feed, RecordFeed
from snowmelt.load.hosting.flow import Flow
from snowmelt.load.hosting.guest import Guest
from snowmelt.load.hosting.row_blocks import RowBlocks
from snowmelt.load.hosting.vertica.columns import SizedColumnTypes
from snowmelt.load.states import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from snowmelt.load.hosting.feed import Window
    from snowmelt.load.hosting.guest import Host
    from snowmelt.load.hosting.vertica.states import Answer
    from snowmelt.load.parsed import Parsed, Target
    from snowmelt.load.portion import Portion
    from snowmelt.load.reader import Reader
    from snowmelt.load.records import Records

    Prepare = Callable[[Target], tuple[object, SizedColumnTypes]]
    PrepareChunker = Callable[[Target, SizedColumnTypes], object]
    Process = Callable[[Guest, RowBlocks], Callable[[], Answer]]

# A block is handed on after so many bytes or rows.
_BLOCK_BYTES = 4 * 1024 * 1024
_BLOCK_ROWS = 65_536


class _Stage:
    """The object that parses into one target, with the types that it declares."""

    def __init__(self, host: Host, prepare: Prepare, target: Target) -> None:
        self.target = target
        self.types = SizedColumnTypes.of(target.schema)
        self.guest = Guest(host, self._make)
        self._prepare = prepare

    def _make(self) -> object:
        made, self.types = self._prepare(self.target)
        return made


class _Parsing:
    """What parsers of bytes and of records have in common."""

    def __init__(self, host: Host, prepare: Prepare) -> None:
        self._host = host
        self._prepare = prepare
        self._stage: _Stage | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._cancelled = True
        if self._stage is not None:
            self._stage.guest.cancel()

    def _staged(self, target: Target) -> _Stage:
        stage = self._stage
        if stage is None or stage.target != target:
            stage = self._stage = _Stage(self._host, self._prepare, target)
        if self._cancelled:
            stage.guest.cancel()
        return stage

    def _parsed(self, feed: Window, target: Target, process: Process) -> Iterator[Parsed]:
        stage = self._staged(target)
        guest = stage.guest
        made: Any = guest.made
        with guest.stream(PARSER_DESTROY, PARSER_SETUP, stage.types):
            blocks = RowBlocks(target, stage.types, self._host)
            call = process(guest, blocks)
            flow = Flow(guest, feed, None)
            flow.begin()
            done, source, began, rejected_at = False, feed.buffer, 0, -1
            while not done:
                offset, taken, waiting = source.consumed, feed.taken, blocks.writer.waiting
                blocks.at(offset)
                answer = call()
                if answer.code is StreamState.REJECT:
                    if feed.taken == rejected_at:
                        raise self._host.failed("it rejects again without reading", offset=offset)
                    rejected_at = feed.taken
                    record = answer.rejected
                    if record is None:
                        record = guest.ask("getRejectedRecord")
                    blocks.reject(record, source, offset)
                else:
                    wrote = blocks.writer.waiting > waiting
                    done = flow.after(answer.code, read=feed.taken > taken, wrote=wrote)
                enough = source.consumed - began >= _BLOCK_BYTES
                if enough or blocks.records_waiting >= _BLOCK_ROWS:
                    began = source.consumed
                    yield blocks.take()
            blocks.check_finished(type(made).__name__)
            if blocks.records_waiting:
                yield blocks.take()


class HostedParser(_Parsing):
    """A parser with `setup`, `process` and `destroy`; the same object parses stream after stream.

    Rows are checked against the table's columns as all rows are, and rejected one by one. Where a
    portion begins in the middle of a file, the states of portions tell so; or a chunker
    finds its records.
    """

    splittable: bool

    def __init__(self, host: Host, prepare: Prepare, *, splittable: bool = False) -> None:
        super().__init__(host, prepare)
        self.splittable = splittable
        self._chunker: PrepareChunker | None = None
        self._chunking: Guest | None = None

    def use_chunker(self, prepare: PrepareChunker) -> None:
        """Let chunkers that `prepare` makes find the records."""
        self._chunker = prepare

    def parse(self, reader: Reader, target: Target, portion: Portion) -> Iterator[Parsed]:
        """Yield what a portion holds.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        feed = self._feed(reader, target, portion)
        server, source = self._host.server, feed.buffer

        def process(guest: Guest, blocks: RowBlocks) -> Callable[[], Answer]:
            call, writer = guest.function("process", PARSE), blocks.writer
            return lambda: call(server, source, feed.tell(), writer)

        try:
            yield from self._parsed(feed, target, process)
        finally:
            if isinstance(feed, ChunkedFeed):
                feed.close()

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        super().cancel()
        if self._chunking is not None:
            self._chunking.cancel()

    def _feed(self, reader: Reader, target: Target, portion: Portion) -> Window:
        if self._chunker is not None:
            stage, prepare = self._staged(target), self._chunker
            made, types = stage.guest.made, stage.types  # which tells the types
            guest = self._chunking = Guest(self._host, lambda: prepare(target, types))
            if made is not None and guest.made is not None:
                return ChunkedFeed(guest, types, reader, portion)
        return Feed(reader, self._host.limits, end=portion.size, first=portion.is_first)


class HostedRecordParser(_Parsing):
    """A parser with `useSideChannel` and `processWithMetadata`: each record may be rejected."""

    def parse_records(self, records: Iterator[Records], target: Target) -> Iterator[Parsed]:
        """Yield what records hold.

        Raises:
            PhaseFailed: As HostedParser.
        """
        feed = RecordFeed(records, self._host.limits)
        server, source, lengths = self._host.server, feed.buffer, feed.lengths

        def process(guest: Guest, blocks: RowBlocks) -> Callable[[], Answer]:
            call, writer = guest.function("processWithMetadata", PARSE_RECORDS), blocks.writer
            return lambda: call(server, source, lengths, feed.tell(), writer)

        return self._parsed(feed, target, process)


class HostedEitherParser(HostedParser, HostedRecordParser):
    """One that has `process`, too: where there is no side channel, it parses bytes."""
