"""Parsers with `process` and a writer of rows, as the host runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snowmelt.load.hosting.binding import PARSE, PARSE_RECORDS, PARSER_DESTROY, PARSER_SETUP
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


class HostedParser:
    """A parser with `setup`, `process` and `destroy`; the same object parses stream after stream.

    Rows are checked against the table's columns as all rows are, and rejected one by one. Where a
    portion begins in the middle of a file, the states of portions tell so.
    """

    splittable: bool

    def __init__(self, host: Host, prepare: Prepare, *, splittable: bool = False) -> None:
        self.splittable = splittable
        self._host = host
        self._prepare = prepare
        self._stage: _Stage | None = None
        self._cancelled = False

    def parse(self, reader: Reader, target: Target, portion: Portion) -> Iterator[Parsed]:
        """Yield what a portion holds.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        feed = Feed(reader, self._host.limits, end=portion.size, first=portion.is_first)
        yield from self._parsed(feed, target)

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._cancelled = True
        if self._stage is not None:
            self._stage.guest.cancel()

    def _parsed(self, feed: Window, target: Target) -> Iterator[Parsed]:
        stage = self._stage
        if stage is None or stage.target != target:
            stage = self._stage = _Stage(self._host, self._prepare, target)
        if self._cancelled:
            stage.guest.cancel()
        guest = stage.guest
        made: Any = guest.made
        with guest.stream(PARSER_DESTROY, PARSER_SETUP, stage.types):
            blocks = RowBlocks(target, stage.types, self._host)
            call = self._call(guest, feed, blocks)
            flow = Flow(guest, feed, None)
            flow.begin()
            done, source, began = False, feed.buffer, 0
            while not done:
                offset, waiting = source.consumed, blocks.writer.waiting
                blocks.at(offset)
                answer = call()
                if answer.code is StreamState.REJECT:
                    record = answer.rejected
                    if record is None:
                        record = guest.ask("getRejectedRecord")
                    blocks.reject(record, source, offset)
                else:
                    wrote = blocks.writer.waiting > waiting
                    done = flow.after(answer.code, read=source.consumed > offset, wrote=wrote)
                enough = source.consumed - began >= _BLOCK_BYTES
                if enough or blocks.writer.waiting >= _BLOCK_ROWS:
                    began = source.consumed
                    yield blocks.take()
            blocks.check_finished(type(made).__name__)
            if blocks.records_waiting:
                yield blocks.take()

    def _call(self, guest: Guest, feed: Window, blocks: RowBlocks) -> Callable[[], Answer]:
        process = guest.function("process", PARSE)
        server, source, writer = self._host.server, feed.buffer, blocks.writer
        return lambda: process(server, source, feed.tell(), writer)


class HostedRecordParser(HostedParser):
    """A parser with `useSideChannel` and `processWithMetadata`: each record may be rejected."""

    def parse_records(self, records: Iterator[Records], target: Target) -> Iterator[Parsed]:
        """Yield what records hold.

        Raises:
            PhaseFailed: As HostedParser.
        """
        yield from self._parsed(RecordFeed(records, self._host.limits), target)

    def _call(self, guest: Guest, feed: Window, blocks: RowBlocks) -> Callable[[], Answer]:
        if not isinstance(feed, RecordFeed):
            return super()._call(guest, feed, blocks)
        process = guest.function("processWithMetadata", PARSE_RECORDS)
        server, source, writer = self._host.server, feed.buffer, blocks.writer
        lengths = feed.lengths
        return lambda: process(server, source, lengths, feed.tell(), writer)
