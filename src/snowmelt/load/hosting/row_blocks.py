"""Rows that a parser of user code wrote, made columns of the load; and what it rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.errors import InvalidRow, PhaseFailed
from snowmelt.load.hosting.vertica.rows import StreamWriter
from snowmelt.load.parsed import ColumnOptions, Parsed, Rejected
from snowmelt.schema.arrow import chunk_schema
from snowmelt.schema.batches import ColumnConverter
from snowmelt.schema.compatibility import DEFAULT_ZONE, Compatibility
from snowmelt.schema.native import to_native
from snowmelt.schema.rows import MAX_ROW_BYTES, RowConverter
from snowmelt.schema.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.load.hosting.guest import Host
    from snowmelt.load.hosting.vertica.buffers import InputBuffer
    from snowmelt.load.hosting.vertica.columns import SizedColumnTypes
    from snowmelt.load.parsed import Target
    from snowmelt.schema.rows import RowError

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
        return pa.Table.from_arrays(arrays, schema=chunk_schema(self._schema))

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
        if column.kind is Kind.TEXT:
            cuts.append((column.display_name, _text_cut(column.length, column.byte_length)))
        elif column.kind is Kind.BINARY:
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
