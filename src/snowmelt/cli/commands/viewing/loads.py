"""`snowmelt loads`: the history of loads, without Spark."""

from __future__ import annotations

import argparse

from snowmelt.cli.command_context import run_action
from snowmelt.cli.commands.viewing.listing import add_list_action, print_list

NAME = "loads"
SUMMARY = "list loads of files and streams with their rows and rejects"
EXAMPLES = """examples:
  snowmelt loads list
  snowmelt loads list --limit 5 --format json
  snowmelt loads list --url https://ingest.example.com:8080 --user ops --private-key ops.pem
"""
_COLUMNS = (
    *("load_id", "table", "state", "started_at", "ended_at", "files", "rows", "rejects", "bytes"),
    *("first_error", "message"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_list_action(parser, "loads", _list)


run = run_action


def _list(options: argparse.Namespace) -> None:
    from snowmelt.catalog.views.history import fetch_loads

    print_list(options, "loads", _COLUMNS, fetch_loads)
