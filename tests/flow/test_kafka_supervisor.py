"""`snowmelt kafka run`: connectors of a file, their restarts, metrics and stored end offsets."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fixtures.kafka_streaming import Streaming, messages
from snowmelt.client.console import ConsoleClient

pytestmark = pytest.mark.slow

LABELS = tuple[str, ...]


def read_metrics(url: str) -> dict[str, dict[LABELS, float]]:
    """Return the values of each metric by the values of its labels, which are sorted by name."""
    with urllib.request.urlopen(url) as response:
        families = text_string_to_metric_families(response.read().decode())
    found: dict[str, dict[LABELS, float]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_connectors_of_a_file_run_and_restart_on_their_own(
    streaming: Streaming, tmp_path: Path
) -> None:
    good = streaming.kafka.topic("supervised", messages(1), [])
    bad = streaming.kafka.topic("failing", messages(2))
    database = streaming.name.database
    key = tmp_path / "key.pem"
    key.write_text(streaming.key_pair.private_pem)
    file = tmp_path / "connectors.toml"
    file.write_text(
        f"""
metrics = "127.0.0.1:0"

[defaults]
brokers = "{streaming.kafka.brokers}"
url = "{streaming.service.url}"
user = "loader"
private_key = "{key}"
buffer_seconds = 0.1
lag_report_seconds = 0.1

[connectors.good]
topics = ["{good}"]
table = "{streaming.table}"

[connectors.bad]
topics = ["{bad}"]
table = "{database}.public.later"
"""
    )
    command = [sys.executable, "-m", "snowmelt", "kafka", "run", str(file)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("metrics: ")
        streaming.wait_for(1)
        restarts = "snowmelt_kafka_connector_restarts_total"
        streaming.wait_until(lambda: read_metrics(url)[restarts]["bad",] >= 1)
        metrics = read_metrics(url)
        assert metrics[restarts]["good",] == 0
        assert metrics["snowmelt_kafka_connector_running"]["good",] == 1
        streaming.sql(
            f"CREATE TABLE {database}.public.later (id INT, name VARCHAR)",
            f"GRANT INSERT ON TABLE {database}.public.later TO ROLE loading",
        )
        streaming.wait_for(2, table="LATER")
        streaming.kafka.produce(good, 1, [b"{", *messages(3)])
        streaming.wait_for(1, 3)
        lag, end = "snowmelt_kafka_lag_messages", "snowmelt_kafka_end_offset"
        streaming.wait_until(lambda: read_metrics(url)[end].get(("good", "1", good)) == 2)
        streaming.wait_until(lambda: read_metrics(url)[lag]["good", "1", good] == 0)
        assert read_metrics(url)["snowmelt_kafka_rejected_messages_total"]["good",] == 1
        streaming.wait_until(lambda: streaming.token(f"{good}:P1:end") == "2")
        assert streaming.token(f"{good}:P1") == "1"
        streaming.sql(f"GRANT MONITOR ON DATABASE {database} TO ROLE loading")
        private_key = streaming.key_pair.private_pem
        with ConsoleClient(streaming.service.url, user="loader", private_key=private_key) as user:
            found = user.fetch("/kafka", find=good)["partitions"]
        lags = [(each["topic"], each["partition"], each["lag"], each["state"]) for each in found]
        assert (good, 1, 0, "current") in lags
    finally:
        process.terminate()
        process.communicate(timeout=200)
    text = (tmp_path / "log").read_text()
    assert process.returncode == 0, text
    assert "Connector bad failed, next start in 1 s" in text
    assert "LATER" in text


def test_a_connector_moves_to_another_machine_when_its_process_is_killed(
    apache_streaming: Streaming, tmp_path: Path
) -> None:
    """Two supervisors share the partitions of a group. One is killed."""
    topic = apache_streaming.kafka.topic("moving", messages(1), messages(2))
    key = tmp_path / "key.pem"
    key.write_text(apache_streaming.key_pair.private_pem)
    file = tmp_path / "connectors.toml"
    file.write_text(
        f"""
[connectors.shared]
brokers = "{apache_streaming.kafka.brokers}"
url = "{apache_streaming.service.url}"
user = "loader"
private_key = "{key}"
topics = ["{topic}"]
table = "{apache_streaming.table}"
group = "group-{topic}"
share_partitions = true
buffer_seconds = 0.1
librdkafka = "session.timeout.ms=6000"
"""
    )
    command = [sys.executable, "-m", "snowmelt", "kafka", "run", str(file)]
    with (tmp_path / "log").open("wb") as log:
        first, second = (subprocess.Popen(command, stderr=log) for _ in range(2))
    try:
        apache_streaming.wait_for(1, 2)
        os.kill(first.pid, 9)
        first.wait()
        for partition in (0, 1):
            apache_streaming.produce_messages(
                topic, {"value": messages(3 + partition)[0]}, partition=partition
            )
        apache_streaming.wait_for(1, 2, 3, 4)
    finally:
        for each in (first, second):
            if each.poll() is None:
                each.terminate()
        second.wait(timeout=200)
    assert second.returncode == 0, (tmp_path / "log").read_text()
    assert apache_streaming.ids() == [1, 2, 3, 4]
