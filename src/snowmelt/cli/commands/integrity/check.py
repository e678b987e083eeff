"""`snowmelt check`: verify that the stored data matches the commits."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import load_settings, opening_catalog, parse_age
from snowmelt.cli.output import format_count
from snowmelt.errors import UserError

if TYPE_CHECKING:
    from snowmelt.integrity.checker import IntegrityChecker, TableReport
    from snowmelt.integrity.findings import Finding
    from snowmelt.schema.types import TableName

NAME = "check"
SUMMARY = "verify that sequences, tokens, chunks and files are consistent, while the system runs"
EXAMPLES = """examples:
  snowmelt check
  snowmelt check demo.public.flights --deep
  snowmelt check --deep --sample 5% --since 1d --format json

Without --deep, only the catalog, manifests and listings are read. Nothing is changed or locked.
Exit code 0: no errors. 1: errors found. 2: a check could not be completed. 3: invalid arguments.
"""
_WRONG, _UNDECIDED, _WRONG_USE = 1, 2, 3
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        help="database.schema.table (default: all tables, and blobs without chunks)",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="read chunks and native files: checksums, rows, statistics, fingerprints",
    )
    parser.add_argument(
        "--sample",
        metavar="PERCENT",
        help="share of files and chunks that --deep reads (default: 100%%)",
    )
    parser.add_argument(
        "--since",
        metavar="AGE",
        help="--deep reads only what was added within this age: 30m, 12h, 7d",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object a finding"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    """Check tables and print the findings."""
    from snowmelt.catalog.db.database import open_catalog_clock
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.integrity.checker import CheckSettings, IntegrityChecker
    from snowmelt.storage.store_factory import open_store
    from snowmelt.table.warehouse_paths import open_warehouse

    names = [parse_table_name(text) for text in options.tables]
    try:
        sample = _parse_sample(options)
        age = None if options.since is None else parse_age(options.since)
    except UserError as error:
        print(f"snowmelt: {error}", file=sys.stderr)
        return _WRONG_USE
    settings = load_settings(options)
    with opening_catalog(settings) as database:
        clock = open_catalog_clock(database)
        checker = IntegrityChecker(
            database,
            open_or_create_keyring(database, settings.keys_dir),
            open_store(settings.stage_url),
            open_warehouse(settings.warehouse_url),
            clock,
            settings=CheckSettings(
                deep=options.deep, sample=sample, since=None if age is None else clock.now() - age
            ),
            on_progress=_make_progress(quiet=options.quiet),
        )
        findings = _print_reports(checker, names, options.format)
    severities = {str(each.severity) for each in findings}
    if "error" in severities:
        return _WRONG
    return _UNDECIDED if "undecided" in severities else 0


def _print_reports(
    checker: IntegrityChecker, names: Sequence[TableName], output_format: str
) -> list[Finding]:
    findings: list[Finding] = []
    reports = []
    for report in checker.check_all(names):
        reports.append(report)
        findings += report.findings
        _print_findings(report.findings, output_format)
        if output_format == "text":
            print(_format_report(report), flush=True)
    if not names:
        orphans = checker.check_stage()
        findings += orphans
        _print_findings(orphans, output_format)
    if output_format == "json":
        print(json.dumps(_summarize(reports, findings)), flush=True)
    elif not findings:
        print("Nothing is wrong.", flush=True)
    else:
        print(f"{format_count(len(findings), 'finding')}.", flush=True)
    return findings


def _print_findings(findings: Iterable[Finding], output_format: str) -> None:
    for each in findings:
        if output_format == "json":
            print(json.dumps(each.to_dict(), default=str), flush=True)
        else:
            print(f"{each.severity}: {each.kind.name}: {each.detail}", flush=True)
            print(f"  {each.kind.meaning}", flush=True)
            print(f"  {each.kind.remedy}", flush=True)


def _format_report(report: TableReport) -> str:
    parts = [
        format_count(report.rows, "row"),
        format_count(report.chunks, "chunk"),
        format_count(report.channels, "channel"),
        format_count(report.files, "native file"),
    ]
    if report.read_files or report.read_chunks:
        parts.append(
            f"{format_count(report.read_files, 'file')} and "
            f"{format_count(report.read_chunks, 'chunk')} read"
        )
    found = format_count(len(report.findings), "finding")
    lines = [f"{report.table}: {', '.join(parts)}; {found}"]
    lines += [f"  without proof: {each}" for each in report.unprovable]
    return "\n".join(lines)


def _summarize(reports: Sequence[TableReport], findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "summary": {
            "tables": len(reports),
            "rows": sum(report.rows for report in reports),
            "chunks": sum(report.chunks for report in reports),
            "files": sum(report.files for report in reports),
            "read_files": sum(report.read_files for report in reports),
            "read_chunks": sum(report.read_chunks for report in reports),
            "findings": len(findings),
            "unprovable": {str(report.table): report.unprovable for report in reports},
        }
    }


def _make_progress(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that shows the current step if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        return lambda _: None
    return lambda step: print(f"\r\x1b[2K{step}\r", end="", file=sys.stderr, flush=True)


def _parse_sample(options: argparse.Namespace) -> float:
    """Return the share of files and chunks to read.

    Raises:
        UserError: If it is not a percentage above 0 up to 100, or options require --deep.
    """
    if not options.deep and (options.sample is not None or options.since is not None):
        raise UserError("--sample and --since require --deep. Add --deep, or omit them.")
    text = options.sample or "100%"
    found = _SHARE.fullmatch(text)
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise UserError(f"Invalid value {text!r}. Expected for example --sample 5%.")
    return share
