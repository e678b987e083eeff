"""Data file of the S3 Select benchmarks: 15 columns of taxi trips, some with a quoted comma."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 250_000
_BOROUGHS = ("West", "East", "Upper", "Lower", "North", "South", "Mid", "Far")
_PLACES = ("Harbour", "Village", "Heights", "Park", "Garden", "Square", "Hill", "Market")


def _zones(rng: np.random.Generator) -> np.ndarray:
    names = [f"{_BOROUGHS[i % 8]} {_PLACES[i // 8 % 8]} {i}" for i in range(264)]
    for i in rng.choice(264, 32, replace=False):
        names[i] = f"{names[i]}, Isle of {_PLACES[i % 8]}"
    # About 3 % of the rows have "West", which the query with LIKE selects.
    return np.array([n.replace("West", "Weft") if i % 4 else n for i, n in enumerate(names)])


def _table(seed: int, zones: np.ndarray) -> pa.Table:
    rng = np.random.default_rng(seed)
    first = seed * _CHUNK
    ids = np.arange(first, first + _CHUNK)
    start = rng.integers(1_483_228_800, 1_577_836_800, _CHUNK)
    seconds = rng.integers(60, 7200, _CHUNK)
    fare = np.round(rng.gamma(2.0, 5.47, _CHUNK), 2)  # 1 % of the rows are above 36.1.
    tip = np.round(rng.gamma(1.0, 2.0, _CHUNK), 2)
    tolls = np.round(rng.random(_CHUNK) * 7, 2)

    def times(values: np.ndarray) -> np.ndarray:
        return np.char.add(np.datetime_as_string(values.astype("datetime64[s]")), "Z")

    return pa.table(
        {
            "tripid": ids,
            "vendor": rng.integers(1, 3, _CHUNK),
            "pickup": times(start),
            "dropoff": times(start + seconds),
            "passengers": rng.integers(1, 7, _CHUNK),
            "distance": np.round(rng.gamma(1.5, 2.0, _CHUNK), 2),
            "puloc": rng.integers(1, 264, _CHUNK),
            "doloc": rng.integers(1, 264, _CHUNK),
            "fare": fare,
            "tip": pa.array(np.where(rng.random(_CHUNK) < 0.3, np.nan, tip), from_pandas=True),
            "tolls": tolls,
            "total": np.round(fare + tolls, 2),
            "payment": np.array(["card", "cash", "none"])[rng.integers(0, 3, _CHUNK)],
            "zone": zones[rng.integers(0, 264, _CHUNK)],
            "ref": np.char.add("r-", rng.integers(10**7, 10**8, _CHUNK).astype(str)),
        }
    )


def trips_csv(folder: Path, rows: int = 5_500_000) -> Path:
    """Write `rows` rows of about 120 bytes with a header, unless the file exists."""
    path = folder / f"trips-{rows}.csv"
    if path.exists():
        return path
    zones = _zones(np.random.default_rng(7))
    tables = (
        _table(seed, zones).slice(0, rows - seed * _CHUNK) for seed in range(-(-rows // _CHUNK))
    )
    batches = (batch for table in tables for batch in table.to_batches())
    first = next(batches)
    trips = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    unfinished = path.with_suffix(".part")
    # Write with DuckDB, which quotes texts only if necessary. pyarrow quotes all of them.
    with duckdb.connect() as connection:
        connection.register("trips", trips)
        connection.execute(f"COPY (SELECT * FROM trips) TO '{unfinished}' (FORMAT csv, HEADER)")
    unfinished.rename(path)
    return path


def trips_gz(csv: Path) -> Path:
    """Write the gzip form of a CSV file."""
    path = csv.with_suffix(".csv.gz")
    if not path.exists():
        with csv.open("rb") as source, gzip.open(path, "wb", compresslevel=6) as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return path


def trips_parquet(csv: Path) -> Path:
    """Convert a CSV file to Parquet with types, in row groups of 500,000 rows."""
    path = csv.with_suffix(".parquet")
    if not path.exists():
        with pc.open_csv(csv) as reader, pq.ParquetWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch, row_group_size=500_000)
    return path


def trips_json(csv: Path) -> Path:
    """Write the JSON lines form of a CSV file."""
    path = csv.with_suffix(".jsonl")
    if not path.exists():
        with pc.open_csv(csv) as reader, path.open("w") as out:
            for batch in reader:
                out.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())
    return path


def line_count(path: Path) -> int:
    """Return the number of lines, as `wc -l` does."""
    done = subprocess.run(["wc", "-l", str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
