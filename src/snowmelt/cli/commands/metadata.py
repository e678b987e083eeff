"""`snowmelt metadata`: the Iceberg metadata location of native tables, for other engines."""

from __future__ import annotations

import argparse

from snowmelt.cli.command_context import load_settings, opening_catalog
from snowmelt.cli.output import add_format_option, print_rows
from snowmelt.errors import NotFound

NAME = "metadata"
SUMMARY = "print the location of the current Iceberg metadata of one or all tables"
EXAMPLES = """examples:
  snowmelt metadata demo.public.flights
  snowmelt metadata --format json

With a table, only the location is printed, for use in $(snowmelt metadata demo.public.flights). It
changes with every migration. It excludes unmigrated chunks, which are counted if no table is given.
"""

_COLUMNS = ("table", "waiting_chunks", "metadata")


class TableNotMigrated(NotFound):
    """Table {table} has no native files yet. Create them with `snowmelt migrate`."""

    code = "nothing_native"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", nargs="?", help="database.schema.table")
    add_format_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the metadata location of one table, or a list of all."""
    from snowmelt.catalog.objects.tables import find_table, list_tables
    from snowmelt.catalog.sql.cursor import parse_table_name

    with opening_catalog(load_settings(options)) as database, database.reading() as connection:
        if options.table is not None:
            found = [find_table(connection, parse_table_name(options.table))]
        else:
            found = list_tables(connection)
    if options.table is None:
        rows = [(str(each.name), each.last_seq - each.migrated_seq, each.pointer) for each in found]
        print_rows(_COLUMNS, rows, options.format)
    elif found[0].pointer is None:
        raise TableNotMigrated(table=found[0].name)
    else:
        print(found[0].pointer)
    return 0
