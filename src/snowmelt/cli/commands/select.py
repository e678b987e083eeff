"""`snowmelt select`: run a SELECT on a file, standard input or an S3 object."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from snowmelt.cli.command_context import load_settings
from snowmelt.cli.output import FORMATS, MAX_TABLE_ROWS, print_rows
from snowmelt.errors import UserError
from snowmelt.select.request import GuessedForm, InputFormat, ScanRange, SelectRequest

NAME = "select"
SUMMARY = "run one SELECT over a file, a pipe, or an object of an S3 endpoint"
EXAMPLES = """examples:
  snowmelt select people.csv "select s.name from s3object s where s.age > 30" --header use
  zcat big.csv.gz | snowmelt select - "select count(*) from s3object" --format csv
  snowmelt select events.jsonl "select s.user.id from s3object s where s.ok" --format json
  snowmelt select s3://bucket/key.csv.gz "select _1, _3 from s3object limit 5"
  snowmelt select "s3://bucket/logs/2026-*.csv" "select count(*) from s3object"
  snowmelt select old.csv 'select count(0) from stdin where int(_1)==7;' --dialect ceph-2020

The file extension determines format and compression (.csv .tsv .json .jsonl .parquet, .gz .bz2
.zst), unless options specify them. * and ? match several files or objects, which are read in order.
"""

_INPUT_FORMATS = ("csv", "lines", "json", "parquet")
_STDIN_SOURCE = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="path, s3://bucket/key, or - for standard input")
    parser.add_argument("sql", help="SELECT statement; the source is `from s3object`")
    form = parser.add_argument_group("format of the source")
    form.add_argument(
        "--input", choices=_INPUT_FORMATS, help="format (default: by the file extension, or csv)"
    )
    form.add_argument("--header", choices=("none", "use", "ignore"), default="none",
                      help="use of the first CSV record (default: none, it is data)")  # fmt: skip
    form.add_argument("--delimiter", help=r"delimiter of CSV fields (default: , or \t for .tsv)")
    form.add_argument("--record-delimiter", help=r"delimiter of CSV records (default: \n)")
    form.add_argument("--quote", help='CSV quote character (default: ")')
    form.add_argument("--escape", help="CSV escape character (default: depends on the dialect)")
    form.add_argument("--comment", help="start of CSV comments (default: depends on the dialect)")
    form.add_argument("--quoted-records", action="store_true",
                      help="allow record delimiters in quoted CSV fields")  # fmt: skip
    form.add_argument("--compression", choices=("none", "gzip", "bzip2", "zstd"),
                      help="compression (default: by the file extension)")  # fmt: skip
    form.add_argument("--scan-range", metavar="START-END",
                      help="only records that begin in this range of bytes; either end may be omitted")  # fmt: skip
    parser.add_argument("--dialect", choices=("aws", "ceph", "ceph-2020"), default="aws",
                        help="dialect of SQL and CSV (default: %(default)s)")  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="table",
                        help=f"output format; json prints one object per line (default: "
                        f"%(default)s, at most {MAX_TABLE_ROWS} records)")  # fmt: skip
    endpoint = parser.add_argument_group("endpoint of s3:// sources")
    endpoint.add_argument("--endpoint", metavar="URL",
                          help="URL (default: the local service, http://127.0.0.1:9000)")  # fmt: skip
    endpoint.add_argument(
        "--access-key", help="access key ID (default: AWS environment variables and files)"
    )
    endpoint.add_argument(
        "--secret-key", help="secret access key (default: AWS environment variables and files)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the SELECT and stream its result to standard output."""
    from snowmelt.select.dialect import Dialect
    from snowmelt.select.request import (
        CsvOutput,
        JsonOutput,
        ObjectCompression,
        SelectRequest,
        guess_form,
    )

    form = guess_form("" if options.source == _STDIN_SOURCE else options.source)
    compression = (
        ObjectCompression(options.compression.upper()) if options.compression else form.compression
    )
    dialect = Dialect(options.dialect)
    request = SelectRequest(
        expression=options.sql,
        input=_build_input(options, form, dialect),
        output=CsvOutput() if options.format == "csv" else JsonOutput(),
        compression=compression,
        scan_range=_parse_scan_range(options.scan_range),
        dialect=dialect,
    )
    with contextlib.closing(_stream_payloads(options, request)) as payloads:
        if options.format == "table":
            _print_table(payloads)
        else:
            for payload in payloads:
                sys.stdout.buffer.write(payload)
            sys.stdout.buffer.flush()
    return 0


def _stream_payloads(options: argparse.Namespace, request: SelectRequest) -> Generator[bytes]:
    if options.source.startswith("s3://"):
        yield from _select_from_endpoint(options, request)
        return
    from snowmelt.select.local_query import open_local_select
    from snowmelt.select.resource_limits import EngineSettings

    limits = EngineSettings.from_settings(load_settings(options))
    source = sys.stdin.buffer if options.source == _STDIN_SOURCE else _expand_paths(options.source)
    with contextlib.closing(open_local_select(request, source, settings=limits)) as execution:
        yield from execution.stream_payloads()


def _select_from_endpoint(options: argparse.Namespace, request: SelectRequest) -> Iterator[bytes]:
    from botocore.exceptions import BotoCoreError

    from snowmelt.select.client import SelectEndpoint, select_object

    parts = urlsplit(options.source, allow_fragments=False)
    key = options.source.removeprefix(f"s3://{parts.netloc}/")
    if not parts.netloc or key == options.source:
        raise UserError(f"Invalid source {options.source}. Expected s3://bucket/key.")
    url = options.endpoint or _local_endpoint_url(options)
    client = SelectEndpoint(url, options.access_key, options.secret_key).create_client()
    many = "*" in key or "?" in key or key.endswith("/")
    try:
        yield from select_object(client, parts.netloc, key, request, key_is_pattern=many)
    except BotoCoreError as error:
        hint = "" if options.endpoint else " Check that `snowmelt serve` runs."
        raise UserError(f"Cannot query {url}: {str(error).rstrip('.')}.{hint}") from error


def _local_endpoint_url(options: argparse.Namespace) -> str:
    settings = load_settings(options)
    return f"http{'s' if settings.tls_cert else ''}://127.0.0.1:{settings.s3_port}"


def _expand_paths(pattern_text: str) -> Path | list[Path]:
    path = Path(pattern_text)
    if path.exists() or not any(sign in pattern_text for sign in "*?["):
        return path
    anchor = Path(path.anchor) if path.is_absolute() else Path()
    pattern = str(path.relative_to(path.anchor)) if path.is_absolute() else pattern_text
    found = sorted(each for each in anchor.glob(pattern) if each.is_file())
    if not found:
        raise UserError(f"No file matches {pattern_text}.")
    return found


def _build_input(options: argparse.Namespace, guessed: GuessedForm, dialect: str) -> InputFormat:
    from snowmelt.select.request import CsvInput, HeaderMode, JsonInput, ParquetInput

    form = options.input or guessed.input
    if form == "parquet":
        return ParquetInput()
    if form != "csv":
        return JsonInput(lines=form == "lines")
    default = CsvInput() if dialect == "aws" else CsvInput(escape=b"\\", comment=b"")
    if options.quote is not None and dialect == "aws":
        default = replace(default, escape=_parse_escaped_bytes(options.quote))
    given = {
        "field_delimiter": options.delimiter or guessed.delimiter,
        "record_delimiter": options.record_delimiter,
        "quote": options.quote,
        "escape": options.escape,
        "comment": options.comment,
    }
    return replace(
        default,
        header=HeaderMode(options.header.upper()),
        quoted_record_delimiter=options.quoted_records,
        **{name: _parse_escaped_bytes(text) for name, text in given.items() if text is not None},
    )


def _parse_escaped_bytes(text: str) -> bytes:
    r"""Return the bytes of an option. Decodes escapes such as `\t`, `\n` and `\x01`."""
    try:
        # A single backslash is literal, although it starts escapes.
        plain = text if text == "\\" else codecs.decode(text.encode(), "unicode_escape")
    except UnicodeDecodeError as error:
        raise UserError(
            rf"Invalid value {text!r}. Expected plain characters or escapes such as \t, \n and \x01."
        ) from error
    return plain.encode() if text.isascii() else text.encode()


def _parse_scan_range(text: str | None) -> ScanRange | None:
    from snowmelt.select.request import ScanRange

    if text is None:
        return None
    start, dash, end = text.partition("-")
    if not dash or not (start or end) or not all(part.isdigit() for part in (start, end) if part):
        raise UserError(
            f"Invalid --scan-range {text!r}. Expected, for example, 0-1048575, 1000- or -500."
        )
    return ScanRange(int(start) if start else None, int(end) if end else None)


def _print_table(payloads: Iterable[bytes]) -> None:
    import msgspec

    lines = _split_lines(payloads)
    shown = [msgspec.json.decode(line) for line in islice(lines, MAX_TABLE_ROWS + 1)]
    columns = list(dict.fromkeys(name for record in shown for name in record))
    print_rows(columns, ([record.get(name) for name in columns] for record in shown), "table")


def _split_lines(payloads: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for payload in payloads:
        *whole, rest = (rest + payload).split(b"\n")
        yield from whole
    if rest:
        yield from io.BytesIO(rest)
