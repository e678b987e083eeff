"""Compiled code is renewed when any file with kernels of its package changes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import snowmelt
from snowmelt import jit
from snowmelt.select.formats import json_reader
from snowmelt.select.kernels.strings import _compare_bytes

PACKAGE = Path(snowmelt.__file__).parent


def test_a_kernel_depends_on_all_kernels_of_its_package() -> None:
    folder = jit._find_package_folder(cast("Any", _compare_bytes).py_func)
    assert folder == PACKAGE / "select"
    assert Path(json_reader.__file__).is_relative_to(folder)


def test_a_change_of_a_kernel_in_another_folder_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    called = tmp_path / "kernels" / "called.py"
    called.write_text("from snowmelt.jit import jit_kernel")
    (tmp_path / "plain.py").write_text("value = 1")
    before = jit._digest_kernel_sources(tmp_path)
    (tmp_path / "plain.py").write_text("value = 2")
    jit._digest_kernel_sources.cache_clear()
    assert jit._digest_kernel_sources(tmp_path) == before
    called.write_text("from snowmelt.jit import jit_kernel  # changed")
    jit._digest_kernel_sources.cache_clear()
    assert jit._digest_kernel_sources(tmp_path) != before
    jit._digest_kernel_sources.cache_clear()


_KERNEL = """
import sys
from pathlib import Path
from snowmelt.jit import jit_kernel, list_kernels
folder = Path(sys.argv[1])
exec(compile((folder / "counting.py").read_text(), str(folder / "counting.py"), "exec"))
assert count(3) == 4
print(list_kernels())
"""


def _run_kernel(folder: Path) -> str:
    (folder / "counting.py").write_text("@jit_kernel\ndef count(value):\n    return value + 1\n")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", _KERNEL, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_cache_of_another_version_that_names_modules_that_are_gone_is_not_read(
    tmp_path: Path,
) -> None:
    assert _run_kernel(tmp_path) == "(['count'], [])"
    assert _run_kernel(tmp_path) == "([], ['count'])"
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    with index.open("rb") as file:
        version = pickle.load(file)
    # What unpickles only where there is such a module.
    index.write_bytes(pickle.dumps(f"{version} before") + b"csnowmelt.gone\nanything\n.")
    assert _run_kernel(tmp_path) == "(['count'], [])"
