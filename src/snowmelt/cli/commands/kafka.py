"""`snowmelt kafka`: load messages of a topic, in COPY frames or as a stream."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import (
    RejectionWriter,
    add_service_options,
    create_client,
    load_settings,
    make_copy_context,
    opening_catalog,
    stopping_on_signals,
)
from snowmelt.clock import SystemClock
from snowmelt.errors import UserError

if TYPE_CHECKING:
    from snowmelt.loaders.kafka import RejectedMessage

NAME = "kafka"
SUMMARY = "load Kafka topics into tables, continuously"
EXAMPLES = """examples:
  snowmelt kafka --topic clicks --table demo.public.clicks --rejects demo.public.clicks_rejects
  snowmelt kafka --topic logs --table demo.public.logs --parser "fdelimitedparser()" \\
    --filter "KafkaInsertDelimiters(delimiter=E'\\n')" --once
  snowmelt kafka --topic clicks --table demo.public.clicks --stream --url http://127.0.0.1:8080

In frames (the default) what has come is loaded by one COPY every --frame seconds, into the catalog
of the data folder. With --stream rows go through a service, a channel for each partition, and are
there within seconds. Either way each message becomes a row once, whatever crashes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, help="Kafka topic to load")
    parser.add_argument("--table", required=True, help="database.schema.table")
    parser.add_argument(
        "--brokers",
        default="localhost:9092",
        help="host:port, separated by commas (default: %(default)s)",
    )
    parser.add_argument("--group", default="snowmelt", help="consumer group (default: %(default)s)")
    parser.add_argument("--conf", default="", help="settings of librdkafka: name=value;name=value")
    frames = parser.add_argument_group("without --stream: one COPY per frame")
    frames.add_argument(
        "--frame",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time between two COPY statements, in seconds (default: 10)",
    )
    frames.add_argument(
        "--parser", default="KafkaJSONParser()", help="parser, as in COPY (default: %(default)s)"
    )
    frames.add_argument(
        "--filter", action="append", default=[], help="filter, as in COPY; repeatable"
    )
    frames.add_argument("--rejects", metavar="TABLE", help="table for rejected messages")
    frames.add_argument(
        "--on-gap",
        choices=("report", "fail"),
        default="report",
        help="action if brokers have deleted unread messages (default: %(default)s)",
    )
    frames.add_argument(
        "--once", action="store_true", help="load up to the current end offsets, then exit"
    )
    parser.add_argument(
        "--role", help="role (default: ACCOUNTADMIN; with --stream the role of the user)"
    )
    stream = parser.add_argument_group("with --stream")
    stream.add_argument(
        "--stream", action="store_true", help="stream rows through channels of a service"
    )
    add_service_options(stream)
    stream.add_argument(
        "--buffer-time",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="maximum time before a flush, in seconds (default: 1)",
    )
    stream.add_argument(
        "--buffer-rows",
        type=int,
        default=10_000,
        metavar="ROWS",
        help="maximum rows per flush (default: 10,000)",
    )
    stream.add_argument(
        "--buffer-bytes",
        type=int,
        default=20_000_000,
        metavar="BYTES",
        help="maximum bytes per flush (default: 20,000,000)",
    )
    stream.add_argument(
        "--errors", type=Path, metavar="FILE", help="append rejected messages to this file"
    )


def run(options: argparse.Namespace) -> int:
    """Load until SIGTERM or Ctrl-C."""
    if (
        options.frame <= 0
        or min(options.buffer_time, options.buffer_rows, options.buffer_bytes) < 0
    ):
        raise UserError("A frame is longer than nothing, and buffers are not negative.")
    with stopping_on_signals() as stop:
        if options.stream:
            _stream_messages(options, stop)
        else:
            _load_frames(options, stop)
        if options.once and not options.stream and stop.is_set():
            print(
                "snowmelt: stopped before the end offsets; run it again to go on", file=sys.stderr
            )
            return 1
    return 0


def _load_frames(options: argparse.Namespace, stop: threading.Event) -> None:
    from snowmelt.cli.commands.copy import print_copy_result
    from snowmelt.loaders.kafka import KafkaFrameOptions, run_frames
    from snowmelt.loaders.load_task_execution import LocalTaskRunner

    settings = load_settings(options)
    frames = KafkaFrameOptions(
        topic=options.topic,
        table=options.table,
        brokers=options.brokers,
        parser=options.parser,
        filters=tuple(options.filter),
        rest=f"REJECTED DATA AS TABLE {options.rejects}" if options.rejects else "",
        seconds=options.frame,
        settings=options.conf,
        group=options.group,
        on_gap=options.on_gap,
    )
    with opening_catalog(settings) as database:
        context = make_copy_context(options, settings, database)
        for copied in run_frames(frames, context, LocalTaskRunner(), stop, once=options.once):
            print_copy_result(copied, "table")


def _stream_messages(options: argparse.Namespace, stop: threading.Event) -> None:
    from snowmelt.load.kafka.connection import KafkaConnection
    from snowmelt.load.kafka.connection import parse_librdkafka_settings as kafka_settings
    from snowmelt.loaders.kafka import KafkaConnector, KafkaConnectorOptions

    connection = KafkaConnection(
        options.brokers,
        options.group,
        kafka_settings(options.conf, strict=True, parameter="--conf"),
    )
    wanted = KafkaConnectorOptions(
        topic=options.topic,
        table=options.table,
        buffer_seconds=options.buffer_time,
        buffer_rows=options.buffer_rows,
        buffer_bytes=options.buffer_bytes,
    )
    with (
        contextlib.closing(RejectionWriter(options)) as writer,
        create_client(options) as client,
    ):

        def report(refused: RejectedMessage) -> None:
            place = refused.position
            parts = {"topic": place.topic, "partition": place.partition, "offset": place.offset}
            writer.write(place, refused.reason, refused.data, **parts)

        KafkaConnector(wanted, client, connection, SystemClock(), report).run(stop)
