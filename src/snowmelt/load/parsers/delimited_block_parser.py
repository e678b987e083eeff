"""Blocks of delimited text into rows and rejects, by Arrow where that is exact, else per field."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from snowmelt.load.arrow_text_casts import FALSE_WORDS, TRUE_WORDS
from snowmelt.load.parsers.delimited_arrow_check import prepare_arrow_block
from snowmelt.load.parsers.delimited_text import DelimitedRecordReader
from snowmelt.load.phase_protocols import ParsedBatch, ParseReject
from snowmelt.schema.chunk_types import to_contiguous_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.load.column_converter import TableConverter
    from snowmelt.load.parsers.delimited_arrow_check import ArrowBlock
    from snowmelt.load.parsers.delimited_text import DelimitedDialect

    Reasons = dict[int, tuple[str | None, str]]
    Converted = tuple[list[pa.Array], dict[int, tuple[str, str]]]

_ARROW_COLUMN_ERROR = re.compile(r"CSV column #(\d+)")


@dataclass(slots=True)
class RecordFieldMapping:
    """What the records of a stream hold: how many fields, and which is which column's.

    `field_indexes` has, for each column of the target, the place of its field or None. With `pads_missing_fields`
    fields that are missing at the end are NULL.
    """

    field_count: int
    field_indexes: list[int | None]
    pads_missing_fields: bool = False
    field_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.field_names = [f"f{place}" for place in range(self.field_count)]

    def is_identity(self) -> bool:
        """Tell whether all fields become columns in their order."""
        return self.field_indexes == list(range(self.field_count))


class DelimitedBlockParser:
    """Parses the records of one stream, block after block."""

    def __init__(
        self, dialect: DelimitedDialect, converter: TableConverter, shape: RecordFieldMapping
    ) -> None:
        self._dialect = dialect
        self._converter = converter
        self._shape = shape
        self._record_reader = DelimitedRecordReader(dialect)
        self._records = 0
        self._types: dict[str, pa.DataType] = {}
        # Arrow knows one text for NULL; where there are several, texts are compared behind it.
        own = dialect.null_overrides or {}
        self._nulls: dict[int, bytes] = {}
        for column, place in zip(converter.columns, shape.field_indexes, strict=True):
            if place is not None:
                direct = column.csv_reader_arrow_type or pa.binary()
                if place in own and not pa.types.is_string(direct):
                    direct = pa.binary()
                self._types[shape.field_names[place]] = direct
                if own:
                    self._nulls[place] = own.get(place, dialect.default_field.null)
        wanted = [name for name in shape.field_names if name in self._types]
        self._options = _ArrowCsvReader(dialect, shape.field_names, wanted)

    def parse(self, data: bytes, offset: int, *, is_last: bool) -> tuple[ParsedBatch | None, int]:
        """Parse the whole records at the front of a block, which is at `offset` of its stream.

        Returns:
            What became of them, None if there is none; and the bytes that they take.
        """
        layout = prepare_arrow_block(data, self._dialect, is_last=is_last)
        if layout is None or (is_last and not layout.source_length):
            return self._parse_exactly(data, offset, is_last=is_last)
        if not layout.source_length:
            return None, 0
        parsed = self._parse_with_arrow(layout, offset)
        if parsed is None:
            return self._parse_exactly(data[: layout.source_length], offset, is_last=True)
        self._records += parsed.records
        return parsed, min(layout.source_length, len(data))

    def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
        """Return a rejected record as all that was parsed."""
        self._records += 1
        rejected = ParseReject(self._records, offset, data, reason)
        return ParsedBatch(self._converter.arrow_schema.empty_table(), (rejected,), 1)

    def _parse_with_arrow(self, arrow_block: ArrowBlock, offset: int) -> ParsedBatch | None:
        """Let Arrow find fields, and make values where it can; None if it cannot find them.

        A column of which it cannot make a value is read as bytes from then on.
        """
        for _ in range(self._shape.field_count + 1):
            ragged: dict[int, int] = {}
            try:
                read = self._options.read(arrow_block, self._types, ragged)
            except pa.ArrowInvalid as error:
                if not self._mark_column_as_bytes(_ARROW_COLUMN_ERROR.search(str(error))):
                    return None
                continue
            except UnicodeDecodeError:
                return None
            found = self._convert_columns(read)
            if found is not None:
                return self._make_batch(arrow_block, offset, read, ragged, found)
        return None

    def _mark_column_as_bytes(self, error_match: re.Match[str] | None) -> bool:
        """Read a column that Arrow blames as bytes; tell whether there is one."""
        name = None if error_match is None else self._shape.field_names[int(error_match[1])]
        if name is None or self._types.get(name) in {None, pa.binary()}:
            return False
        self._types[name] = pa.binary()
        return True

    def _convert_columns(self, arrow_table: pa.Table) -> Converted | None:
        """Return native arrays and refused values; None if a column must be read as bytes."""
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, place in zip(self._converter.columns, self._shape.field_indexes, strict=True):
            name = None if place is None else self._shape.field_names[place]
            array = pa.nulls(arrow_table.num_rows, pa.binary())
            if name is not None:
                array = self._apply_column_null(
                    to_contiguous_array(arrow_table.column(name)), place
                )
                if self._types[name] != pa.binary():
                    finished = column.convert_csv_reader_values(array)
                    if finished is None:
                        self._types[name] = pa.binary()
                        return None
                    arrays.extend(finished)
                    continue
            parts, reasons = column.decode_and_convert_texts(array)
            arrays.extend(parts)
            for row, reason in reasons.items():
                refused.setdefault(row, (column.column.display_name, reason))
        return arrays, refused

    def _apply_column_null(self, array: pa.Array, field_index: int | None) -> pa.Array:
        null = None if field_index is None else self._nulls.get(field_index)
        if null is None or not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
            return array
        is_null = pc.equal(array, pa.scalar(null, pa.binary()).cast(array.type))
        return pc.if_else(is_null, pa.scalar(None, array.type), array)

    def _make_batch(
        self,
        arrow_block: ArrowBlock,
        offset: int,
        arrow_table: pa.Table,
        ragged: dict[int, int],
        converted: Converted,
    ) -> ParsedBatch | None:
        """Put rows and rejects together; None if Arrow's rows may not be the records."""
        if self._may_have_blank_lines(arrow_table, arrow_block):
            return None
        if (
            ragged
            and self._shape.pads_missing_fields
            and min(ragged.values()) < self._shape.field_count
        ):
            return None
        arrays, refused = converted
        table = self._converter.drop_rejected_rows(self._converter.make_table(arrays), refused)
        count = arrow_table.num_rows + len(ragged)
        if count == table.num_rows:
            return ParsedBatch(table, (), count)
        ends = arrow_block.find_record_ends()
        if len(ends) != count:
            return None
        reasons: Reasons = {
            index: (None, self._describe_count_error(count)) for index, count in ragged.items()
        }
        if refused:
            numbers = np.delete(np.arange(count), list(ragged))
            reasons |= {int(numbers[row]): reason for row, reason in refused.items()}
        starts = np.concatenate(([0], ends[:-1]))
        rejects = []
        for index in sorted(reasons):
            raw = _strip_line_end(arrow_block.data[starts[index] : ends[index]])
            column, reason = reasons[index]
            # Behind each end, what stands for it in the block may be wider than a line end.
            at = (
                offset
                + int(starts[index])
                + (arrow_block.terminator_length - 1)
                * index
                * _count_added_terminator_bytes(arrow_block)
            )
            rejects.append(ParseReject(self._records + index + 1, at, raw, reason, column))
        return ParsedBatch(table, tuple(rejects), count)

    def _parse_exactly(
        self, data: bytes, offset: int, *, is_last: bool
    ) -> tuple[ParsedBatch | None, int]:
        at = 0
        columns: list[list[bytes | None]] = [[] for _ in self._shape.field_indexes]
        spans: list[tuple[int, int]] = []
        numbers: list[int] = []
        reasons: Reasons = {}
        while at < len(data):
            record = self._record_reader.read_record(data, at, is_last=is_last)
            if record is None:
                break
            start, at = at, record.next_start
            blank = record.end == start
            if blank and not self._dialect.keeps_blank_lines and self._shape.field_count > 1:
                continue
            problem = record.problem or self._find_count_error(record.fields)
            if problem:
                reasons[len(spans)] = (None, problem)
            else:
                numbers.append(len(spans))
                self._append_fields(columns, record.fields)
            spans.append((start, record.end))
        if not at:
            return None, 0
        texts = [pa.array(column, pa.binary()) for column in columns]
        table, refused = self._converter.convert_columns(texts, len(numbers))
        reasons |= {numbers[row]: reason for row, reason in refused.items()}
        rejects = []
        for index in sorted(reasons):
            start, end = spans[index]
            column_name, reason = reasons[index]
            number = self._records + index + 1
            rejects.append(
                ParseReject(number, offset + start, data[start:end], reason, column_name)
            )
        self._records += len(spans)
        return ParsedBatch(
            self._converter.drop_rejected_rows(table, refused), tuple(rejects), len(spans)
        ), at

    def _may_have_blank_lines(self, arrow_table: pa.Table, arrow_block: ArrowBlock) -> bool:
        """Tell whether Arrow may have made a row of NULLs of a blank line."""
        if (
            self._shape.field_count == 1
            or self._shape.pads_missing_fields
            or not self._dialect.keeps_blank_lines
        ):
            return False
        # An empty field is NULL by default: then a blank line is NULL everywhere.
        seen = (
            self._dialect.default_field.null
            or self._nulls
            or all(column.null_count for column in arrow_table.columns)
        )
        return bool(seen) and arrow_block.has_blank_lines()

    def _append_fields(
        self, columns: list[list[bytes | None]], fields: Sequence[bytes | None]
    ) -> None:
        for column, place in zip(columns, self._shape.field_indexes, strict=True):
            column.append(None if place is None or place >= len(fields) else fields[place])

    def _find_count_error(self, fields: Sequence[bytes | None]) -> str | None:
        if len(fields) == self._shape.field_count:
            return None
        if len(fields) < self._shape.field_count and self._shape.pads_missing_fields:
            return None
        return self._describe_count_error(len(fields))

    def _describe_count_error(self, count: int) -> str:
        expected = self._shape.field_count
        text = f"{count} {'field' if count == 1 else 'fields'} where {expected} are expected"
        if count > expected:
            return f"{text}: too many"
        for column, place in zip(self._converter.columns, self._shape.field_indexes, strict=True):
            if place is not None and place >= count:
                return f"{text}: none for {column.label}"
        return f"{text}: too few"


class _ArrowCsvReader:
    """How Arrow is asked to read a block."""

    def __init__(
        self, dialect: DelimitedDialect, names: list[str], included_names: list[str]
    ) -> None:
        self._dialect = dialect
        self._names = names
        self._wanted = included_names

    def read(
        self, arrow_block: ArrowBlock, types: dict[str, pa.DataType], ragged: dict[int, int]
    ) -> pa.Table:
        """Read a block; of records with another number of fields note place and number.

        Raises:
            ArrowInvalid: A value is not of its column's type.
        """

        def skip(row: arrow_csv.InvalidRow) -> str:
            ragged[row.number - 1] = row.actual_columns
            return "skip"

        usual = self._dialect.default_field
        block = pa.py_buffer(arrow_block.data).slice(0, arrow_block.data_length)
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=arrow_block.data_length + 1
            ),
            arrow_csv.ParseOptions(
                delimiter=usual.delimiter.decode(),
                quote_char=usual.quote.decode() if arrow_block.has_quotes else False,
                escape_char=usual.escape.decode() if arrow_block.has_escapes else False,
                newlines_in_values=arrow_block.has_quotes or arrow_block.has_escapes,
                ignore_empty_lines=not self._dialect.keeps_blank_lines and len(self._names) > 1,
                # It is called with the row as text, and without one nobody could be told.
                invalid_row_handler=skip if _is_utf8(block) else None,
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=self._wanted,
                null_values=[usual.null.decode(errors="replace")],
                true_values=TRUE_WORDS,
                false_values=FALSE_WORDS,
                strings_can_be_null=not self._dialect.field_overrides,
                quoted_strings_can_be_null=False,
            ),
        )


def _is_utf8(block: pa.Buffer) -> bool:
    ends = pa.py_buffer(np.array([0, block.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, ends, block]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _strip_line_end(data: bytes) -> bytes:
    return data[:-2] if data.endswith(b"\r\n") else data[:-1]


def _count_added_terminator_bytes(arrow_block: ArrowBlock) -> int:
    return 0 if arrow_block.data_length == arrow_block.source_length else 1
