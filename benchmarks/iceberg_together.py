"""Loop that kills the service and other engines that write, and checks order and completeness.

uv run python benchmarks/iceberg_together.py [--seconds 120]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import list_findings
from iceberg_freshness import make_token
from report import Report

from engines.test_more_iceberg_engines import SPARK, find_jars
from fixtures.engines import REQUIREMENTS, Engine, EngineError, make_environment, start_engine
from snowmelt.testing.soak import (
    BATCH_PREFIX,
    ROWS_PER_FILE,
    TABLE_NAME,
    ConsistencyReader,
    SoakHarness,
)
from support.ports import free_port

READERS = ("pyiceberg", "duckdb")
WRITERS = ("pyiceberg", "spark")
TABLE = f"{TABLE_NAME.schema}.{TABLE_NAME.table}"
_DELETE_SHARE = 0.4


def make_reader(name: str, engine: Any) -> ConsistencyReader:
    def read() -> list[tuple[str, int]]:
        return [
            (channel, int(float(number)))
            for channel, number in engine.read(TABLE, "CHANNEL", "NUMBER")
        ]

    # Ignore failed requests: the service may be killed at any time, and the rows are checked later.
    return ConsistencyReader(read, ROWS_PER_FILE, name=name, expected_errors=(EngineError,))


class EngineWriter(threading.Thread):
    """Engine that adds batches and deletes earlier ones. It is restarted after a kill."""

    def __init__(self, name: str, open_engine: Callable[[], Engine], seed: int) -> None:
        super().__init__(name=f"{name} writes", daemon=True)
        self.engine_name = name
        self.present: set[str] = set()
        self.uncertain: set[str] = set()
        self.commits = self.errors = 0
        self.refusals: Counter[str] = Counter()
        self._open_engine = open_engine
        self._engine: Engine | None = None
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._count = 0

    def run(self) -> None:
        while not self._ended.is_set():
            if self._engine is None:
                try:
                    self._engine = self._open_engine()
                except (AssertionError, OSError):
                    # The service was down when the engine requested its configuration.
                    continue
            if self.present and self._random.random() < _DELETE_SHARE:
                self._remove_batch(self._random.choice(sorted(self.present)))
            else:
                self._add_batch()

    def kill(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.process.kill()

    def finish(self) -> None:
        self._ended.set()
        self.join()
        if self._engine is not None:
            self._engine.close()

    def _add_batch(self) -> None:
        self._count += 1
        batch = f"{BATCH_PREFIX}{self.engine_name}-{self._count}"
        self.uncertain.add(batch)
        insert = (
            f"INSERT INTO lake.{TABLE} (CHANNEL, NUMBER, TEXT) "
            f"SELECT '{batch}', CAST(id AS DECIMAL(18,0)), NULL FROM range({ROWS_PER_FILE})"
        )
        request = {"table": TABLE, "append": batch, "rows": ROWS_PER_FILE}
        if self._commit(insert, request):
            self.uncertain.discard(batch)
            self.present.add(batch)

    def _remove_batch(self, batch: str) -> None:
        self.present.discard(batch)
        self.uncertain.add(batch)
        condition = f"CHANNEL = '{batch}'"
        request = {"table": TABLE, "delete": condition}
        if self._commit(f"DELETE FROM lake.{TABLE} WHERE {condition}", request):
            self.uncertain.discard(batch)

    def _commit(self, query: str, request: dict[str, Any]) -> bool:
        """Return True if the commit certainly succeeded."""
        assert self._engine is not None
        try:
            self._engine.ask(**({"query": query} if self.engine_name == "spark" else request))
        except EngineError as error:
            self.errors += 1
            self.refusals[str(error)[:160]] += 1
            self._ended.wait(0.5)
            return False
        except (OSError, ValueError):
            self._engine.close()
            self._engine = None
            return False
        self.commits += 1
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report(
        "iceberg_together",
        "Engines of others read and write beside writers, and all that write are killed",
        (
            *("seconds", "kills", "queries", "queries wrong", "streamed", "copied"),
            *("rows of engines", "commits of engines", "refused", "lost", "doubled", "findings"),
        ),
    )
    python = make_environment("engines", REQUIREMENTS)
    pythons = {"pyiceberg": python, "spark": make_environment("spark-4.0", SPARK)}
    more = {"pyiceberg": (), "spark": (find_jars("1.10.1"), "true")}
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder,
        SoakHarness(Path(folder) / "data", seed=options.seed, s3_port=free_port()) as site,
    ):
        token = make_token(site.settings, "CRASH")
        uri = f"{site.url}/iceberg"

        def opener(name: str) -> Callable[[], Engine]:
            return lambda: start_engine(
                pythons[name], Path(folder), name, uri, "CRASH", token, *more[name]
            )

        engines = [
            start_engine(python, Path(folder), name, uri, "CRASH", token) for name in READERS
        ]
        readers = [make_reader(name, engine) for name, engine in zip(READERS, engines, strict=True)]
        writers = [EngineWriter(name, opener(name), options.seed) for name in WRITERS]
        try:
            counted = site.run_for(options.seconds, more_readers=readers, writers=writers)
            rows = counted.streamed_rows + counted.copied_rows + counted.batch_rows
            ends = {reader.name: reader.check_once() for reader in readers}
            findings = list_findings(Path(folder) / "data")
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
        counted.batch_rows,
        ", ".join(f"{writer.engine_name} {writer.commits:,}" for writer in writers),
        sum(writer.errors for writer in writers),
        counted.lost_rows,
        counted.duplicate_rows,
        len(findings),
    )
    report.remark(
        "PyIceberg and DuckDB read all the time through the Iceberg REST catalog, beside Snowmelt's own "
        f"reader. Another PyIceberg and Spark add batches of {ROWS_PER_FILE} rows and delete earlier ones. "
        "Killed at any moment: both of these, COPY, migration, maintenance, the client, and the service "
        "with its publisher. Refused: commits that failed with an error, most because the service was dead."
    )
    for name, end in ends.items():
        report.remark(f"{name} counts {end:,} of {rows:,} rows at the end.")
    for sentence in sorted(set(counted.violations)):
        report.remark(f"A query: {sentence}.")
    for finding in findings:
        report.remark(f"A check: {finding}")
    report.keep()
    return 0 if counted.is_exact and not findings and set(ends.values()) == {rows} else 1


if __name__ == "__main__":
    sys.exit(main())
