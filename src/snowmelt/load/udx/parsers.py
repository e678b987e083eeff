"""User-defined parsers with `process` and a row writer, their chunkers, and the rows they write.

A chunker is user code that finds record ends, so that the parser is given whole records only.
`UdxRowBuilder` converts written rows to columns of the load and collects rejects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.errors import InvalidRow, PhaseFailed
from snowmelt.load.phase_protocols import ColumnOptions, ParsedBatch, ParseReject
from snowmelt.load.phase_states import PhaseStateCode
from snowmelt.load.udx.input_window import ByteWindow, InputWindow, RecordWindow
from snowmelt.load.udx.instance import (
    ALIGN_ROLES,
    CHUNK_ROLES,
    PARSE_RECORDS_ROLES,
    PARSE_ROLES,
    PARSER_DESTROY_ROLES,
    PARSER_SETUP_ROLES,
    CallLoop,
    UdxInstance,
)
from snowmelt.load.udx.vertica_sdk.states import InputState
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes
from snowmelt.load.udx.vertica_sdk.writers import StreamWriter
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.row_converter import MAX_ROW_BYTES, RowConverter
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import DEFAULT_ZONE, Compatibility, LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from snowmelt.load.phase_protocols import ByteReader, ParseTarget, Records
    from snowmelt.load.portion import Portion
    from snowmelt.load.udx.instance import UdxHost
    from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer
    from snowmelt.load.udx.vertica_sdk.states import ReturnedState
    from snowmelt.schema.conversion.row_converter import RowError

# --- Chunkers: user code that finds ends of records, so that a parser is given whole records only.

_ALIGNED_STATES = (PhaseStateCode.CHUNK_ALIGNED, PhaseStateCode.DONE)


class ChunkerWindow(InputWindow):
    """The input of a parser in blocks of whole records, each told with END_OF_CHUNK.

    The portion's borders are the chunker's: `alignPortion` finds the first end of a record, once
    where the portion begins within a file, and once behind its end.
    """

    def __init__(
        self, instance: UdxInstance, types: SizedColumnTypes, reader: ByteReader, portion: Portion
    ) -> None:
        super().__init__(instance.host.limits)
        self._instance = instance
        self._types = types
        self._portion = portion
        self._input = ByteWindow(
            reader,
            instance.host.limits,
            portion_bytes=portion.size,
            is_first_portion=portion.is_first,
        )
        self._blocks = self._iter_blocks()

    def fetch_first(self) -> None:
        """Fetch the first block."""
        self._fetch_input(1)

    def close(self) -> None:
        """End the chunker's stream."""
        self._blocks.close()

    def _fetch_input(self, min_size: int) -> None:  # noqa: ARG002 - a block is as long as it is
        block = next(self._blocks, None)
        self._state = InputState.END_OF_FILE if block is None else InputState.END_OF_CHUNK
        self._append_to_buffer([] if block is None else [block])

    def _iter_blocks(self) -> Generator[bytes]:
        instance, feed = self._instance, self._input
        with instance.running_stream(PARSER_DESTROY_ROLES, PARSER_SETUP_ROLES, self._types):
            flow = CallLoop(instance, feed, None)
            flow.fetch_first()
            if not self._portion.is_first and self._read_to_first_record_end(flow) is None:
                return
            process = instance.bind_state_method("process", CHUNK_ROLES)
            server, source = instance.host.server, feed.buffer
            while True:
                window, before = source.peek(), source.consumed
                state = feed.report_state()
                code = process(server, source, state).code
                read = source.consumed - before
                if read and code in _ALIGNED_STATES:
                    yield bytes(window[:read])  # type: ignore[arg-type]
                if code is PhaseStateCode.DONE:
                    return
                if code is PhaseStateCode.CHUNK_ALIGNED and read:
                    continue
                if code is not PhaseStateCode.INPUT_NEEDED or read:
                    raise instance.host.make_error(
                        f"it returned {code.name} after reading {read} bytes"
                    )
                if state in {InputState.END_OF_FILE, InputState.END_OF_PORTION}:
                    break
                flow.handle_state(code, has_read=False, has_written=False)
            # What is left has no end of a record: it is in the next portion, or was forgotten.
            rest = (
                self._read_to_first_record_end(flow)
                if feed.reported_end_of_portion
                else source.read()
            )
            if rest:
                yield bytes(rest)  # type: ignore[arg-type]

    def _read_to_first_record_end(self, call_loop: CallLoop) -> bytes | None:
        """Return what is there up to the first end of a record; None if the portion has none."""
        instance, feed = self._instance, self._input
        align: Callable[..., ReturnedState] = instance.bind_state_method(
            "alignPortion", ALIGN_ROLES
        )
        server, source = instance.host.server, feed.buffer
        behind = feed.reported_end_of_portion
        while True:
            window, before, state = source.peek(), source.consumed, feed.report_state()
            code = align(server, source, state).code
            read = source.consumed - before
            if code in _ALIGNED_STATES:
                return bytes(window[:read])  # type: ignore[arg-type]
            if code is not PhaseStateCode.INPUT_NEEDED or read:
                return None
            if state is InputState.END_OF_FILE:
                return bytes(source.read()) if behind else None  # type: ignore[arg-type]
            if state is InputState.END_OF_PORTION and not behind:
                return None
            call_loop.handle_state(code, has_read=False, has_written=False)


# --- Rows that a parser of user code wrote, made columns of the load; and what it rejected.

if TYPE_CHECKING:
    Row = dict[str, object]

_NO_OPTIONS = ColumnOptions()
_ZONE = ZoneInfo(DEFAULT_ZONE)


class UdxRowBuilder:
    """Collects rows and rejects of one stream, in the order in which they come."""

    def __init__(self, target: ParseTarget, types: SizedColumnTypes, host: UdxHost) -> None:
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
        self._row_converter = RowConverter(
            target.schema, zone=_ZONE, compatibility=Compatibility.COPY
        )
        self._truncations = _make_truncations(target)
        self._records = 0
        self._rejects: list[tuple[int, ParseReject]] = []
        self._call_offsets: list[tuple[int, int]] = []

    @property
    def pending_records(self) -> int:
        """How many rows and rejects were not taken yet."""
        return self.writer.pending_rows + len(self._rejects)

    def start_call(self, offset: int) -> None:
        """Note where in the input the rows of the next call begin."""
        self._call_offsets.append((self.writer.pending_rows, offset))

    def add_reject(self, record: object, source: InputBuffer, offset: int) -> None:
        """Take a rejected record, which was read since the input's `offset`.

        Raises:
            PhaseFailed: There is none.
        """
        data, reason = _call_getter(record, "getData"), _call_getter(record, "getReason")
        if not isinstance(data, (bytes, bytearray, str)) or not isinstance(reason, str):
            raise self._host.make_error(
                f"it returned REJECT with {record!r}, which is no RejectedRecord", offset=offset
            )
        raw = data.encode() if isinstance(data, str) else bytes(data)
        # What was set of its row is not the next row's.
        self.writer.discard_open_row()
        number = self._records + self.pending_records + 1
        rejected = ParseReject(number, source.find_read_data_offset(data, offset), raw, reason)
        self._rejects.append((self.writer.pending_rows, rejected))

    def check_no_open_row(self, parser: str) -> None:
        """Refuse a row that was begun and not finished when the stream ended.

        Raises:
            PhaseFailed: There is one.
        """
        if self.writer.discard_open_row():
            raise self._host.make_error(
                f"{parser} returned DONE within a row: next() was not called after the last set"
            )

    def pop_batch(self) -> ParsedBatch:
        """Return what came since it was called last."""
        rows = self.writer.pending_rows
        columns = self.writer.pop_rows()
        table, refused = self._convert_columns(columns), []
        if table is None:
            values = list(zip(*columns, strict=True))
            named = [dict(zip(self._names, row, strict=True)) for row in values]
            conversion = self._row_converter.convert(named)
            if conversion.errors and self._truncate_rows(named, conversion.errors):
                conversion = self._row_converter.convert(named)
            table = conversion.table
            refused = [
                self._make_reject(error, values[error.row_index]) for error in conversion.errors
            ]
        rejects = sorted(
            [*(rejected for _, rejected in self._rejects), *refused], key=lambda each: each.record
        )
        records = rows + len(self._rejects)
        self._records += records
        self._rejects, self._call_offsets = [], []
        return ParsedBatch(self._to_native(table), tuple(rejects), records)

    def _convert_columns(self, columns: list[list[object]]) -> pa.Table | None:
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

    def _truncate_rows(self, rows: list[Row], errors: list[RowError]) -> bool:
        """Cut what is too long in the rows that were refused; tell whether there is any."""
        changed = False
        for error in errors:
            row = rows[error.row_index]
            for name, cut in self._truncations:
                value = row[name]
                if (shorter := cut(value)) is not value:
                    row[name], changed = shorter, True
        return changed

    def _to_native(self, table: pa.Table) -> pa.Table:
        try:
            return to_native_table(table, self._schema)
        except InvalidRow as error:
            raise self._host.make_error(str(error)) from error

    def _make_reject(self, error: RowError, row: tuple[object, ...]) -> ParseReject:
        index = error.row_index
        before = sum(1 for waiting, _ in self._rejects if waiting <= index)
        offset = max((each for each in self._call_offsets if each[0] <= index), default=(0, 0))[1]
        column = error.error.fields.get("column")
        return ParseReject(
            record=self._records + index + before + 1,
            offset=offset,
            data="|".join(map(_format_value, row)).encode(),
            reason=_format_reason(error),
            column=str(column) if column is not None else None,
        )


def _format_reason(error: RowError) -> str:
    # The number of the row is the block's, which nobody knows.
    text = str(error.error).replace(f", rowIndex:{error.row_index}", "")
    return text.partition(": ")[2] or text


def _format_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _call_getter(record: object, name: str) -> object:
    method = getattr(record, name, None)
    return method() if callable(method) else None


def _make_truncations(target: ParseTarget) -> list[tuple[str, Callable[[object], object]]]:
    """Return how values that are too long are cut, where the load does not reject them."""
    cuts: list[tuple[str, Callable[[object], object]]] = []
    for column in target.schema.columns:
        enforced = target.options.get(column.name, _NO_OPTIONS).enforce_length
        if target.enforce_length if enforced is None else enforced:
            continue
        if column.kind is LogicalType.TEXT:
            cuts.append(
                (column.display_name, _make_text_truncation(column.length, column.byte_length))
            )
        elif column.kind is LogicalType.BINARY:
            cuts.append((column.display_name, _make_bytes_truncation(column.byte_length)))
    return cuts


def _make_text_truncation(
    length: int | None, byte_length: int | None
) -> Callable[[object], object]:
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


def _make_bytes_truncation(byte_length: int | None) -> Callable[[object], object]:
    def cut(value: object) -> object:
        too_long = isinstance(value, bytes) and byte_length is not None and len(value) > byte_length
        return value[:byte_length] if too_long else value  # type: ignore[index]

    return cut


if TYPE_CHECKING:
    Prepare = Callable[[ParseTarget], tuple[object, SizedColumnTypes]]
    PrepareChunker = Callable[[ParseTarget, SizedColumnTypes], object]
    Process = Callable[[UdxInstance, UdxRowBuilder], Callable[[], ReturnedState]]

# A block is handed on after so many bytes or rows.
_BLOCK_BYTES = 4 * 1024 * 1024
_BLOCK_ROWS = 65_536


class _PreparedParser:
    """The object that parses into one target, with the types that it declares."""

    def __init__(self, host: UdxHost, prepare: Prepare, target: ParseTarget) -> None:
        self.target = target
        self.types = SizedColumnTypes.from_schema(target.schema)
        self.instance = UdxInstance(host, self._prepare_object)
        self._prepare = prepare

    def _prepare_object(self) -> object:
        made, self.types = self._prepare(self.target)
        return made


class _UdxParserBase:
    """What parsers of bytes and of records have in common."""

    def __init__(self, host: UdxHost, prepare: Prepare) -> None:
        self._host = host
        self._prepare = prepare
        self._prepared: _PreparedParser | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._cancelled = True
        if self._prepared is not None:
            self._prepared.instance.cancel()

    def _prepare_for(self, target: ParseTarget) -> _PreparedParser:
        stage = self._prepared
        if stage is None or stage.target != target:
            stage = self._prepared = _PreparedParser(self._host, self._prepare, target)
        if self._cancelled:
            stage.instance.cancel()
        return stage

    def _run_stream(
        self, window: InputWindow, target: ParseTarget, make_process_call: Process
    ) -> Iterator[ParsedBatch]:
        stage = self._prepare_for(target)
        instance = stage.instance
        made: Any = instance.user_object
        with instance.running_stream(PARSER_DESTROY_ROLES, PARSER_SETUP_ROLES, stage.types):
            blocks = UdxRowBuilder(target, stage.types, self._host)
            call = make_process_call(instance, blocks)
            flow = CallLoop(instance, window, None)
            flow.fetch_first()
            done, source, began, rejected_at = False, window.buffer, 0, -1
            while not done:
                offset, taken, waiting = (
                    source.consumed,
                    window.consumed,
                    blocks.writer.pending_rows,
                )
                blocks.start_call(offset)
                answer = call()
                if answer.code is PhaseStateCode.REJECT:
                    if window.consumed == rejected_at:
                        raise self._host.make_error(
                            "it rejects again without reading", offset=offset
                        )
                    rejected_at = window.consumed
                    record = answer.rejected
                    if record is None:
                        record = instance.call_if_defined("getRejectedRecord")
                    blocks.add_reject(record, source, offset)
                else:
                    wrote = blocks.writer.pending_rows > waiting
                    done = flow.handle_state(
                        answer.code, has_read=window.consumed > taken, has_written=wrote
                    )
                enough = source.consumed - began >= _BLOCK_BYTES
                if enough or blocks.pending_records >= _BLOCK_ROWS:
                    began = source.consumed
                    yield blocks.pop_batch()
            blocks.check_no_open_row(type(made).__name__)
            if blocks.pending_records:
                yield blocks.pop_batch()


class UdxParser(_UdxParserBase):
    """A parser with `setup`, `process` and `destroy`; the same object parses stream after stream.

    Rows are checked against the table's columns as all rows are, and rejected one by one. Where a
    portion begins in the middle of a file, the states of portions tell so; or a chunker
    finds its records.
    """

    splittable: bool

    def __init__(self, host: UdxHost, prepare: Prepare, *, splittable: bool = False) -> None:
        super().__init__(host, prepare)
        self.splittable = splittable
        self._prepare_chunker: PrepareChunker | None = None
        self._chunker_instance: UdxInstance | None = None

    def use_chunker(self, prepare: PrepareChunker) -> None:
        """Let chunkers that `prepare` makes find the records."""
        self._prepare_chunker = prepare

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield what a portion holds.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        feed = self._make_window(reader, target, portion)
        server, source = self._host.server, feed.buffer

        def process(instance: UdxInstance, blocks: UdxRowBuilder) -> Callable[[], ReturnedState]:
            call, writer = instance.bind_state_method("process", PARSE_ROLES), blocks.writer
            return lambda: call(server, source, feed.report_state(), writer)

        try:
            yield from self._run_stream(feed, target, process)
        finally:
            if isinstance(feed, ChunkerWindow):
                feed.close()

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        super().cancel()
        if self._chunker_instance is not None:
            self._chunker_instance.cancel()

    def _make_window(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> InputWindow:
        if self._prepare_chunker is not None:
            stage, prepare = self._prepare_for(target), self._prepare_chunker
            made, types = stage.instance.user_object, stage.types  # which tells the types
            instance = self._chunker_instance = UdxInstance(
                self._host, lambda: prepare(target, types)
            )
            if made is not None and instance.user_object is not None:
                return ChunkerWindow(instance, types, reader, portion)
        return ByteWindow(
            reader, self._host.limits, portion_bytes=portion.size, is_first_portion=portion.is_first
        )


class UdxRecordParser(_UdxParserBase):
    """A parser with `useSideChannel` and `processWithMetadata`: each record may be rejected."""

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield what records hold.

        Raises:
            PhaseFailed: As HostedParser.
        """
        feed = RecordWindow(records, self._host.limits)
        server, source, lengths = self._host.server, feed.buffer, feed.lengths

        def process(instance: UdxInstance, blocks: UdxRowBuilder) -> Callable[[], ReturnedState]:
            call, writer = (
                instance.bind_state_method("processWithMetadata", PARSE_RECORDS_ROLES),
                blocks.writer,
            )
            return lambda: call(server, source, lengths, feed.report_state(), writer)

        return self._run_stream(feed, target, process)


class UdxDualParser(UdxParser, UdxRecordParser):
    """One that has `process`, too: where there is no side channel, it parses bytes."""
