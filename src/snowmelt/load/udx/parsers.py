"""User-defined parsers with `process` and a row writer, and their chunkers.

A chunker is user code that finds record ends, so that the parser receives only whole records.
`UdxRowBuilder` converts written rows to columns of the load and collects rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.errors import InvalidRow, PhaseFailed
from snowmelt.load.phase_protocols import (
    ByteReader,
    ColumnOptions,
    ParsedBatch,
    ParseReject,
    ParseTarget,
    Records,
)
from snowmelt.load.portion import Portion
from snowmelt.load.udx.input_window import ByteWindow, InputWindow, RecordWindow
from snowmelt.load.udx.instance import (
    CHUNK_ROLES,
    PARSE_RECORDS_ROLES,
    PARSE_ROLES,
    PARSER_DESTROY_ROLES,
    PARSER_SETUP_ROLES,
    CallLoop,
    UdxHost,
    UdxInstance,
    call_optional,
)
from snowmelt.load.udx.vertica_sdk.bases import InputState, PhaseStateCode
from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer, StreamWriter
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.row_converter import MAX_ROW_BYTES, RowConverter, RowError
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import DEFAULT_ZONE, Compatibility, LogicalType

Prepare: TypeAlias = Callable[[ParseTarget], tuple[object, SizedColumnTypes]]
PrepareChunker: TypeAlias = Callable[[ParseTarget, SizedColumnTypes], object]

_ALIGNED_STATES = (PhaseStateCode.CHUNK_ALIGNED, PhaseStateCode.DONE)


class ChunkerWindow(InputWindow):
    """Parser input in blocks of whole records, each with state END_OF_CHUNK.

    `alignPortion` of the chunker finds the first record end: once at the start of a portion within
    a file, and once after the portion's end.
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

    def _fetch_input(self, min_size: int) -> None:  # noqa: ARG002 - the chunker sets the size
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
            # The last record ends in the next portion, or its end is missing.
            rest = (
                self._read_to_first_record_end(flow)
                if feed.reported_state is InputState.END_OF_PORTION
                else source.read()
            )
            if rest:
                yield bytes(rest)  # type: ignore[arg-type]

    def _read_to_first_record_end(self, call_loop: CallLoop) -> bytes | None:
        """Return the input up to the first record end, or None if the portion has none."""
        instance, feed = self._instance, self._input
        align = instance.bind_state_method("alignPortion", CHUNK_ROLES)
        server, source = instance.host.server, feed.buffer
        behind = feed.reported_state is InputState.END_OF_PORTION
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


_NO_OPTIONS = ColumnOptions()
_ZONE = ZoneInfo(DEFAULT_ZONE)


class UdxRowBuilder:
    """Collector of the rows and rejects of one stream, in order."""

    def __init__(self, target: ParseTarget, types: SizedColumnTypes, host: UdxHost) -> None:
        """Prepare for a stream. Raise PhaseFailed if the number of columns is wrong."""
        columns, started_at = target.schema.columns, target.started_at
        if types.getColumnCount() != len(columns):
            raise PhaseFailed(
                reason=f"it declares {types.getColumnCount()} columns, expected {len(columns)}"
            )
        # Use display names, because they identify columns exactly, including their case.
        self._names = [column.display_name for column in columns]
        self.writer = StreamWriter(types)
        self._host = host
        self._schema = target.schema
        self._columns = [ColumnConverter(column, _ZONE, Compatibility.COPY) for column in columns]
        self._row_converter = RowConverter(
            target.schema,
            zone=_ZONE,
            compatibility=Compatibility.COPY,
            get_now=None if started_at is None else lambda: started_at,
        )
        self._truncations = _make_truncations(target)
        self._records = 0
        self._rejects: list[tuple[int, ParseReject]] = []
        # For each call: the number of pending rows and the input offset at its start.
        self.call_offsets: list[tuple[int, int]] = []

    @property
    def pending_records(self) -> int:
        """Number of rows and rejects that `pop_batch` has not returned."""
        return self.writer.pending_rows + len(self._rejects)

    def add_reject(self, record: object, source: InputBuffer, offset: int) -> None:
        """Add a rejected record that was read after the input's `offset`."""
        data, reason = call_optional(record, "getData"), call_optional(record, "getReason")
        if not isinstance(data, (bytes, bytearray, str)) or not isinstance(reason, str):
            raise self._host.make_error(
                f"it returned REJECT with {record!r}, expected a RejectedRecord", offset=offset
            )
        raw = _encode_text(data) if isinstance(data, str) else bytes(data)
        reason = reason.encode(errors="backslashreplace").decode()
        # Discard the columns that were set before the reject: they are not part of the next row.
        self.writer.discard_open_row()
        number = self._records + self.pending_records + 1
        rejected = ParseReject(number, source.find_read_data_offset(data, offset), raw, reason)
        self._rejects.append((self.writer.pending_rows, rejected))

    def pop_batch(self) -> ParsedBatch:
        """Return the rows and rejects since the last call."""
        rows = self.writer.pending_rows
        columns = self.writer.pop_rows()
        table, refused = self._convert_columns(columns), []
        truncated = 0
        if table is None:
            values = list(zip(*columns, strict=True))
            named = [dict(zip(self._names, row, strict=True)) for row in values]
            conversion = self._row_converter.convert(named)
            truncated = sum(
                self._truncate_row(named[error.row_index]) for error in conversion.errors
            )
            if truncated:
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
        self._rejects, self.call_offsets = [], []
        try:
            native = to_native_table(table, self._schema)
            return ParsedBatch(native, tuple(rejects), records, truncated)
        except InvalidRow as error:
            raise self._host.make_error(str(error)) from error

    def _convert_columns(self, columns: list[list[object]]) -> pa.Table | None:
        """Convert whole columns to chunk form. Return None if any value is rejected."""
        arrays = []
        for converter, values in zip(self._columns, columns, strict=True):
            array, refused = converter.convert(values)
            if refused:
                return None
            arrays.append(array)
        # If all rows together do not exceed the limit of one row, no row does.
        if sum(array.nbytes for array in arrays) > MAX_ROW_BYTES:
            return None
        return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(self._schema))

    def _truncate_row(self, row: dict[str, object]) -> int:
        """Truncate the values of a rejected row that are too long, and return their number."""
        changed = 0
        for name, truncate in self._truncations.items():
            shorter = truncate(row[name])
            changed += shorter != row[name]
            row[name] = shorter
        return changed

    def _make_reject(self, error: RowError, row: tuple[object, ...]) -> ParseReject:
        index = error.row_index
        before = sum(1 for waiting, _ in self._rejects if waiting <= index)
        offset = max((each for each in self.call_offsets if each[0] <= index), default=(0, 0))[1]
        column = error.error.fields.get("column")
        # Omit the row index from the message: it counts within a block, which users do not see.
        text = str(error.error).replace(f", rowIndex:{index}", "")
        return ParseReject(
            record=self._records + index + before + 1,
            offset=offset,
            data=_encode_text("|".join(map(_format_value, row))),
            reason=text.partition(": ")[2] or text,
            column=str(column) if column is not None else None,
        )


def _format_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _encode_text(text: str) -> bytes:
    """Encode text that may have unpaired surrogates, from bytes decoded with `surrogateescape`."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")


def _make_truncations(target: ParseTarget) -> Mapping[str, Callable[[object], object]]:
    """Return the truncation functions of the columns without ENFORCELENGTH."""
    cuts: dict[str, Callable[[object], object]] = {}
    for column in target.schema.columns:
        enforced = target.options.get(column.name, _NO_OPTIONS).enforce_length
        if target.enforce_length if enforced is None else enforced:
            continue
        if column.kind is LogicalType.TEXT:
            cuts[column.display_name] = partial(_truncate_text, column.length, column.byte_length)
        elif column.kind is LogicalType.BINARY:
            cuts[column.display_name] = partial(_truncate_bytes, column.byte_length)
    return cuts


def _truncate_text(length: int | None, byte_length: int | None, value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value[:length]
    if byte_length is None or len(text) <= byte_length // 4:
        return text
    raw = text.encode(errors="surrogatepass")
    return text if len(raw) <= byte_length else raw[:byte_length].decode(errors="ignore")


def _truncate_bytes(byte_length: int | None, value: object) -> object:
    return value[:byte_length] if isinstance(value, bytes) else value


# A block ends after this many bytes of input or rows.
_BLOCK_BYTES = 4 * 1024 * 1024
_BLOCK_ROWS = 65_536


class _UdxParserBase:
    """Common base of byte parsers and record parsers."""

    def __init__(self, host: UdxHost, prepare: Prepare) -> None:
        self._host = host
        self._prepare = prepare
        self._target: ParseTarget | None = None
        self._types = SizedColumnTypes()
        self._instance: UdxInstance | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the running stream and call the user's `cancel` once. Thread-safe."""
        self._cancelled = True
        if self._instance is not None:
            self._instance.cancel()

    def _prepare_for(self, target: ParseTarget) -> UdxInstance:
        """Return the instance that parses into a target."""
        if self._instance is None or self._target != target:
            self._target, self._types = target, SizedColumnTypes.from_schema(target.schema)

            def prepare() -> object:
                made, self._types = self._prepare(target)
                return made

            self._instance = UdxInstance(self._host, prepare)
        if self._cancelled:
            self._instance.cancel()
        return self._instance

    def _run_stream(
        self, window: InputWindow, target: ParseTarget, method_name: str, roles: Sequence[str]
    ) -> Iterator[ParsedBatch]:
        instance = self._prepare_for(target)
        made = instance.user_object
        with instance.running_stream(PARSER_DESTROY_ROLES, PARSER_SETUP_ROLES, self._types):
            blocks = UdxRowBuilder(target, self._types, self._host)
            process = instance.bind_state_method(method_name, roles)
            server = self._host.server
            inputs: list[object] = [window.buffer]
            if "input_lengths" in roles:
                inputs.append(window.lengths)
            flow = CallLoop(instance, window, None)
            flow.fetch_first()
            done, source, began, rejected_at = False, window.buffer, 0, -1
            while not done:
                offset, taken = source.consumed, window.consumed
                waiting = blocks.writer.pending_rows
                blocks.call_offsets.append((waiting, offset))
                answer = process(server, *inputs, window.report_state(), blocks.writer)
                if answer.code is PhaseStateCode.REJECT:
                    if window.consumed == rejected_at:
                        raise self._host.make_error(
                            "it returned REJECT again without reading", offset=offset
                        )
                    rejected_at = window.consumed
                    record = answer.rejected
                    if record is None:
                        record = instance.call_if_defined("getRejectedRecord", ())
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
            if blocks.writer.discard_open_row():
                raise self._host.make_error(
                    f"{type(made).__name__} returned DONE within a row: "
                    "next() was not called after the last set"
                )
            if blocks.pending_records:
                yield blocks.pop_batch()


class UdxParser(_UdxParserBase):
    """A parser with `setup`, `process` and `destroy`. One object parses successive streams.

    Rows that the table's columns reject become rejects. If a portion starts within a file, the
    parser learns it from the input state, or a chunker skips to the first record.
    """

    splittable: bool

    def __init__(self, host: UdxHost, prepare: Prepare, *, splittable: bool = False) -> None:
        super().__init__(host, prepare)
        self.splittable = splittable
        # Function that creates chunkers. None: the parser itself finds record ends.
        self.prepare_chunker: PrepareChunker | None = None
        self._chunker_instance: UdxInstance | None = None

    def parse(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> Iterator[ParsedBatch]:
        """Yield the rows and rejects of a portion."""
        window = self._make_window(reader, target, portion)
        try:
            yield from self._run_stream(window, target, "process", PARSE_ROLES)
        finally:
            if isinstance(window, ChunkerWindow):
                window.close()

    def cancel(self) -> None:
        """Cancel the running stream and call the user's `cancel` once. Thread-safe."""
        super().cancel()
        if self._chunker_instance is not None:
            self._chunker_instance.cancel()

    def _make_window(
        self, reader: ByteReader, target: ParseTarget, portion: Portion
    ) -> InputWindow:
        if self.prepare_chunker is not None:
            prepare, made = self.prepare_chunker, self._prepare_for(target).user_object
            types = self._types  # Set when the object was created.
            instance = self._chunker_instance = UdxInstance(
                self._host, lambda: prepare(target, types)
            )
            if made is not None and instance.user_object is not None:
                return ChunkerWindow(instance, types, reader, portion)
        return ByteWindow(
            reader, self._host.limits, portion_bytes=portion.size, is_first_portion=portion.is_first
        )


class UdxRecordParser(_UdxParserBase):
    """A parser with `useSideChannel` and `processWithMetadata`."""

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield the rows and rejects of records."""
        window = RecordWindow(records, self._host.limits)
        return self._run_stream(window, target, "processWithMetadata", PARSE_RECORDS_ROLES)


class UdxDualParser(UdxParser, UdxRecordParser):
    """A record parser that also has `process`, for input without record boundaries."""
