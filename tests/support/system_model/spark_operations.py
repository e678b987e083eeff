"""Steps of a run with INSERT, DELETE, UPDATE and MERGE of Spark."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow.ipc

from support.system_model.engine_operations import Change, apply_change
from support.system_model.model import Column, StoredRow, Table
from support.system_model.readers import read_rows, to_values
from support.system_model.rows import Row, make_row
from support.system_model.run import Run
from support.system_model.site import Site
from support.system_model.values import random_value, to_spark_literal
from support.system_model.writer_process import receive_message, send_message

_MAX_ROWS = 12
_DIRECT = frozenset({"NUMBER", "FLOAT", "BOOLEAN", "VARCHAR", "BINARY", "DATE"})


class SparkError(Exception):
    """Error that Spark or Snowmelt raised for a statement."""


class SparkStatements:
    """Runs statements in the process of a Spark session, and reads tables."""

    def __init__(self, site: Site) -> None:
        self._file = site.folder / "spark.arrow"
        with (site.folder / "spark.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.system_model.spark_process", str(site.data_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**site.environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        assert self._process.stdout is not None
        receive_message(self._process.stdout)

    def run(self, statement: str) -> str:
        """Return the rows of a statement as text.

        Raises:
            SparkError: If the statement failed.
        """
        return self._request(statement, None)

    def read(self, table: Table) -> tuple[list[Column], list[StoredRow]]:
        """Read a table. Its columns and their companions are in the order of the table.

        Raises:
            SparkError: If the table cannot be read.
        """
        self._request(table.full_name, str(self._file))
        with pyarrow.ipc.open_file(self._file) as file:
            data = file.read_all()
        names = list(data.column_names)
        found = {}
        for column in table.columns:
            found[column.ordinal, ""] = name = names.pop(0)
            while names and names[0].startswith(f"{name}$"):
                companion = names.pop(0)
                found[column.ordinal, companion.removeprefix(name)] = companion
        assert not names, names
        return table.columns, list(read_rows(table.columns, to_values(data), found))

    def _request(self, text: str, path: str | None) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send_message(self._process.stdin, (text, path))
        kind, text = receive_message(self._process.stdout)
        if kind != "ok":
            raise SparkError(f"{kind}: {text}")
        return str(text)

    def stop(self) -> None:
        """Let the process end."""
        self._process.communicate(timeout=60)


@contextlib.contextmanager
def spark_statements(run: Run, *, enabled: bool) -> Iterator[SparkStatements | None]:
    """Start a Spark session, or nothing if it is not enabled."""
    if not enabled:
        yield None
        return
    spark = SparkStatements(run.site)
    try:
        yield spark
    finally:
        spark.stop()


# --- steps


def change_any(run: Run) -> None:
    """Insert, delete, update or merge rows with Spark. Nothing else changes the table meanwhile."""
    if run.spark is None:
        return
    begun = run.source.choice(CHANGES)(run)
    if begun is None:
        return
    table, change = begun
    failed = run.counts[f"failed: {change.engine}"]
    apply_change(run, table, change)
    if run.counts[f"failed: {change.engine}"] > failed:
        run.differ(f"Spark, {table.full_name}: a statement failed, see the log")


def _begin_delete(run: Run) -> tuple[Table, Change] | None:
    """Delete a few rows, or all committed rows."""
    table, keys = _choose(run)
    if not keys:
        return None
    return _begin(run, table, f"DELETE FROM {_name(table)} WHERE {_condition(keys)}", removed=keys)


def _begin_insert(run: Run) -> tuple[Table, Change] | None:
    table = run.choose_table()
    rows = _make_rows(run, table)
    if not rows:
        return None
    columns = _direct_columns(table)
    names = ", ".join(_quote(each.name) for each in columns)
    values = ", ".join(_values(row, columns) for row in rows)
    statement = f"INSERT INTO {_name(table)} ({names}) VALUES {values}"
    return _begin(run, table, statement, added=rows)


def _begin_update(run: Run) -> tuple[Table, Change] | None:
    """Set a column of a few rows. All other columns keep their exact values."""
    table, keys = _choose(run)
    columns = [each for each in _direct_columns(table) if each is not table.key]
    if not keys or not columns:
        return None
    column = run.source.choice(columns)
    value = random_value(column.type, run.source)
    assignment = f"{_quote(column.name)} = {to_spark_literal(column.type, value)}"
    statement = f"UPDATE {_name(table)} SET {assignment} WHERE {_condition(keys)}"
    return _begin(run, table, statement, updated={key: {column.ordinal: value} for key in keys})


def _begin_merge(run: Run) -> tuple[Table, Change] | None:
    """Delete the matched rows and insert the others in one commit."""
    table, keys = _choose(run)
    rows = _make_rows(run, table)
    if not keys or not rows:
        return None
    columns = _direct_columns(table)
    names = [_quote(each.name) for each in columns]
    aliases = [f"v{number}" for number in range(len(columns))]
    matched = [
        f"({', '.join(_matched(each, key, table) for each in columns)})" for key in sorted(keys)
    ]
    values = ", ".join([*matched, *(_values(row, columns) for row in rows)])
    source = f"(SELECT * FROM VALUES {values} AS s({', '.join(aliases)}))"
    statement = (
        f"MERGE INTO {_name(table)} AS t USING {source} AS s ON t.K = s.{aliases[0]} "
        f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{alias}' for alias in aliases)})"
    )
    return _begin(run, table, statement, added=rows, removed=keys)


CHANGES = (_begin_delete, _begin_insert, _begin_update, _begin_merge)


def _begin(run: Run, table: Table, statement: str, **rows: Any) -> tuple[Table, Change]:
    assert run.spark is not None
    spark = run.spark
    run.log("Spark:", statement)
    return table, Change(f"Spark {statement.split()[0]}", lambda: spark.run(statement), **rows)


def _choose(run: Run) -> tuple[Table, set[int]]:
    """Return a table, and keys of a few of its rows."""
    table = run.choose_table()
    known = sorted(table.rows)
    if run.source.random() < 0.1:
        return table, set(known)
    return table, set(run.source.sample(known, min(len(known), run.source.randint(1, _MAX_ROWS))))


def _direct_columns(table: Table) -> list[Column]:
    """Return the columns whose values a literal of Spark expresses exactly."""
    return [each for each in table.columns if each.type.kind in _DIRECT]


def _make_rows(run: Run, table: Table) -> list[Row]:
    """Return valid rows with values for direct columns only."""
    columns = _direct_columns(table)
    if any(each.is_required and each not in columns for each in table.columns):
        return []
    rows = [make_row(table, run.source) for _ in range(run.source.randint(1, _MAX_ROWS))]
    rows = [row for row in rows if row.is_valid]
    for row in rows:
        for column in table.columns:
            if column not in columns:
                # The statement does not have the column.
                row.stored[column.ordinal] = column.default if column.has_default else None
            elif column.name not in row.sent:
                row.stored[column.ordinal] = None
    is_null = [
        row
        for row in rows
        if any(each.is_required and row.stored[each.ordinal] is None for each in columns)
    ]
    return [row for row in rows if row not in is_null]


def _values(row: Row, columns: list[Column]) -> str:
    return f"({', '.join(_literal(each, row.stored[each.ordinal]) for each in columns)})"


def _matched(column: Column, key: int, table: Table) -> str:
    return _literal(column, key if column is table.key else None)


def _literal(column: Column, value: Any) -> str:
    if value is None:
        kinds = {"NUMBER": f"DECIMAL({column.type.size},{column.type.scale})", "FLOAT": "DOUBLE"}
        kinds["VARCHAR"] = "STRING"
        return f"CAST(NULL AS {kinds.get(column.type.kind, column.type.kind)})"
    return to_spark_literal(column.type, value)


def _condition(keys: set[int]) -> str:
    return f"K IN ({', '.join(map(str, sorted(keys)))})"


def _name(table: Table) -> str:
    return f"DEMO.{_quote(table.schema)}.{_quote(table.name)}"


def _quote(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
