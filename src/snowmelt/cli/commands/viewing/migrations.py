"""`snowmelt migrations`: the history of migrations, without Spark."""

from __future__ import annotations

import argparse

from snowmelt.cli.command_context import run_action
from snowmelt.cli.commands.viewing.listing import add_list_action

NAME = "migrations"
SUMMARY = "list migrations of chunks to native files"
EXAMPLES = """examples:
  snowmelt migrations list
  snowmelt migrations list --limit 5 --format json
  snowmelt migrations list --url https://ingest.example.com:8080 --user ops --private-key ops.pem
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_list_action(parser, NAME)


run = run_action
