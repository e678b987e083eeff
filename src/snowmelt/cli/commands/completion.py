"""`snowmelt completion`: a shell's completion script for commands and options."""

from __future__ import annotations

import argparse

NAME = "completion"
SUMMARY = "print the completion script of a shell"
EXAMPLES = """examples:
  eval "$(snowmelt completion bash)"
  snowmelt completion zsh > ~/.zfunc/_snowmelt
  snowmelt completion tcsh > ~/.snowmelt.tcsh
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    print(shtab.complete(options.main_parser, options.shell))
    return 0
