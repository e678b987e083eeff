"""`snowmelt kafka`: load messages of topics, in frames with COPY, as a stream, or with a supervisor."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import (
    RejectionWriter,
    add_action,
    add_service_options,
    create_client,
    load_settings,
    make_copy_context,
    opening_catalog,
    run_action,
    stopping_on_signals,
)
from snowmelt.clock import SystemClock
from snowmelt.errors import UserError

if TYPE_CHECKING:
    from snowmelt.loaders.kafka.connector import KafkaConnector
    from snowmelt.loaders.kafka.connector_settings import ConnectorSettings
    from snowmelt.loaders.kafka.dead_letters import RejectedMessage
    from snowmelt.loaders.kafka.supervisor import ConnectorStatus

NAME = "kafka"
SUMMARY = "load Kafka topics into tables, continuously"
EXAMPLES = """examples:
  snowmelt kafka --topic clicks --table demo.public.clicks --rejects demo.public.clicks_rejects
  snowmelt kafka --topic logs --table demo.public.logs --parser "fdelimitedparser()" \\
    --filter "KafkaInsertDelimiters(delimiter=E'\\n')" --once
  snowmelt kafka --topic clicks --table demo.public.clicks --stream --url http://127.0.0.1:8080
  snowmelt kafka --stream --topic a --topic b --set topic_tables=a:demo.public.a,b:demo.public.b --evolve
  snowmelt kafka --stream --settings connect.properties
  snowmelt kafka run connectors.toml

By default, one COPY loads the available messages every --frame seconds, directly into the catalog
of the data folder. With --stream, rows are sent to a service, with a channel for each partition, and
are visible within seconds. In both cases each message is loaded exactly once, even after a crash.
`run` starts the connectors of a file, and restarts those that fail.
"""
_STREAM_OPTIONS = ("evolve", "errors_tolerance", "dead_letter_topic", "from_time", "on_new_source")
_BUFFER_OPTIONS = {
    "buffer_time": "buffer_seconds",
    "buffer_rows": "buffer_rows",
    "buffer_bytes": "buffer_bytes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(action=None)
    actions = parser.add_subparsers(metavar="run", required=False)
    running = add_action(
        actions, "run", _run_supervisor, help="run the connectors of a file, with restarts"
    )
    running.add_argument("file", type=Path, metavar="FILE", help="connectors (TOML)")
    running.add_argument(
        "--errors", type=Path, metavar="FILE", help="append rejected messages to this file"
    )
    parser.add_argument(
        "--topic", action="append", help="Kafka topic to load; repeatable with --stream"
    )
    parser.add_argument("--table", help="database.schema.table")
    parser.add_argument(
        "--brokers", help="host:port, separated by commas (default: localhost:9092)"
    )
    parser.add_argument("--group", help="consumer group (default: snowmelt)")
    parser.add_argument("--conf", default="", help="settings of librdkafka: name=value;name=value")
    parser.add_argument(
        "--on-gap",
        choices=("report", "fail"),
        default="report",
        help="action if brokers have deleted unread messages (default: %(default)s)",
    )
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
        "--once", action="store_true", help="load up to the current end offsets, then exit"
    )
    parser.add_argument(
        "--role", help="role (default: ACCOUNTADMIN; with --stream the role of the user)"
    )
    stream = parser.add_argument_group("with --stream")
    _add_stream_arguments(stream)
    parser.set_defaults(frame_options=_list_options(frames), stream_options=_list_options(stream))


def _list_options(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    return list(group._group_actions)  # noqa: SLF001 - argparse has no public list


def _reject_options_of_the_other_mode(options: argparse.Namespace) -> None:
    others = options.frame_options if options.stream else options.stream_options
    for each in others:
        if getattr(options, each.dest) != each.default:
            mode = "with" if options.stream else "without"
            raise UserError(f"{each.option_strings[0]} is not supported {mode} --stream. Omit it.")


def _add_stream_arguments(stream: argparse._ArgumentGroup) -> None:
    stream.add_argument(
        "--stream", action="store_true", help="stream rows through channels of a service"
    )
    add_service_options(stream)
    stream.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings of a connector: properties, or JSON of Kafka Connect",
    )
    stream.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of a connector, by its Snowmelt name or its name in Snowflake's connector; repeatable",
    )
    stream.add_argument(
        "--evolve",
        action="store_true",
        default=None,
        help="add columns for unknown fields (the table needs ENABLE_SCHEMA_EVOLUTION)",
    )
    stream.add_argument(
        "--errors-tolerance",
        choices=("all", "none"),
        help="none: exit at the first rejected message (default: all)",
    )
    stream.add_argument(
        "--dead-letter-topic", metavar="TOPIC", help="produce rejected messages to this topic"
    )
    stream.add_argument(
        "--from-time",
        metavar="TIME",
        help="where partitions without a committed offset start, such as 2026-11-24T08:00:00Z",
    )
    stream.add_argument(
        "--on-new-source",
        choices=("fail", "restart"),
        help="action if the topic or the cluster was replaced (default: fail)",
    )
    stream.add_argument(
        "--buffer-time",
        type=float,
        metavar="SECONDS",
        help="maximum time before a flush, in seconds (default: 1)",
    )
    stream.add_argument(
        "--buffer-rows",
        type=int,
        metavar="ROWS",
        help="maximum rows per flush (default: 10,000)",
    )
    stream.add_argument(
        "--buffer-bytes",
        type=int,
        metavar="BYTES",
        help="maximum bytes per flush (default: 20,000,000)",
    )
    stream.add_argument(
        "--errors", type=Path, metavar="FILE", help="append rejected messages to this file"
    )


def run(options: argparse.Namespace) -> int:
    """Load until SIGTERM or Ctrl-C."""
    if options.action is not None:
        return run_action(options)
    _reject_options_of_the_other_mode(options)
    buffers = [vars(options)[each] or 0 for each in _BUFFER_OPTIONS]
    if options.frame <= 0 or min(buffers) < 0:
        raise UserError("Invalid limits: expected --frame above 0 s, and --buffer-… of at least 0.")
    with stopping_on_signals() as stop:
        if options.stream:
            _stream_messages(options, stop)
        else:
            _load_frames(options, stop)
        if options.once and not options.stream and stop.is_set():
            print(
                "snowmelt: stopped before the end offsets; run the command again to continue",
                file=sys.stderr,
            )
            return 1
    return 0


def _run_supervisor(options: argparse.Namespace) -> None:
    from snowmelt.load.kafka.connection import KafkaConnection
    from snowmelt.loaders.kafka.connector import MAX_CLIENT_LAG, KafkaConnector
    from snowmelt.loaders.kafka.supervisor import (
        KafkaSupervisor,
        read_supervisor_settings,
        serving_metrics,
    )

    settings = read_supervisor_settings(options.file)
    for each in settings.connectors:
        for name in each.ignored:
            print(
                f"snowmelt: the setting {name} of connector {each.options.name} has no effect here",
                file=sys.stderr,
            )
    names = ("url", "profile", "user", "private_key", "ca_file", "role")
    login = argparse.Namespace(config=options.config, **dict.fromkeys(names))
    lock = threading.Lock()
    with contextlib.closing(RejectionWriter(options)) as writer:

        @contextlib.contextmanager
        def make_connector(
            connector: ConnectorSettings, status: ConnectorStatus
        ) -> Iterator[KafkaConnector]:
            def report(rejected: RejectedMessage) -> None:
                with lock:
                    status.rejected_messages += 1
                    _write_rejection(writer, rejected, connector=status.name)

            connection = KafkaConnection(connector.brokers, connector.group, connector.librdkafka)
            with create_client(login, connector.login, max_client_lag=MAX_CLIENT_LAG) as client:
                yield KafkaConnector(connector.options, client, connection, SystemClock(), report)

        supervisor = KafkaSupervisor(settings, make_connector, SystemClock())
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(stopping_on_signals())
            if settings.metrics:
                port = stack.enter_context(serving_metrics(settings.metrics, supervisor))
                host = settings.metrics.rpartition(":")[0]
                print(f"metrics: http://{host}:{port}/metrics", flush=True)
            supervisor.run(stop)


def _load_frames(options: argparse.Namespace, stop: threading.Event) -> None:
    from snowmelt.cli.commands.copy import print_copy_result
    from snowmelt.loaders.kafka.frames import KafkaFrameOptions, run_frames
    from snowmelt.loaders.load_task_execution import LocalTaskRunner

    if not options.topic or len(options.topic) > 1 or options.table is None:
        raise UserError(
            "Frames require one --topic and one --table. Use --stream for several topics."
        )
    settings = load_settings(options)
    frames = KafkaFrameOptions(
        topic=options.topic[0],
        table=options.table,
        brokers=options.brokers or "localhost:9092",
        parser=options.parser,
        filters=tuple(options.filter),
        rest=f"REJECTED DATA AS TABLE {options.rejects}" if options.rejects else "",
        seconds=options.frame,
        settings=options.conf,
        group=options.group or "snowmelt",
        on_gap=options.on_gap,
    )
    with opening_catalog(settings) as database:
        context = make_copy_context(options, settings, database)
        for copied in run_frames(frames, context, LocalTaskRunner(), stop, once=options.once):
            print_copy_result(copied, "table")


def _stream_messages(options: argparse.Namespace, stop: threading.Event) -> None:
    from snowmelt.load.kafka.connection import KafkaConnection
    from snowmelt.loaders.kafka.connector import MAX_CLIENT_LAG, KafkaConnector
    from snowmelt.loaders.kafka.connector_settings import parse_connector_settings

    settings = parse_connector_settings(_collect_settings(options))
    for name in settings.ignored:
        print(f"snowmelt: the setting {name} has no effect here", file=sys.stderr)
    connection = KafkaConnection(settings.brokers, settings.group, settings.librdkafka)
    with (
        contextlib.closing(RejectionWriter(options)) as writer,
        create_client(options, settings.login, max_client_lag=MAX_CLIENT_LAG) as client,
    ):

        def report(rejected: RejectedMessage) -> None:
            _write_rejection(writer, rejected)

        KafkaConnector(settings.options, client, connection, SystemClock(), report).run(stop)


def _write_rejection(writer: RejectionWriter, rejected: RejectedMessage, **more: object) -> None:
    place = rejected.position
    parts = {"topic": place.topic, "partition": place.partition, "offset": place.offset}
    writer.write(place, rejected.reason, rejected.data, **more, **parts)


def _collect_settings(options: argparse.Namespace) -> dict[str, object]:
    """Merge the settings of the file, of --set and of options. Later sources override earlier ones."""
    from snowmelt.loaders.kafka.connector_settings import read_settings_file

    found = {} if options.settings is None else read_settings_file(options.settings)
    for text in options.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise UserError(f"Invalid --set {text!r}: expected NAME=VALUE.")
        found[name.strip()] = value.strip()
    given = {
        "topics": options.topic,
        "table": options.table,
        "brokers": options.brokers,
        "group": options.group,
        "librdkafka": options.conf or None,
        "on_gap": options.on_gap if options.on_gap != "report" else None,
        **{each: vars(options)[each] for each in _STREAM_OPTIONS},
        **{name: vars(options)[each] for each, name in _BUFFER_OPTIONS.items()},
    }
    return {**found, **{name: value for name, value in given.items() if value is not None}}
