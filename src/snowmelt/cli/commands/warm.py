"""`snowmelt warm`: compile kernels in advance that are otherwise compiled at first use."""

from __future__ import annotations

import argparse
import time

from snowmelt.cli.command_context import load_settings
from snowmelt.config import read_environment_variable, set_numba_cache_dir

NAME = "warm"
SUMMARY = "compile the kernels of S3 Select, COPY and the row API ahead of time"
EXAMPLES = """examples:
  snowmelt warm
  NUMBA_CACHE_DIR=/var/cache/snowmelt snowmelt warm
  RUN snowmelt warm                       (the last line of a container's build)

Run the command after an installation or an upgrade, as a user who may write to the folder of the
package. The service and COPY then start without compiling. Compiled code is specific to a type of
processor: on another one, the service compiles again, and stores the result in its data folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(options: argparse.Namespace) -> int:
    """Compile all kernels, or load them from the cache. Print their number and the CPU time."""
    set_numba_cache_dir(load_settings(options).data_dir / "compiled")
    began = time.process_time()
    from snowmelt.ingest.rows.row_converter import KernelLoader
    from snowmelt.jit import list_kernels
    from snowmelt.load.parsers.warmup import warm_up_parsers
    from snowmelt.select.warmup import warm_up_kernels

    warm_up_kernels()
    warm_up_parsers()
    KernelLoader().load()
    compiled, loaded = list_kernels()
    spent_s = time.process_time() - began
    for name in compiled:
        print(f"compiled {name}")
    folder = read_environment_variable("NUMBA_CACHE_DIR")
    print(
        f"{len(compiled)} kernels compiled, {len(loaded)} loaded in {spent_s:.1f} s of processor time;"
        f" kept {f'in {folder}' if folder else 'beside the package'}"
    )
    return 0
