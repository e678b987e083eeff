"""COPY from Kafka: messages are loaded once, and offsets advance in the same commit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.copy import Copying
from fixtures.kafka import Broker
from snowmelt.catalog.jobs import load_history
from snowmelt.errors import LoadOvertaken
from snowmelt.loaders.load_task_execution import run_load_task
from snowmelt.schema.types import TableName

pytestmark = pytest.mark.slow

REJECTS = TableName("DEMO", "PUBLIC", "REJECTS")


def messages(*numbers: int) -> list[Any]:
    return [json.dumps({"n": n, "word": f"w{n}"}).encode() for n in numbers]


def statement(kafka: Broker, topic: str, rest: str = "") -> str:
    return (
        f"COPY numbers SOURCE KafkaSource(stream='{topic}|*|-3', brokers='{kafka.brokers}', "
        f"stop_on_eof=true) PARSER KafkaJSONParser() {rest}"
    )


def test_each_message_is_a_row_once(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("copied", messages(1, 2), messages(3))
    copy = statement(kafka, topic, "REJECTED DATA AS TABLE rejects")
    assert copying.copy(copy).totals.rows == 3
    assert copying.copy(copy).totals.rows == 0
    kafka.produce(topic, 1, [b"{broken", *messages(4)])
    copied = copying.copy(copy)
    assert (copied.totals.rows, copied.totals.rejects) == (1, 1)
    assert sorted(copying.house.read_numbers()) == [1, 2, 3, 4]
    rejects = copying.house.read(REJECTS)
    assert rejects["FILE_NAME"].to_pylist() == [f"{topic}|1|1"]
    assert rejects["REJECTED_DATA"].to_pylist() == ["{broken"]
    # Another stream, or a recreated table, starts at the first offset.
    assert copying.copy(copy + " STREAM NAME 'other'").totals.rows == 4


def test_of_two_loads_of_a_stream_one_loses(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("contested", messages(1, 2))
    copy = statement(kafka, topic)

    class Overtaken:
        parallelism = 1

        def __call__(self, plan: Any, tasks: Any) -> list[Any]:
            copying.copy(copy)
            return [run_load_task(plan, task) for task in tasks]

    with pytest.raises(LoadOvertaken, match="another load has changed the offset"):
        copying.copy(copy, run=Overtaken())
    assert sorted(copying.house.read_numbers()) == [1, 2]


def test_the_history_shows_no_secrets(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("secret", messages(1))
    secrets = "kafka_conf='client.id=it''s', KAFKA_CONF_SECRET = E'sasl.password=a\\'b'"
    text = statement(kafka, topic).replace("stop_on_eof", f"{secrets}, stop_on_eof")
    assert copying.copy(text).totals.rows == 1
    with copying.house.database.reading() as connection:
        [load] = load_history.list_loads(connection)
    assert "kafka_conf='…', KAFKA_CONF_SECRET = '…', stop_on_eof=true)" in load.statement
    assert "sasl" not in load.statement
