"""`snowmelt loads`: the history of loads, without Spark."""

from __future__ import annotations

import argparse

from snowmelt.cli.command_context import run_action
from snowmelt.cli.commands.viewing.listing import add_list_action

NAME = "loads"
SUMMARY = "list loads of files and streams with their rows and rejects"
EXAMPLES = """examples:
  snowmelt loads list
  snowmelt loads list --limit 5 --format json
  snowmelt loads list --url https://ingest.example.com:8080 --user ops --private-key ops.pem
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_list_action(parser, NAME)


run = run_action
