"""A table as plain queries of the service, PyIceberg and DuckDB return it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable

from fixtures.engines import Engine, start_engine
from support.system_model.model import Column, StoredRow, Table
from support.system_model.run import Run
from support.system_model.values import from_reader

WAREHOUSE = "demo"
# Distance of the ordinals of companion columns from that of their column, in Iceberg's schema.
_COMPANIONS = {"$ns": 1_000_000, "$tz": 2_000_000}


def read_plain(run: Run, table: Table) -> tuple[list[Column], list[StoredRow]]:
    """Read columns whose values a plain query returns exactly."""
    columns = [column for column in table.columns if column.type.is_plain]
    names = ", ".join(_quote_spark(column.name) for column in columns)
    place = f"DEMO.{_quote_spark(table.schema)}.{_quote_spark(table.name)}"
    rows = []
    for values in run.query(f"SELECT {names} FROM {place}").rows:
        row = {}
        for column, value in zip(columns, values, strict=True):
            read: Any = value
            if column.type.kind == "BINARY" and isinstance(value, str):
                read = bytes.fromhex(value)
            row[column.ordinal] = from_reader(column.type, column.name, {column.name: read})
        rows.append(row)
    return columns, rows


def _quote_spark(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def load_iceberg(run: Run, table: Table, warehouse: str = WAREHOUSE) -> IcebergTable:
    """Load a table with PyIceberg."""
    if warehouse not in run.catalogs:
        uri = f"{run.site.url}/iceberg"
        run.catalogs[warehouse] = load_catalog(warehouse, type="rest", uri=uri, warehouse=warehouse)
    return run.catalogs[warehouse].load_table((table.schema, table.name))


def read_iceberg(
    run: Run, table: Table, warehouse: str = WAREHOUSE
) -> tuple[list[Column], list[StoredRow]]:
    """Read a table with PyIceberg. Columns are found by their ordinals."""
    return read_iceberg_table(table, load_iceberg(run, table, warehouse))


def read_iceberg_table(table: Table, loaded: IcebergTable) -> tuple[list[Column], list[StoredRow]]:
    names = {each.field_id: each.name for each in loaded.schema().fields}
    data = to_values(loaded.scan().to_arrow())
    columns = [column for column in table.columns if column.ordinal in names]
    found = {
        (column.ordinal, suffix): names.get(column.ordinal + distance)
        for column in columns
        for suffix, distance in {"": 0, **_COMPANIONS}.items()
    }
    return columns, list(read_rows(columns, data, found))


class DuckDbReader:
    """DuckDB in a process of its own, attached to the REST catalog."""

    def __init__(self, run: Run, python: Path) -> None:
        self._file = run.folder / "duckdb.arrow"
        self.engine: Engine = start_engine(
            python, run.folder, "duckdb", f"{run.site.url}/iceberg", WAREHOUSE
        )

    def read(self, table: Table) -> tuple[list[Column], list[StoredRow]]:
        """Read a table. Columns are found by their names.

        Raises:
            EngineError: If DuckDB returns an error.
        """
        self.engine.ask(query=f"SELECT * FROM {name_for_duckdb(table)}", arrow=str(self._file))
        with pyarrow.ipc.open_file(self._file) as file:
            data = to_values(file.read_all())
        columns = [column for column in table.columns if column.name in data]
        found = {
            (column.ordinal, suffix): column.name + suffix
            for column in columns
            for suffix in ("", *_COMPANIONS)
            if column.name + suffix in data
        }
        return columns, list(read_rows(columns, data, found))

    def close(self) -> None:
        self.engine.close()


def name_for_duckdb(table: Table) -> str:
    """Return the name of a table in the attached catalog."""
    parts = [name.replace('"', '""') for name in (table.schema, table.name)]
    return "lake." + ".".join(f'"{part}"' for part in parts)


@contextlib.contextmanager
def duckdb_reader(run: Run, python: Path | None) -> Iterator[DuckDbReader | None]:
    """Start DuckDB with the interpreter of its environment, or nothing without one."""
    if python is None:
        yield None
        return
    reader = DuckDbReader(run, python)
    try:
        yield reader
    finally:
        reader.close()


def to_values(data: pa.Table) -> dict[str, list[Any]]:
    """Return columns as Python values, and times as microseconds."""
    values = {}
    for name in data.column_names:
        column = data[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        elif pa.types.is_time(column.type):
            column = column.cast(pa.time64("us")).cast(pa.int64())
        values[name] = column.to_pylist()
    return values


def read_rows(
    columns: Sequence[Column],
    data: Mapping[str, list[Any]],
    names: Mapping[tuple[int, str], str | None],
) -> Iterator[StoredRow]:
    """Yield rows. `names` are the names in `data` by ordinal and suffix of the companion."""
    for index in range(len(next(iter(data.values()), []))):
        row = {}
        for column in columns:
            values = {}
            for suffix in ("", *_COMPANIONS):
                name = names.get((column.ordinal, suffix))
                values[column.name + suffix] = None if name is None else data[name][index]
            row[column.ordinal] = from_reader(column.type, column.name, values)
        yield row
