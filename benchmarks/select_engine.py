"""Benchmark of SELECT over one object with one and two threads, compared with other engines.

    python benchmarks/select_engine.py [--rows 5500000] [--folder DIR] [--repeats 3]

Each engine runs in a separate process, pinned to as many processors as it has threads. It runs the
six queries of the 15-column file one after the other; imports are excluded. MB/s refer to
uncompressed text; the best run counts. `cpu` is MB per second of processor time, on which other
load has less effect.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import keep_page

if TYPE_CHECKING:
    from collections.abc import Callable

QUERIES = {
    "a": "count(*)",
    "b": "tripid where fare > 36.1",
    "c": "sum, min, max of casts",
    "d": "* where puloc <= 131",
    "e": "ref where zone like '%West%'",
    "f": "count(*) where year = 2018",
}


TEXTS = {
    "a": "select count(*) from s3object",
    "b": "select s.tripid from s3object s where cast(s.fare as float) > 36.1",
    "c": "select sum(cast(s.fare as float)), min(cast(s.distance as float)), "
    "max(cast(s.total as float)) from s3object s",
    "d": "select * from s3object s where cast(s.puloc as int) <= 131",
    "e": "select s.ref from s3object s where s.zone like '%West%'",
    "f": "select count(*) from s3object s where extract(year from to_timestamp(s.pickup)) = 2018",
}


def ours(path: Path, threads: int, form: str) -> dict[str, Callable[[], object]]:
    from snowmelt.select.execution.engine import EngineSettings
    from snowmelt.select.local_query import open_local_select
    from snowmelt.select.request import (
        CsvInput,
        HeaderMode,
        JsonInput,
        ObjectCompression,
        ParquetInput,
        SelectRequest,
    )

    texts = dict(TEXTS)
    if form == "parquet":
        texts["f"] = texts["f"].replace("to_timestamp(s.pickup)", "s.pickup")
    inputs: dict[str, CsvInput | JsonInput | ParquetInput] = {
        "json": JsonInput(lines=True),
        "parquet": ParquetInput(),
    }
    options = inputs.get(form, CsvInput(header=HeaderMode.USE))
    packed = ObjectCompression.GZIP if form == "gz" else ObjectCompression.NONE

    def run(text: str) -> int:
        request = SelectRequest(text, options, compression=packed)
        execution = open_local_select(request, path, settings=EngineSettings(threads=threads))
        return sum(len(payload) for payload in execution.stream_payloads())

    return {name: partial(run, text) for name, text in texts.items()}


def duck(path: Path, threads: int, form: str) -> dict[str, Callable[[], object]]:
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    source = f"read_csv('{path}', all_varchar=true, header=true)"
    if form == "json":
        source = f"read_json('{path}', format='newline_delimited')"
    if form == "parquet":
        source = f"'{path}'"

    def sink(text: str) -> None:
        connection.execute(f"copy ({text}) to '/dev/null' (format csv)")

    return {
        "a": lambda: connection.execute(f"select count(*) from {source}").fetchall(),
        "b": lambda: sink(f"select tripid from {source} where fare::double > 36.1"),
        "c": lambda: connection.execute(
            f"select sum(fare::double), min(distance::double), max(total::double) from {source}"
        ).fetchall(),
        "d": lambda: sink(f"select * from {source} where puloc::int <= 131"),
        "e": lambda: sink(f"select ref from {source} where zone like '%West%'"),
        "f": lambda: connection.execute(
            f"select count(*) from {source} where extract(year from pickup::timestamp) = 2018"
        ).fetchall(),
    }


def arrow(path: Path, threads: int, form: str) -> dict[str, Callable[[], object]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pcsv

    pa.set_cpu_count(threads)
    del form
    names = path.with_suffix("").with_suffix(".csv").open().readline().strip().split(",")

    def batches(*columns: str) -> Any:
        options = pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=list(columns)
        )
        reading = pcsv.ReadOptions(use_threads=threads > 1)
        return pcsv.open_csv(path, read_options=reading, convert_options=options)

    def write(
        stream: Iterable[pa.RecordBatch], keep: Callable[[pa.RecordBatch], pa.Array], *shown: str
    ) -> None:
        with Path("/dev/null").open("wb") as out:
            for batch in stream:
                found = batch.filter(keep(batch))
                pcsv.write_csv(found.select(list(shown)) if shown else found, out)

    def number(batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(name).cast(pa.float64())

    def sums() -> None:
        for batch in batches("fare", "distance", "total"):
            pc.sum(number(batch, "fare"))
            pc.min(number(batch, "distance"))
            pc.max(number(batch, "total"))

    def years() -> int:
        count = 0
        for batch in batches("pickup"):
            found = pc.year(batch.column("pickup").cast(pa.timestamp("s", "UTC")))
            count += pc.sum(pc.equal(found, 2018)).as_py() or 0
        return count

    return {
        "a": lambda: sum(batch.num_rows for batch in batches("tripid")),
        "b": lambda: write(
            batches("tripid", "fare"), lambda b: pc.greater(number(b, "fare"), 36.1), "tripid"
        ),
        "c": sums,
        "d": lambda: write(batches(), lambda b: pc.less_equal(number(b, "puloc"), 131)),
        "e": lambda: write(
            batches("zone", "ref"), lambda b: pc.match_substring(b.column("zone"), "West"), "ref"
        ),
        "f": years,
    }


def polar(path: Path, threads: int, form: str) -> dict[str, Callable[[], object]]:
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    del form

    def scan() -> pl.LazyFrame:
        return pl.scan_csv(path, infer_schema=False)

    def number(name: str) -> pl.Expr:
        return pl.col(name).cast(pl.Float64)

    def sink(frame: pl.LazyFrame) -> None:
        frame.sink_csv("/dev/null")

    return {
        "a": lambda: scan().select(pl.len()).collect(engine="streaming"),
        "b": lambda: sink(scan().filter(number("fare") > 36.1).select("tripid")),
        "c": lambda: (
            scan()
            .select(number("fare").sum(), number("distance").min(), number("total").max())
            .collect(engine="streaming")
        ),
        "d": lambda: sink(scan().filter(pl.col("puloc").cast(pl.Int64) <= 131)),
        "e": lambda: sink(
            scan().filter(pl.col("zone").str.contains("West", literal=True)).select("ref")
        ),
        "f": lambda: (
            scan()
            .filter(pl.col("pickup").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.year() == 2018)
            .select(pl.len())
            .collect(engine="streaming")
        ),
    }


def fusion(path: Path, threads: int, form: str) -> dict[str, Callable[[], object]]:
    import datafusion
    import pyarrow as pa

    del form
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))
    names = path.with_suffix("").with_suffix(".csv").open().readline().strip().split(",")
    schema = pa.schema([(name, pa.string()) for name in names])
    options = {"has_header": True, "schema": schema}
    if path.suffix == ".gz":
        options |= {"file_extension": ".gz", "file_compression_type": "gzip"}
    context.register_csv("t", str(path), **options)

    def run(text: str) -> None:
        for batch in context.sql(text).execute_stream():
            batch.to_pyarrow()

    return {
        "a": lambda: run("select count(*) from t"),
        "b": lambda: run("select tripid from t where cast(fare as double) > 36.1"),
        "c": lambda: run(
            "select sum(cast(fare as double)), min(cast(distance as double)), "
            "max(cast(total as double)) from t"
        ),
        "d": lambda: run("select * from t where cast(puloc as int) <= 131"),
        "e": lambda: run("select ref from t where zone like '%West%'"),
        "f": lambda: run(
            "select count(*) from t where extract(year from cast(pickup as timestamp)) = 2018"
        ),
    }


def zcat(path: Path, _threads: int, _form: str) -> dict[str, Callable[[], object]]:
    """Time of `zcat` alone, the minimum for any pipe that follows it."""
    command = f"zcat {path} > /dev/null"
    return {"a": lambda: subprocess.run(command, shell=True, check=True)}


def wc(path: Path, threads: int, form: str) -> dict[str, Callable[[], object]]:
    import select_data

    del threads, form
    return {"a": lambda: select_data.line_count(path)}


ENGINES = {
    "snowmelt": ours,
    "duckdb": duck,
    "pyarrow": arrow,
    "polars": polar,
    "datafusion": fusion,
    "wc -l": wc,
    "zcat": zcat,
}
FORMS = {
    "csv": ("snowmelt", "duckdb", "pyarrow", "polars", "datafusion", "wc -l"),
    "gz": ("snowmelt", "duckdb", "pyarrow", "datafusion", "zcat"),
    "json": ("snowmelt", "duckdb"),
    "parquet": ("snowmelt", "duckdb"),
}


def processor_seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def peak_memory() -> int:
    """Return the peak memory of this process in MB. getrusage would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def child(engine: str, path: Path, threads: int, form: str, repeats: int) -> None:
    """Run the queries of one engine. Print a line of JSON for each."""
    for name, run in ENGINES[engine](path, threads, form).items():
        best = [float("inf"), float("inf")]
        # An additional run to warm the caches of compiled code and of the file.
        for repeat in range(repeats + 1):
            wall, cpu = time.perf_counter(), processor_seconds()
            run()
            spent = time.perf_counter() - wall, processor_seconds() - cpu
            if repeat:
                best = [min(pair) for pair in zip(best, spent, strict=True)]
        peak = peak_memory()
        print(json.dumps({"query": name, "wall": best[0], "cpu": best[1], "rss": peak}), flush=True)


def measure(
    engine: str, path: Path, threads: int, form: str, repeats: int
) -> dict[str, dict[str, float]]:
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    command = ["taskset", "-c", cores, sys.executable, __file__, "--child", engine]
    command += ["--file", str(path), "--threads", str(threads), "--form", form]
    done = subprocess.run(
        [*command, "--repeats", str(repeats)], capture_output=True, text=True, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        print(f"{engine}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return {each["query"]: each for each in found}


def table(form: str, threads: int, size: int, results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the measurements as lines of a table, followed by the ratios."""
    lines = [
        f"## {form}, {threads} thread{'s'[: threads - 1]}: MB/s (MB for each second of processor time)",
        "",
        "| engine | " + " | ".join(QUERIES) + " | peak MB |",
        "|" + " --- |" * (len(QUERIES) + 2),
    ]
    for engine, found in results.items():
        cells = [
            f"{size / found[q]['wall'] / 1e6:.0f} ({size / found[q]['cpu'] / 1e6:.0f})"
            if q in found
            else "-"
            for q in QUERIES
        ]
        peak = max((each["rss"] for each in found.values()), default=0)
        lines.append(f"| {engine} | " + " | ".join(cells) + f" | {peak} |")
    for unit in ("wall", "cpu"):
        lines.extend(ratios(unit, results))
    return [*lines, ""]


def ratios(unit: str, results: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line that compares Snowmelt with the better of DuckDB and pyarrow, if measured."""
    peers = [name for name in ("duckdb", "pyarrow") if results.get(name)]
    if not peers or not results.get("snowmelt"):
        return []
    cells = []
    for query in QUERIES:
        best = min(results[p].get(query, {}).get(unit, float("inf")) for p in peers)
        mine = results["snowmelt"].get(query, {}).get(unit, float("inf"))
        cells.append(f"{best / mine:.1f} ×")
    return [f"| **to the better of {', '.join(peers)}, {unit}** | {' | '.join(cells)} | |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_500_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--form", action="append", choices=list(FORMS))
    parser.add_argument("--engine", action="append", choices=list(ENGINES))
    parser.add_argument("--child")
    parser.add_argument("--file", type=Path)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.file, given.threads[0], given.form[0], given.repeats)
        return
    # Import late: it imports other engines, whose memory would be measured too.
    import select_data

    with tempfile.TemporaryDirectory(prefix="snowmelt-select-") as own:
        folder = given.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        csv = select_data.trips_csv(folder, given.rows)
        lines = [
            f"{csv.stat().st_size / 1e6:.0f} MB of CSV, {given.rows:,} rows of 15 columns.",
            "",
        ]
        lines += [f"* {name}: {query}" for name, query in QUERIES.items()] + [""]
        make = {
            "csv": lambda _: csv,
            "gz": select_data.trips_gz,
            "json": select_data.trips_json,
            "parquet": select_data.trips_parquet,
        }
        for form in given.form or list(FORMS):
            path = make[form](csv)
            size = csv.stat().st_size if form in {"gz", "parquet"} else path.stat().st_size
            for threads in given.threads or [1, 2]:
                engines = [e for e in FORMS[form] if not given.engine or e in given.engine]
                results = {
                    engine: measure(engine, path, threads, form, given.repeats)
                    for engine in engines
                }
                found = table(form, threads, size, results)
                print("\n".join(found), flush=True)
                lines += found
        lines.append(f"Load average at the end: {os.getloadavg()[0]:.1f}.")
        keep_page("select", "SELECT over one object, beside others", lines)


if __name__ == "__main__":
    main()
