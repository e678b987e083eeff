"""`snowmelt trace`: find the commit, files and snapshots of a token, chunk, file, load or row."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from snowmelt.cli.command_context import load_settings, opening_catalog
from snowmelt.cli.output import format_count
from snowmelt.errors import UserError
from snowmelt.schema.types import to_internal_name

if TYPE_CHECKING:
    from snowmelt.integrity.trace import Tracer

NAME = "trace"
SUMMARY = "find the commit, blob, native files and snapshots of a token, chunk, file, load or row"
EXAMPLES = """examples:
  snowmelt trace demo.public.flights --channel EWR --token 12000
  snowmelt trace demo.public.flights --where "tailnum = 'N14228' AND day = 1"
  snowmelt trace demo.public.flights --file 00000-000-4f0c6a7d9b21.parquet
  snowmelt trace demo.public.flights --load 6f1f7a0c-6a54-4d1f-9f6b-0d3c2f9a1e77 --format json

--where reads the whole table; its conditions are DuckDB expressions.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="database.schema.table")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--channel", metavar="NAME", help="chunks of a channel, newest first")
    chosen.add_argument("--chunk", metavar="SEQ", type=int, help="chunk by commit sequence")
    chosen.add_argument("--file", metavar="PATH", help="native file, by the end of its path")
    chosen.add_argument("--load", metavar="ID", help="load (COPY, INSERT, engine) by ID")
    chosen.add_argument("--where", metavar="CONDITION", help="rows that satisfy an SQL condition")
    parser.add_argument(
        "--token", help="with --channel: the commit of an offset token (default: the last commits)"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=10,
        metavar="N",
        help="number of chunks or rows (default: %(default)s)",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object a result"
    )


def run(options: argparse.Namespace) -> int:
    """Print the traces."""
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.integrity.trace import Tracer
    from snowmelt.storage.store_factory import open_store
    from snowmelt.table.warehouse_paths import open_warehouse

    if options.token is not None and options.channel is None:
        raise UserError("--token requires --channel. Add --channel, or omit --token.")
    if options.limit < 1:
        raise UserError(f"Invalid --limit {options.limit}. Give a number of at least 1.")
    settings = load_settings(options)
    with opening_catalog(settings) as database:
        tracer = Tracer(
            database,
            open_or_create_keyring(database, settings.keys_dir),
            open_store(settings.stage_url),
            open_warehouse(settings.warehouse_url),
            parse_table_name(options.table),
        )
        for kind, trace in _iterate_traces(tracer, options):
            if options.format == "json":
                print(json.dumps({"trace": kind, **trace}, default=str), flush=True)
            else:
                print("\n".join(_FORMATTERS[kind](trace)), flush=True)
    return 0


def _iterate_traces(
    tracer: Tracer, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    limit = options.limit
    if options.channel is not None:
        channel = to_internal_name(options.channel)
        for chunk in tracer.trace_channel(channel, options.token, limit=limit):
            yield "chunk", chunk.to_dict()
    elif options.chunk is not None:
        for chunk in tracer.trace_chunks([options.chunk]):
            yield "chunk", chunk.to_dict()
    elif options.file is not None:
        yield "file", tracer.trace_file(options.file, limit=limit).to_dict()
    elif options.load is not None:
        yield "load", tracer.trace_load(options.load)
    else:
        for row in tracer.trace_rows(options.where, limit=limit):
            yield "row", row.to_dict()


def _format_chunk(chunk: dict[str, Any]) -> list[str]:
    rows = format_count(chunk["rows"], "row")
    at = chunk["registered_at"]
    lines = [f"chunk {chunk['seq']}: {rows}, {chunk['state']}, registered {at}"]
    for each in chunk["channels"]:
        tokens = f"token {each['end_token']!r}"
        if each["start_token"] not in {None, each["end_token"]}:
            tokens = f"tokens {each['start_token']!r} to {each['end_token']!r}"
        lines.append(
            f"  channel {each['channel']} of user {each['user'] or 'unknown'}: {tokens}, client"
            f" sequencer {each['client_sequencer']}, row sequencer {each['row_sequencer']}"
        )
    blob = chunk["blob"]
    lines.append(
        f"  blob {blob['path']}: {blob['length']} bytes at {blob['offset']}, MD5 {blob['md5']}"
    )
    if chunk["migration"] is not None:
        lines.append(f"  migration {chunk['migration']}, committed {chunk['migrated_at']}")
    return lines + [line for each in chunk["files"] for line in _format_place(each)]


def _format_place(place: dict[str, Any]) -> list[str]:
    rows = "sorted with other rows"
    if place["rows"] is not None:
        rows = f"rows {place['rows'][0]:,} to {place['rows'][1]:,}"
    if place["row_groups"]:
        rows += f", row groups {', '.join(map(str, place['row_groups']))}"
    lines = [f"  file {place['path']}: {rows}"]
    if place["removed_at"] is not None:
        what = "changed" if place["rows_changed"] else "joined"
        lines.append(f"    {what} by run {place['removed_by']} at {place['removed_at']}")
    elif place["snapshots"]:
        shown = place["snapshots"]
        lines.append(f"    in {format_count(len(shown), 'snapshot')}, the newest {shown[-1]}")
    return lines


def _format_file(file: dict[str, Any]) -> list[str]:
    rows = format_count(file["rows"], "row")
    origin = f"of run {file['run']}, added {file['added_at']}"
    lines = [f"file {file['path']}: {rows}, {file['bytes']} bytes, {origin}"]
    if file["removed_at"] is not None:
        lines.append(f"  removed by run {file['removed_by']} at {file['removed_at']}")
    ranges = ", ".join(f"{first} to {last}" for first, last in file["chunk_ranges"])
    lines += [f"  chunks {ranges}"] if ranges else []
    lines += [
        f"  load {each or 'unknown: the file is older than the lineage'}" for each in file["loads"]
    ]
    return lines + [line for each in file["chunks"] for line in _format_chunk(each)]


def _format_load(load: dict[str, Any]) -> list[str]:
    lines = [
        f"load {load['load']}: {load['state']}, {load['rows']} rows, {load['rejects']} rejects",
        f"  {load['statement']}",
        f"  role {load['role']}, started {load['started_at']}, ended {load['ended_at']}",
    ]
    lines += [f"  input {each}" for each in load["inputs"]]
    lines += [f"  replaced {each}" for each in load["replaced"]]
    return lines + [line for each in load["files"] for line in _format_place(each)]


def _format_row(row: dict[str, Any]) -> list[str]:
    values = ", ".join(f"{name}={value!r}" for name, value in row["values"].items())
    lines = [f"row {row['row']} of {row['path']}: {values}"]
    lines += [
        f"  load {each or 'unknown: the file is older than the lineage'}" for each in row["loads"]
    ]
    if len(row["chunks"]) > 1:
        lines.append(f"  one of {len(row['chunks'])} chunks; the file is sorted")
    return lines + [line for each in row["chunks"] for line in _format_chunk(each)]


_FORMATTERS = {
    "chunk": _format_chunk,
    "file": _format_file,
    "load": _format_load,
    "row": _format_row,
}
