"""Loop of random operations on a service, compared with a model of all rows, tokens and columns.

uv run python benchmarks/system_model.py [--seconds 600] [--seed N] [--steps N] [--catalog postgres]
    [--storage bucket] [--spark] [--focus MODULE] [--folder FOLDER]

Clients of the SDK, the row API and COPY write to the same tables, while statements change, rename,
replace, drop, restore and truncate these, and the service and the clients are killed. Plain queries,
PyIceberg and DuckDB read. The seed decides each step: the same seed repeats a run, except for the
timing of kills. The folder of a run with differences is retained, with all operations in
`operations.log`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fixtures.engines import REQUIREMENTS, make_environment
from support.system_model.history import OPERATIONS, HistoryOptions, run_history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--steps", type=int, default=0, help="end after steps, not seconds")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--catalog", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--storage", choices=("folder", "bucket"), default="folder")
    parser.add_argument("--spark", action="store_true", help="also INSERT, UPDATE, MERGE of Spark")
    modules = sorted({each.__module__.rpartition(".")[2] for each in OPERATIONS})
    parser.add_argument(
        "--focus", action="append", default=[], choices=modules, help="operations to do more often"
    )
    parser.add_argument("--folder", type=Path, help="new folder of the run (default: temporary)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="snowmelt-model-"))
    folder.mkdir(exist_ok=True)
    print(f"seed {seed}, folder {folder}", flush=True)
    result = run_history(
        folder,
        HistoryOptions(
            seed,
            steps=options.steps,
            seconds=options.seconds,
            postgres=options.catalog == "postgres",
            bucket=options.storage == "bucket",
            spark=options.spark,
            focus=tuple(options.focus),
            engine_python=make_environment("engines", REQUIREMENTS),
        ),
    )
    for difference in result.differences:
        print(f"difference: {difference}")
    if not result.differences and options.folder is None:
        shutil.rmtree(folder)
    for name, count in sorted(result.counts.items()):
        print(f"{name}: {count:,}")
    values = sum(count for name, count in result.counts.items() if name.startswith("values"))
    kills = sum(count for name, count in result.counts.items() if name.startswith("kills"))
    print(
        f"seed {seed}: {len(result.differences)} differences, {result.steps:,} steps, {kills:,} kills, "
        f"{values:,} values compared"
    )
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
