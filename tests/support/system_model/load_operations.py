"""Steps of a run that load files, migrate and maintain tables."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.errors import SnowmeltError
from support.system_model.model import Table, tick
from support.system_model.rows import Row, make_arrow_columns, make_row, to_arrow, to_json_row
from support.system_model.run import Run

_JSON_PARSER = (
    "PARSER FJSONPARSER(reject_on_materialized_type_error=true, flatten_maps=false) ENFORCELENGTH"
)


def copy_any(run: Run) -> None:
    """COPY a file of JSON or Parquet. Its invalid rows are rejected."""
    table = run.choose_table()
    rows = [make_row(table, run.source) for _ in range(run.source.choice([1, 3, 40]))]
    path = run.folder / f"load-{tick()}"
    if run.source.random() < 0.3:
        rows = [row for row in rows if row.is_valid]
        data = _make_parquet(run, table, rows)
        if data is None:
            return
        pq.write_table(data, path)
        statement = f"COPY {table.full_name} FROM '{path}' PARQUET"
    else:
        lines = [to_json_row(row, run.source, quoted=False) for row in rows]
        path.write_text("\n".join(lines) + "\n")
        statement = f"COPY {table.full_name} FROM '{path}' {_JSON_PARSER}"
    run.log("statement:", statement, "keys", rows[0].key, rows[-1].key)
    try:
        [record] = run.query_records(statement)
    except SnowmeltError as error:
        run.differ(f"{statement}: {error}")
        return
    accepted = [row for row in rows if row.is_valid]
    rejected = [row.key for row in rows if not row.is_valid]
    counted = (int(record["rows_loaded"]), int(record["rows_rejected"]))
    # A repeated statement, after a lost response, skips the file.
    is_repeated = int(record.get("files_skipped") or 0) > 0
    if not is_repeated and counted != (len(accepted), len(rejected)):
        run.differ(f"{statement}: {record} instead of {len(accepted)}, {len(rejected)}")
    table.add_rows([row.stored for row in accepted], rejected if table.has_error_table else [])
    run.counts["rows copied"] += len(accepted)


def _make_parquet(run: Run, table: Table, rows: list[Row]) -> pa.Table | None:
    if not rows:
        return None
    names = make_arrow_columns(table, rows)
    if names is None or any(each.type.is_document and each.name in names for each in table.columns):
        return None
    data = to_arrow(rows, names, run.source, quoted=False)
    has_nulls_only = any(pa.types.is_null(each.type) for each in data.schema)
    return None if has_nulls_only else data


def migrate_any(run: Run) -> None:
    """Migrate in a process of its own, beside the service."""
    tables = [run.choose_table().full_name] if run.source.random() < 0.7 else []
    _run_command(run, "migrate", "--engine", "local", *tables)


def maintain(run: Run) -> None:
    _run_command(run, "maintain", "--full", "--quiet")


def _run_command(run: Run, *arguments: str) -> None:
    done = run.site.run_command(*arguments)
    run.log("command", arguments, done.returncode)
    if done.returncode:
        run.differ(f"snowmelt {' '.join(arguments)}: {done.stdout} {done.stderr}")
