"""The memory of a load does not grow with the size of its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# Measure the peak in a separate process, without imports.
PROGRAM = """
import gzip, resource, sys
from pathlib import Path
from fixtures.chunks import Lakehouse
from fixtures.copy import Copying

folder, times = Path(sys.argv[1]), int(sys.argv[2])
house = Lakehouse(folder)
house.create()
copying = Copying(house)
copying.copy("COPY numbers FROM " + copying.file("small.csv.gz", gzip.compress(b"1|one\\n")))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


before = peak()
part = gzip.compress(b"".join(b"%d|word number %d of many\\n" % (n, n) for n in range(100_000)), 1)
with (copying.folder / "large.csv.gz").open("wb") as file:
    for _ in range(times):
        file.write(part)
copied = copying.copy(f"COPY numbers FROM '{copying.folder}/large.csv.gz'")
assert copied.totals.rows == times * 100_000
print(peak() - before)
"""


def mebibytes(folder: Path, times: int) -> int:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(times)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_load_of_any_size_takes_64_mebibytes(tmp_path: Path) -> None:
    # Files with 35 and 140 MB of text.
    small, large = mebibytes(tmp_path / "small", 10), mebibytes(tmp_path / "large", 40)
    assert large <= 64, (small, large)
    assert large - small <= 16, (small, large)
