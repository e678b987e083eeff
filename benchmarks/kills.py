"""Is a row ever lost or doubled, whichever process is killed at whichever point?

uv run python benchmarks/kills.py [--kills 20] [--engine local|spark]

Local engine by default; Spark's kills take some twenty seconds each. The page keeps the rows of an
engine that did not run, with the commit at which it did.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from report import RESULTS, Report, commit

from snowmelt.testing.crashes import (
    CLIENT_POINTS,
    MIGRATION_POINTS,
    SERVICE_POINTS,
    CrashSite,
    Outcome,
)

SUBJECT = "kills"
COLUMNS = ("point", "migrations by", "kills", "rows", "lost", "doubled", "commit")

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


def kept(engine: str) -> list[list[str]]:
    """Return the rows of the page that were found with the other engine."""
    page = RESULTS / f"{SUBJECT}.md"
    lines = page.read_text().splitlines() if page.exists() else []
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    other = set(POINTS) - {engine}
    return [row for row in rows if len(row) == len(COLUMNS) and row[1] in other]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", choices=sorted(POINTS), default="local")
    options = parser.parse_args()
    outcomes = killed(options.engine, options.kills)
    report = Report(SUBJECT, "Rows lost and doubled by kill -9", COLUMNS)
    rows = kept(options.engine) + [
        [each.point.value, options.engine, each.kills, each.rows, each.lost, each.doubled, commit()]
        for each in outcomes
    ]
    for row in sorted(rows, key=lambda row: row[1]):
        report.add(*row)
    report.remark(
        "Each kill strikes a process of its own while numbered rows stream in: the client, the "
        "service, or the migrator (at migration.task with Spark, the worker on its executor)."
    )
    report.keep()
    return 1 if any(each.lost or each.doubled for each in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
