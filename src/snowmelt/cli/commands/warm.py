"""`snowmelt warm`: prepare in advance what first use and each start of Spark otherwise prepare."""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec

from snowmelt.cli.command_context import load_settings
from snowmelt.config import read_environment_variable, set_numba_cache_dir

NAME = "warm"
SUMMARY = "compile kernels, and archive Spark's classes, ahead of time"
EXAMPLES = """examples:
  snowmelt warm
  NUMBA_CACHE_DIR=/var/cache/snowmelt snowmelt warm
  RUN snowmelt warm                       (the last line of a container's build)

Run the command after an installation or an upgrade, as a user who may write to the folder of the
package. The service and COPY then start without compiling, and each start of Spark takes 4 s of
processor time less (its archive of classes takes 190 MB). Compiled code is specific to a type of
processor: on another one, the service compiles again, and stores the result in its data folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(options: argparse.Namespace) -> int:
    """Compile all kernels, and archive Spark's classes. Print what was prepared, and the CPU time."""
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
    if find_spec("pyspark") is None:
        return 0
    from snowmelt.spark.class_archive import make_class_archive

    archive = make_class_archive()
    print(f"Spark's classes archived in {archive}" if archive else "Spark's classes are archived")
    return 0
