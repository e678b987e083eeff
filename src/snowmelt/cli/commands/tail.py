"""`snowmelt tail`: stream the lines of growing files into a table."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import (
    RejectionWriter,
    add_service_options,
    create_client,
    load_settings,
    stopping_on_signals,
)
from snowmelt.cli.output import format_count
from snowmelt.clock import SystemClock
from snowmelt.errors import UserError
from snowmelt.storage.overwrite_protection import check_output_outside_deployment

if TYPE_CHECKING:
    from snowmelt.client.line_source import ParsedLine
    from snowmelt.loaders.file_tail import RejectedLine, TailProgress

NAME = "tail"
SUMMARY = "stream growing files, such as logs, into a table"
EXAMPLES = """examples:
  snowmelt tail '/var/log/app/*.log' --table demo.public.log --column line
  snowmelt tail '/data/*.jsonl' --table demo.public.events --once --move-to /data/done
  snowmelt tail '/data/*.csv' --table demo.public.sales --csv --header

Each line becomes one row, exactly once, even after a crash of this command, the service or the machine.
Run the command again: it resumes after the last committed line, such as messages_1.log:20, which
`snowmelt channels list` shows. It finds new files, and files that are rotated by renaming, or by
copying and truncating. It reads a line after its line end is written.
"""
_PROGRESS_INTERVAL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="PATTERN", help="files, such as DIR/*.log; ** matches folders"
    )
    parser.add_argument("--table", required=True, help="database.schema.table")
    parser.add_argument("--once", action="store_true", help="exit after the last complete line")
    form = parser.add_argument_group("format of lines (default: JSON objects)")
    form.add_argument("--column", metavar="NAME", help="store each whole line in this column")
    form.add_argument(
        "--csv",
        metavar="COLUMNS",
        nargs="?",
        const="",
        help="CSV with these columns, separated by commas; without names, use --header",
    )
    form.add_argument("--delimiter", default=",", help="delimiter of CSV fields (default: ,)")
    form.add_argument("--header", action="store_true", help="the first line has the column names")
    form.add_argument(
        "--evolve",
        action="store_true",
        help="add columns for unknown keys (the table needs ENABLE_SCHEMA_EVOLUTION)",
    )
    form.add_argument(
        "--encoding",
        metavar="NAME",
        default="utf-8",
        help="encoding, such as latin-1 (default: %(default)s)",
    )
    after = parser.add_argument_group("action on files that are completely read and committed")
    after.add_argument("--delete", action="store_true", help="delete the files")
    after.add_argument(
        "--move-to", type=Path, metavar="FOLDER", help="move the files to this folder"
    )
    after.add_argument(
        "--settled",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="idle time of a file before the action, in seconds (default: %(default)s; 0 with --once)",
    )
    parser.add_argument(
        "--on-backwards",
        choices=("raise", "skip", "restart"),
        default="raise",
        help="action for a file with fewer lines than are committed (default: %(default)s)",
    )
    parser.add_argument(
        "--errors", type=Path, metavar="FILE", help="append rejected lines to this file"
    )
    service = parser.add_argument_group("service")
    add_service_options(service)
    service.add_argument(
        "--role", help="role (default: of the profile, or the default role of the user)"
    )


def run(options: argparse.Namespace) -> int:
    """Follow the files until SIGTERM or Ctrl-C, or to their end with --once."""
    from snowmelt.loaders.file_tail import FileTail, TailOptions

    if options.delete and options.move_to is not None:
        raise UserError("Files are either deleted or moved: give one of --delete and --move-to.")
    parser, header = _make_line_parser_factory(options)
    wanted = TailOptions(
        patterns=options.files,
        table=options.table,
        make_parser=parser,
        header_lines=header,
        once=options.once,
        delete=options.delete,
        move_to=options.move_to,
        idle_before_removal_s=options.settled,
        on_backwards=options.on_backwards,
        schema_evolution=options.evolve,
    )
    if options.move_to is not None:
        reserved = load_settings(options).list_reserved_paths()
        check_output_outside_deployment("--move-to", str(options.move_to), reserved=reserved)
    with (
        stopping_on_signals() as stop,
        contextlib.closing(RejectionWriter(options, options.files)) as writer,
        create_client(options) as client,
    ):

        def report(refused: RejectedLine) -> None:
            place = refused.location
            writer.write(place, refused.reason, refused.data, place=place)

        clock = SystemClock()
        tail = FileTail(wanted, client, clock, report)
        done = tail.run(stop, _make_progress_printer(clock) if sys.stderr.isatty() else None)
    said = f"{format_count(done.rows, 'row')} of {format_count(done.files, 'file')} committed"
    if done.rejected:
        said += f", {format_count(done.rejected, 'line')} rejected"
    if done.removed:
        said += f", {format_count(done.removed, 'file')} removed"
    if done.unfinished_files:
        said += f"; the last line is incomplete in {', '.join(done.unfinished_files)}"
    if done.unreadable_files:
        said += f"; unreadable: {', '.join(done.unreadable_files)}"
    print(said + ".")
    return 0


def _make_line_parser_factory(
    options: argparse.Namespace,
) -> tuple[Callable[[], Callable[[bytes, int], ParsedLine]], int]:
    from snowmelt.client.line_source import (
        CsvLineParser,
        make_decoding_parser,
        make_text_parser,
        parse_json_row,
    )

    # Check the encoding now, even if no file exists yet.
    known = make_decoding_parser(parse_json_row, options.encoding)
    if options.column is not None:
        whole = make_decoding_parser(make_text_parser(options.column), options.encoding)
        return lambda: whole, 0
    if options.csv is None:
        return lambda: known, 0
    header = 1 if options.header else 0
    columns = [name.strip() for name in options.csv.split(",")] if options.csv else None
    if columns is None and not header:
        raise UserError("--csv requires column names (`--csv a,b,c`) or --header.")
    rows = partial(CsvLineParser, columns, delimiter=options.delimiter, header_lines=header)
    return lambda: make_decoding_parser(rows(), options.encoding), header


def _make_progress_printer(clock: SystemClock) -> Callable[[TailProgress], None]:
    last_s = started_s = clock.monotonic()

    def report(done: TailProgress) -> None:
        nonlocal last_s
        now_s = clock.monotonic()
        if now_s - last_s >= _PROGRESS_INTERVAL_S:
            last_s = now_s
            rate = done.rows / (now_s - started_s)
            line = f"{format_count(done.rows, 'row')} of {format_count(done.files, 'file')}, {rate:,.0f} rows/s"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    return report
