"""Rows on standard output: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, localcontext
from itertools import islice
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


FORMATS = ("table", "json", "csv")
# The layout of a table needs all rows in memory.
MAX_TABLE_ROWS = 1000
_UNLIMITED_WIDTH = 100_000
_VARIANT_PRECISION = 60
_CSV_SPECIAL = re.compile('[,"\r\n]')


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--format`."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="table",
        help=f"format of rows (default: %(default)s, up to {MAX_TABLE_ROWS} rows)",
    )


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], output_format: str
) -> None:
    """Print rows in one of FORMATS. JSON and CSV are streamed."""
    {"table": _print_table, "json": _print_json, "csv": _print_csv}[output_format](columns, rows)


def print_message(message: str, output_format: str) -> None:
    """Print the message of a statement without rows. In JSON and CSV it is the column `status`."""
    if output_format == "table":
        print(message, flush=True)
    else:
        print_rows(("status",), [(message,)], output_format)


def format_cell(value: object) -> str:
    """Format a value as text: ISO 8601 times, hexadecimal bytes, decimals without exponents."""
    for kind, text in _CELL_FORMATTERS:
        if isinstance(value, kind):
            return text(value)
    return _format_variant(value) if type(value).__name__ == "VariantVal" else str(value)


def to_json_text(value: object) -> str:
    """Format a value as JSON. Decimals keep all digits, and a VARIANT becomes its JSON."""
    for kind, text in _JSON_FORMATTERS:
        if isinstance(value, kind):
            return text(value)
    if type(value).__name__ == "VariantVal":  # Spark's VARIANT, whose text is JSON
        return _format_variant(value)
    return _quote_json(format_cell(value))


def _format_variant(value: object) -> str:
    # PySpark computes decimals in the current context, which rounds to 28 digits by default.
    with localcontext(prec=_VARIANT_PRECISION):
        return str(value)


def _quote_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format_json_number(value: Any) -> str:
    # JSON has no NaN and no infinity.
    return format_cell(value) if math.isfinite(value) else _quote_json(str(value))


def _format_json_tuple(value: Any) -> str:
    # Spark's rows and structs are tuples with names.
    names = getattr(value, "__fields__", None)
    if names is None:
        return _format_json_list(value)
    return _format_json_object(zip(names, value, strict=True))


def _format_json_list(value: Iterable[object]) -> str:
    return "[" + ", ".join(map(to_json_text, value)) + "]"


def _format_json_object(items: Iterable[tuple[object, object]]) -> str:
    pairs = (f"{_quote_json(str(name))}: {to_json_text(value)}" for name, value in items)
    return "{" + ", ".join(pairs) + "}"


# Order matters: bool is a subclass of int, and datetime of date.
_CELL_FORMATTERS: tuple[tuple[type | UnionType, Callable[[Any], str]], ...] = (
    (str, str),
    (bool, lambda value: str(value).lower()),
    (bytes | bytearray, lambda value: value.hex().upper()),
    (Decimal, lambda value: format(value, "f")),
    (dt.datetime, lambda value: value.isoformat(" ")),
    (dt.date | dt.time, lambda value: value.isoformat()),
    (dict | list | tuple, lambda value: to_json_text(value)),
)
_JSON_FORMATTERS: tuple[tuple[type | UnionType, Callable[[Any], str]], ...] = (
    (NoneType | bool | int | str, _quote_json),
    (float | Decimal, _format_json_number),
    (dict, lambda value: _format_json_object(value.items())),
    (tuple, _format_json_tuple),
    (list, _format_json_list),
)


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun in singular or plural: `1 row`, `1,234 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_age(at: dt.datetime, now: dt.datetime) -> str:
    """Format the age of a time: `3 s ago`, `5 min ago`, `2 h ago`, `4 d ago`."""
    seconds = max(0, int((now - at).total_seconds()))
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // unit} {name} ago"
    return f"{seconds // 86_400} d ago"


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    rest = iter(rows)
    shown = list(islice(rest, MAX_TABLE_ROWS))
    if sys.stdout.isatty() and _measure_width(columns, shown) > shutil.get_terminal_size().columns:
        _print_records(columns, shown)
    else:
        _print_grid(columns, shown)
    more = next(rest, None) is not None
    count = f"{len(shown):,} row{'' if len(shown) == 1 else 's'}"
    print(f"first {count}; --format csv or json gives all" if more else count, flush=True)


def _measure_width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    widths = [len(column) for column in columns]
    for row in rows:
        for index, value in enumerate(row):
            widths[index] = max(widths[index], 4 if value is None else len(format_cell(value)))
    return sum(widths) + 3 * len(widths)


def _print_records(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print each row as a block with a line per column, for tables that do not fit the terminal."""
    width = max(map(len, columns), default=0)
    for number, row in enumerate(rows, start=1):
        print(f"── row {number} " + "─" * 20)
        for column, value in zip(columns, row, strict=True):
            text = "NULL" if value is None else _escape_unprintable(format_cell(value))
            print(f"{_escape_unprintable(column):<{width}}  {text}")


def _print_grid(columns: Sequence[str], shown: Sequence[Sequence[object]]) -> None:
    # Do not wrap redirected output.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH, highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        kinds = {type(row[number]) for row in shown}
        numeric = any(
            issubclass(kind, int | float | Decimal) and kind is not bool for kind in kinds
        )
        heading = Text(_escape_unprintable(column))
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    null = Text("NULL", style="dim")
    for row in shown:
        cells = (
            Text(_escape_unprintable("" if cell is None else format_cell(cell))) for cell in row
        )
        table.add_row(*(null if v is None else text for v, text in zip(row, cells, strict=True)))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().strip("\n").split("\n")))


def _escape_unprintable(text: str) -> str:
    """Escape control characters, which could move the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def _print_json(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    names = [_quote_json(column) for column in columns]
    separator = "["
    for row in rows:
        pairs = zip(names, row, strict=True)
        line = ", ".join(f"{name}: {to_json_text(value)}" for name, value in pairs)
        print(f"{separator}\n {{{line}}}", end="")
        separator = ","
    print("[]" if separator == "[" else "\n]", flush=True)


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV. NULL is an empty field, and the empty text is `""`."""
    # Readers skip empty lines, so a single column has no empty fields.
    null = "" if len(columns) > 1 else '""'
    print(",".join(map(_format_csv_field, columns)))
    for row in rows:
        print(",".join(null if value is None else _format_csv_field(value) for value in row))
    sys.stdout.flush()


def _format_csv_field(value: object) -> str:
    text = format_cell(value)
    if text and not _CSV_SPECIAL.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'
