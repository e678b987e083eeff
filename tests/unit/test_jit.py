"""Compiled code is renewed when any file with kernels of its package changes."""

from __future__ import annotations

from pathlib import Path

import snowmelt
from snowmelt import jit
from snowmelt.select.formats import json_reader
from snowmelt.select.kernels.strings import _compare_bytes

PACKAGE = Path(snowmelt.__file__).parent


def test_a_kernel_depends_on_all_kernels_of_its_package():
    folder = jit._find_package_folder(_compare_bytes.py_func)
    assert folder == PACKAGE / "select"
    assert Path(json_reader.__file__).is_relative_to(folder)


def test_a_change_of_a_kernel_in_another_folder_changes_the_digest(tmp_path):
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
