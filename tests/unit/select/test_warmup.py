"""Warming loads every kernel; compiled code is kept where that is possible, and not needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import sys, snowmelt.select.warmup as warmup
from numba.core.dispatcher import Dispatcher
warmup.warm_up_kernels()
kernels = {
    f"{name}.{key}": value
    for name, module in list(sys.modules.items()) if name.startswith("snowmelt.select")
    for key, value in vars(module).items()
    if isinstance(value, Dispatcher) and not value.targetoptions.get("forceinline")
}
# What only other kernels call is part of their code.
inner = {name for each in kernels.values() for name in each.py_func.__code__.co_names}
missing = {name for name, each in kernels.items() if not each.signatures}
print(len(kernels), sorted(name for name in missing if name.split(".")[-1] not in inner))
"""


def run(code: str, **environment: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    ).stdout.split(maxsplit=1)


@pytest.mark.slow
def test_warming_loads_every_kernel() -> None:
    count, missing = run(LOADED)
    assert int(count) > 10
    assert missing.strip() == "[]"


COUNTED = """
import numpy as np
from snowmelt.select.formats.csv_dialect import make_csv_rules
from snowmelt.select.dialect import Dialect
from snowmelt.select.request import CsvInput
from snowmelt.kernels.csv_tokenizer import CsvRecordCounter
data = np.frombuffer(bytearray(b"a\\nb\\n" + bytes(64)), np.uint8)
print(CsvRecordCounter(make_csv_rules(CsvInput(), Dialect.AWS))(data, 0, 4)[0])
"""


@pytest.mark.slow
def test_kernels_work_where_no_folder_can_be_written() -> None:
    nowhere = "/proc/nothing"
    (count,) = run(
        COUNTED,
        NUMBA_CACHE_LOCATOR_CLASSES="UserWideCacheLocator",
        HOME=nowhere,
        XDG_CACHE_HOME=nowhere,
    )
    assert count == "2"


@pytest.mark.slow
def test_two_processes_may_fill_one_cache(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", COUNTED], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=250)[0] for process in both] == [b"2\n"] * 2
    assert run(COUNTED, NUMBA_CACHE_DIR=str(tmp_path)) == ["2"]
