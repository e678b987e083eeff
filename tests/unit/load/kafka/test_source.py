"""Messages are read from offset to offset, each once, and what was read is told."""

from __future__ import annotations

import datetime as dt
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest

from fixtures.kafka import Broker
from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.kafka.partition_ranges_and_results import (
    EndReason,
    MessagePosition,
    OffsetGap,
    PartitionEnd,
)
from snowmelt.load.kafka.source import KafkaSource, KafkaSourceOptions
from snowmelt.load.phase_protocols import RecordSource
from snowmelt.load.portion import Portion
from snowmelt.load.sources import definition
from support.phases import built

SECOND = dt.timedelta(seconds=1)


def made(brokers: str, stream: str, **parameters: Any) -> Any:
    given = {"stream": stream, "brokers": brokers, "stop_on_eof": True, **parameters}
    return built(definition("KafkaSource"), given)


def read(source: Any, path: Any = None) -> tuple[list[Any], list[Any]]:
    """Return the messages of all portions (or the one of a path), and how they ended."""
    portions = [Portion(file) for file in source.files() if path in {None, file.path}]
    messages, ends = [], []
    for portion in portions:
        for batch in source.read_records(portion):
            messages += batch.to_pylist()
        ends += source.ends
    return messages, ends


def numbered(*numbers: int) -> list[Any]:
    return [b"message %d" % number for number in numbers]


@pytest.mark.slow
def test_all_partitions_are_read_to_their_ends(kafka: Broker) -> None:
    topic = kafka.topic("ends", numbered(*range(3000)), [], numbered(1, 2))
    source = made(kafka.brokers, topic)
    assert isinstance(source, RecordSource)
    assert [file.path for file in source.files()] == ["ends|0|0", "ends|2|0"]
    messages, ends = read(source)
    assert messages == numbered(*range(3000), 1, 2)
    assert [(end.partition, end.next_offset, end.message_count) for end in ends] == [
        (0, 3000, 3000),
        (2, 2, 2),
    ]
    assert {end.end_reason for end in ends} == {EndReason.END_OF_STREAM}
    assert sum(end.size_bytes for end in ends) == sum(map(len, messages))
    assert pickle.loads(pickle.dumps(ends)) == ends


@pytest.mark.slow
def test_start_is_read_and_end_is_not(kafka: Broker) -> None:
    topic = kafka.topic("between", numbered(*range(20)))
    messages, ends = read(made(kafka.brokers, f"{topic}|0|5|9", stop_on_eof=False))
    assert messages == numbered(5, 6, 7, 8)
    assert ends == [PartitionEnd(topic, 0, 5, 9, 4, 36, 0, (), EndReason.END_OFFSET)]
    messages, ends = read(made(kafka.brokers, f"{topic}|0|20|20", stop_on_eof=False))
    assert (messages, ends[0].next_offset) == ([], 20)
    messages, ends = read(made(kafka.brokers, f"{topic}|0|18|99"))
    assert (messages, ends[0].end_reason) == (numbered(18, 19), EndReason.END_OF_STREAM)
    assert made(kafka.brokers, f"{topic}|0|20").files() == ()
    with pytest.raises(PhaseFailed, match=r"ends at offset 20, before 99\. Add duration"):
        made(kafka.brokers, f"{topic}|0|18|99", stop_on_eof=False).files()


@pytest.mark.slow
def test_the_next_load_begins_where_the_last_one_ended(kafka: Broker) -> None:
    topic = kafka.topic("resumed", numbered(*range(10)), numbered(*range(4)))
    first = made(kafka.brokers, f"{topic}|0|-3|6,{topic}|1|-3|2", stop_on_eof=False)
    messages, ends = read(first)
    saved = {(end.topic, end.partition): end.next_offset for end in ends}
    second = made(kafka.brokers, f"{topic}|*|-3")
    second.resume(saved)
    more, _ = read(second)
    assert messages + more == numbered(*range(6), 0, 1, *range(6, 10), 2, 3)
    # What was read may lie beyond an end.
    third = made(kafka.brokers, f"{topic}|0|-3|6", stop_on_eof=False)
    third.resume({(topic, 0): 8})
    messages, ends = read(third)
    assert (messages, ends[0].next_offset) == ([], 8)


@pytest.mark.slow
def test_partitions_share_portions_and_each_message_knows_its_place(kafka: Broker) -> None:
    topic = kafka.topic("shared", *(numbered(*range(p * 1000, p * 1000 + 300)) for p in range(5)))
    source = made(kafka.brokers, topic, executionparallelism=2)
    assert [file.path.count(",") for file in source.files()] == [2, 1]
    for file in source.files():
        messages = []
        for batch in source.read_records(Portion(file)):
            messages += batch.to_pylist()
        for number, message in enumerate(messages, start=1):
            place = source.locate(number)
            assert message == b"message %d" % (place.partition * 1000 + place.offset)
        assert source.locate(0) is None
        assert source.locate(len(messages) + 1) is None
    assert str(MessagePosition(topic, 3, 7)) == "topic shared, partition 3, offset 7"


@pytest.mark.slow
def test_messages_without_content_are_counted_or_kept(kafka: Broker) -> None:
    topic = kafka.topic("empty", [])
    kafka.produce(topic, 0, [b"one", b"", b"two", b""])
    messages, ends = read(made(kafka.brokers, topic))
    assert messages == [b"one", b"two"]
    assert (ends[0].message_count, ends[0].skipped_messages, ends[0].next_offset) == (2, 2, 4)
    source = made(kafka.brokers, topic, zero_length="keep")
    messages, ends = read(source)
    assert (messages, ends[0].skipped_messages) == ([b"one", b"", b"two", b""], 0)
    assert source.locate(4).offset == 3


class Standing(SystemClock):
    """A clock that stands still until it is started."""

    def __init__(self) -> None:
        self._started: float | None = None

    def start(self) -> None:
        self._started = super().monotonic()

    def monotonic(self) -> float:
        return 0.0 if self._started is None else super().monotonic() - self._started


@pytest.mark.slow
def test_time_ends_what_has_no_end(kafka: Broker) -> None:
    topic = kafka.topic("timed", numbered(1, 2))

    def timed(stream: str, wanted: int, **bounds: Any) -> tuple[list[Any], EndReason]:
        """Read so many messages, a third once two have come; time passes from then on."""
        clock = Standing()
        source = KafkaSource(
            KafkaSourceOptions(stream=stream, brokers=kafka.brokers, **bounds), clock
        )
        [file] = source.files()
        messages = []
        for batch in source.read_records(Portion(file)):
            messages += batch.to_pylist()
            if messages == numbered(1, 2):
                kafka.produce(topic, 0, numbered(3))
            if len(messages) == wanted:
                clock.start()
        return messages, source.ends[0].end_reason

    found = timed(f"{topic}|0|0", 3, duration=SECOND)
    assert found == (numbered(1, 2, 3), EndReason.DEADLINE)
    found = timed(f"{topic}|0|2", 1, duration=60 * SECOND, eof_timeout=SECOND / 2)
    assert found == (numbered(3), EndReason.END_OF_STREAM)


@pytest.mark.slow
def test_cancel_from_another_thread_ends_reading(kafka: Broker) -> None:
    topic = kafka.topic("cancelled", numbered(1))
    source = made(kafka.brokers, topic, stop_on_eof=False, duration=600 * SECOND)
    timer = threading.Timer(0.3, source.cancel)
    timer.start()
    read(source)
    timer.join()
    assert source.ends == ()
    early = made(kafka.brokers, topic, stop_on_eof=False, duration=600 * SECOND)
    early.cancel()
    assert read(early) == ([], [])


def test_topics_partitions_and_offsets_that_are_not_there(kafka: Broker) -> None:
    topic = kafka.topic("short", numbered(1, 2))
    with pytest.raises(PhaseFailed, match="topic none-such: "):
        made(kafka.brokers, "none-such").files()
    with pytest.raises(PhaseFailed, match="has partitions 0 to 0, not 7"):
        made(kafka.brokers, f"{topic}|7|0").files()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"stop_on_eof": False}, "reading is unbounded"),
        ({"on_gap": "skip"}, "report or fail"),
        ({"zero_length": "drop"}, "skip or keep"),
        ({"executionparallelism": 0}, "1 or more"),
        (
            {"kafka_conf": "{", "fail_on_conf_parse_error": True},
            "invalid kafka_conf: expected a JSON",
        ),
        (
            {"kafka_conf_secret": "pw", "fail_on_conf_parse_error": True},
            "invalid kafka_conf_secret: expected",
        ),
        ({"stream": "t|*|0|9"}, "an end offset requires a partition"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters: Any, reason: str) -> None:
    with pytest.raises(LoadRefused, match=reason):
        made("localhost:1", **{"stream": "t|0|0", **parameters})


@pytest.mark.slow
def test_settings_reach_librdkafka(kafka: Broker) -> None:
    topic = kafka.topic("set", numbered(1))
    for text in [
        '{"client.id": "me", "fetch.min.bytes": 1}',
        "client.id=me; fetch.min.bytes=1",
        "?",
    ]:
        assert read(made(kafka.brokers, topic, kafka_conf=text))[0] == numbered(1)
    with pytest.raises(LoadRefused, match=r"no\.such\.setting"):
        made(kafka.brokers, topic, kafka_conf="no.such.setting=1").files()


@pytest.mark.slow
def test_the_group_is_told_of_progress(kafka: Broker) -> None:
    topic = kafka.topic("told", numbered(1, 2, 3))
    source = made(kafka.brokers, topic, group_id="watched")
    _, ends = read(source)
    source.report(ends)
    consumer = ck.Consumer({"bootstrap.servers": kafka.brokers, "group.id": "watched"})
    assert consumer.committed([ck.TopicPartition(topic, 0)], timeout=120)[0].offset == 3
    consumer.close()


@pytest.mark.slow
def test_a_killed_broker_is_waited_for_and_nothing_is_read_twice(own_kafka: Broker) -> None:
    topic = own_kafka.topic("killed", numbered(*range(50)))
    source = made(own_kafka.brokers, f"{topic}|0|0|100", duration=60 * SECOND, stop_on_eof=False)
    (file,) = source.files()
    messages = []
    for batch in source.read_records(Portion(file)):
        messages += batch.to_pylist()
        if len(messages) == 50:
            own_kafka.kill()
            own_kafka.start()
            # It forgot everything; what it is given again has the same offsets.
            own_kafka.topic(topic, numbered(*range(100)))
    assert messages == numbered(*range(100))
    assert [(end.next_offset, end.end_reason) for end in source.ends] == [
        (100, EndReason.END_OFFSET)
    ]


@pytest.mark.slow
def test_a_broker_that_stays_away_ends_the_time_box_as_a_network_error(own_kafka: Broker) -> None:
    # That it is away shows after some attempts to reach it, which take their time on a busy machine.
    for duration_s in (1.5, 10, 60):
        topic = own_kafka.topic("away", numbered(1))
        source = made(own_kafka.brokers, topic, duration=duration_s * SECOND, stop_on_eof=False)
        (file,) = source.files()
        messages = []
        for batch in source.read_records(Portion(file)):
            messages += batch.to_pylist()
            own_kafka.kill()
        assert messages == numbered(1)
        (end,) = source.ends
        assert end.next_offset == 1
        if end.end_reason is EndReason.NETWORK_ERROR:
            return
        own_kafka.start()
    pytest.fail("the time box ended as if all had been read")


@pytest.fixture
def retained() -> Iterator[str]:
    """Librdkafka's own mock cluster, which keeps 5 MB of a partition: its beginning is gone."""
    producer = ck.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    brokers = next(iter(producer.list_topics("gone", timeout=120).brokers.values()))
    for number in range(120):
        producer.produce("gone", b"%06d" % number + bytes(99_994), partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0
    yield f"{brokers.host}:{brokers.port}"
    producer.flush(1)


@pytest.mark.slow
def test_what_retention_took_is_told_or_fails(retained: str) -> None:
    source = made(retained, "gone|0|0")
    messages, (end,) = read(source)
    (gap,) = end.gaps
    assert gap == OffsetGap(0, 120 - len(messages))
    assert [int(message[:6]) for message in messages] == list(range(gap.end, 120))
    assert source.locate(1).offset == gap.end
    with pytest.raises(PhaseFailed, match=rf"messages 0 to {gap.end - 1} were deleted before"):
        read(made(retained, "gone|0|0", on_gap="fail"))
    messages, (end,) = read(made(retained, "gone|0|-2"))
    assert (end.start_offset, end.gaps) == (gap.end, ())


@pytest.mark.slow
def test_a_topic_that_was_made_anew_is_not_read_as_if_it_were_the_old_one(retained: str) -> None:
    with pytest.raises(PhaseFailed, match=r"has no offset 500\. Check if the topic was recreated"):
        read(made(retained, "gone|0|500"))
