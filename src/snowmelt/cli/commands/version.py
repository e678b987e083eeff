"""`snowmelt version`: print the version."""

from __future__ import annotations

import argparse

import snowmelt

NAME = "version"
SUMMARY = "print the version"
EXAMPLES = """examples:
  snowmelt version
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(options: argparse.Namespace) -> int:
    del options
    print(f"snowmelt {snowmelt.__version__}")
    return 0
