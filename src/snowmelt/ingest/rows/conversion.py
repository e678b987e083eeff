"""Lines to columns, by the rules of the SDK."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.ingest.rows.bodies import Lines, lines_of
from snowmelt.ingest.rows.columnar import columns_of
from snowmelt.ingest.rows.transforming import Transformation
from snowmelt.schema.rows import RowConverter

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    import pyarrow as pa

    from snowmelt.catalog.pipe_syntax import PipeCopy
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableSchema

_MOST_CONVERTERS = 64
_MOST_KEPT_ERRORS = 1_000


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that is not stored: its number in the request, from 0, and why."""

    number: int
    reason: str
    row: object


@dataclass(frozen=True, slots=True)
class Converted:
    """A request's rows in chunk form, and those refused: all are counted, the first thousand and the last are kept."""

    table: pa.Table
    parsed: int
    refused_count: int
    refused: tuple[RefusedRow, ...]


class Conversions:
    """Converters for each thread and version of a table's columns."""

    def __init__(self, zone: ZoneInfo, clock: Clock) -> None:
        self._zone = zone
        self._clock = clock
        self._own = threading.local()

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
        columns = columns_of(data, table.schema) if copy is None else None
        if columns is not None:
            at_once = converter.convert_arrow(columns)
            if not at_once.errors:
                return Converted(at_once.table, columns.num_rows, 0, ())
        lines = lines_of(data)
        if copy is not None:
            lines = self._transformed(lines, table.schema, copy)
        converted = converter.convert(lines.rows)
        refused = [
            RefusedRow(error.row_index, str(error.error), error.row) for error in converted.errors
        ]
        if lines.unreadable:
            refused = numbered(refused, lines.unreadable)
        kept = refused if len(refused) <= _MOST_KEPT_ERRORS else [*refused[:999], refused[-1]]
        return Converted(converted.table, lines.count, len(refused), tuple(kept))

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
        found.append(RefusedRow(each.number + passed, each.reason, each.row))
    found += [RefusedRow(number, reason, None) for number, reason in unreadable.items()]
    return sorted(found, key=lambda each: each.number)
