"""`snowmelt chunks`: list quarantined chunks, or discard one whose blob cannot be restored."""

from __future__ import annotations

import argparse

from snowmelt.cli.command_context import add_action, load_settings, opening_catalog, run_action
from snowmelt.cli.output import add_format_option, format_count, print_rows
from snowmelt.errors import NotFound

NAME = "chunks"
SUMMARY = "list quarantined chunks, or discard one"
EXAMPLES = """examples:
  snowmelt chunks list
  snowmelt chunks give-up 4711 --table demo.public.flights
"""

_LIST_COLUMNS = ("table", "chunk", "rows", "blob", "reason")


class ChunkNotQuarantined(NotFound):
    """Chunk {chunk} of {table} is not quarantined. List quarantined chunks with `snowmelt chunks list`."""

    code = "chunk_not_set_aside"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    listing = add_action(
        actions,
        "list",
        _list_quarantined_chunks,
        help="list quarantined chunks with the reason",
    )
    add_format_option(listing)
    giving = add_action(
        actions,
        "give-up",
        _discard_chunk,
        help="discard a quarantined chunk (its rows are lost) so that its table can be queried again",
        description="Discard a quarantined chunk. Its rows are lost. A table with a quarantined chunk "
        "cannot be queried until the blob is restored from a backup, or the chunk is discarded. "
        "Garbage collection deletes the blob of a discarded chunk.",
    )
    giving.add_argument(
        "chunk", type=int, help="number of the chunk, as shown by `snowmelt chunks list`"
    )
    giving.add_argument("--table", metavar="NAME", required=True, help="database.schema.table")


run = run_action


def _list_quarantined_chunks(options: argparse.Namespace) -> None:
    from snowmelt.catalog.objects.tables import find_table_by_id
    from snowmelt.catalog.streaming.chunks import list_quarantined_chunks

    with opening_catalog(load_settings(options)) as database, database.reading() as connection:
        found = [
            (find_table_by_id(connection, chunk.table_id), chunk)
            for chunk in list_quarantined_chunks(connection)
        ]
    rows = [
        (str(table.name), chunk.seq, chunk.rows, f"{chunk.prefix}/{chunk.path}", chunk.reason)
        for table, chunk in found
        if table.dropped_at is None
    ]
    print_rows(_LIST_COLUMNS, rows, options.format)


def _discard_chunk(options: argparse.Namespace) -> None:
    from snowmelt.catalog.objects.tables import find_table
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.catalog.streaming import chunks
    from snowmelt.clock import SystemClock

    name = parse_table_name(options.table)
    with opening_catalog(load_settings(options)) as database, database.writing() as connection:
        table = find_table(connection, name)
        set_aside = {
            chunk.seq: chunk for chunk in chunks.list_quarantined_chunks(connection, table.table_id)
        }
        lost = set_aside.get(options.chunk)
        if lost is None:
            raise ChunkNotQuarantined(chunk=options.chunk, table=name)
        chunks.discard_quarantined_chunks(
            connection, table.table_id, SystemClock().now(), seq=lost.seq
        )
    print(
        f"Chunk {lost.seq} of {name} discarded, with {format_count(lost.rows, 'row')}. The rest of the table "
        "can be queried."
    )
