"""`snowmelt kafka --stream`: each message is loaded once, through one channel per partition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.kafka_streaming import Streaming, messages
from snowmelt.errors import ChannelFenced, TableNotFound, UserError
from snowmelt.schema.types import Column, LogicalType

pytestmark = pytest.mark.slow


def test_partitions_go_through_channels_of_their_own_and_are_resumed(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("T", messages(1, 2), messages(3))
    with streaming.running(topic):
        streaming.wait_for(1, 2, 3)
        streaming.kafka.produce(topic, 1, messages(4))
        streaming.wait_for(1, 2, 3, 4)
    with streaming.client() as client:
        channel = client.open_channel('"T:P1"', table=streaming.table)
        assert channel.latest_committed_offset_token() == "1"
    streaming.kafka.produce(topic, 0, messages(5))
    with streaming.running(topic):
        streaming.wait_for(1, 2, 3, 4, 5)
    assert streaming.refused == []


def test_what_is_no_row_is_told_with_its_place_and_the_rest_goes_on(streaming: Streaming) -> None:
    bad = [b"{", b"[1]", b'{"id": "x"}', b'{"name": "no id"}', b'{"id": 8, "more": 1}']
    topic = streaming.kafka.topic("bad", [*messages(1), *bad, *messages(2)])
    with streaming.running(topic):
        streaming.wait_for(1, 2)
    assert sorted(each.position.offset for each in streaming.refused) == [1, 2, 3, 4, 5]
    told = {each.position.offset: each for each in streaming.refused}
    assert "not JSON" in told[1].reason
    assert "no object" in told[2].reason
    assert "ID" in told[3].reason
    assert told[5].data == bad[-1]


def test_columns_that_come_and_go_need_no_restart(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("changing", messages(1))
    with streaming.running(topic):
        streaming.wait_for(1)
        more = Column("MORE", LogicalType.FIXED, 4, precision=5, scale=0)
        streaming.change(lambda columns: [*columns, more])
        streaming.kafka.produce(topic, 0, [b'{"id": 2, "more": 7}'])
        streaming.wait_for(1, 2)
        streaming.change(lambda columns: [each for each in columns if each.name != "NAME"])
        streaming.kafka.produce(topic, 0, [b'{"id": 3}', b'{"id": 4, "more": 8}'])
        streaming.wait_for(1, 2, 3, 4)
    rows = streaming.rows().sort_by("ID")
    assert [None if value is None else int(value) for value in rows["MORE"].to_pylist()] == [
        None,
        7,
        None,
        8,
    ]
    assert streaming.refused == []


def test_a_second_connector_takes_over(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("contended", messages(1))

    def overtaken() -> None:
        last = 1
        with streaming.running(topic) as first:
            streaming.wait_for(1)
            with streaming.running(topic):
                # The first consumer is fenced when it sends a row.
                while first.is_alive():
                    last += 1
                    streaming.kafka.produce(topic, 0, messages(last))
                    streaming.wait_for(*range(1, last + 1))

    with pytest.raises(ChannelFenced):
        overtaken()


def test_errors_that_no_retry_helps(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("refused", messages(1))
    with (
        pytest.raises(TableNotFound),
        streaming.running(topic, table=f"{streaming.name.database}.public.none") as ended,
    ):
        ended.join(200)
    with streaming.client() as client:
        client.open_channel('"refused:P0"', table=streaming.table, offset_token="page 7")
    with (
        pytest.raises(UserError, match="Invalid offset token 'page 7'"),
        streaming.running(topic) as ended,
    ):
        ended.join(200)


def test_a_killed_connector_loses_and_doubles_nothing(streaming: Streaming, tmp_path: Path) -> None:
    topic = streaming.kafka.topic("killed", messages(*range(200)), messages(*range(200, 400)))
    key = tmp_path / "key.pem"
    key.write_text(streaming.key_pair.private_pem)
    command = [
        *(sys.executable, "-m", "snowmelt", "kafka", "--stream", "--topic", topic),
        *(
            "--table",
            streaming.table,
            "--brokers",
            streaming.kafka.brokers,
            "--url",
            streaming.service.url,
        ),
        *(
            "--user",
            "loader",
            "--private-key",
            str(key),
            "--buffer-time",
            "0.05",
            "--buffer-rows",
            "7",
        ),
    ]
    for number in range(2):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        streaming.kafka.produce(topic, 0, messages(*range(400 + 50 * number, 450 + 50 * number)))
        time.sleep(1.2 + 0.3 * number)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    # The others may have loaded everything. A message of its own shows that this one runs.
    streaming.kafka.produce(topic, 1, messages(500))
    streaming.wait_for(*range(501))
    process.terminate()
    assert process.stderr is not None
    assert process.wait(200) == 0, process.stderr.read()
    process.stderr.close()
    assert streaming.ids() == list(range(501))
