"""`./run` in a fresh checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "#!/bin/sh\necho started\n"


def write_wheel(folder: Path) -> None:
    """Write a package `uv` whose program prints a word."""
    info = "uv-99.0.dist-info"
    program = zipfile.ZipInfo("uv-99.0.data/scripts/uv")
    program.external_attr = 0o100755 << 16
    with zipfile.ZipFile(folder / "uv-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(program, _PROGRAM)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 99.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = ["uv-99.0.data/scripts/uv", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))


@pytest.mark.slow
def test_commands_that_start_together_install_uv(tmp_path: Path) -> None:
    write_wheel(tmp_path)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(ROOT / "run", checkout)
    programs = tmp_path / "programs"
    programs.mkdir()
    # Not the folders of this machine, which may have uv.
    for name in ("bash", "dirname", "mkdir", "mv", "rm", "sh"):
        (programs / name).symlink_to(shutil.which(name) or name)
    (programs / "python3").symlink_to(Path(sys.base_prefix, "bin", "python3"))
    environment = {
        "PATH": str(programs),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "HOME": os.environ.get("HOME", "/"),
    }
    running = [
        subprocess.Popen(
            [checkout / "run", "--version"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    assert [each.communicate()[0] for each in running] == ["started\n"] * 3
    assert [each.returncode for each in running] == [0, 0, 0]
    assert [path.name for path in (checkout / ".tools").rglob("*")] == ["bin", "uv"]
