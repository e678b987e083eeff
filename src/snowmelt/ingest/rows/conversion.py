"""Lines to columns, by the rules of the SDK."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from snowmelt.errors import InvalidRow
from snowmelt.ingest.rows.bodies import Lines, lines_of
from snowmelt.ingest.rows.columnar import columns_of
from snowmelt.ingest.rows.evolution import lacking
from snowmelt.ingest.rows.readiness import Readiness
from snowmelt.ingest.rows.transforming import Transformation
from snowmelt.schema.refused import refusal_of
from snowmelt.schema.rows import RowConverter

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    import pyarrow as pa

    from snowmelt.catalog.pipe_syntax import PipeCopy
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.evolution import Lacking
    from snowmelt.schema.rows import RowError
    from snowmelt.schema.types import TableSchema

_MOST_CONVERTERS = 64
_MOST_KEPT_ERRORS = 1_000


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that is not stored: its number in the request, from 0, and why.

    For a table with an error table `row` is the line as it came.
    """

    number: int
    reason: str
    row: object
    code: str | None = None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """A request's rows in chunk form, and those refused: all are counted.

    The first thousand and the last are kept, for a table with an error table all. `lacking` is what
    a table that evolves does not have for them.
    """

    table: pa.Table
    parsed: int
    refused_count: int
    refused: tuple[RefusedRow, ...]
    lacking: Lacking | None = None

    def told(self, reason: str) -> Converted:
        """Return the same where rows without their columns also say why the table lacks these."""
        refused = tuple(
            replace(each, reason=f"{each.reason} {reason}")
            if each.code == InvalidRow.code
            else each
            for each in self.refused
        )
        return replace(self, refused=refused)


class Conversions:
    """Converters for each thread and version of a table's columns."""

    def __init__(self, zone: ZoneInfo, clock: Clock) -> None:
        self._zone = zone
        self._clock = clock
        self._own = threading.local()
        self.readiness = Readiness()

    def convert(self, data: bytes, table: TableRecord, copy: PipeCopy | None) -> Converted:
        """Convert a body of newline-delimited JSON; rows that are refused are left out.

        Args:
            data: The rows as they came.
            table: Where they go.
            copy: What is computed from them first, None for nothing.
        """
        converter = self._converter(table.table_id, table.schema)
        if copy is not None and copy.items is None:
            copy = None
        plain = self.readiness.reader(len(data))
        columns = columns_of(data, table.schema, plain) if copy is None else None
        if columns is not None:
            at_once = converter.convert_arrow(columns)
            if not at_once.errors:
                return Converted(at_once.table, columns.num_rows, 0, ())
        lines = lines_of(data)
        if copy is not None:
            lines = self._transformed(lines, table.schema, copy)
        converted = converter.convert(lines.rows)
        refused = [_refused(error) for error in converted.errors]
        if lines.unreadable:
            refused = numbered(refused, lines.unreadable)
        wanted = None
        if table.schema_evolution and copy is None and converted.errors:
            wanted = lacking(converted.errors, table.schema)
        if table.error_table_id is not None:
            kept = _as_they_came(refused, data)
        elif len(refused) <= _MOST_KEPT_ERRORS:
            kept = tuple(refused)
        else:
            kept = (*refused[:999], refused[-1])
        return Converted(converted.table, lines.count, len(refused), kept, wanted)

    def _transformed(self, lines: Lines, schema: TableSchema, copy: PipeCopy) -> Lines:
        made, failed = Transformation(copy, schema, self._zone, self._clock).apply(lines.rows)
        if not failed:
            return Lines(made, lines.unreadable)
        refused = [RefusedRow(number, reason, None) for number, reason in failed.items()]
        both = {each.number: each.reason for each in numbered(refused, lines.unreadable)}
        return Lines(made, both)

    def _converter(self, table_id: int, schema: TableSchema) -> RowConverter:
        known: dict[tuple[int, int], RowConverter] | None = getattr(self._own, "known", None)
        if known is None:
            known = self._own.known = {}
        found = known.get((table_id, schema.version))
        if found is None:
            if len(known) >= _MOST_CONVERTERS:
                known.clear()
            found = known[table_id, schema.version] = RowConverter(schema, zone=self._zone)
        return found


def numbered(refused: list[RefusedRow], unreadable: dict[int, str]) -> list[RefusedRow]:
    """Count lines that could not be read, which the converter has not seen, into the numbers."""
    found: list[RefusedRow] = []
    skipped = sorted(unreadable)
    passed = 0
    for each in refused:
        while passed < len(skipped) and skipped[passed] <= each.number + passed:
            passed += 1
        found.append(replace(each, number=each.number + passed))
    found += [RefusedRow(number, reason, None) for number, reason in unreadable.items()]
    return sorted(found, key=lambda each: each.number)


def _refused(error: RowError) -> RefusedRow:
    told = refusal_of(error)
    return RefusedRow(error.row_index, told.reason, error.row, told.code, told.column)


def _as_they_came(refused: list[RefusedRow], data: bytes) -> tuple[RefusedRow, ...]:
    if not refused:
        return ()
    lines = [line for line in data.split(b"\n") if line.strip()]
    return tuple(
        replace(each, row=lines[each.number].decode("utf-8", "backslashreplace"))
        for each in refused
    )
