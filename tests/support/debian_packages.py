"""Installs missing programs from Debian packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_INSTALL_S = 280


def find_or_install(programs: Sequence[str], packages: Sequence[str]) -> str:
    """Return the path of the first of these programs on the PATH. Installs one if needed.

    If the installation fails, the test fails with the reason. It is never skipped.
    """
    # Serialize installations of the processes of a run.
    with Path(tempfile.gettempdir(), "snowmelt-packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _find(programs)
        if found is None:
            _install(programs[0], packages)
            found = _find(programs)
    assert found is not None, f"{packages[0]} was installed, but {programs[0]} is not on the PATH"
    return found


def _find(programs: Sequence[str]) -> str | None:
    return next(filter(None, map(shutil.which, programs)), None)


def _install(program: str, packages: Sequence[str]) -> None:
    wanted = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    says = f"This test needs {program}. Install it as root with `{' '.join(wanted)}`."
    assert os.geteuid() == 0, says
    assert shutil.which("apt-get") is not None, says
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    stderr = ""
    for command in (wanted, ("apt-get", "update", "-qq"), wanted):
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_INSTALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{says} `{command[0]}` did not end in time.") from None
        if done.returncode == 0 and command is wanted:
            return
        stderr = done.stderr.strip()[-500:]
    raise AssertionError(f"{says} It said: {stderr}")
