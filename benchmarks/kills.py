"""Is a row ever lost or doubled, whichever process is killed at whichever point?

uv run python benchmarks/kills.py [--kills 20] [--engine local] [--engine spark]

Both engines by default, side by side; Spark's kills take some twenty seconds each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from report import Report

from snowmelt.testing.crashes import (
    CLIENT_POINTS,
    MIGRATION_POINTS,
    SERVICE_POINTS,
    CrashSite,
    Outcome,
)

# With Spark only a migration differs: clients and service are the same.
POINTS = {
    "local": (*CLIENT_POINTS, *SERVICE_POINTS, *MIGRATION_POINTS),
    "spark": MIGRATION_POINTS,
}


def killed(engine: str, kills: int) -> list[Outcome]:
    """Kill at every point of the engine, and say what was found as it is found."""
    outcomes = []
    with (
        tempfile.TemporaryDirectory(prefix=f"snowmelt-kills-{engine}-") as folder,
        CrashSite(Path(folder) / "site", engine=engine) as site,
    ):
        for point in POINTS[engine]:
            began = time.monotonic()
            outcomes.append(site.run(point, kills))
            seconds = time.monotonic() - began
            print(f"{engine}: {outcomes[-1]}, {seconds:.0f} s", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", choices=sorted(POINTS), action="append")
    options = parser.parse_args()
    engines = sorted(set(options.engine or POINTS))
    report = Report(
        "kills",
        "Rows lost and doubled by kill -9",
        ("point", "migrations by", "kills", "rows", "lost", "doubled"),
    )
    with ThreadPoolExecutor(len(engines)) as pool:
        found = pool.map(lambda engine: killed(engine, options.kills), engines)
    bad = 0
    for engine, outcomes in zip(engines, found, strict=True):
        for each in outcomes:
            bad += each.lost + each.doubled
            report.add(each.point.value, engine, each.kills, each.rows, each.lost, each.doubled)
    report.remark(
        "Each kill strikes a process of its own while numbered rows stream in: the client, the "
        "service, or the migrator (at migration.task with Spark, the worker on its executor)."
    )
    report.keep()
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
