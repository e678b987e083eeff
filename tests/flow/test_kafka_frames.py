"""`snowmelt kafka` in frames: a topic becomes rows, once, whatever happens in between."""

from __future__ import annotations

import json
import threading

import pytest

from snowmelt.bulk.frames import Frames, run_frames
from snowmelt.bulk.local import LocalRunner
from snowmelt.errors import LoadFailed

pytestmark = pytest.mark.slow


def messages(*numbers):
    return [json.dumps({"n": n, "word": f"w{n}"}).encode() for n in numbers]


def frames(kafka, topic, **more):
    return Frames(topic=topic, table="numbers", brokers=kafka.brokers, **more)


def test_frames_load_what_has_come_and_nothing_twice(kafka, copying):
    topic = kafka.topic("framed", messages(1, 2), messages(3))
    stop, loaded = threading.Event(), []
    wanted = frames(kafka, topic, seconds=0.5, rest="REJECTED DATA AS TABLE rejects")
    for copied in run_frames(wanted, copying.context, LocalRunner(), stop):
        loaded.append((copied.totals.rows, copied.totals.rejects))
        if len(loaded) == 1:
            kafka.produce(topic, 1, [b"broken", *messages(4)])
        else:
            stop.set()
    assert loaded == [(3, 0), (1, 1)]
    assert sorted(copying.house.read_numbers()) == [1, 2, 3, 4]
    # Frames without messages leave no load behind.
    assert copying.states() == ["committed", "committed"]


def test_any_parser_behind_delimiters(kafka, copying):
    topic = kafka.topic("delimited", [b"7|seven", b"8|eight\n9|nine"])
    filters = ("KafkaInsertDelimiters(delimiter=E'\\n')",)
    wanted = frames(kafka, topic, parser="Delimited(delimiter='|')", filters=filters)
    list(run_frames(wanted, copying.context, LocalRunner(), threading.Event(), once=True))
    assert sorted(copying.house.read_numbers()) == [7, 8, 9]


def test_a_frame_that_fails_leaves_its_messages_to_the_next(kafka, copying):
    topic = kafka.topic("failing", [*messages(1), b"broken"])
    strict = frames(kafka, topic, rest="ABORT ON ERROR")
    with pytest.raises(LoadFailed):
        list(run_frames(strict, copying.context, LocalRunner(), threading.Event(), once=True))
    assert copying.house.read_numbers() == []
    lenient = frames(kafka, topic)
    list(run_frames(lenient, copying.context, LocalRunner(), threading.Event(), once=True))
    assert copying.house.read_numbers() == [1]


def test_names_in_quotes_and_settings_reach_the_source(kafka, copying):
    topic = kafka.topic("quoted", messages(5))
    wanted = frames(kafka, topic, settings="client.id=it's me", stream_name="it's")
    list(run_frames(wanted, copying.context, LocalRunner(), threading.Event(), once=True))
    assert copying.house.read_numbers() == [5]
