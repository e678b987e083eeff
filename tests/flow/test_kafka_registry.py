"""Avro and Protobuf with a schema registry, written by the official client's serializers."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fixtures.kafka_streaming import Streaming
from support.schema_registry import Registry

pytestmark = pytest.mark.slow

AVRO = "io.confluent.connect.avro.AvroConverter"
GATE = {
    "type": "record",
    "name": "Gate",
    "namespace": "airport",
    "fields": [{"name": "code", "type": "string"}],
}


def record(*fields: Any) -> str:
    given = [{"name": "id", "type": "long"}, *fields]
    return json.dumps({"type": "record", "name": "Flight", "fields": given})


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()


def avro(registry: Registry, topic: str, schema: Any, *values: Any) -> list[Any]:
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializer = AvroSerializer(client, schema)
        return [serializer(value, context) for value in values]


def column(rows: Any, name: str) -> list[Any]:
    return [value.as_py() for value in rows[name]]


def test_avro_with_references_and_schemas_that_change_within_a_partition(
    streaming: Streaming, registry: Registry
) -> None:
    topic = streaming.kafka.topic("avro", [])
    streaming.sql(
        "ALTER TABLE {t} SET ENABLE_SCHEMA_EVOLUTION = TRUE",
        "GRANT EVOLVE SCHEMA ON TABLE {t} TO ROLE loading",
        "ALTER TABLE {t} ADD COLUMN record_metadata VARIANT",
    )
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("gate", Schema(json.dumps(GATE), "AVRO"))
    first = avro(
        registry,
        topic,
        record({"name": "name", "type": ["null", "string"]}),
        {"id": 1, "name": "a"},
    )
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    later = Schema(
        record(
            {"name": "price", "type": price},
            {"name": "gate", "type": "airport.Gate"},
            {"name": "at", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        ),
        "AVRO",
        [SchemaReference("airport.Gate", "gate", 1)],
    )
    at = dt.datetime(2026, 11, 24, 8, 0, 0, 123456)
    value = {"id": 2, "price": Decimal("12.34"), "gate": {"code": "B7"}, "at": at}
    second = avro(registry, topic, later, value)
    missing = [b"\0" + (999).to_bytes(4, "big") + b"\2", b"{}", second[0][:-1], first[0] + b"\0"]
    streaming.kafka.produce(topic, 0, [*first, *second, *missing, *first])
    options = {"value.converter": AVRO, "value.converter.schema.registry.url": registry.url}
    with streaming.running(topic, evolve=True, **options):
        streaming.wait_for(1, 1, 2)
        streaming.wait_until(lambda: len(streaming.refused) == 4)
    reasons = {each.position.offset: each.reason for each in streaming.refused}
    assert "no /schemas/ids/999" in reasons[2]
    assert "zero byte" in reasons[3]
    assert "not a value of Avro schema" in reasons[4]
    assert "bytes follow" in reasons[5]
    rows = streaming.rows().sort_by("ID")
    assert column(rows, "PRICE")[2] == Decimal("12.34")
    assert json.loads(column(rows, "GATE")[2]) == {"code": "B7"}
    assert column(rows, "AT")[2] == at
    metadata = [json.loads(each)["schema_id"] for each in column(rows, "RECORD_METADATA")]
    assert metadata == [2, 2, 3]
    # Each schema, reference and missing ID was requested once.
    fetched = [each for each in registry.requests if each.startswith("/schemas/ids")]
    assert len(fetched) == len(set(fetched))


def test_a_registry_that_fails_or_hangs_stops_only_the_topic_that_needs_it(
    streaming: Streaming, registry: Registry
) -> None:
    """Both topics are Avro, and the schema of one is cached when the registry fails."""
    known, unknown = streaming.kafka.topic("known", []), streaming.kafka.topic("unknown", [])
    cached = avro(registry, known, record(), {"id": 1}, {"id": 2}, {"id": 3})
    streaming.kafka.produce(known, 0, cached[:1])
    options = {"value.converter": AVRO, "registry_url": registry.url}
    with streaming.running(f"{known},{unknown}", **options):
        streaming.wait_for(1)
        new = avro(
            registry, unknown, record({"name": "name", "type": "string"}), {"id": 9, "name": "n"}
        )
        registry.is_down = True
        streaming.kafka.produce(unknown, 0, new)
        streaming.wait_until(lambda: "/schemas/ids/2" in registry.requests)
        streaming.kafka.produce(known, 0, cached[1:2])
        streaming.wait_for(1, 2)
        registry.is_answering.clear()
        registry.is_down = False
        requests = registry.requests.count("/schemas/ids/2")
        streaming.wait_until(lambda: registry.requests.count("/schemas/ids/2") > requests)
        streaming.kafka.produce(known, 0, cached[2:])
        streaming.wait_for(1, 2, 3)
        registry.is_answering.set()
        streaming.wait_for(1, 2, 3, 9)
    assert streaming.refused == []
