"""Test that no message is lost, duplicated or reordered if processes of a Kafka stream are killed.

uv run python benchmarks/kafka_kills.py [--kills 200] [--rate 200]

Kills connector (`snowmelt kafka run`), service and broker (Apache Kafka) in turn with SIGKILL while
messages are produced. At the end the rows of each partition must be the messages of the topic, in
order.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import confluent_kafka as ck
from harness import Running, list_findings
from report import Report

from fixtures.apache_kafka import ApacheKafka, kafka_jars
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.streaming.channels import list_channels
from snowmelt.load.kafka.connection import KafkaConnection
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

PARTITIONS = 3
TOPIC = "killed"
NAME = TableName("BENCH", "PUBLIC", "KILLED")
VICTIMS = ("connector", "service", "broker")
# Maximum time without a commit after a kill.
RECOVERY_TIMEOUT_S = 180.0


class Producing(threading.Thread):
    """Thread that produces numbered messages into all partitions until it is stopped.

    A restart of the broker only delays it.
    """

    def __init__(self, brokers: str, rate: int) -> None:
        super().__init__()
        self.stop = threading.Event()
        self._rate = rate
        self._producer = ck.Producer(
            {
                "bootstrap.servers": brokers,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Produce messages until the stop, and deliver all of them."""
        for number in itertools.count():
            data = json.dumps({"p": number % PARTITIONS, "n": number // PARTITIONS}).encode()
            while True:
                with contextlib.suppress(BufferError):
                    self._producer.produce(TOPIC, data, partition=number % PARTITIONS)
                    break
                self._producer.poll(0.1)
            self._producer.poll(0)
            if self.stop.wait(1 / self._rate):
                break
        while self._producer.flush(10):
            pass


class Site:
    """Broker, service and connector on this machine."""

    def __init__(self, folder: Path, running: Running) -> None:
        cache = Path(__file__).parents[1] / ".pytest_cache" / "d" / "java"
        cache.mkdir(parents=True, exist_ok=True)
        self.folder, self.running = folder, running
        self.broker = ApacheKafka(folder, class_path=kafka_jars(cache))
        self.broker.start()
        self.broker.topic(TOPIC, *[[]] * PARTITIONS)
        running.execute("CREATE TABLE bench.public.killed (p INT, n INT)")
        key = folder / "key.pem"
        key.write_text(running.private_key)
        self.file = folder / "connectors.toml"
        self.file.write_text(
            f"""
[connectors.killed]
brokers = "{self.broker.brokers}"
url = "{running.url}"
user = "bench"
private_key = "{key}"
topics = ["{TOPIC}"]
table = "bench.public.killed"
buffer_seconds = 0.1
librdkafka = "reconnect.backoff.max.ms=500"
"""
        )
        self.database = open_and_upgrade_database(running.settings.catalog_url)
        self.connector = self._start_connector()

    def _start_connector(self) -> subprocess.Popen[bytes]:
        with (self.folder / "connector.log").open("ab") as log:
            command = [sys.executable, "-m", "snowmelt", "kafka", "run", str(self.file)]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, victim: str) -> None:
        """Kill a process and start it again."""
        if victim == "connector":
            self.connector.kill()
            self.connector.wait()
            self.connector = self._start_connector()
        elif victim == "service":
            self.running.started.kill()
            self.running.started.wait()
            self.running.start()
        else:
            self.broker.kill()
            self.broker.start()

    def count_committed(self) -> int:
        """Return the number of committed messages of all channels."""
        with self.database.reading() as connection:
            table = find_table(connection, NAME)
            channels = list_channels(connection, [table.table_id])
        names = {f"{TOPIC}:P{number}" for number in range(PARTITIONS)}
        tokens = [each.offset_token for each in channels if each.name in names]
        return sum(int(token) + 1 for token in tokens if token is not None)

    def wait_until_committed(self, count: int) -> None:
        """Wait until more than `count` messages are committed."""
        give_up_at = time.monotonic() + RECOVERY_TIMEOUT_S
        while self.count_committed() <= count:
            if time.monotonic() > give_up_at:
                log = (self.folder / "connector.log").read_text()[-2000:]
                raise RuntimeError(
                    f"No message was committed for {RECOVERY_TIMEOUT_S:.0f} s: {log}"
                )
            time.sleep(0.02)

    def read_topic(self) -> dict[int, list[int]]:
        """Return the numbers of the messages in the topic, by partition."""
        consumer = KafkaConnection(self.broker.brokers, "check", {}).make_consumer(lambda _: None)
        places = [ck.TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(each, timeout=30)[1] for each in places)
        consumer.assign(places)
        numbers: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
        while left:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    numbers[message.partition() or 0].append(
                        json.loads(message.value() or b"")["n"]
                    )
                    left -= 1
        consumer.close()
        return numbers

    def read_rows(self) -> dict[int, list[int]]:
        """Return the numbers in the table in commit order, by partition."""
        settings = self.running.settings
        keyring = KeyRing(load_master_key(settings.keys_dir))
        rows = read_table(self.database, keyring, open_store(settings.stage_url), NAME)
        numbers: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
        for partition, number in zip(rows["P"].to_pylist(), rows["N"].to_pylist(), strict=True):
            numbers[int(partition)].append(int(number))
        return numbers

    def close(self) -> None:
        """Stop the connector, and kill the broker."""
        self.connector.terminate()
        self.connector.wait()
        self.broker.kill()
        self.database.close()


def main() -> int:
    """Kill processes, compare the rows, and store the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rate", type=int, default=200, help="messages per second")
    options = parser.parse_args()
    kills = dict.fromkeys(VICTIMS, 0)
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-kafka-kills-") as folder,
        Running() as running,
    ):
        site = Site(Path(folder), running)
        producing = Producing(site.broker.brokers, options.rate)
        try:
            producing.start()
            # Ctrl-C ends the kills. The rows are compared in any case.
            with contextlib.suppress(KeyboardInterrupt):
                for victim in itertools.islice(itertools.cycle(VICTIMS), options.kills):
                    site.wait_until_committed(site.count_committed())
                    time.sleep(random.uniform(0, 0.5))
                    site.kill(victim)
                    kills[victim] += 1
                    print(
                        f"{sum(kills.values())}: {victim}, {site.count_committed()} committed",
                        flush=True,
                    )
            producing.stop.set()
            producing.join()
            topic = site.read_topic()
            site.wait_until_committed(sum(map(len, topic.values())) - 1)
            rows = site.read_rows()
            findings = list_findings(running.folder)
        finally:
            producing.stop.set()
            site.close()
    lost = sum(len(set(topic[each]) - set(rows[each])) for each in topic)
    doubled = sum(len(rows[each]) - len(set(rows[each])) for each in rows)
    disordered = sum(rows[each] != sorted(rows[each]) for each in rows)
    is_equal = rows == topic
    report = Report(
        "kafka_kills",
        "Is a message lost, doubled or out of order if connector, service or broker is killed?",
        (*(f"kills of {each}" for each in VICTIMS), "messages", "lost", "doubled", "partitions out of order", "findings of `snowmelt check`"),
    )  # fmt: skip
    report.add(*kills.values(), f"{sum(map(len, topic.values())):,}", lost, doubled, disordered, len(findings))  # fmt: skip
    report.remark("The rows of each partition are compared with the messages of the topic.")
    report.keep()
    for each in findings:
        print(each)
    summary = (
        f"{sum(kills.values())} kills, {lost} lost, {doubled} doubled, {disordered} out of order"
    )
    print(f"{summary}, {len(findings)} findings")
    return 0 if is_equal and not findings else 1


if __name__ == "__main__":
    raise SystemExit(main())
