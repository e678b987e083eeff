"""Do engines of others see whole states while COPY, migration, compaction and streams are killed?

uv run python benchmarks/iceberg_together.py [--seconds 120] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from iceberg_freshness import make_token
from report import Report

from fixtures.engines import REQUIREMENTS, EngineError, make_environment, start_engine
from snowmelt.testing.soak import ROWS_PER_FILE, TABLE_NAME, ConsistencyReader, SoakHarness
from support.ports import free_port

ENGINES = ("pyiceberg", "duckdb")
TABLE = f"{TABLE_NAME.schema}.{TABLE_NAME.table}"


def make_reader(name: str, engine: Any) -> ConsistencyReader:
    def read() -> list[tuple[str, int]]:
        return [
            (channel, int(float(number)))
            for channel, number in engine.read(TABLE, "CHANNEL", "NUMBER")
        ]

    # The service may be dead at any moment; it is the rows that are checked.
    return ConsistencyReader(read, ROWS_PER_FILE, name=name, expected_errors=(EngineError,))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report(
        "iceberg_together",
        "Engines of others beside writers that are killed",
        ("seconds", "kills", "queries", "queries wrong", "streamed", "copied", "lost", "doubled"),
    )
    python = make_environment("engines", REQUIREMENTS)
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder,
        SoakHarness(Path(folder) / "data", seed=options.seed, s3_port=free_port()) as site,
    ):
        token = make_token(site.settings, "CRASH")
        engines = [
            start_engine(python, Path(folder), name, f"{site.url}/iceberg", "CRASH", token)
            for name in ENGINES
        ]
        readers = [make_reader(name, engine) for name, engine in zip(ENGINES, engines, strict=True)]
        try:
            counted = site.run_for(options.seconds, more_readers=readers)
            rows = counted.streamed_rows + counted.copied_rows
            ends = {reader.name: reader.check_once() for reader in readers}
        finally:
            for engine in engines:
                engine.close()
    report.add(
        f"{options.seconds:g}",
        counted.kills,
        f"{counted.queries:,} ({', '.join(f'{r.name} {r.queries:,}' for r in readers)})",
        len(counted.violations),
        counted.streamed_rows,
        counted.copied_rows,
        counted.lost_rows,
        counted.duplicate_rows,
    )
    report.remark(
        "PyIceberg and DuckDB read all the time through the Iceberg REST catalog, beside Snowmelt's own "
        "reader. Killed at any moment: COPY, migration, maintenance, the client, and the service with its publisher."
    )
    for sentence in sorted(set(counted.violations)):
        report.remark(f"A query: {sentence}.")
    report.keep()
    return 0 if counted.is_exact and set(ends.values()) == {rows} else 1


if __name__ == "__main__":
    sys.exit(main())
