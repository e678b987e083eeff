"""Benchmark of the first COPY after an installation, which needs compiled code.

uv run python benchmarks/first_load.py [--megabytes 40]

Each variant is a new process with an empty cache of compiled code. It waits for the compiler, or
uses the exact reader while another process or a thread compiles.
"""

# ruff: noqa: SLF001 - the sample of the warm-up is what is loaded
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from report import Report

from snowmelt.load.parsers import definition, warmup
from snowmelt.load.phase_protocols import ByteReader, ParseTarget
from snowmelt.load.portion import InputFile, Portion

COLUMNS = (
    *("format", "who compiles", "first rows after s", "all rows after s", "CPU here s"),
    "CPU with the compiler s",
)
_WAYS = ("caller", "process", "thread", "nobody: all is cached")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--way", nargs=2, help="used by the benchmark itself")
    options = parser.parse_args()
    if options.way:
        name, way = options.way
        print(*load_once(name, way, options.megabytes))
        return 0
    report = Report("first_load", "The first COPY after an installation", COLUMNS)
    for name in ("DELIMITED", "JSON"):
        with tempfile.TemporaryDirectory() as folder:
            for way in _WAYS:
                cache = folder if way in {"process", _WAYS[-1]} else f"{folder}/{way}"
                command = [sys.executable, __file__, "--way", name, way]
                done = subprocess.run(
                    [*command, "--megabytes", str(options.megabytes)],
                    env=os.environ | {"NUMBA_CACHE_DIR": cache},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                report.add(name, way, *done.stdout.split())
    report.remark(f"{options.megabytes} MB of eight columns; s from when the parser begins.")
    report.keep()
    return 0


def load_once(name: str, way: str, megabytes: int) -> list[str]:
    """Parse the records. Return the values of COLUMNS."""
    reader = warmup.COMPILED_READERS[name]
    if way == "caller":
        reader._caller.compiles = True
    elif way == "thread":
        from snowmelt import jit

        jit.find_cache_folder = lambda: None
    values = warmup._VALUES
    fields = zip(warmup._SCHEMA.columns, values, strict=True)
    record = (
        ",".join(values)
        if name == "DELIMITED"
        else "{" + ", ".join(f'"{column.name}": "{value}"' for column, value in fields) + "}"
    ).encode() + b"\n"
    piece = record * ((1 << 20) // len(record))
    source = ByteReader(iter([piece] * megabytes))
    defined = definition(name)
    assert defined is not None
    parser = defined.build_phase({"delimiter": ","} if name == "DELIMITED" else {})
    target = ParseTarget(warmup._SCHEMA, {})
    began, cpu_began = time.perf_counter(), time.process_time()
    batches = parser.parse(source, target, Portion(InputFile("x")))
    next(batches)
    first_s = time.perf_counter() - began
    for _ in batches:
        pass
    figures = [first_s, time.perf_counter() - began, time.process_time() - cpu_began]
    reader.wait_until_ready()
    times = os.times()
    figures.append(times.user + times.system + times.children_user + times.children_system)
    return [f"{figure:.1f}" for figure in figures]


if __name__ == "__main__":
    sys.exit(main())
