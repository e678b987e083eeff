"""Kafka step of the demo: a connector streams a topic, and is killed once.

The broker is the mock cluster of librdkafka, which `confluent-kafka` contains. It implements Kafka's protocol on
a loopback port and keeps its messages in the memory of this process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.streaming.channels import list_channels
from snowmelt.cli.flights_demo import dataset
from snowmelt.clock import SystemClock
from snowmelt.config import copy_environment
from snowmelt.embedded import EMBEDDED_USER, EmbeddedService
from snowmelt.errors import InternalError
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    import confluent_kafka as ck
    from rich.console import Console

TABLE = "demo.public.departures"
REJECTS = "demo.public.departures_rejects"
_NAME = TableName("DEMO", "PUBLIC", "DEPARTURES")
_TOPIC = "departures"
_COLUMNS = ("carrier", "flight", "origin", "dest", "distance")
# The mock cluster retains 5 MB per partition.
_FLIGHTS = 20_000
_BROKEN = (b"", b"not JSON", b'{"carrier": "UA", "distance": "far"}', b"[1, 2]")
_COMMIT_TIMEOUT_S = 120.0
_clock = SystemClock()


def run_kafka_chapter(
    service: EmbeddedService,
    query: Callable[[str], Sequence[Sequence[Any]]],
    folder: Path,
    console: Console,
    promise: Callable[..., None],
) -> None:
    """Produce flights, kill the connector, restart it, and compare the table with the topic."""
    for statement in (
        f"CREATE TABLE {TABLE} (carrier VARCHAR, flight INT, origin VARCHAR, dest VARCHAR, distance INT)",
        f"ALTER TABLE {TABLE} SET ERROR_TABLE = {REJECTS}",
    ):
        console.print(f"[dim]{statement}[/dim]")
        service.sql(statement)
    flights = dataset.load_flights().select(_COLUMNS).slice(0, _FLIGHTS)
    messages = [json.dumps(row).encode() for row in flights.to_pylist()]
    half = len(messages) // 2
    producer, brokers = _start_mock_cluster()
    file = _write_connectors(folder / "connectors.toml", service, brokers)
    console.print(f"[dim]$ snowmelt kafka run {file.name}[/dim]")
    _produce(producer, [*messages[:half], *_BROKEN])
    connector = _start_connector(file)
    try:
        committed = _wait_until_committed(service, connector, 1)
        connector.kill()
        connector.wait()
        console.print(
            f"  [red]kill -9[/red] of the connector at {committed:,} messages; starting it again"
        )
        _produce(producer, messages[half:])
        connector = _start_connector(file)
        _wait_until_committed(service, connector, len(messages) + len(_BROKEN))
    finally:
        connector.terminate()
        connector.wait()
        producer.flush(1)
    code = connector.returncode
    promise("connector ends on SIGTERM", "exit code 0", code, kept=code == 0)
    ((rows, distance),) = query(f"SELECT count(*), sum(distance) FROM {TABLE}")
    expected = pc.sum(flights["distance"]).as_py()
    seen = f"{int(rows):,} rows, {int(distance or 0):,} miles"
    promise(
        "each Kafka message once",
        f"{len(messages):,} rows, {expected:,} miles",
        seen,
        kept=(int(rows), int(distance or 0)) == (len(messages), expected),
    )
    ((rejects,),) = query(f"SELECT count(*) FROM {REJECTS}")
    # The connector skips the message without a value.
    wanted = len(_BROKEN) - 1
    promise("rejected Kafka messages kept once", wanted, rejects, kept=int(rejects) == wanted)


def _start_mock_cluster() -> tuple[ck.Producer, str]:
    """Start a broker in this process. It ends with the producer."""
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    broker = next(iter(producer.list_topics(_TOPIC, timeout=30).brokers.values()))
    return producer, f"{broker.host}:{broker.port}"


def _produce(producer: ck.Producer, messages: Sequence[bytes]) -> None:
    for message in messages:
        producer.produce(_TOPIC, message or None)
        producer.poll(0)
    producer.flush()


def _write_connectors(file: Path, service: EmbeddedService, brokers: str) -> Path:
    """Write the file for `snowmelt kafka run`, with small flushes so that the kill is between two."""
    settings = {
        "brokers": brokers,
        "url": service.url,
        "user": EMBEDDED_USER,
        "private_key": str(service.private_key_file),
        "topics": [_TOPIC],
        "table": TABLE,
        "buffer_seconds": 0.2,
        "buffer_rows": 500,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    file.write_text("\n".join(["[connectors.departures]", *lines, ""]), encoding="utf-8")
    return file


def _start_connector(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "snowmelt", "kafka", "run", str(file)]
    with file.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, env=copy_environment(), stdout=log, stderr=log
        )


def _wait_until_committed(
    service: EmbeddedService, connector: subprocess.Popen[bytes], count: int
) -> int:
    """Wait until at least `count` messages are committed. Return their number."""
    give_up_at = _clock.monotonic() + _COMMIT_TIMEOUT_S
    while True:
        with service.service.database.reading() as connection:
            table = find_table(connection, _NAME)
            channels = list_channels(connection, [table.table_id])
        # Channels of partitions, without the channels of end offsets.
        partition_name = re.compile(rf"{_TOPIC}:P\d+")
        tokens = [each.offset_token for each in channels if partition_name.fullmatch(each.name)]
        committed = sum(int(token) + 1 for token in tokens if token)
        if committed >= count:
            return committed
        if connector.poll() is not None or _clock.monotonic() > give_up_at:
            raise InternalError("The connector did not load the topic in time.")
        _clock.sleep(0.02)
