"""Is a row ever lost or doubled, whichever process is killed at whichever point?

uv run python benchmarks/kills.py [--kills 20] [--engine local|spark]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from report import Report

from snowmelt.testing.crashes import (
    CLIENT_POINTS,
    MIGRATION_POINTS,
    SERVICE_POINTS,
    CrashSite,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    options = parser.parse_args()
    points = (*CLIENT_POINTS, *SERVICE_POINTS, *MIGRATION_POINTS)
    if options.engine == "spark":
        points = MIGRATION_POINTS
    subject = "kills" if options.engine == "local" else "kills_spark"
    report = Report(
        subject,
        f"Rows lost and doubled by kill -9, migrations by the {options.engine} engine",
        ("point", "kills", "rows", "lost", "doubled"),
    )
    bad = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        CrashSite(Path(folder) / "site", engine=options.engine) as site,
    ):
        for point in points:
            outcome = site.run(point, options.kills)
            bad += outcome.lost + outcome.doubled
            report.add(point.value, outcome.kills, outcome.rows, outcome.lost, outcome.doubled)
    report.keep()
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
