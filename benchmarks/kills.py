"""Loop that kills each process at each failpoint, and checks for lost or duplicate rows.

uv run python benchmarks/kills.py [--kills 20] [--engine local|spark] [--point NAME]…

A kill with Spark takes about 20 s. A run replaces the page's rows of its failpoints. Other rows
keep their commit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from report import RESULTS, Report, commit

from snowmelt.failpoints import Failpoint
from snowmelt.testing.crash_harness import (
    CLIENT_POINTS,
    MIGRATION_POINTS,
    SERVICE_POINTS,
    CrashHarness,
)

if TYPE_CHECKING:
    from snowmelt.testing.crash_harness import CrashResult

SUBJECT = "kills"
COLUMNS = ("point", "migrations by", "kills", "rows", "lost", "doubled", "commit")
STREAMING = (*CLIENT_POINTS, *SERVICE_POINTS, *MIGRATION_POINTS)
# With Spark, only migrations differ, so run only their points.
ENGINES = {"local": STREAMING, "spark": MIGRATION_POINTS}
REMARK = (
    "Each kill strikes a process of its own while numbered rows stream in: the client, the "
    "service, or the migrator (at migration.task with Spark, the worker on its executor)."
)


def keep(engine: str, outcome: CrashResult) -> None:
    """Write the result to the page, and replace an older result."""
    page = RESULTS / f"{SUBJECT}.md"
    lines = page.read_text().splitlines() if page.exists() else []
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    rows = {row[:2]: row for row in cells if len(row) == len(COLUMNS) and row[1] in ENGINES}
    rows[outcome.point.value, engine] = (
        *(outcome.point.value, engine),
        *map(
            str, (outcome.kills, outcome.expected_rows, outcome.lost_rows, outcome.duplicate_rows)
        ),
        commit(),
    )
    report = Report(SUBJECT, "Rows lost and doubled by kill -9", COLUMNS, remarks=[REMARK])
    order = [point.value for point in STREAMING]
    report.rows = sorted(rows.values(), key=lambda row: (row[1], order.index(row[0])))
    report.keep()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="local")
    parser.add_argument("--point", type=Failpoint, action="append")
    options = parser.parse_args()
    bad = 0
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-kills-") as folder,
        CrashHarness(Path(folder) / "site", engine=options.engine) as site,
    ):
        for point in options.point or ENGINES[options.engine]:
            outcome = site.run(point, options.kills)
            bad += outcome.lost_rows + outcome.duplicate_rows
            keep(options.engine, outcome)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
