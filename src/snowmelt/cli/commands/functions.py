"""`snowmelt functions`: serve, call, record, replay and fault-inject external function services."""

from __future__ import annotations

import argparse
import contextlib
import csv
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.cli.command_context import add_action, load_settings, run_action
from snowmelt.errors import UserError
from snowmelt.functions.signature import FunctionSignature

if TYPE_CHECKING:
    from snowmelt.functions.probe import ServiceProbe
    from snowmelt.functions.proxy.relay import LoopbackHttpServer
    from snowmelt.functions.service import RemoteService
    from snowmelt.functions.service.asgi import AsgiApp

NAME = "functions"
SUMMARY = "run, call, record and fault-inject external function services"
EXAMPLES = """examples:
  snowmelt functions serve geo.py --port 8700
  snowmelt functions serve --lambda handler.py:handler --port 8700
  snowmelt functions sql geo.py --url https://x.example/prod --integration gateway
  snowmelt functions call http://127.0.0.1:8700/city --csv points.csv --arguments "(lat FLOAT, lon FLOAT)"
  snowmelt functions record http://127.0.0.1:8700 --out calls.jsonl --port 8701
  snowmelt functions replay calls.jsonl --port 8702
  snowmelt functions faults http://127.0.0.1:8700 --fault 503:each=1 --fault delay:seconds=2,every=5
"""
_SERVE_EXAMPLES = """examples:
  snowmelt functions serve geo.py
  snowmelt functions serve geo.py:svc --host 0.0.0.0 --port 8700
  snowmelt functions serve --lambda handler.py:handler --events http

geo.py creates a RemoteService and declares its functions. --lambda runs a handler written for AWS Lambda.
--events selects the format of the events that it expects.
"""
_CALL_EXAMPLES = """examples:
  snowmelt functions call http://127.0.0.1:8700/city --csv points.csv
  snowmelt functions call URL --csv - --arguments "(n NUMBER)" --returns VARIANT --format json

The columns of the CSV file are the arguments in order. An empty field is NULL. Without --arguments, all
arguments are VARCHAR. Polls after status 202. Retries after 429, 5xx and broken connections.
"""
_FAULTS_EXAMPLES = """examples:
  snowmelt functions faults http://127.0.0.1:8700 --fault 429:first=3,retry-after=2
  snowmelt functions faults URL --fault drop:every=10 --fault md5:after=100

--fault KIND[:RULE,RULE]; rules: first=N, after=N, every=N, each=N (first attempts at each batch),
on=GET|POST|any, seconds=S, retry-after=S. Kinds:
  202, 204, 302, 400, 403, 404, 413, 429, 500, 503, html, drop, lose, reset, truncate, delay,
  drip, order, missing, extra, duplicate, text-numbers, three-elements, data-object, no-data,
  not-json, trailing-comma, bom, nan, large, empty, md5, gzip-lie
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)

    def action(
        name: str, does: str, run: Callable[[argparse.Namespace], int], epilog: str = EXAMPLES
    ) -> argparse.ArgumentParser:
        return add_action(actions, name, run, help=does, epilog=epilog)

    serving = action(
        "serve", "run a service or a Lambda handler", _serve_functions, _SERVE_EXAMPLES
    )
    source = serving.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "file", nargs="?", metavar="FILE.py[:NAME]", help="Python file that creates a RemoteService"
    )
    source.add_argument("--lambda", dest="handler", metavar="FILE.py:HANDLER",
                        help="Lambda handler: a function with the parameters event and context")  # fmt: skip
    serving.add_argument("--events", choices=("rest", "http", "alb", "url"), default="rest",
                         help="format of the events that the handler expects (default: %(default)s)")  # fmt: skip
    serving.add_argument("--at-once", type=int, default=1, metavar="N",
                         help="maximum concurrent calls of the handler (default: 1, as in Lambda)")  # fmt: skip
    _add_listen_options(serving)
    writing = action(
        "sql", "print the statements that create a service's functions", _print_create_statements
    )
    writing.add_argument("file", metavar="FILE.py[:NAME]")
    writing.add_argument("--url", required=True, help="URL of the service for callers")
    writing.add_argument("--integration", required=True, help="name of the API integration")
    calling = action("call", "send rows of a CSV file to a function", _call_service, _CALL_EXAMPLES)
    calling.add_argument("url", help="URL of the function")
    calling.add_argument(
        "--csv", required=True, metavar="FILE", help="CSV file with a header; - for standard input"
    )
    calling.add_argument(
        "--arguments", metavar="LIST", help='arguments with types, such as "(lat FLOAT, lon FLOAT)"'
    )
    calling.add_argument("--returns", default="VARIANT", help="type of the result (%(default)s)")
    calling.add_argument("--batch-rows", type=int, default=1000, metavar="N",
                         help="rows per request (default: %(default)s)")  # fmt: skip
    calling.add_argument("--header", action="append", default=[], metavar="NAME: VALUE",
                         help="additional header; repeatable")  # fmt: skip
    calling.add_argument("--gzip", action="store_true", help="compress requests")
    calling.add_argument("--patience", type=float, default=600.0, metavar="SECONDS",
                         help="timeout of a batch, in seconds (default: %(default)s)")  # fmt: skip
    calling.add_argument("--format", choices=("table", "json", "csv"), default="table")
    recording = action("record", "forward calls to a service and record them", _record_calls)
    recording.add_argument("url", help="of the service")
    recording.add_argument(
        "--out", required=True, metavar="FILE", help="file to append to, one line per call"
    )
    _add_listen_options(recording)
    replaying = action("replay", "respond to calls from a recording", _serve_recorded_calls)
    replaying.add_argument("file", help="file written by `record`")
    _add_listen_options(replaying)
    disturbing = action(
        "faults", "forward calls to a service and inject faults", _inject_faults, _FAULTS_EXAMPLES
    )
    disturbing.add_argument("url", help="of the service")
    disturbing.add_argument("--fault", action="append", default=[], metavar="KIND[:RULES]",
                            help="fault to inject; repeatable")  # fmt: skip
    _add_listen_options(disturbing)


def _add_listen_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8700, help="port to listen on, 0 for any free "
                        "one (default: %(default)s)")  # fmt: skip


run = run_action


def _serve_functions(options: argparse.Namespace) -> int:
    from snowmelt.functions.service.http_protocol import ServiceProtocol
    from snowmelt.server.listener import HttpListener, open_listening_socket

    app, what = _load_app(options)
    listener = HttpListener(
        app,
        open_listening_socket(options.host, options.port, setting="port"),
        drain_s=10,
        protocol=ServiceProtocol,
    )
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop(*_: object) -> None:
        listener.stop()
        # A function that never returns would block the shutdown, so a second signal kills the process.
        for each in signals:
            signal.signal(each, signal.SIG_DFL)

    for number in signals:
        signal.signal(number, stop)
    print(f"{what} on {listener.url}", flush=True)
    try:
        listener.run()
    finally:
        listener.close()
    return 0


def _load_app(options: argparse.Namespace) -> tuple[AsgiApp, str]:
    if options.handler is None:
        service = _load_service(options.file)
        names = ", ".join(each.name for each in service.functions.values())
        return service.asgi(), f"Service {service.name} with {names or 'no functions'}"
    import logging

    from snowmelt.functions.service.cloud_handlers import EventFormat, LambdaHost

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    path, _, name = options.handler.rpartition(":")
    if not path:
        raise UserError(
            f"Invalid handler {options.handler}. Expected FILE.py:FUNCTION, for example handler.py:handler."
        )
    handler = getattr(_load_module(path), name, None)
    if not callable(handler):
        raise UserError(f"{path} has no function {name}.")
    host = LambdaHost(
        handler, event_format=EventFormat(options.events), max_concurrency=options.at_once
    )
    return host.asgi(), f"Handler {name} of {path}"


def _load_service(source: str) -> RemoteService:
    from snowmelt.functions.service import RemoteService

    path, _, name = source.rpartition(":") if not source.endswith(".py") else (source, "", "")
    module = _load_module(path)
    if name:
        found = [getattr(module, name, None)]
    else:
        found = [each for each in vars(module).values() if isinstance(each, RemoteService)]
    if len(found) > 1:
        raise UserError(f"{path} defines {len(found)} services. Specify one as {path}:NAME.")
    if not found or not isinstance(found[0], RemoteService):
        raise UserError(f"{path} defines no RemoteService{f' named {name}' if name else ''}.")
    return found[0]


def _load_module(path: str) -> Any:
    file = Path(path)
    if not file.is_file():
        raise UserError(f"File {path} not found.")
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file.")
    # Let the file import modules from its folder.
    sys.path.insert(0, str(file.parent.resolve()))
    module = module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _print_create_statements(options: argparse.Namespace) -> int:
    print(_load_service(options.file).create_sql(options.url, options.integration))
    return 0


def _call_service(options: argparse.Namespace) -> int:
    from snowmelt.cli.output import print_rows
    from snowmelt.clock import SystemClock
    from snowmelt.functions.probe import ServiceProbe

    with _opening_input_lines(options.csv) as lines:
        rows = csv.reader(lines)
        columns = next(rows, None)
        if not columns:
            raise UserError(
                f"{options.csv} is empty. Its first line must contain the names of the arguments."
            )
        signature = _build_signature(options, columns)
        asker = ServiceProbe(
            options.url,
            signature,
            SystemClock(),
            timeout_s=options.patience,
            headers=dict(_parse_header(text) for text in options.header),
            compress=options.gzip,
        )
        with contextlib.closing(asker):
            answers = _call_in_batches(asker, signature, rows, options.batch_rows)
            print_rows((*columns, signature.name), answers, options.format)
    return 0


@contextlib.contextmanager
def _opening_input_lines(path: str) -> Iterator[Iterator[str]]:
    if path == "-":
        yield iter(sys.stdin)
        return
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        yield file


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise UserError(f"Invalid header {text}. Expected NAME: VALUE.")
    return name.strip(), value.strip()


def _build_signature(options: argparse.Namespace, columns: list[str]) -> FunctionSignature:
    from snowmelt.functions.signature import (
        FunctionArgument,
        FunctionSignature,
        parse_arguments,
        parse_sql_type_text,
    )

    listed = "(" + ", ".join(f"{name} VARCHAR" for name in columns) + ")"
    arguments = parse_arguments(options.arguments or listed)
    if arguments is None or len(arguments) != len(columns):
        raise UserError(
            f"--arguments must list {len(columns)} names with types, as the CSV has columns: "
            '"(lat FLOAT, lon FLOAT)".'
        )
    name = options.url.partition("?")[0].rstrip("/").rpartition("/")[2]
    returns = parse_sql_type_text(options.returns)
    return FunctionSignature(
        name, tuple(FunctionArgument(each, kind) for each, kind in arguments), returns
    )


def _call_in_batches(
    probe: ServiceProbe, signature: FunctionSignature, rows: Iterator[list[str]], batch_rows: int
) -> Iterator[tuple[object, ...]]:
    from itertools import islice

    from snowmelt.functions.wire.values import Formats, ValueMismatch, make_value_reader

    readers = [make_value_reader(each.type, Formats()) for each in signature.arguments]
    query_id = str(uuid.uuid4())
    for number in range(sys.maxsize):
        batch = list(islice(rows, batch_rows))
        if not batch:
            return
        # An empty field is NULL: it is sent, and printed, as NULL.
        sent = [[text or None for text in row] for row in batch]
        columns = []
        for read, argument, texts in zip(
            readers, signature.arguments, zip(*sent, strict=True), strict=True
        ):
            try:
                columns.append([None if text is None else read(text) for text in texts])
            except ValueMismatch as error:
                raise UserError(f"Column {argument.name}: {error}.") from None
        reply = probe.send_batch(len(batch), columns, query_id, number)
        for at, (row, value) in enumerate(zip(sent, reply.values, strict=True)):
            failure = reply.failures.get(at)
            yield (*row, value if failure is None else f"{failure.code}: {failure.message}")


def _record_calls(options: argparse.Namespace) -> int:
    from snowmelt.functions.proxy.relay import TrafficRecorder
    from snowmelt.storage.overwrite_protection import CommandOutput, check_outputs

    output = CommandOutput("--out", options.out, appends=True)
    check_outputs([output], reserved=load_settings(options).list_reserved_paths())
    recorder = TrafficRecorder(options.url, options.out, host=options.host, port=options.port)
    return _run_server(recorder, f"Recording {options.url} into {options.out}")


def _serve_recorded_calls(options: argparse.Namespace) -> int:
    from snowmelt.functions.proxy.relay import TrafficReplayer

    replayer = TrafficReplayer(options.file, host=options.host, port=options.port)
    return _run_server(replayer, f"Replaying {options.file}")


def _inject_faults(options: argparse.Namespace) -> int:
    from snowmelt.functions.proxy.faults import parse_fault
    from snowmelt.functions.proxy.relay import FaultProxy

    faults = [parse_fault(text) for text in options.fault]
    proxy = FaultProxy(options.url, faults, host=options.host, port=options.port)
    return _run_server(proxy, f"Disturbing {options.url}")


def _run_server(server: LoopbackHttpServer, activity: str) -> int:
    with contextlib.suppress(KeyboardInterrupt), server:
        print(f"{activity} on {server.url}", flush=True)
        server.wait()
    return 0
