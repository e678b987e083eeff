"""Parsers with `process` and a writer of rows, as the host runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.errors import InvalidRow, PhaseFailed
from snowmelt.load.phase_states import StreamState
from snowmelt.load.phases import ColumnOptions, Parsed, Rejected
from snowmelt.load.udx.input_window import Feed, RecordFeed, Window
from snowmelt.load.udx.instance import (
    ALIGN,
    CHUNK,
    PARSE,
    PARSE_RECORDS,
    PARSER_DESTROY,
    PARSER_SETUP,
    Flow,
    Guest,
)
from snowmelt.load.udx.vertica_sdk.states import InputState
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes
from snowmelt.load.udx.vertica_sdk.writers import StreamWriter
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.row_converter import MAX_ROW_BYTES, RowConverter
from snowmelt.schema.native_types import to_native
from snowmelt.schema.types import DEFAULT_ZONE, Compatibility, LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from snowmelt.load.phases import Reader, Records, Target
    from snowmelt.load.portion import Portion
    from snowmelt.load.udx.instance import Host
    from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer
    from snowmelt.load.udx.vertica_sdk.states import Answer
    from snowmelt.schema.conversion.row_converter import RowError

# --- Chunkers: user code that finds ends of records, so that a parser is given whole records only.

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


# --- Rows that a parser of user code wrote, made columns of the load; and what it rejected.

if TYPE_CHECKING:
    Row = dict[str, object]

_NO_OPTIONS = ColumnOptions()
_ZONE = ZoneInfo(DEFAULT_ZONE)


class RowBlocks:
    """Collects rows and rejects of one stream, in the order in which they come."""

    def __init__(self, target: Target, types: SizedColumnTypes, host: Host) -> None:
        """Prepare for a stream.

        Raises:
            PhaseFailed: The parser declares another number of columns than the load has.
        """
        columns = target.schema.columns
        if types.getColumnCount() != len(columns):
            raise PhaseFailed(
                reason=f"it declares {types.getColumnCount()} columns; the load has {len(columns)}"
            )
        # Spelt so that each is the very column, whatever the case of its name.
        self._names = [column.display_name for column in columns]
        self.writer = StreamWriter(types)
        self._host = host
        self._schema = target.schema
        self._columns = [ColumnConverter(column, _ZONE, Compatibility.COPY) for column in columns]
        self._exactly = RowConverter(target.schema, zone=_ZONE, compatibility=Compatibility.COPY)
        self._cuts = _cuts(target)
        self._records = 0
        self._rejects: list[tuple[int, Rejected]] = []
        self._calls: list[tuple[int, int]] = []

    @property
    def records_waiting(self) -> int:
        """How many rows and rejects were not taken yet."""
        return self.writer.waiting + len(self._rejects)

    def at(self, offset: int) -> None:
        """Note where in the input the rows of the next call begin."""
        self._calls.append((self.writer.waiting, offset))

    def reject(self, record: object, source: InputBuffer, offset: int) -> None:
        """Take a rejected record, which was read since the input's `offset`.

        Raises:
            PhaseFailed: There is none.
        """
        data, reason = _asked(record, "getData"), _asked(record, "getReason")
        if not isinstance(data, (bytes, bytearray, str)) or not isinstance(reason, str):
            raise self._host.failed(
                f"it returned REJECT with {record!r}, which is no RejectedRecord", offset=offset
            )
        raw = data.encode() if isinstance(data, str) else bytes(data)
        # What was set of its row is not the next row's.
        self.writer.drop_row()
        number = self._records + self.records_waiting + 1
        rejected = Rejected(number, source.place_of(data, offset), raw, reason)
        self._rejects.append((self.writer.waiting, rejected))

    def check_finished(self, parser: str) -> None:
        """Refuse a row that was begun and not finished when the stream ended.

        Raises:
            PhaseFailed: There is one.
        """
        if self.writer.drop_row():
            raise self._host.failed(
                f"{parser} returned DONE within a row: next() was not called after the last set"
            )

    def take(self) -> Parsed:
        """Return what came since it was called last."""
        rows = self.writer.waiting
        columns = self.writer.take()
        table, refused = self._converted(columns), []
        if table is None:
            values = list(zip(*columns, strict=True))
            named = [dict(zip(self._names, row, strict=True)) for row in values]
            conversion = self._exactly.convert(named)
            if conversion.errors and self._cut(named, conversion.errors):
                conversion = self._exactly.convert(named)
            table = conversion.table
            refused = [self._refused(error, values[error.row_index]) for error in conversion.errors]
        rejects = sorted(
            [*(rejected for _, rejected in self._rejects), *refused], key=lambda each: each.record
        )
        records = rows + len(self._rejects)
        self._records += records
        self._rejects, self._calls = [], []
        return Parsed(self._native(table), tuple(rejects), records)

    def _converted(self, columns: list[list[object]]) -> pa.Table | None:
        """Return rows in chunk form, whole columns at once; None if any of them is refused."""
        arrays = []
        for converter, values in zip(self._columns, columns, strict=True):
            array, refused = converter.convert(values)
            if refused:
                return None
            arrays.append(array)
        # Only all of them together can tell at once that no row is too large.
        if sum(array.nbytes for array in arrays) > MAX_ROW_BYTES:
            return None
        return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(self._schema))

    def _cut(self, rows: list[Row], errors: list[RowError]) -> bool:
        """Cut what is too long in the rows that were refused; tell whether there is any."""
        changed = False
        for error in errors:
            row = rows[error.row_index]
            for name, cut in self._cuts:
                value = row[name]
                if (shorter := cut(value)) is not value:
                    row[name], changed = shorter, True
        return changed

    def _native(self, table: pa.Table) -> pa.Table:
        try:
            return to_native(table, self._schema)
        except InvalidRow as error:
            raise self._host.failed(str(error)) from error

    def _refused(self, error: RowError, row: tuple[object, ...]) -> Rejected:
        index = error.row_index
        before = sum(1 for waiting, _ in self._rejects if waiting <= index)
        offset = max((each for each in self._calls if each[0] <= index), default=(0, 0))[1]
        column = error.error.fields.get("column")
        return Rejected(
            record=self._records + index + before + 1,
            offset=offset,
            data="|".join(map(_text, row)).encode(),
            reason=_reason(error),
            column=str(column) if column is not None else None,
        )


def _reason(error: RowError) -> str:
    # The number of the row is the block's, which nobody knows.
    text = str(error.error).replace(f", rowIndex:{error.row_index}", "")
    return text.partition(": ")[2] or text


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _asked(record: object, name: str) -> object:
    method = getattr(record, name, None)
    return method() if callable(method) else None


def _cuts(target: Target) -> list[tuple[str, Callable[[object], object]]]:
    """Return how values that are too long are cut, where the load does not reject them."""
    cuts: list[tuple[str, Callable[[object], object]]] = []
    for column in target.schema.columns:
        enforced = target.options.get(column.name, _NO_OPTIONS).enforce_length
        if target.enforce_length if enforced is None else enforced:
            continue
        if column.kind is LogicalType.TEXT:
            cuts.append((column.display_name, _text_cut(column.length, column.byte_length)))
        elif column.kind is LogicalType.BINARY:
            cuts.append((column.display_name, _bytes_cut(column.byte_length)))
    return cuts


def _text_cut(length: int | None, byte_length: int | None) -> Callable[[object], object]:
    shortest = min(length or 1 << 62, (byte_length or 1 << 62) // 4)

    def cut(value: object) -> object:
        if not isinstance(value, str) or len(value) <= shortest:
            return value
        text = value[:length]
        raw = text.encode(errors="surrogatepass")
        if byte_length is None or len(raw) <= byte_length:
            return text
        return raw[:byte_length].decode(errors="ignore")

    return cut


def _bytes_cut(byte_length: int | None) -> Callable[[object], object]:
    def cut(value: object) -> object:
        too_long = isinstance(value, bytes) and byte_length is not None and len(value) > byte_length
        return value[:byte_length] if too_long else value  # type: ignore[index]

    return cut


if TYPE_CHECKING:
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
