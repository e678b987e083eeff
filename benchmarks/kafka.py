"""Benchmark of `snowmelt kafka --stream`, compared with a minimal librdkafka consumer.

uv run python benchmarks/kafka.py [--messages 400000] [--rate 2000] [--seconds 20]

Broker (Apache Kafka), service and connector share this machine. The minimal consumer reads the same
topic in the same run, and discards the messages.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as ck
import fastavro
from harness import Running
from report import Report

from fixtures.apache_kafka import ApacheKafka, kafka_jars
from fixtures.kafka import Broker
from snowmelt.clock import SystemClock
from snowmelt.load.kafka.connection import KafkaConnection
from snowmelt.loaders.kafka.connector import MAX_CLIENT_LAG, KafkaConnector
from snowmelt.loaders.kafka.connector_settings import parse_connector_settings
from support.schema_registry import Registry

PARTITIONS = 4
# Columns of a message. The text fills the JSON to 250 bytes.
DDL = "CREATE TABLE bench.public.{} (id INT, at TIMESTAMP_NTZ, price FLOAT, code VARCHAR, note VARCHAR)"
JSON_BYTES = 250
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "code", "type": "string"},
        {"name": "note", "type": "string"},
    ],
}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def make_event(number: int) -> dict[str, object]:
    """Return event `number`, whose JSON has 250 bytes."""
    at = f"2026-11-24T08:{number // 60 % 60:02}:{number % 60:02}.125"
    event = {"id": number, "at": at, "price": number % 1000 / 8, "code": f"C{number % 300}"}
    event["note"] = ""
    event["note"] = "x" * (JSON_BYTES - len(json.dumps(event)))
    return event


def encode_json(number: int) -> bytes:
    """Return event `number` as JSON."""
    return json.dumps(make_event(number)).encode()


def make_avro_encoder(registry: Registry) -> Callable[[int], bytes]:
    """Return the encoder of events in Confluent's wire format."""
    schema_id = registry.register("events-value", {"schema": json.dumps(AVRO)})
    schema = fastavro.parse_schema(AVRO)

    def encode(number: int) -> bytes:
        body = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
        body.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(body, schema, make_event(number))
        return body.getvalue()

    return encode


def produce(broker: Broker, topic: str, count: int, encode: Callable[[int], bytes]) -> None:
    """Produce events into all partitions in turn."""
    producer = ck.Producer({"bootstrap.servers": broker.brokers, "linger.ms": 20})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, encode(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def consume_bare(broker: Broker, topic: str, count: int) -> float:
    """Return the seconds in which a consumer of librdkafka reads the topic."""
    connection = KafkaConnection(broker.brokers, "bare", {})
    started = time.monotonic()
    consumer = connection.make_consumer(lambda _: None)
    consumer.assign([ck.TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    left = count
    while left > 0:
        left -= sum(1 for each in consumer.consume(10_000, 1.0) if each.error() is None)
    seconds = time.monotonic() - started
    consumer.close()
    return seconds


def read_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S + sum(map(read_cpu_s, children))


class Progress(threading.Thread):
    """Thread that reads committed offsets every 5 ms.

    It stops the connector after the last message.
    """

    def __init__(self, connector: KafkaConnector, count: int, stop: threading.Event) -> None:
        super().__init__()
        self.connector, self.count, self.stop = connector, count, stop
        self.commits: dict[int, list[tuple[float, int]]] = {each: [] for each in range(PARTITIONS)}
        self.ended_at = 0.0

    def run(self) -> None:
        """Wait until all messages are committed."""
        while self._count_committed() < self.count:
            time.sleep(0.005)
        self.ended_at = time.monotonic()
        self.stop.set()

    def _count_committed(self) -> int:
        committed = 0
        for lag in self.connector.list_lags():
            if lag.committed_offset is not None:
                committed += lag.committed_offset + 1
                seen = self.commits[lag.place.partition]
                if not seen or seen[-1][1] < lag.committed_offset:
                    seen.append((time.monotonic(), lag.committed_offset))
        return committed


@contextlib.contextmanager
def connecting(
    running: Running, broker: Broker, topic: str, **settings: object
) -> Iterator[KafkaConnector]:
    """Yield a connector with its own client and default limits."""
    table = f"bench.public.{topic}"
    found = parse_connector_settings({"topics": topic, "table": table, **settings})
    connection = KafkaConnection(broker.brokers, "bench", {})
    with running.client(max_client_lag=MAX_CLIENT_LAG) as client:
        yield KafkaConnector(found.options, client, connection, SystemClock(), print)


def load(
    running: Running, broker: Broker, topic: str, count: int, **settings: object
) -> tuple[float, float, float, float]:
    """Return seconds until all messages are committed, and CPU seconds of connector, service, broker."""
    others = [each.pid for each in (running.started, broker.process) if each is not None]
    before = [time.process_time(), *map(read_cpu_s, others)]
    started = time.monotonic()
    stop = threading.Event()
    with connecting(running, broker, topic, **settings) as connector:
        progress = Progress(connector, count, stop)
        progress.start()
        connector.run(stop)
        progress.join()
    after = [time.process_time(), *map(read_cpu_s, others)]
    connector_s, service_s, broker_s = (b - a for a, b in zip(before, after, strict=True))
    return progress.ended_at - started, connector_s, service_s, broker_s


def measure_latencies(running: Running, broker: Broker, rate: int, seconds: float) -> list[float]:
    """Return the sorted times from production to commit of messages at a steady rate."""
    topic = broker.topic("steady", *[[]] * PARTITIONS)
    running.execute(DDL.format(topic))
    count = int(rate * seconds)
    produced: dict[int, list[float]] = {each: [] for each in range(PARTITIONS)}

    def produce_steadily() -> None:
        producer = ck.Producer({"bootstrap.servers": broker.brokers, "linger.ms": 5})
        started = time.monotonic()
        for number in range(count):
            time.sleep(max(started + number / rate - time.monotonic(), 0))
            producer.produce(topic, encode_json(number), partition=number % PARTITIONS)
            produced[number % PARTITIONS].append(time.monotonic())
            producer.poll(0)
        producer.flush()

    stop = threading.Event()
    with connecting(running, broker, topic) as connector:
        progress = Progress(connector, count, stop)
        producing = threading.Thread(target=produce_steadily)
        progress.start()
        producing.start()
        connector.run(stop)
        progress.join()
        producing.join()
    latencies = []
    for partition, commits in progress.commits.items():
        offset = 0
        for at, committed in commits:
            latencies += [at - each for each in produced[partition][offset : committed + 1]]
            offset = committed + 1
    return sorted(latencies)


def main() -> None:
    """Measure, print a table, and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    report = Report(
        "kafka",
        "How fast does a Kafka topic stream into a table, beside a bare consumer?",
        ("messages", "bare consumer, messages/s", "connector, messages/s", "share",
         "µs of CPU per message: connector", "service", "broker"),
    )  # fmt: skip
    cache = Path(__file__).parents[1] / ".pytest_cache" / "d" / "java"
    cache.mkdir(parents=True, exist_ok=True)
    count = options.messages
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-kafka-") as folder,
        contextlib.closing(Registry()) as registry,
        Running() as running,
    ):
        broker = ApacheKafka(Path(folder), class_path=kafka_jars(cache))
        try:
            broker.start()
            # The first messages load compiled kernels.
            warm_up = broker.topic("warm_up", *[[]] * PARTITIONS)
            running.execute(DDL.format(warm_up))
            produce(broker, warm_up, 20_000, encode_json)
            load(running, broker, warm_up, 20_000)
            for name, encode, settings in (
                ("JSON", encode_json, {}),
                ("Avro", make_avro_encoder(registry),
                 {"value_format": "avro", "registry_url": registry.url}),
            ):  # fmt: skip
                topic = broker.topic(f"events_{name.lower()}", *[[]] * PARTITIONS)
                running.execute(DDL.format(topic))
                produce(broker, topic, count, encode)
                bare_s = min(consume_bare(broker, topic, count) for _ in range(2))
                seconds, *cpu_s = load(running, broker, topic, count, **settings)
                report.add(
                    f"{count:,} of {name}, {len(encode(7))} bytes",
                    f"{count / bare_s:,.0f}",
                    f"{count / seconds:,.0f}",
                    f"{bare_s / seconds:.2f}",
                    *(f"{each / count * 1e6:.1f}" for each in cpu_s),
                )
            latencies = measure_latencies(running, broker, options.rate, options.seconds)
        finally:
            broker.kill()
    p50, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    report.remark(
        f"{options.rate:,} JSON messages/s with default limits (`buffer_seconds` 1 s)"
        f": from production to commit p50 {p50:.2f} s, p99 {p99:.2f} s, "
        f"at most {latencies[-1]:.2f} s."
    )
    report.keep()


if __name__ == "__main__":
    main()
