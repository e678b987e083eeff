"""`snowmelt kafka` with frames: messages of a topic are loaded once, despite failures."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from typing import Any

import confluent_kafka as ck
import pytest

from fixtures.copy import Copying
from fixtures.kafka import Broker
from snowmelt.errors import BrokersSilent, LoadFailed
from snowmelt.loaders.kafka.frames import KafkaFrameOptions, run_frames
from snowmelt.loaders.load_task_execution import LocalTaskRunner

pytestmark = pytest.mark.slow


def messages(*numbers: int) -> list[Any]:
    return [json.dumps({"n": n, "word": f"w{n}"}).encode() for n in numbers]


def frames(kafka: Broker, topic: str, **more: Any) -> KafkaFrameOptions:
    return KafkaFrameOptions(topic=topic, table="numbers", brokers=kafka.brokers, **more)


def test_frames_load_what_has_come_and_nothing_twice(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("framed", messages(1, 2), messages(3))
    stop, loaded = threading.Event(), []
    sums: list[int] = []
    wanted = frames(kafka, topic, seconds=0.5, rest="REJECTED DATA AS TABLE rejects")
    for copied in run_frames(wanted, copying.context, LocalTaskRunner(), stop):
        loaded.append((copied.totals.rows, copied.totals.rejects))
        # The number of messages in half a second depends on the broker.
        if (sums := [sum(each) for each in zip(*loaded, strict=True)]) == [3, 0]:
            kafka.produce(topic, 1, [b"broken", *messages(4)])
        elif sum(sums) >= 5:
            stop.set()
    assert sums == [4, 1]
    assert sorted(copying.house.read_numbers()) == [1, 2, 3, 4]
    # Frames without messages add no load to the history.
    assert copying.states() == ["committed"] * len(loaded)


def test_once_loads_up_to_the_end_offsets_of_its_start_however_short_a_frame_is(
    kafka: Broker, copying: Copying
) -> None:
    parts = [range(number, 9000, 3) for number in range(3)]
    topic = kafka.topic("once-all", *(messages(*part) for part in parts), [])
    wanted = frames(kafka, topic, seconds=0.01)
    loaded: list[Any] = []
    for copied in run_frames(
        wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True
    ):
        if not loaded:
            # Messages after the end offsets at the start, including an empty partition.
            kafka.produce(topic, 1, messages(9001))
            kafka.produce(topic, 3, messages(9002))
        loaded.append(copied.totals.rows)
    assert sum(loaded) == 9000
    assert sorted(copying.house.read_numbers()) == list(range(9000))
    list(run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True))
    assert sorted(copying.house.read_numbers())[9000:] == [9001, 9002]


def test_once_ends_where_a_topic_is_empty_or_missing(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("once-empty", [])
    wanted = frames(kafka, topic)
    assert (
        list(run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True))
        == []
    )
    wanted = frames(kafka, "nowhere")
    with pytest.raises(LoadFailed, match="nowhere"):
        list(run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True))


def test_any_parser_behind_delimiters(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("delimited", [b"7|seven", b"8|eight\n9|nine"])
    filters = ("KafkaInsertDelimiters(delimiter=E'\\n')",)
    wanted = frames(kafka, topic, parser="Delimited(delimiter='|')", filters=filters)
    list(run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True))
    assert sorted(copying.house.read_numbers()) == [7, 8, 9]


def test_a_frame_that_fails_leaves_its_messages_to_the_next(
    kafka: Broker, copying: Copying
) -> None:
    topic = kafka.topic("failing", [*messages(1), b"broken"])
    strict = frames(kafka, topic, rest="ABORT ON ERROR")
    with pytest.raises(LoadFailed):
        list(run_frames(strict, copying.context, LocalTaskRunner(), threading.Event(), once=True))
    assert copying.house.read_numbers() == []
    lenient = frames(kafka, topic)
    list(run_frames(lenient, copying.context, LocalTaskRunner(), threading.Event(), once=True))
    assert copying.house.read_numbers() == [1]


def test_brokers_that_do_not_answer_are_waited_for(
    own_kafka: Broker, copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snowmelt.load.kafka.connection._REQUEST_TIMEOUT_S", 0.3)
    topic = own_kafka.topic("late", messages(7))
    wanted = frames(own_kafka, topic, seconds=0.2)
    assert own_kafka.process is not None
    own_kafka.process.send_signal(signal.SIGSTOP)
    with pytest.raises(BrokersSilent, match=r"Kafka broker unavailable for topic late"):
        list(run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True))
    stop, process = threading.Event(), own_kafka.process
    assert process is not None
    waking = threading.Timer(1.6, process.send_signal, (signal.SIGCONT,))
    waking.start()
    for copied in run_frames(wanted, copying.context, LocalTaskRunner(), stop):
        assert copied.totals.rows == 1
        stop.set()
    waking.join()
    assert copying.house.read_numbers() == [7]


def test_the_group_is_told_of_what_was_committed_and_nothing_else(
    kafka: Broker, copying: Copying
) -> None:
    topic = kafka.topic("group", [*messages(1, 2), b"broken"])
    told = ck.TopicPartition(topic, 0)
    consumer = ck.Consumer({"bootstrap.servers": kafka.brokers, "group.id": "watching"})
    for rest, offset in (("ABORT ON ERROR", ck.OFFSET_INVALID), ("", 3)):
        wanted = frames(kafka, topic, group="watching", rest=rest)
        with contextlib.suppress(LoadFailed):
            list(
                run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True)
            )
        assert consumer.committed([told], timeout=120)[0].offset == offset
    consumer.close()


def test_names_in_quotes_and_settings_reach_the_source(kafka: Broker, copying: Copying) -> None:
    topic = kafka.topic("quoted", messages(5))
    wanted = frames(kafka, topic, settings="client.id=it's me", stream_name="it's")
    list(run_frames(wanted, copying.context, LocalTaskRunner(), threading.Event(), once=True))
    assert copying.house.read_numbers() == [5]
