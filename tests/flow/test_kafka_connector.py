"""Settings of a connector: evolution, metadata, keys, tables by topic, tombstones and dead letters."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from fixtures.kafka_streaming import Streaming, messages
from snowmelt.cli.main import main
from snowmelt.errors import (
    ChannelFenced,
    KafkaMessageRejected,
    KafkaSourceConflict,
    PhaseFailed,
)

pytestmark = pytest.mark.slow


def column(rows: Any, name: str) -> list[Any]:
    return [value.as_py() for value in rows[name]]


def test_fields_that_are_new_become_columns_while_rows_arrive(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("evolving", messages(1), messages(2))
    streaming.sql(
        "ALTER TABLE {t} SET ENABLE_SCHEMA_EVOLUTION = TRUE",
        "GRANT EVOLVE SCHEMA ON TABLE {t} TO ROLE loading",
    )
    with streaming.running(topic, evolve=True) as connector:
        streaming.wait_for(1, 2)
        # Both partitions need a new column at the same time, and one lacks a NOT NULL column.
        streaming.kafka.produce(topic, 0, [b'{"id": 3, "gate": "B7"}', b'{"gate": "B8"}'])
        streaming.kafka.produce(topic, 1, [b'{"id": 4, "gate": "C1", "delay": 1.5}', *messages(5)])
        streaming.wait_until(lambda: streaming.rows().num_rows == 6)
        assert connector.is_alive()
    rows = streaming.rows()
    found = zip(column(rows, "ID"), column(rows, "GATE"), column(rows, "DELAY"), strict=True)
    assert {
        (None if a is None else int(a), b, None if c is None else float(c)) for a, b, c in found
    } == {
        (1, None, None),
        (2, None, None),
        (3, "B7", None),
        (None, "B8", None),
        (4, "C1", 1.5),
        (5, None, None),
    }
    assert streaming.refused == []


def test_metadata_keys_and_tombstones(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("described", [])
    streaming.sql(
        "ALTER TABLE {t} ADD COLUMN record_metadata VARIANT, k VARCHAR",
        "ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL",
    )
    streaming.produce_messages(
        topic,
        {
            "value": b'{"id": 1}',
            "key": "first",
            "headers": [("trace", b"t1"), ("raw", b"\xff"), ("none", None)],
            "timestamp": 1_700_000_000_123,
        },
        {"value": None, "key": "first"},
        {"value": b"[1]", "key": "bad"},
    )
    options = {"key_column": "k", "behavior.on.null.values": "DEFAULT"}
    with streaming.running(topic, **options):
        streaming.wait_until(lambda: streaming.rows().num_rows == 2)
        streaming.wait_until(lambda: len(streaming.refused) == 1)
    rows = streaming.rows()
    assert column(rows, "K") == ["first", "first"]
    first, tombstone = map(json.loads, column(rows, "RECORD_METADATA"))
    pushed = first.pop("SnowflakeConnectorPushTime")
    assert abs(pushed / 1000 - dt.datetime.now(dt.UTC).timestamp()) < 600
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "CreateTime": 1_700_000_000_123,
        "key": "first",
        "headers": {"trace": "t1", "raw": "/w==", "none": None},
    }
    assert tombstone["offset"] == 1
    assert sorted(column(rows, "ID"), key=str) == [1, None]
    # Every offset is committed, including that of the last message, which is not a row.
    assert streaming.token(f"{topic}:P0") == "2"


def test_fields_of_the_key_and_parts_of_the_metadata(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("keyed", [])
    streaming.sql("ALTER TABLE {t} ADD COLUMN record_metadata VARIANT")
    streaming.produce_messages(
        topic, {"value": b'{"name": "a"}', "key": b'{"id": 7, "NAME": "other"}'}
    )
    options = {
        "key_column": "*",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "snowflake.metadata.createtime": "false",
        "snowflake.metadata.offset.and.partition": "false",
        "snowflake.streaming.metadata.connectorPushTime": "false",
    }
    with streaming.running(topic, **options):
        streaming.wait_for(7)
    rows = streaming.rows()
    assert column(rows, "NAME") == ["a"]
    assert json.loads(column(rows, "RECORD_METADATA")[0]) == {
        "topic": topic,
        "key": {"id": 7, "NAME": "other"},
    }


def test_topics_of_one_process_have_tables_of_their_own(streaming: Streaming) -> None:
    first = streaming.kafka.topic("cat_a", messages(1))
    second = streaming.kafka.topic("cat_b", messages(2))
    third = streaming.kafka.topic("dog", messages(3), messages(4))
    database = streaming.name.database
    streaming.sql(
        f"CREATE TABLE {database}.public.dogs (id INT, name VARCHAR)",
        f"GRANT INSERT ON TABLE {database}.public.dogs TO ROLE loading",
    )
    options = {
        "table": "",
        "snowflake.database.name": database,
        "snowflake.schema.name": "public",
        "snowflake.topic2table.map": "dog:dogs, cat_.*:t",
    }
    with streaming.running(f"{first},{second},{third}", **options):
        streaming.wait_for(1, 2)
        streaming.wait_for(3, 4, table="DOGS")


def test_dead_letters_have_their_place_and_go_to_the_error_table_too(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("dying", [*messages(1), b"{", b'{"id": "x"}', *messages(2)])
    letters = streaming.kafka.topic("letters", [])
    streaming.sql("ALTER TABLE {t} SET ERROR_TABLE = " + streaming.table + "_rejects")
    with streaming.running(topic, **{"errors.deadletterqueue.topic.name": letters}):
        streaming.wait_for(1, 2)
        streaming.wait_until(lambda: streaming.rows("T_REJECTS").num_rows == 2)
    rejects = streaming.rows("T_REJECTS")
    assert sorted(column(rejects, "ROW_DATA")) == ["{", '{"id":"x"}']
    assert sorted(map(int, column(rejects, "ROW_NUMBER"))) == [1, 2]
    consumer = ck.Consumer({"bootstrap.servers": streaming.kafka.brokers, "group.id": "letters"})
    consumer.assign([ck.TopicPartition(letters, 0, 0)])
    found: list[ck.Message] = []
    while len(found) < 2:
        message = consumer.poll(120)
        assert message is not None
        if message.error() is None:
            found.append(message)
    consumer.close()
    assert [each.value() for each in found] == [b"{", b'{"id": "x"}']
    headers: dict[str, Any] = dict(found[0].headers() or [])
    assert headers["__connect.errors.topic"] == topic.encode()
    assert headers["__connect.errors.offset"] == b"1"
    assert b"not JSON" in headers["__connect.errors.exception.message"]


def test_without_tolerance_the_first_bad_message_ends_it_before_its_offset(
    streaming: Streaming,
) -> None:
    topic = streaming.kafka.topic("strict", messages(1))

    def stream_until_it_ends() -> None:
        with streaming.running(topic, **{"errors.tolerance": "none"}) as ended:
            streaming.wait_for(1)
            streaming.kafka.produce(topic, 0, [b"{", *messages(2)])
            ended.join(200)

    with pytest.raises(KafkaMessageRejected, match="partition 0, offset 1"):
        stream_until_it_ends()
    assert streaming.ids() == [1]
    assert streaming.token(f"{topic}:P0") == "0"


def test_new_partitions_start_at_a_time(apache_streaming: Streaming) -> None:
    topic = apache_streaming.kafka.topic("timed", [])
    hour_ms = 3_600_000
    for number in range(3):
        apache_streaming.produce_messages(
            topic, {"value": messages(number)[0], "timestamp": 1_700_000_000_000 + number * hour_ms}
        )
    with apache_streaming.running(topic, from_time="2023-11-14T23:00:00Z"):
        apache_streaming.wait_for(1, 2)


def test_a_topic_that_went_backwards_or_a_new_cluster_is_recognized(
    apache_streaming: Streaming,
) -> None:
    topic = apache_streaming.kafka.topic("returning", messages(1, 2))
    with apache_streaming.running(topic):
        apache_streaming.wait_for(1, 2)
    with apache_streaming.client() as client:
        client.open_channel(f'"{topic}:P0"', table=apache_streaming.table, offset_token="9")
    with (
        pytest.raises(KafkaSourceConflict, match="ends at offset 2, before the committed offset 9"),
        apache_streaming.running(topic) as ended,
    ):
        ended.join(200)
    with apache_streaming.client() as client:
        identity = apache_streaming.token(f"{topic}:source")
        assert identity.startswith("cluster=")
        another = identity.replace("cluster=", "cluster=another-")
        client.open_channel(f'"{topic}:source"', table=apache_streaming.table, offset_token=another)
    with (
        pytest.raises(KafkaSourceConflict, match="ID of the cluster was another-"),
        apache_streaming.running(topic) as ended,
    ):
        ended.join(200)
    with apache_streaming.running(topic, on_new_source="restart"):
        apache_streaming.wait_for(1, 1, 2, 2)
    assert apache_streaming.token(f"{topic}:source") == identity
    assert apache_streaming.token(f"{topic}:P0") == "1"


def test_messages_deleted_before_they_were_read_end_a_connector_that_fails_on_gaps(
    apache_streaming: Streaming,
) -> None:
    topic = apache_streaming.kafka.topic("expiring", messages(1), messages(5))
    with apache_streaming.running(topic):
        apache_streaming.wait_for(1, 5)
    apache_streaming.kafka.produce(topic, 0, messages(2, 3, 4))
    apache_streaming.kafka.produce(topic, 1, messages(6))
    admin = AdminClient({"bootstrap.servers": apache_streaming.kafka.brokers})
    first_kept = ck.TopicPartition(topic, 0, 3)
    for future in admin.delete_records([first_kept]).values():
        future.result(120)
    with (
        pytest.raises(PhaseFailed, match="messages 1 to 2 were deleted before they were read"),
        apache_streaming.running(topic, on_gap="fail") as ended,
    ):
        ended.join(200)
    assert apache_streaming.token(f"{topic}:P0") == "0"
    with apache_streaming.running(topic, on_gap="report"):
        apache_streaming.wait_for(1, 4, 5, 6)


def test_a_token_that_is_set_through_the_service_moves_the_partition(
    streaming: Streaming, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = streaming.kafka.topic("moved", messages(1, 2))
    key = tmp_path / "key.pem"
    key.write_text(streaming.key_pair.private_pem)
    place = ["--table", streaming.table, "--url", streaming.service.url]
    login = ["--user", "loader", "--private-key", str(key)]

    def set_token_while_it_runs() -> None:
        with streaming.running(topic) as fenced:
            streaming.wait_for(1, 2)
            command = ["channels", "set-token", f"{topic}:P0", "--token", "0", *place, *login]
            assert main(command) == 0
            # The connector finds out with its next message.
            streaming.kafka.produce(topic, 0, messages(3))
            fenced.join(200)

    with pytest.raises(ChannelFenced):
        set_token_while_it_runs()
    assert "moved:P0" in capsys.readouterr().out
    with streaming.running(topic):
        streaming.wait_for(1, 2, 2, 3)


def test_a_topic_that_is_missing_is_named(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("present", messages(1))
    with (
        pytest.raises(PhaseFailed, match="topic nowhere"),
        streaming.running(f"{topic},nowhere") as ended,
    ):
        ended.join(200)


def test_members_of_a_group_share_the_partitions_and_take_over(apache_streaming: Streaming) -> None:
    topic = apache_streaming.kafka.topic("shared", messages(1), messages(2))
    shared = {"share_partitions": "true", "group": f"members-{topic}"}
    with apache_streaming.running(topic, **shared):
        with apache_streaming.running(topic, **shared):
            apache_streaming.wait_for(1, 2)
            for partition in (0, 1):
                apache_streaming.produce_messages(
                    topic, {"value": messages(3 + partition)[0]}, partition=partition
                )
            apache_streaming.wait_for(1, 2, 3, 4)
        # After one member left, the other one reads both partitions.
        for partition in (0, 1):
            apache_streaming.produce_messages(
                topic, {"value": messages(5 + partition)[0]}, partition=partition
            )
        apache_streaming.wait_for(1, 2, 3, 4, 5, 6)
    assert apache_streaming.ids() == [1, 2, 3, 4, 5, 6]
    assert [apache_streaming.token(f"{topic}:P{partition}") for partition in (0, 1)] == ["2", "2"]


ENVELOPE = {
    "before": None,
    "after": {"id": 1, "name": "a"},
    "source": {"ts_ms": 1_700_000_000_123, "lsn": 42, "table": "t"},
    "op": "c",
    "ts_ms": 1_700_000_000_999,
}


def test_change_events_in_both_forms(streaming: Streaming) -> None:
    topic = streaming.kafka.topic("changes", [])
    streaming.sql(
        "ALTER TABLE {t} ADD COLUMN cdc_operation VARCHAR, cdc_time TIMESTAMP_TZ(3),"
        " cdc_position VARCHAR, cdc_before VARIANT",
    )
    update = {
        **ENVELOPE,
        "op": "u",
        "before": {"id": 1, "name": "a"},
        "after": {"id": 1, "name": "b"},
    }
    delete = {**ENVELOPE, "op": "d", "before": {"id": 1, "name": "b"}, "after": None}
    flattened = {
        "id": 2,
        "name": "c",
        "__op": "u",
        "__source_lsn": 43,
        "__source_ts_ms": 1_700_000_000_123,
    }
    deleted = {"id": 2, "name": None, "__deleted": "true"}
    events: list[Any] = [
        {"schema": {}, "payload": ENVELOPE},
        update,
        delete,
        flattened,
        deleted,
        {**ENVELOPE, "op": "m"},
        {"id": 3},
        {**ENVELOPE, "op": "x"},
    ]
    streaming.kafka.produce(topic, 0, [*(json.dumps(each).encode() for each in events), None])
    with streaming.running(topic, change_events="debezium"):
        streaming.wait_for(1, 1, 1, 2, 2)
        streaming.wait_until(lambda: len(streaming.refused) == 2)
        streaming.wait_until(lambda: streaming.token("changes:P0") == "8")
    rows = streaming.rows()
    names = ("CDC_OPERATION", "NAME", "CDC_POSITION", "CDC_BEFORE")
    found = list(zip(*(column(rows, name) for name in names), strict=True))
    assert found == [
        ("insert", "a", '{"lsn": 42}', None),
        ("update", "b", '{"lsn": 42}', '{"id":1,"name":"a"}'),
        ("delete", "b", '{"lsn": 42}', None),
        ("update", "c", '{"lsn": 43}', None),
        ("delete", None, None, None),
    ]
    times = column(rows, "CDC_TIME")
    assert [each and round(each.timestamp() * 1000) for each in times] == [
        1_700_000_000_123
    ] * 4 + [None]
