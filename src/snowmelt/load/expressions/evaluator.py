"""Computes columns of a load from parsed ones, block by block, in DuckDB.

Each expression is reduced to text, which then goes the way of a field that was parsed: the same
conversions hold for both. DuckDB sees the parsed columns of the block and nothing else: no
files, no network, no extensions, no settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from snowmelt.errors import LoadRefused
from snowmelt.load.expressions.duckdb_functions import add_functions, add_readers
from snowmelt.load.expressions.sql_translation import Readers, translate
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    ExpressionType,
    TypedSql,
    assigned,
    column_type,
)
from snowmelt.schema.chunk_types import to_contiguous_array
from snowmelt.schema.native_types import native_schema
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.load.task import Computed
    from snowmelt.schema.types import Column, TableSchema

_MEMORY = "256MiB"
_SETTINGS = (
    f"SET memory_limit='{_MEMORY}'",
    "SET temp_directory=''",
    "SET TimeZone='UTC'",
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)
_VIEW = "parsed"
_UDF = "while executing the UDF: "


@dataclass(frozen=True, slots=True)
class Failure:
    """An expression that failed: which, at which row of the block (None: not one row's), why."""

    computed: Computed
    row: int | None
    reason: str


class Calculator:
    """Computes the expressions of one load; not for several threads at once."""

    def __init__(
        self,
        parsed: TableSchema,
        computed: Sequence[tuple[Computed, Column]],
        started_at: dt.datetime | None,
    ) -> None:
        """Check the expressions, each with the column that it is for, against the parsed columns.

        Raises:
            LoadRefused: One cannot be understood, or does not fit the types of the columns.
        """
        self._connection = duckdb.connect(
            config={
                "threads": 1,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )
        add_functions(self._connection)
        self._computed = tuple(each for each, _ in computed)
        names = {column.name: _reference(place, column) for place, column in _placed(parsed)}
        places = {column.name: place for place, column in _placed(parsed)}
        self._written = []
        readers = Readers()
        used: set[str] = set()
        for each, column in computed:
            value, columns = translate(
                each.sql, names, started_at, what=named(each), readers=readers
            )
            try:
                self._written.append(assigned(value, column))
            except ExpressionInvalid as error:
                raise LoadRefused(what=named(each), reason=str(error)) from None
            used |= columns
        add_readers(self._connection, readers.found)
        for setting in _SETTINGS:
            self._connection.execute(setting)
        self._used = sorted((places[name], name) for name in used)
        self._show(native_schema(parsed).empty_table())
        for each, sql in zip(self._computed, self._written, strict=True):
            self._check(each, sql)

    def compute(self, rows: pa.Table) -> list[pa.Array] | Failure:
        """Return the values of each expression as texts, or why there is none."""
        try:
            return self._run(rows, self._written)
        except duckdb.Error:
            return self._search(rows)

    def _check(self, computed: Computed, sql: str) -> None:
        """Let DuckDB look at an expression that was translated."""
        try:
            self._connection.sql(f"SELECT {sql} FROM {_VIEW}")
        except duckdb.Error as error:
            raise LoadRefused(what=named(computed), reason=_first_line(error)) from None

    def _show(self, rows: pa.Table) -> None:
        arrays = [rows.column(name) for _, name in self._used]
        names = [f"c{place}" for place, _ in self._used]
        # A table without columns has no rows to compute from.
        arrays.append(pa.nulls(rows.num_rows, pa.int8()))
        self._connection.register(_VIEW, pa.Table.from_arrays(arrays, names=[*names, "row"]))

    def _run(self, rows: pa.Table, written: Sequence[str]) -> list[pa.Array]:
        self._show(rows)
        try:
            found = self._connection.sql(
                f"SELECT {', '.join(written)} FROM {_VIEW}"
            ).to_arrow_table()
        finally:
            self._connection.unregister(_VIEW)
        if found.num_rows != rows.num_rows:
            raise duckdb.InvalidInputException("an expression gives more than one value for a row")
        return [to_contiguous_array(column.cast(pa.string())) for column in found.columns]

    def _search(self, rows: pa.Table) -> Failure:
        """Find the first row that an expression fails for, by halves."""
        for computed, written in zip(self._computed, self._written, strict=True):
            reason = self._objection(rows, written)
            if reason is None:
                continue
            start, count = 0, rows.num_rows
            while count > 1:
                half = count // 2
                found = self._objection(rows.slice(start, half), written)
                if found is None:
                    start, count = start + half, count - half
                else:
                    count, reason = half, found
            alone = self._objection(rows.slice(start, 1), written)
            return Failure(computed, None if alone is None else start, alone or reason)
        return Failure(self._computed[0], None, "the expressions fail together, but not alone")

    def _objection(self, rows: pa.Table, written: str) -> str | None:
        try:
            self._run(rows, [written])
        except duckdb.Error as error:
            return _first_line(error)
        return None


def named(computed: Computed) -> str:
    """Say which expression it is, as errors do."""
    return f"column {display_name(computed.column)} AS {computed.sql}"


def _placed(parsed: TableSchema) -> list[tuple[int, Column]]:
    return list(enumerate(parsed.columns))


def _reference(place: int, column: Column) -> TypedSql:
    """Return what stands for a column: whole numbers as such, so that functions take them."""
    found = column_type(column)
    sql = f'"c{place}"'
    return TypedSql(f"CAST({sql} AS BIGINT)" if found is ExpressionType.INTEGER else sql, found)


def _first_line(error: duckdb.Error) -> str:
    line = str(error).partition("\n")[0]
    reason = line.rpartition(_UDF)[2]
    return reason.removeprefix("Invalid Input Error: ").removeprefix("ValueError: ")
