"""Do COPY, migration and streaming on one table, all killed at random, lose or double a row?

uv run python benchmarks/copy_together.py [--seconds 120] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from report import Report

from snowmelt.testing.together import Together

COLUMNS = ("seconds", "kills", "loads", "loads lost", "streamed", "copied", "lost", "doubled")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report("copy_together", "COPY, migration and streaming together, with kills", COLUMNS)
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder,
        Together(Path(folder) / "data", seed=options.seed) as site,
    ):
        counted = site.run_for(options.seconds)
    report.add(
        f"{options.seconds:g}",
        counted.kills,
        counted.loads,
        counted.lost_loads,
        counted.streamed,
        counted.copied,
        counted.lost,
        counted.doubled,
    )
    report.remark(
        "Killed at any moment: the process that copies, the one that migrates, the client that "
        "streams, the service. Each file is named in many a COPY and has one record that is rejected."
    )
    report.keep()
    return 0 if counted.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
