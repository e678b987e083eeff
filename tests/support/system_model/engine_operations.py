"""Steps of a run in which PyIceberg and DuckDB change tables through the REST catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table as IcebergTable

from support.system_model import column_operations, table_operations
from support.system_model.model import StoredRow, Table, tick
from support.system_model.readers import load_iceberg, name_for_duckdb
from support.system_model.rows import Row, make_row
from support.system_model.run import Run
from support.system_model.values import ColumnType, write_document

_MAX_ROWS = 12
# Statements that replace a table: no commit that began before may change the new one.
_REPLACEMENTS = (
    table_operations.replace_any,
    table_operations.drop_any,
    table_operations.truncate_any,
)
_CHANGES = (
    table_operations.rename_any,
    column_operations.add_any,
    column_operations.drop_any,
    column_operations.rename_any,
    column_operations.widen_any,
    column_operations.drop_required_any,
)


@dataclass
class Change:
    """Rows that one commit adds, keys of rows that it removes, and values that it sets by key."""

    engine: str
    commit: Callable[[], Any]
    added: list[Row] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    updated: dict[int, StoredRow] = field(default_factory=dict)


# --- steps


def append_any(run: Run) -> None:
    """Append rows with PyIceberg."""
    if (begun := begin_append(run)) is not None:
        apply_change(run, *begun)


def delete_any(run: Run) -> None:
    """Delete some or all of the rows that PyIceberg sees."""
    if (begun := begin_delete(run)) is not None:
        apply_change(run, *begun)


def overwrite_any(run: Run) -> None:
    """Replace rows that PyIceberg sees by others in one commit."""
    if (begun := begin_overwrite(run)) is not None:
        apply_change(run, *begun)


def commit_beside_statement(run: Run) -> None:
    """Run a statement on a table between PyIceberg's read and its commit."""
    begin = run.source.choice((begin_append, begin_delete, begin_overwrite))
    begun = begin(run)
    if begun is None:
        return
    table, change = begun
    statement = run.source.choice((*_REPLACEMENTS, *_CHANGES))
    run.log("between read and commit:", statement.__name__)
    with run.choosing(table):
        statement(run)
    is_replaced = statement in _REPLACEMENTS
    apply_change(run, table, change, must_fail=is_replaced)


def insert_with_duckdb(run: Run) -> None:
    """Insert the rows of a Parquet file with DuckDB."""
    table = run.choose_table()
    if run.duckdb is None or table.has_renamed_columns:
        return
    made = _make_rows(run, table)
    if made is None:
        return
    rows, data, _ = made
    path = run.folder / f"duckdb-{tick()}.parquet"
    pq.write_table(data, path)
    query = f"INSERT INTO {name_for_duckdb(table)} BY NAME SELECT * FROM '{path}'"
    engine = run.duckdb.engine
    apply_change(run, table, Change("DuckDB", lambda: engine.ask(query=query), rows))


# --- changes


def begin_append(run: Run) -> tuple[Table, Change] | None:
    table = run.choose_table()
    made = _make_rows(run, table)
    if made is None:
        return None
    rows, data, loaded = made
    return table, Change("PyIceberg append", lambda: loaded.append(data), rows)


def begin_delete(run: Run) -> tuple[Table, Change] | None:
    table = run.choose_table()
    loaded = _load(run, table)
    chosen = None if loaded is None else _choose_keys(run, table, loaded)
    if loaded is None or not chosen:
        return None
    condition = _make_condition(chosen)
    return table, Change("PyIceberg delete", lambda: loaded.delete(condition), removed=chosen)


def begin_overwrite(run: Run) -> tuple[Table, Change] | None:
    table = run.choose_table()
    made = _make_rows(run, table)
    if made is None:
        return None
    rows, data, loaded = made
    chosen = _choose_keys(run, table, loaded)
    if not chosen:
        return None
    condition = _make_condition(chosen)
    change = Change("PyIceberg overwrite", lambda: loaded.overwrite(data, condition), rows, chosen)
    return table, change


def apply_change(run: Run, table: Table, change: Change, *, must_fail: bool = False) -> None:
    """Commit a change, and adopt it. After an error, the rows show whether it was committed."""
    keys = [row.key for row in change.added]
    try:
        change.commit()
    except Exception as error:
        done = False
        run.log(change.engine, table.full_name, type(error).__name__, str(error)[:300])
        run.counts[f"failed: {change.engine}"] += 1
        if not must_fail and table in run.tables:
            done = _find_outcome(run, table, change)
    else:
        done = True
        run.counts[f"commits: {change.engine}"] += 1
    run.log(change.engine, table.full_name, "added", keys, "removed", change.removed, "->", done)
    if done and must_fail:
        run.differ(f"{change.engine}: a commit to {table.full_name}, which was replaced, succeeded")
    elif done:
        table.remove_rows(change.removed)
        table.add_rows([row.stored for row in change.added])
        for key, values in change.updated.items():
            table.rows[key] = {**table.rows[key], **values}


def _find_outcome(run: Run, table: Table, change: Change) -> bool:
    """Return True if a change whose outcome is unknown was committed: all of it, or nothing."""
    run.site.wait_for_kill()
    found = {
        int(Decimal(str(row[0]))) for row in run.query(f"SELECT K FROM {_spark_name(table)}").rows
    }
    signs = [row.key in found for row in change.added]
    signs += [key not in found for key in change.removed]
    if len(set(signs)) > 1:
        run.differ(
            f"{change.engine}: a part of a change of {table.full_name} was committed: added "
            f"{[row.key for row in change.added]}, removed {sorted(change.removed)}"
        )
    return bool(signs) and all(signs)


def _spark_name(table: Table) -> str:
    return f"DEMO.`{table.schema}`.`{table.name}`"


def _load(run: Run, table: Table) -> IcebergTable | None:
    """Load a table, or return None while the service is killed or has not published it."""
    try:
        return load_iceberg(run, table)
    except Exception as error:
        run.log("PyIceberg", table.full_name, type(error).__name__, str(error)[:300])
        run.counts["failed: PyIceberg load"] += 1
        return None


def _choose_keys(run: Run, table: Table, loaded: IcebergTable) -> set[int]:
    """Return keys of rows that the engine sees: a few, or all of them."""
    try:
        found = loaded.scan(selected_fields=(table.key.name,)).to_arrow()[table.key.name]
    except Exception as error:
        run.log("PyIceberg scan", table.full_name, type(error).__name__, str(error)[:300])
        run.counts["failed: PyIceberg scan"] += 1
        return set()
    keys = sorted(map(int, found.to_pylist()))
    if unexpected := set(keys) - table.rows.keys() - table.pending_keys:
        # A row of the engine must be committed. It may have been deleted since it was published.
        unexpected -= table.removed
        if unexpected:
            run.differ(f"PyIceberg, {table.full_name}: unexpected rows {sorted(unexpected)[:10]}")
    known = [key for key in keys if key in table.rows]
    if run.source.random() < 0.15:
        return set(known)
    return set(run.source.sample(known, min(len(known), run.source.randint(1, _MAX_ROWS))))


def _make_condition(keys: set[int]) -> str:
    return f"K IN ({', '.join(map(str, sorted(keys)))})"


def _make_rows(run: Run, table: Table) -> tuple[list[Row], pa.Table, IcebergTable] | None:
    """Return rows, and their Arrow table in the columns that the catalog has published."""
    loaded = _load(run, table)
    if loaded is None:
        return None
    schema = loaded.schema()
    ordinals = {each.field_id: each.name for each in schema.fields}
    names = {each.ordinal: ordinals.get(each.ordinal) for each in table.columns}
    if any(
        name is None and each.is_required
        for each in table.columns
        for name in [names[each.ordinal]]
    ):
        return None
    rows = [make_row(table, run.source) for _ in range(run.source.randint(1, _MAX_ROWS))]
    rows = [row for row in rows if row.is_valid]
    if not rows:
        return None
    arrow = schema.as_arrow()
    columns = {field.name: [None] * len(rows) for field in arrow}
    for column in table.columns:
        name = names[column.ordinal]
        for index, row in enumerate(rows):
            sent = row.sent.get(column.name)
            value = None if sent is None else sent.value
            stored, written = _to_engine(column.type, value)
            if name is None:
                stored = None
            else:
                columns[name][index] = written
            row.stored[column.ordinal] = stored
    try:
        data = pa.table(
            [pa.array(columns[field.name], field.type) for field in arrow], schema=arrow
        )
        data.validate(full=True)
        has_nulls = any(not field.nullable and data[field.name].null_count for field in arrow)
    except pa.ArrowInvalid as error:
        # The published type is narrower than the column.
        run.log("PyIceberg", table.full_name, "rows do not fit the published columns:", error)
        return None
    return None if has_nulls else (rows, data, loaded)


def _to_engine(column_type: ColumnType, value: Any) -> tuple[Any, Any]:
    """Return a value as it is stored without companion columns, and as Arrow takes it."""
    if value is None:
        return None, None
    if column_type.is_document:
        return value, write_document(value)
    if not column_type.is_time:
        return value, value
    if column_type.kind == "TIMESTAMP_TZ":
        microseconds = value[0] // 1000
        return (microseconds * 1000, 0), microseconds
    microseconds = value // 1000
    return microseconds * 1000, microseconds
