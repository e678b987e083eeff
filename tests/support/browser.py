"""A headless browser that the run brings itself, and where to find it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
# 100 MB of packages; half a minute on an idle machine.
_PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
_INSTALL_S = 280


def find_or_install_browser() -> str:
    """Return the path of a Chromium: SNOWMELT_CHROMIUM, one on the PATH, or Debian's, installed now.

    A test that needs it fails with the reason where none can be had; it is never skipped.
    """
    if given := os.environ.get("SNOWMELT_CHROMIUM"):
        return given
    # Processes of one run wait for each other.
    with Path(tempfile.gettempdir(), "snowmelt-browser.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _find()
        if found is None:
            _install()
            found = _find()
    assert found is not None, f"{_PACKAGES[0]} was installed, but is not on the PATH"
    return found


def _find() -> str | None:
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def _install() -> None:
    wanted = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES)
    says = (
        "The browser tests need Chromium. Install it with"
        f" `{' '.join(wanted)}` as root, or name one in SNOWMELT_CHROMIUM."
    )
    assert os.geteuid() == 0, says
    assert shutil.which("apt-get") is not None, says
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = None
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
    raise AssertionError(f"{says} It said: {done.stderr.strip()[-500:] if done else ''}")
