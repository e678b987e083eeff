"""Finds or installs a headless browser."""

from __future__ import annotations

import os

from support.debian_packages import find_or_install

_PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
# Downloads 100 MB of packages, which takes half a minute on an idle machine.
_PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")


def find_or_install_browser() -> str:
    """Return the path of a Chromium: SNOWMELT_CHROMIUM, one on the PATH, or Debian's, installed now."""
    return os.environ.get("SNOWMELT_CHROMIUM") or find_or_install(_PROGRAMS, _PACKAGES)
