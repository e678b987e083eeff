"""After the warm-up parsers compile nothing, and before it they wait for no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snowmelt import jit
from snowmelt.load.parsers.warmup import _SCHEMA, warm_up_parsers
from support.parser_runs import load


def _signatures() -> dict[Any, Any]:
    return {each.__name__.lstrip("_"): list(each.signatures) for each in jit._KERNELS}


@pytest.mark.slow
def test_what_was_warmed_up_compiles_for_no_other_text() -> None:
    warm_up_parsers()
    before = _signatures()
    assert before["find_records"]
    assert before["frame_objects"]
    delimited = '7,1.5,2e3,"a ""b""",2020-02-29,2020-02-29T01:02:03Z,,false\n,,,,,,,\nx,y\n'
    load("delimited", delimited.encode() * 2_000, schema=_SCHEMA, delimiter=",", enclosed_by='"')
    lines = '{"N": 12, "T": "é", "Z": null}\n{"N": "x"}\n{"N": [}\n'
    load("json", lines.encode() * 2_000, schema=_SCHEMA)
    assert _signatures() == before


FIRST_LOADS = r"""
import sys
sys.path.insert(0, sys.argv[1])
from snowmelt import jit
from snowmelt.load.parsers.warmup import _SCHEMA, COMPILED_READERS
from support.parser_runs import load
delimited = ('7,1.5,2e3,"a, b",2020-02-29,2020-02-29T01:02:03Z,,false\n,,,,,,,\nx,y\n' * 700).encode()
lines = '{"N": 12, "T": "\u00e9", "Z": null}\n{"N": "x"}\n{"N": [}\n"x"\n'.encode() * 700
def both():
    first = load("delimited", delimited, _SCHEMA, delimiter=",", enclosed_by='"')
    return repr((first, load("json", lines, _SCHEMA)))
exact = both()
readers = COMPILED_READERS.values()
print(*(reader.is_ready for reader in readers))
for reader in readers:
    reader.wait_until_ready()
assert both() == exact
print(*(reader.is_ready for reader in readers))
print(*jit.list_kernels(), sep="\n")
"""


def _run_first_loads(**environment: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", FIRST_LOADS, str(Path(__file__).parents[3])],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    ).stdout.splitlines()


@pytest.mark.slow
def test_first_loads_are_read_exactly_while_another_process_compiles(tmp_path: Path) -> None:
    *was_and_is_ready, compiled, loaded = _run_first_loads(NUMBA_CACHE_DIR=str(tmp_path))
    assert [*was_and_is_ready, compiled] == ["False False", "True True", "[]"]
    assert "'find_records'" in loaded
    assert "'copy_texts'" in loaded


@pytest.mark.slow
def test_first_loads_are_compiled_in_a_thread_where_no_folder_can_be_written() -> None:
    nowhere = {"HOME": "/proc/nothing", "XDG_CACHE_HOME": "/proc/nothing"}
    told = _run_first_loads(NUMBA_CACHE_LOCATOR_CLASSES="UserWideCacheLocator", **nowhere)
    assert told[:2] == ["False False", "True True"]
