"""`snowmelt demo`: streaming ingestion of real data, with a real crash."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from snowmelt.errors import ConfigurationError

NAME = "demo"
SUMMARY = "stream 336,776 real flights, kill the loader, resume it, and verify the counts"
EXAMPLES = """examples:
  snowmelt demo
  snowmelt demo --folder /tmp/flights --rows-per-s 10000
"""
_MARKER_FILE = ".snowmelt-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("snowmelt-demo"),
        help="where the demo keeps its data; an earlier demo there is replaced (default: %(default)s)",
    )
    parser.add_argument(
        "--rows-per-s",
        type=float,
        default=7000.0,
        help="rate of the load, in rows per second (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo. Return 0 only if every check succeeded."""
    from rich.console import Console

    from snowmelt.cli.flights_demo.scenario import DemoScenario  # needs the demo's extra packages

    if options.folder.exists() and any(options.folder.iterdir()):
        if not (options.folder / _MARKER_FILE).exists():
            raise ConfigurationError(
                setting="--folder",
                reason=f"{options.folder} is not empty and has no earlier demo. Choose another folder",
            )
        shutil.rmtree(options.folder)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / _MARKER_FILE).touch()
    folder = options.folder.resolve()
    # Without a terminal, `rich` would wrap the final table at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 120)
    return 0 if DemoScenario(folder, options.rows_per_s, console).run() else 1
