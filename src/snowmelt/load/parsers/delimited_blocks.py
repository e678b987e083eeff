"""Blocks of delimited text into rows and rejects: by Arrow where that is exact, else field by field."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from snowmelt.load.parsers.arrow_block import layout_of
from snowmelt.load.parsers.delimited_text import FieldReader
from snowmelt.load.phases import Parsed, Rejected
from snowmelt.load.text_casts import FALSE_WORDS, TRUE_WORDS
from snowmelt.schema.chunk_types import to_contiguous_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.load.column_converter import Conversion
    from snowmelt.load.parsers.arrow_block import Layout
    from snowmelt.load.parsers.delimited_text import Dialect

    Reasons = dict[int, tuple[str | None, str]]
    Converted = tuple[list[pa.Array], dict[int, tuple[str, str]]]

_BLAMED = re.compile(r"CSV column #(\d+)")


@dataclass(slots=True)
class Shape:
    """What the records of a stream hold: how many fields, and which is which column's.

    `places` has, for each column of the target, the place of its field or None. With `pads`
    fields that are missing at the end are NULL.
    """

    count: int
    places: list[int | None]
    pads: bool = False
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"f{place}" for place in range(self.count)]

    def direct(self) -> bool:
        """Tell whether all fields become columns in their order."""
        return self.places == list(range(self.count))


class BlockParser:
    """Parses the records of one stream, block after block."""

    def __init__(self, dialect: Dialect, conversion: Conversion, shape: Shape) -> None:
        self._dialect = dialect
        self._conversion = conversion
        self._shape = shape
        self._fields = FieldReader(dialect)
        self._records = 0
        self._types: dict[str, pa.DataType] = {}
        # Arrow knows one text for NULL; where there are several, texts are compared behind it.
        own = dialect.own_nulls or {}
        self._nulls: dict[int, bytes] = {}
        for column, place in zip(conversion.columns, shape.places, strict=True):
            if place is not None:
                direct = column.direct_type or pa.binary()
                if place in own and not pa.types.is_string(direct):
                    direct = pa.binary()
                self._types[shape.names[place]] = direct
                if own:
                    self._nulls[place] = own.get(place, dialect.usual.null)
        wanted = [name for name in shape.names if name in self._types]
        self._options = _Options(dialect, shape.names, wanted)

    def parse(self, data: bytes, offset: int, *, is_last: bool) -> tuple[Parsed | None, int]:
        """Parse the whole records at the front of a block, which is at `offset` of its stream.

        Returns:
            What became of them, None if there is none; and the bytes that they take.
        """
        layout = layout_of(data, self._dialect, is_last=is_last)
        if layout is None or (is_last and not layout.size):
            return self._exactly(data, offset, is_last=is_last)
        if not layout.size:
            return None, 0
        parsed = self._by_arrow(layout, offset)
        if parsed is None:
            return self._exactly(data[: layout.size], offset, is_last=True)
        self._records += parsed.records
        return parsed, min(layout.size, len(data))

    def reject(self, data: bytes, offset: int, reason: str) -> Parsed:
        """Return a rejected record as all that was parsed."""
        self._records += 1
        rejected = Rejected(self._records, offset, data, reason)
        return Parsed(self._conversion.arrow_schema.empty_table(), (rejected,), 1)

    def _by_arrow(self, layout: Layout, offset: int) -> Parsed | None:
        """Let Arrow find fields, and make values where it can; None if it cannot find them.

        A column of which it cannot make a value is read as bytes from then on.
        """
        for _ in range(self._shape.count + 1):
            ragged: dict[int, int] = {}
            try:
                read = self._options.read(layout, self._types, ragged)
            except pa.ArrowInvalid as error:
                if not self._give_up(_BLAMED.search(str(error))):
                    return None
                continue
            except UnicodeDecodeError:
                return None
            found = self._converted(read)
            if found is not None:
                return self._parsed(layout, offset, read, ragged, found)
        return None

    def _give_up(self, blamed: re.Match[str] | None) -> bool:
        """Read a column that Arrow blames as bytes; tell whether there is one."""
        name = None if blamed is None else self._shape.names[int(blamed[1])]
        if name is None or self._types.get(name) in {None, pa.binary()}:
            return False
        self._types[name] = pa.binary()
        return True

    def _converted(self, read: pa.Table) -> Converted | None:
        """Return native arrays and refused values; None if a column must be read as bytes."""
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, place in zip(self._conversion.columns, self._shape.places, strict=True):
            name = None if place is None else self._shape.names[place]
            array = pa.nulls(read.num_rows, pa.binary())
            if name is not None:
                array = self._with_nulls(to_contiguous_array(read.column(name)), place)
                if self._types[name] != pa.binary():
                    finished = column.finished(array)
                    if finished is None:
                        self._types[name] = pa.binary()
                        return None
                    arrays.extend(finished)
                    continue
            parts, reasons = column.convert_bytes(array)
            arrays.extend(parts)
            for row, reason in reasons.items():
                refused.setdefault(row, (column.column.display_name, reason))
        return arrays, refused

    def _with_nulls(self, array: pa.Array, place: int | None) -> pa.Array:
        null = None if place is None else self._nulls.get(place)
        if null is None or not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
            return array
        is_null = pc.equal(array, pa.scalar(null, pa.binary()).cast(array.type))
        return pc.if_else(is_null, pa.scalar(None, array.type), array)

    def _parsed(
        self,
        layout: Layout,
        offset: int,
        read: pa.Table,
        ragged: dict[int, int],
        found: Converted,
    ) -> Parsed | None:
        """Put rows and rejects together; None if Arrow's rows may not be the records."""
        if self._has_blank_lines(read, layout):
            return None
        if ragged and self._shape.pads and min(ragged.values()) < self._shape.count:
            return None
        arrays, refused = found
        table = self._conversion.good(self._conversion.table(arrays), refused)
        count = read.num_rows + len(ragged)
        if count == table.num_rows:
            return Parsed(table, (), count)
        ends = layout.ends()
        if len(ends) != count:
            return None
        reasons: Reasons = {index: (None, self._ragged(count)) for index, count in ragged.items()}
        if refused:
            numbers = np.delete(np.arange(count), list(ragged))
            reasons |= {int(numbers[row]): reason for row, reason in refused.items()}
        starts = np.concatenate(([0], ends[:-1]))
        rejects = []
        for index in sorted(reasons):
            raw = _without_end(layout.data[starts[index] : ends[index]])
            column, reason = reasons[index]
            # Behind each end, what stands for it in the block may be wider than a line end.
            at = offset + int(starts[index]) + (layout.end_width - 1) * index * _widened(layout)
            rejects.append(Rejected(self._records + index + 1, at, raw, reason, column))
        return Parsed(table, tuple(rejects), count)

    def _exactly(self, data: bytes, offset: int, *, is_last: bool) -> tuple[Parsed | None, int]:
        at = 0
        columns: list[list[bytes | None]] = [[] for _ in self._shape.places]
        spans: list[tuple[int, int]] = []
        numbers: list[int] = []
        reasons: Reasons = {}
        while at < len(data):
            record = self._fields.read(data, at, is_last=is_last)
            if record is None:
                break
            start, at = at, record.next
            blank = record.end == start
            if blank and not self._dialect.blank_lines and self._shape.count > 1:
                continue
            problem = record.problem or self._missing(record.fields)
            if problem:
                reasons[len(spans)] = (None, problem)
            else:
                numbers.append(len(spans))
                self._append(columns, record.fields)
            spans.append((start, record.end))
        if not at:
            return None, 0
        texts = [pa.array(column, pa.binary()) for column in columns]
        table, refused = self._conversion.convert(texts, len(numbers))
        reasons |= {numbers[row]: reason for row, reason in refused.items()}
        rejects = []
        for index in sorted(reasons):
            start, end = spans[index]
            column_name, reason = reasons[index]
            number = self._records + index + 1
            rejects.append(Rejected(number, offset + start, data[start:end], reason, column_name))
        self._records += len(spans)
        return Parsed(self._conversion.good(table, refused), tuple(rejects), len(spans)), at

    def _has_blank_lines(self, read: pa.Table, layout: Layout) -> bool:
        """Tell whether Arrow may have made a row of NULLs of a blank line."""
        if self._shape.count == 1 or self._shape.pads or not self._dialect.blank_lines:
            return False
        # An empty field is NULL by default: then a blank line is NULL everywhere.
        seen = (
            self._dialect.usual.null
            or self._nulls
            or all(column.null_count for column in read.columns)
        )
        return bool(seen) and layout.has_blank_lines()

    def _append(self, columns: list[list[bytes | None]], fields: Sequence[bytes | None]) -> None:
        for column, place in zip(columns, self._shape.places, strict=True):
            column.append(None if place is None or place >= len(fields) else fields[place])

    def _missing(self, fields: Sequence[bytes | None]) -> str | None:
        if len(fields) == self._shape.count:
            return None
        if len(fields) < self._shape.count and self._shape.pads:
            return None
        return self._ragged(len(fields))

    def _ragged(self, count: int) -> str:
        expected = self._shape.count
        text = f"{count} {'field' if count == 1 else 'fields'} where {expected} are expected"
        if count > expected:
            return f"{text}: too many"
        for column, place in zip(self._conversion.columns, self._shape.places, strict=True):
            if place is not None and place >= count:
                return f"{text}: none for {column.label}"
        return f"{text}: too few"


class _Options:
    """How Arrow is asked to read a block."""

    def __init__(self, dialect: Dialect, names: list[str], wanted: list[str]) -> None:
        self._dialect = dialect
        self._names = names
        self._wanted = wanted

    def read(
        self, layout: Layout, types: dict[str, pa.DataType], ragged: dict[int, int]
    ) -> pa.Table:
        """Read a block; of records with another number of fields note place and number.

        Raises:
            ArrowInvalid: A value is not of its column's type.
        """

        def skip(row: arrow_csv.InvalidRow) -> str:
            ragged[row.number - 1] = row.actual_columns
            return "skip"

        usual = self._dialect.usual
        block = pa.py_buffer(layout.data).slice(0, layout.length)
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=layout.length + 1
            ),
            arrow_csv.ParseOptions(
                delimiter=usual.delimiter.decode(),
                quote_char=usual.quote.decode() if layout.has_quotes else False,
                escape_char=usual.escape.decode() if layout.has_escapes else False,
                newlines_in_values=layout.has_quotes or layout.has_escapes,
                ignore_empty_lines=not self._dialect.blank_lines and len(self._names) > 1,
                # It is called with the row as text, and without one nobody could be told.
                invalid_row_handler=skip if _is_utf8(block) else None,
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=self._wanted,
                null_values=[usual.null.decode(errors="replace")],
                true_values=TRUE_WORDS,
                false_values=FALSE_WORDS,
                strings_can_be_null=not self._dialect.own,
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


def _without_end(data: bytes) -> bytes:
    return data[:-2] if data.endswith(b"\r\n") else data[:-1]


def _widened(layout: Layout) -> int:
    return 0 if layout.length == layout.size else 1
