"""Round trips of edge values of every type, through every interface and reader.

The tests run a few hundred rows. A longer run:

    PYTHONPATH=tests python -m support.value_round_trips 20000 --seed 7 --spark
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import duckdb
import httpx
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable

from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.sql.cursor import parse_table_name
from snowmelt.clock import SystemClock
from snowmelt.loaders.copy_job import CopyContext, run_copy
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.testing import LocalService
from support.edge_values import (
    BY_NAME,
    COLUMNS,
    EPOCH,
    EXACT,
    FIRST_NS,
    REJECTED,
    TABLE,
    UTC,
    Column,
    Row,
    bits,
    canonical,
    document,
    make_rows,
    of_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession


# --- Interfaces. Each function returns the reasons of rejected rows by ID.


@dataclass
class Site:
    """A service with the table, and the values that were inserted."""

    service: LocalService
    accepted: dict[int, Row] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    tokens: int = 0
    spark: SparkSession | None = None

    def readers(self) -> SparkReaders:
        """Return the readers of the site's Spark session."""
        assert self.spark is not None
        return SparkReaders(self, self.spark)

    def create(self) -> None:
        listed = ", ".join(f"{column.key} {column.sql}" for column in COLUMNS)
        self.service.create_table(TABLE, f"id INT NOT NULL, {listed}")
        self.channel = self.service.client().open_channel(
            "trips", table=TABLE, default_timezone="UTC", on_error="continue"
        )

    def put(self, way: str, rows: list[Row]) -> None:
        """Insert rows through one interface, and record wrong acceptances, rejections and reasons."""
        for row in rows:
            row.way = way
        rejected = (WAYS | WAYS_OF_SPARK)[way](self, rows)
        for row in rows:
            reason, is_rejected = rejected.get(row.id), row.wanted is REJECTED
            if (reason is not None) != is_rejected:
                told = "rejected" if reason is not None else "accepted"
                self.fail(row, f"{told}, wanted {row.wanted!r:.80}: {reason}")
            elif reason is not None and not names_column(row, reason):
                self.fail(row, f"its rejection does not name the column: {reason}")
            elif reason is not None and len(reason) < len(row.column.name) + 10:
                self.fail(row, f"its rejection has no reason: {reason}")
            if reason is None:
                self.accepted[row.id] = row

    def fail(self, row: Row, what: str) -> None:
        shown = ascii(row.value)
        self.failures.append(f"{row.way} {row.column.sql} {shown[:100]}: {what[:300]}")

    def next_token(self) -> str:
        self.tokens += 1
        return str(self.tokens)

    def committed(self) -> None:
        self.channel.wait_for_commit(str(self.tokens), timeout=dt.timedelta(seconds=60))


def names_column(row: Row, reason: str) -> bool:
    """Return True if a rejection names its column, or the whole line is not JSON."""
    broken = ["is not JSON", "not JSON: number is infinity", "surrogate in string"]
    return any(name in reason for name in (row.column.name, row.column.key, *broken))


def by_row(site: Site, rows: list[Row]) -> dict[int, str]:
    rejected: dict[int, str] = {}
    for row in rows:
        told = site.channel.insert_row(
            {"id": row.id, row.column.key: row.python()}, site.next_token()
        )
        rejected.update((row.id, str(error.error)) for error in told.errors)
    site.committed()
    return rejected


def by_rows(site: Site, rows: list[Row]) -> dict[int, str]:
    """Send one call per set of columns, and one call with all rows."""
    rejected: dict[int, str] = {}
    calls = [[row for row in rows if row.column is column] for column in COLUMNS]
    for call in [*calls, []]:
        given = [{"id": row.id, row.column.key: row.python()} for row in call]
        if given:
            told = site.channel.insert_rows(given, site.next_token())
            rejected |= {call[error.row_index].id: str(error.error) for error in told.errors}
    site.committed()
    return rejected


def by_arrow(site: Site, rows: list[Row]) -> dict[int, str]:
    rejected: dict[int, Any] = {}
    for column in COLUMNS:
        call = [row for row in rows if row.column is column and arrow_value(row) is not None]
        rejected |= {row.id: None for row in rows if row.column is column and row not in call}
        if not call:
            continue
        table = pa.table({"id": [row.id for row in call], column.key: arrow_array(column, call)})
        told = site.channel.insert_arrow(table, site.next_token())
        rejected |= {call[error.row_index].id: str(error.error) for error in told.errors}
    site.committed()
    # Values that Arrow cannot represent were not sent.
    for row in rows:
        if row.id in rejected and rejected[row.id] is None:
            rejected[row.id] = (
                f"{row.column.name} cannot be said in Arrow" if row.wanted is REJECTED else None
            )
            if rejected[row.id] is None:
                site.channel.insert_row(
                    {"id": row.id, row.column.key: row.python()}, site.next_token()
                )
                del rejected[row.id]
    site.committed()
    return rejected


def arrow_value(row: Row) -> Any:
    """Convert a value to Arrow, in the column's own type or as text."""
    value = row.value
    match row.column.family:
        case "text":
            return None if of_text(10**9)(value) is REJECTED else value
        case "number":
            return Decimal(value) if abs(Decimal(value)) < Decimal(10) ** 38 else None
        case "document":
            return json.dumps(value)
        case "date":
            return None if isinstance(value, str) else value
        case "TZ":
            return value.text()
        case _:
            return value


def arrow_array(column: Column, rows: list[Row]) -> pa.Array:
    values = [arrow_value(row) for row in rows]
    match column.family:
        case "number":
            return pa.array([format(value, "f") for value in values])
        case "time":
            return pa.array(values, pa.int64()).cast(pa.time64("ns"))
        case "NTZ" | "LTZ":
            zone = "UTC" if column.family == "LTZ" else None
            instants = [value.local_ns - (value.offset_min or 0) * 60 * 10**9 for value in values]
            if any(each % 1000 for each in instants):
                return pa.array([value.text() for value in values])
            return pa.array([each // 1000 for each in instants]).cast(pa.timestamp("us", zone))
    return pa.array(values)


def json_line(row: Row, key: str) -> str:
    return json.dumps({"ID": row.id, key: row.text()})


def by_row_api(site: Site, rows: list[Row]) -> dict[int, str]:
    """Send each row by itself, because the API reports only the number of rejections and the last."""
    database, schema, table = TABLE.split(".")
    root = (
        f"/v2/streaming/databases/{database}/schemas/{schema}/pipes/{table}-STREAMING/channels/api"
    )
    rejected = {}
    with httpx.Client(base_url=site.service.url, timeout=60) as http:
        opened = http.put(f"{root}?requestId={site.next_token()}", content=b"{}")
        assert opened.status_code == 200, opened.text
        token, errors = opened.json()["next_continuation_token"], 0
        for row in rows:
            answer = http.post(
                root.replace("/streaming/", "/streaming/data/")
                + f"/rows?continuationToken={token}&requestId={site.next_token()}",
                content=json_line(row, row.column.key).encode(),
                headers={"content-type": "application/x-ndjson"},
            )
            assert answer.status_code == 200, answer.text
            token = answer.json()["next_continuation_token"]
        status = http.post(
            root.partition("/channels/")[0] + ":bulk-channel-status",
            content=json.dumps({"channel_names": ["api"]}),
        ).json()["channel_statuses"]["api"]
        errors = status["rows_error_count"]
    kept = site.service.rows(TABLE + "_errors")
    rejected = {
        json.loads(cast("str", each["ROW_DATA"]))["ID"]: f"{each['COLUMN_NAME']} {each['REASON']}"
        for each in kept
        if each["PROTOCOL"] == "rows"
    }
    assert errors == len(rejected), (errors, len(rejected))
    return rejected


def by_copy(site: Site, rows: list[Row]) -> dict[int, str]:
    path = site.service.folder / f"{site.next_token()}.json"
    path.write_text("".join(json_line(row, row.column.name) + "\n" for row in rows))
    embedded = site.service.embedded
    context = CopyContext(
        embedded.service.database, embedded.settings.warehouse_url, "ACCOUNTADMIN", SystemClock(),
        None, None, 60.0,
    )  # fmt: skip
    rejects = f"{TABLE}_rejects"
    run_copy(
        context,
        f"COPY {TABLE} FROM '{path}' PARSER FJSONPARSER(reject_on_materialized_type_error=true, "
        f"flatten_maps=false) ENFORCELENGTH REJECTED DATA AS TABLE {rejects}",
        LocalTaskRunner(),
    )
    found = site.service.rows(rejects)
    return {
        json.loads(cast("str", each["REJECTED_DATA"]))[
            "ID"
        ]: f"{each['COLUMN_NAME']} {each['REJECTED_REASON']}"
        for each in found
    }


WAYS: dict[str, Callable[[Site, list[Row]], dict[int, str]]] = {
    "insert_row": by_row,
    "insert_rows": by_rows,
    "insert_arrow": by_arrow,
    "row API": by_row_api,
    "COPY": by_copy,
}


def storable(rows: list[Row]) -> list[Row]:
    """Return the valid rows, because a DataFrame is written completely or not at all."""
    return [row for row in rows if row.wanted is not REJECTED]


def as_frame(site: Site, rows: list[Row]) -> DataFrame:
    """Return rows as a DataFrame, with the columns' own types if DataFrames support them."""
    arrays = [pa.array([row.id for row in rows])]
    for column in COLUMNS:
        own = [row if row.column is column else None for row in rows]
        match column.family:
            case "number":
                scale = int(column.sql.rstrip(")").partition(",")[2])
                made = pa.array(
                    [None if row is None else Decimal(str(row.wanted)) for row in own],
                    pa.decimal128(38, scale),
                )
            case "NTZ" | "LTZ" | "TZ" | "time":
                made = pa.array([None if row is None else row.text() for row in own], pa.string())
            case "document":
                made = pa.array([None if row is None else json.dumps(row.value) for row in own])
            case _:
                kind = {"float": pa.float64(), "date": pa.date32(), "binary": pa.binary()}
                made = pa.array(
                    [None if row is None else row.value for row in own],
                    kind.get(column.family, pa.string()),
                )
        arrays.append(made.cast(pa.string()) if pa.types.is_null(made.type) else made)
    names = ["ID", *(column.name for column in COLUMNS)]
    assert site.spark is not None
    return site.spark.createDataFrame(pa.Table.from_arrays(arrays, names=names))


def by_df_write(site: Site, rows: list[Row]) -> dict[int, str]:
    folder = str(site.service.folder / "data")
    frame = as_frame(site, storable(rows))
    site.readers()
    frame.write.format("snowmelt").mode("append").option("data_dir", folder).save(TABLE)
    return {row.id: f"{row.column.name} was not sent" for row in rows if row.wanted is REJECTED}


def by_insert(site: Site, rows: list[Row]) -> dict[int, str]:
    as_frame(site, storable(rows)).createOrReplaceTempView("value_trips")
    site.readers().lake.sql(f"INSERT INTO {TABLE} SELECT * FROM value_trips")
    return {row.id: f"{row.column.name} was not sent" for row in rows if row.wanted is REJECTED}


WAYS_OF_SPARK = {"df.write": by_df_write, "INSERT": by_insert}


# --- Readers. Each returns rows as dicts of native fields.


def native_value(column: Column, row: dict[str, Any]) -> object:
    """Convert a reader's value to the form of `Column.wanted`."""
    value = row[column.name]
    nanos = row.get(column.name + "$ns") or 0
    match column.family:
        case "float":
            return bits(value)
        case "number":
            return canonical(value)
        case "binary":
            return bytes(value).hex()
        case "date":
            return value.isoformat()
        case "time":
            if isinstance(value, dt.timedelta):
                return value // dt.timedelta(microseconds=1) * 1000 + nanos
            whole = dt.datetime.combine(EPOCH, value) - EPOCH
            return whole // dt.timedelta(microseconds=1) * 1000 + nanos
        case "NTZ" | "LTZ" | "TZ":
            if value.tzinfo is not None:
                value = value.astimezone(UTC).replace(tzinfo=None)
            ns = (value - EPOCH) // dt.timedelta(microseconds=1) * 1000 + nanos
            return (ns, row[column.name + "$tz"]) if column.family == "TZ" else ns
        case "document":
            # Raise the precision: PySpark computes decimals, which rounds to the context's digits.
            with localcontext(EXACT):
                return document(value if isinstance(value, str) else value.toJson())
        case _:
            return value


def check(
    site: Site, reader: str, rows: Iterable[dict[str, Any]], columns: Iterable[Column]
) -> None:
    """Compare a reader's rows with the accepted rows."""
    wanted_columns = list(columns)
    seen = {}
    for given_row in rows:
        seen[int(given_row["ID"])] = given_row
    if len(seen) != len(site.accepted) or seen.keys() != site.accepted.keys():
        missing = sorted(site.accepted.keys() ^ seen.keys())
        site.failures.append(f"{reader}: {len(missing)} rows differ, such as {missing[:5]}")
    for key, row in site.accepted.items():
        if row.column not in wanted_columns or key not in seen:
            continue
        given = seen[key][row.column.name]
        got = None if given is None else native_value(row.column, seen[key])
        if got != row.wanted:
            site.fail(row, f"{reader} returns {got!r:.100}, wanted {row.wanted!r:.100}")


def attempt(site: Site, reader: str, read: Callable[[], Iterable[dict[str, Any]]],
            columns: Iterable[Column] = COLUMNS) -> None:  # fmt: skip
    """Run a reader, and record an error if it raises one."""
    began = time.monotonic()
    try:
        check(site, reader, read(), columns)
    except Exception as error:  # Every error is a failure.
        site.failures.append(f"{reader} raises {type(error).__name__}: {error!s:.300}")
    print(f"{reader}: {time.monotonic() - began:.1f} s", file=sys.stderr)


def migrate(site: Site) -> str:
    """Migrate all chunks. Return the address of the table's metadata."""
    service, settings = site.service.embedded.service, site.service.embedded.settings
    name = parse_table_name(TABLE)
    migrate_table(
        service.database,
        KeyRing(load_master_key(settings.keys_dir)),
        name,
        MigrationSettings(settings.stage_url, settings.warehouse_url),
    )
    with service.database.reading() as connection:
        pointer = find_table(connection, name).pointer
    assert pointer is not None
    return pointer


def read_without_spark(site: Site, pointer: str | None) -> None:
    attempt(site, "snowmelt.testing", lambda: site.service.rows(TABLE))
    if pointer is None:
        return
    table = StaticTable.from_metadata(pointer)
    attempt(site, "PyIceberg", lambda: table.scan().to_arrow().to_pylist())
    # Suppress the warning about its planner, which is an optional package.
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
    attempt(site, "Polars", lambda: pl.scan_iceberg(table).collect().to_dicts())

    def from_duckdb() -> list[dict[str, Any]]:
        names = table.scan().to_arrow().column_names
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            # DuckDB ignores case in names, and renames the second of two equal ones.
            found = connection.from_arrow(table.scan().to_arrow()).to_arrow_table()
        return cast("list[dict[str, Any]]", found.rename_columns(names).to_pylist())

    attempt(site, "DuckDB", from_duckdb)


def spark_rows(frame: DataFrame, names: list[str]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in frame.collect()]


def read_with_spark(site: Site, spark: SparkSession, frames: dict[str, DataFrame]) -> None:
    """Read with every interface of Spark.

    Rename columns by position, because Spark renames one of two names that differ only in case.
    """
    names = native_names()
    for reader, frame in frames.items():
        attempt(site, f"{reader} collect", partial(spark_rows, frame, names))
    frame = frames["lake.sql"]
    documents_ = {column.name for column in COLUMNS if column.family == "document"}
    stamped = {column.name for column in COLUMNS if column.family in FIRST_NS}
    plain_frame = frame.toDF(*(f"c{at}" for at in range(len(names))))
    kept = [at for at, name in enumerate(names) if name not in documents_]
    attempt(
        site,
        "lake.sql toArrow",
        lambda: (
            plain_frame.select(*(f"c{at}" for at in kept))
            .toArrow()
            .rename_columns([names[at] for at in kept])
            .to_pylist()
        ),
        [column for column in COLUMNS if column.family != "document"],
    )
    # pandas stores nanoseconds in 64 bits, which covers the years 1678 to 2262.
    few = [at for at in kept if names[at].partition("$")[0] not in stamped]

    def from_pandas() -> list[dict[str, Any]]:
        found = plain_frame.select(*(f"c{at}" for at in few)).toPandas()
        rows = [
            dict(zip((names[at] for at in few), row, strict=True))
            for row in found.itertuples(index=False)
        ]
        return [{name: absent(name, value, row) for name, value in row.items()} for row in rows]

    def absent(name: str, value: Any, row: dict[str, Any]) -> object:
        accepted = site.accepted[int(row["ID"])]
        if name in BY_NAME and accepted.column.name != name:
            return None
        return 0 if "$" in name and value != value else int(value) if "$" in name else value

    attempt(
        site,
        "lake.sql toPandas",
        from_pandas,
        [column for column in COLUMNS if column.family not in {"document", *FIRST_NS}],
    )


def native_names() -> list[str]:
    names = ["ID"]
    for column in COLUMNS:
        names.append(column.name)
        scale = column.sql.partition("(")[2].rstrip(")")
        if column.family in {"time", *FIRST_NS} and int(scale) > 6:
            names.append(column.name + "$ns")
        if column.family == "TZ":
            names.append(column.name + "$tz")
    return names


def run(
    service: LocalService,
    count: int,
    seed: int,
    spark: SparkSession | None = None,
    *,
    ways: Iterable[str] = WAYS,
    at_once: bool = False,
) -> Site:
    """Insert `count` values through each interface, and compare reads before and after migration.

    With `at_once`, reads once, when the values of every second interface are migrated.
    """
    site = Site(service, spark=spark)
    site.create()
    service.sql(f"ALTER TABLE {TABLE} SET ERROR_TABLE = {TABLE}_errors")
    rng = random.Random(seed)
    for number, way in enumerate([*ways, *(WAYS_OF_SPARK if spark is not None else ())]):
        began = time.monotonic()
        # Rows are sent one by one, so that each rejection is reported.
        sent = count if way != "row API" else min(count, max(count // 8, 2 * len(COLUMNS)))
        site.put(way, make_rows(rng, sent, number * 10**6))
        print(f"{way}: {sent} rows, {time.monotonic() - began:.1f} s", file=sys.stderr)
        if at_once and number == 0:
            migrate(site)
    if not at_once:
        read_without_spark(site, None)
        if spark is not None:
            site.readers().read("chunks")
        read_without_spark(site, migrate(site))
    if spark is not None:
        site.readers().read("files")
    return site


class SparkReaders:
    """Reader of a site's table through all of Spark's interfaces."""

    def __init__(self, site: Site, spark: SparkSession) -> None:
        from snowmelt.spark import Snowmelt
        from snowmelt.spark.format import register

        register(spark)
        self._site = site
        self._spark = spark
        settings = site.service.embedded.settings
        self.lake = Snowmelt(
            spark,
            catalog=settings.catalog_url,
            stage=settings.stage_url,
            warehouse=settings.warehouse_url,
            keys=settings.keys_dir,
        )

    def read(self, tag: str) -> None:
        folder = str(self._site.service.folder / "data")
        source = (
            self._spark.read.format("snowmelt").option("data_dir", folder).option("table", TABLE)
        )
        frames = {
            "lake.sql": self.lake.sql(f"SELECT * FROM {TABLE}"),
            "spark.read": source.load(),
        }
        read_with_spark(self._site, self._spark, frames)
        attempt(self._site, f"readStream of {tag}", lambda: self._streamed(folder))

    def _streamed(self, folder: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        names = native_names()
        stream = (
            self._spark.readStream.format("snowmelt")
            .option("data_dir", folder)
            .option("table", TABLE)
            .load()
        )
        query = (
            stream.writeStream.foreachBatch(lambda frame, _: found.extend(spark_rows(frame, names)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="values for each way in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spark", action="store_true", help="read with Spark, too")
    options = parser.parse_args()
    spark = None
    if options.spark:
        from snowmelt.spark.session import local_session

        spark = local_session("value-trips")
    with LocalService(dev=True) as service:
        site = run(service, options.count, options.seed, spark)
    print(f"{len(site.accepted)} values accepted, {len(site.failures)} failures")
    for failure, times in Counter(site.failures).most_common(100):
        print(f"  {times}x {failure}")
    return 1 if site.failures else 0


if __name__ == "__main__":
    sys.exit(main())
