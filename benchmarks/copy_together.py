"""Loop that kills concurrent COPY, migration, compaction, streams and queries, and checks all rows.

uv run python benchmarks/copy_together.py [--seconds 120] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness import list_findings
from report import Report

from snowmelt.testing.soak import SoakHarness

COLUMNS = (
    *("seconds", "kills", "loads", "loads lost", "compactions", "queries", "queries wrong"),
    *("streamed", "copied", "lost", "doubled", "findings"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report(
        "copy_together",
        "COPY, migration, compaction, streaming and queries together, with kills",
        COLUMNS,
    )
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder,
        SoakHarness(Path(folder) / "data", seed=options.seed) as site,
    ):
        counted = site.run_for(options.seconds)
        findings = list_findings(Path(folder) / "data")
    report.add(
        f"{options.seconds:g}",
        counted.kills,
        counted.committed_loads,
        counted.lost_loads,
        counted.compactions,
        counted.queries,
        len(counted.violations),
        counted.streamed_rows,
        counted.copied_rows,
        counted.lost_rows,
        counted.duplicate_rows,
        len(findings),
    )
    report.remark(
        "Killed at any moment: the process that copies, the one that migrates, the one that joins "
        "files, the client that streams, the service. A query is right if it sees whole commits, "
        "each row once, and none gone. Findings are those of `snowmelt check --deep`. Each file is named in many a COPY and has one record that is rejected."
    )
    for sentence in sorted(set(counted.violations)):
        report.remark(f"A query: {sentence}.")
    for finding in findings:
        report.remark(f"A check: {finding}")
    report.keep()
    return 0 if counted.is_exact and not findings else 1


if __name__ == "__main__":
    sys.exit(main())
