"""`snowmelt version`: print the version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import snowmelt

if TYPE_CHECKING:
    import argparse

NAME = "version"
SUMMARY = "print the version"
EXAMPLES = """examples:
  snowmelt version
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: there is nothing to choose."""
    del parser


def run(options: argparse.Namespace) -> int:
    """Print it."""
    del options
    print(f"snowmelt {snowmelt.__version__}")
    return 0
