"""`snowmelt top`: the overview of the console in a terminal."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from snowmelt.cli.command_context import add_service_options, create_console_client
from snowmelt.cli.output import format_age
from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from rich.console import RenderableType

NAME = "top"
SUMMARY = "watch problems, rows per second, freshness and backlog of a service"
EXAMPLES = """examples:
  snowmelt top
  snowmelt top --url https://ingest.example.com:8080 --user ops --private-key ops.pem
  snowmelt top --once --format json

Ctrl-C ends it. The service must have its console on (setting console).
"""
_MAX_FINDINGS, _MAX_TABLES = 5, 10
_clock = SystemClock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between two readings"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object per reading"
    )
    parser.add_argument("--role", help="role to act as (default: the user's default role)")
    add_service_options(parser.add_argument_group("service"))


def run(options: argparse.Namespace) -> int:
    """Show the overview until Ctrl-C. Return 1 if `--once` is given and a problem is severe."""
    from rich.console import Console
    from rich.live import Live

    terminal = Console()
    with create_console_client(options) as client:
        found = client.fetch("/overview")
        if options.format == "json":
            while True:
                print(json.dumps(found, ensure_ascii=False), flush=True)
                if options.once:
                    return _has_problems(found)
                _clock.sleep(options.interval)
                found = client.fetch("/overview")
        if options.once:
            terminal.print(_render(found, client.url))
            return _has_problems(found)
        with Live(
            _render(found, client.url), console=terminal, screen=terminal.is_terminal
        ) as live:
            while True:
                _clock.sleep(max(options.interval, 0.5))
                found = client.fetch("/overview")
                live.update(_render(found, client.url), refresh=True)


def _has_problems(found: dict[str, Any]) -> int:
    return int(any(each["severity"] == "wrong" for each in found["findings"]))


def _render(found: dict[str, Any], url: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now = dt.datetime.fromisoformat(found["at"])
    lines: list[RenderableType] = [Text(f"{url} as {found['role']}, {now:%H:%M:%S} UTC", "bold")]
    if not found["findings"]:
        lines.append(Text("● The catalog shows no problem.", "green"))
    for each in found["findings"][:_MAX_FINDINGS]:
        is_wrong = each["severity"] == "wrong"
        lines.append(
            Text(f"{'■' if is_wrong else '▲'} {each['sentence']}", "red" if is_wrong else "yellow")
        )
        lines.append(Text(f"  {each['remedy']}"))
    activity = found["activity"]
    if activity is not None:
        lines.append(
            Text(
                f"{activity['rows_per_s']:,.1f} rows/s · insert to query"
                f" {_seconds(activity['p50_s'])} p50, {_seconds(activity['p99_s'])} p99 ·"
                f" {activity['rejected_per_minute']:,.1f} rejected/min"
            )
        )
    table = Table(box=None, pad_edge=False)
    for name in ("table", "state", "channels", "last commit", "waiting chunks"):
        table.add_column(name, justify="left" if name in {"table", "state"} else "right")
    for each in found["tables"][:_MAX_TABLES]:
        at = each["last_commit_at"]
        age = "never" if at is None else format_age(dt.datetime.fromisoformat(at), now)
        cells = (f"{each['channels']:,}", age, f"{each['waiting_chunks']:,}")
        table.add_row(Text(each["name"]), each.get("state", ""), *cells)
    return Group(*lines, table)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
