"""Compare what all readers, statements and commands return with the model."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable, Sequence
from decimal import Decimal

from snowmelt.errors import SnowmeltError
from support.system_model.model import Column, StoredRow, Table, find_difference
from support.system_model.readers import read_iceberg, read_plain
from support.system_model.run import Run
from support.system_model.sdk_operations import flush_handle
from support.system_model.table_operations import ERROR_TABLE

# Engines see a row about a second after its commit, and a renamed column after the next migration.
_PUBLICATION_S = 30.0

ReadRows = Callable[[Table], tuple[Sequence[Column], Sequence[StoredRow]]]


def check(run: Run, *, with_engines: bool) -> None:
    """Flush all channels, then compare rows, tokens, columns and rejected rows with the model."""
    for handle in run.list_sdk_handles():
        if not handle.is_closed:
            flush_handle(run, handle, "check")
    run.site.wait_for_kill()
    for table in run.tables:
        _check_channels(run, table)
        _check_columns(run, table)
        _compare(run, table, "plain query", lambda each: read_plain(run, each))
        if run.spark is not None:
            _compare(run, table, "Spark", run.spark.read)
    if with_engines:
        for table in run.tables:
            _compare(run, table, "PyIceberg", lambda each: read_iceberg(run, each), _PUBLICATION_S)
            # DuckDB finds columns of old files by the names that they have now.
            if run.duckdb is not None and not table.has_renamed_columns:
                _compare(run, table, "DuckDB", run.duckdb.read, _PUBLICATION_S)
            _check_migrated(run, table)
    _check_rejected(run)
    run.log("checked", dict(run.counts))


def check_integrity(run: Run) -> None:
    """Let `snowmelt check` search for damage in everything that the run has left."""
    done = run.site.run_command("check", "--deep", "--quiet", "--format", "json")
    run.log("check", done.returncode, done.stdout[-2000:], done.stderr[-500:])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if not found or "summary" not in found[-1]:
        run.differ(f"snowmelt check: {done.returncode} {done.stderr}")
        return
    for each in found[:-1]:
        run.differ(f"snowmelt check: {each['finding']}: {each['detail']}")
    run.counts["integrity checks"] += 1


def _compare(run: Run, table: Table, reader: str, read: ReadRows, timeout_s: float = 0) -> None:
    """Compare rows. An engine may return earlier rows until a timeout."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            columns, rows = read(table)
            difference = find_difference(table, columns, rows)
        except SnowmeltError as error:
            difference = f"{type(error).__name__}: {error}"
            columns, rows = [], []
        except Exception as error:
            if timeout_s == 0:
                raise
            difference = f"{type(error).__name__}: {error}"
            columns, rows = [], []
        if not difference:
            run.counts[f"values by {reader}"] += len(rows) * len(columns)
            return
        if time.monotonic() >= until:
            run.differ(f"{reader}, {table.full_name}: {difference}")
            return
        time.sleep(0.5)


def _check_channels(run: Run, table: Table) -> None:
    """Compare SHOW CHANNELS. The channels of requests without a channel are the service's own."""
    records = run.query_records(f"SHOW CHANNELS IN TABLE {table.full_name}")
    found = {
        each["name"].lower(): each["offset_token"]
        for each in records
        if not each["name"].lower().startswith(("elastic", "snowmelt"))
    }
    wanted = {name.lower(): channel for name, channel in table.channels.items()}
    if found.keys() != wanted.keys():
        run.differ(f"SHOW CHANNELS, {table.full_name}: {found} instead of {sorted(wanted)}")
        return
    for name, channel in wanted.items():
        run.reconcile(channel, found[name], "SHOW CHANNELS", final=False)
    run.counts["tokens"] += len(wanted)


def _check_columns(run: Run, table: Table) -> None:
    found = [(each.name, each.ordinal) for each in run.describe(table)]
    wanted = [(each.name, each.ordinal) for each in table.columns]
    if found != wanted:
        run.differ(f"DESCRIBE TABLE, {table.full_name}: {found} instead of {wanted}")


def _check_migrated(run: Run, table: Table) -> None:
    """Migrated rows are some of the rows, each once."""
    _, rows = read_iceberg(run, table, "demo@settled")
    keys = collections.Counter(int(Decimal(row[table.key.ordinal])) for row in rows)
    twice = [key for key, count in keys.items() if count > 1]
    # The last change of an engine may be newer.
    unexpected = keys.keys() - table.rows.keys() - table.removed
    if twice or unexpected:
        run.differ(
            f"migrated rows of {table.full_name}: twice {twice[:10]}, "
            f"unexpected {sorted(unexpected)[:10]}"
        )
    run.counts["migrated rows"] += len(rows)


def _check_rejected(run: Run) -> None:
    """Each rejected row of a committed batch is in the error table once."""
    try:
        records = run.query_records(f"SELECT row_data FROM {ERROR_TABLE}")
    except SnowmeltError as error:
        # The first table with an error table creates it. Without it, no rejected row is there.
        run.log(ERROR_TABLE, error)
        records = []
    found: collections.Counter[int] = collections.Counter()
    for record in records:
        fields = {
            name.strip('"').upper(): value for name, value in json.loads(record["row_data"]).items()
        }
        found[int(fields["K"])] += 1
    wanted = {key for table in (*run.tables, *run.dropped) for key in table.rejected}
    wrong = {key: found[key] for key in wanted if found[key] != 1}
    if wrong:
        run.differ(f"{ERROR_TABLE}: rejected rows and how often they are there: {wrong}")
    run.counts["rejected rows"] += len(wanted)
