"""Lines to columns, by the rules of the SDK."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.errors import InvalidRow
from snowmelt.ingest.rows.bodies import Lines, lines_of
from snowmelt.ingest.rows.columnar import columns_of, fields_alone
from snowmelt.ingest.rows.computing import ColumnwisePipe
from snowmelt.ingest.rows.evolution import lacking
from snowmelt.ingest.rows.readiness import Readiness
from snowmelt.ingest.rows.spellings import exact, spelled
from snowmelt.ingest.rows.transforming import Transformation
from snowmelt.schema.refused import refusal_of
from snowmelt.schema.rows import RowConverter

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from snowmelt.catalog.pipe_syntax import PipeCopy
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.columnar import Plain
    from snowmelt.ingest.rows.evolution import Lacking
    from snowmelt.schema.rows import RowError
    from snowmelt.schema.types import TableSchema

_MOST_CONVERTERS = 64
_MOST_KEPT_ERRORS = 1_000
# Columns cost a millisecond or two, however few their values: as much as some hundred rows.
_FEW_BYTES = 24 * 1024
# Where more than every fourth row is in doubt, all are computed one by one.
_MOST_DOUBTFUL = 4


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
        if copy is not None and copy.items is None and not copy.case_sensitive:
            copy = None
        plain = self.readiness.reader(len(data))
        if len(data) < _FEW_BYTES:
            return self._one_by_one(data, table, copy, converter)
        if copy is None:
            columns = columns_of(data, table.schema, plain)
            at_once = None if columns is None else converter.convert_arrow(columns)
            if at_once is not None and not at_once.errors:
                return Converted(at_once.table, at_once.row_count, 0, ())
        elif copy.items is not None:
            found = self._piped(data, table.schema, copy, converter, plain)
            if found is not None:
                return Converted(found, found.num_rows, 0, ())
        return self._one_by_one(data, table, copy, converter)

    def _one_by_one(
        self, data: bytes, table: TableRecord, copy: PipeCopy | None, converter: RowConverter
    ) -> Converted:
        lines = lines_of(data)
        if copy is None:
            rows = spelled(lines.rows, table.schema)
        elif copy.items is None:
            rows = exact(lines.rows)
        else:
            lines = self._transformed(lines, table.schema, copy)
            rows = lines.rows
        converted = converter.convert(rows)
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

    def _piped(
        self,
        data: bytes,
        schema: TableSchema,
        copy: PipeCopy,
        converter: RowConverter,
        plain: Plain | None,
    ) -> pa.Table | None:
        """Return what a pipe makes of rows, by columns but for few; None where a row is refused."""
        rows = fields_alone(data, plain)
        pipe = ColumnwisePipe(copy, schema, self._zone, self._clock)
        made = None if rows is None else pipe.compute(rows)
        if made is None:
            return None
        doubtful = np.flatnonzero(made.doubtful)
        if len(doubtful) * _MOST_DOUBTFUL > len(made.doubtful):
            return None
        sure = np.flatnonzero(~made.doubtful)
        table = made.table if not len(doubtful) else made.table.take(sure)
        at_once = converter.convert_arrow(table)
        if at_once.errors:
            return None
        if not len(doubtful):
            return at_once.table
        given = [line for line in data.split(b"\n") if line.strip()]
        lines = lines_of(b"\n".join(given[place] for place in doubtful))
        rest = converter.convert(self._transformed(lines, schema, copy).rows)
        if len(rest.table) < len(doubtful):
            return None
        order = np.argsort(np.concatenate((sure, doubtful)))
        return pa.concat_tables((at_once.table, rest.table)).take(order)

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
