"""Avro and Protobuf whose schemas are in a registry, written by the official client's serializers."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)

from snowmelt.errors import SchemaRegistryUnavailable
from snowmelt.loaders.kafka import schema_registry
from snowmelt.loaders.kafka.message_rows import MessageInvalid
from snowmelt.loaders.kafka.registry_decoders import AvroDecoder, ProtobufDecoder
from snowmelt.loaders.kafka.schema_registry import SchemaRegistry
from snowmelt.loaders.kafka.stream_options import RegistryOptions
from snowmelt.testing import ManualClock
from support.schema_registry import Registry

CONTEXT = SerializationContext("topic", MessageField.VALUE)
GATE = {"type": "record", "name": "Gate", "fields": [{"name": "code", "type": "string"}]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()


@pytest.fixture
def official(registry: Registry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture(autouse=True)
def wait_for_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client wait for each response: on a busy machine it takes longer than a connector waits."""
    monkeypatch.setattr(schema_registry, "_RESPONSE_WAIT_S", 200.0)


@pytest.fixture
def client(registry: Registry) -> SchemaRegistry:
    return SchemaRegistry(RegistryOptions(registry.url))


def frame(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + content


def test_a_union_of_references_that_share_a_type_is_read(
    official: SchemaRegistryClient, client: SchemaRegistry
) -> None:
    official.register_schema("gate", Schema(json.dumps(GATE), "AVRO"))
    gate = SchemaReference("Gate", "gate", 1)
    for name in ("Arrival", "Departure"):
        fields = [{"name": "gate", "type": "Gate"}, {"name": name.lower(), "type": "int"}]
        text = json.dumps({"type": "record", "name": name, "fields": fields})
        official.register_schema(name, Schema(text, "AVRO", [gate]))
    both = [SchemaReference(name, name, 1) for name in ("Arrival", "Departure")]
    union = official.register_schema("both", Schema('["Arrival", "Departure"]', "AVRO", both))
    decoded = AvroDecoder(client).decode(frame(union, b"\x02\x04B7\x0a"))
    assert decoded.value == {"gate": {"code": "B7"}, "departure": 5}
    assert decoded.schema_id == union


def test_protobuf_with_imports_nested_messages_and_well_known_types(
    official: SchemaRegistryClient, client: SchemaRegistry
) -> None:
    flight = make_flight_class()
    serializer = ProtobufSerializer(flight, official, {"use.deprecated.format": False})
    message = flight(id=2**53 + 1, tags=["x", "y"], kind=1, delay={True: 2})
    message.gate.code = "B7"
    message.at.FromJsonString("2026-11-24T08:00:00.123456789Z")
    message.more.update({"a": [1, None]})
    message.name.value = ""
    message.price.value, message.price.scale = (-1234).to_bytes(2, "big", signed=True), 2
    decoder = ProtobufDecoder(client)
    data = serializer(message, CONTEXT)
    assert data is not None
    decoded = decoder.decode(data)
    assert decoded.value == {
        "id": 2**53 + 1,
        "tags": ["x", "y"],
        "kind": "LATE",
        "delay": {"true": 2},
        "gate": {"code": "B7"},
        "at": "2026-11-24T08:00:00.123456789Z",
        "more": {"a": [1.0, None]},
        "name": "",
        "price": Decimal("-12.34"),
    }
    empty = serializer(flight(kind=7), CONTEXT)
    assert empty is not None
    decoded = decoder.decode(empty)
    assert decoded.value == {
        **dict.fromkeys(("gate", "at", "more", "name", "price")),
        "id": 0,
        "tags": [],
        "kind": 7,
        "delay": {},
    }
    bad_index = data[:5] + b"\x02\x7e" + data[8:]
    with pytest.raises(MessageInvalid, match=r"has no message \[63\]"):
        decoder.decode(bad_index)
    with pytest.raises(MessageInvalid, match="indexes are truncated"):
        decoder.decode(data[:5] + b"\x84")
    with pytest.raises(MessageInvalid, match="not a message of Protobuf schema"):
        decoder.decode(data[:-1])


FILES = [
    """name: "gate.proto" package: "airport" syntax: "proto3"
    message_type { name: "Gate" field { name: "code" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }""",
    """name: "confluent/type/decimal.proto" package: "confluent.type" syntax: "proto3"
    message_type {
      name: "Decimal"
      field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
      field { name: "precision" number: 2 type: TYPE_UINT32 label: LABEL_OPTIONAL }
      field { name: "scale" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
    }""",
    """name: "flight.proto" package: "airport" syntax: "proto3"
    dependency: [
      "gate.proto", "confluent/type/decimal.proto", "google/protobuf/timestamp.proto",
      "google/protobuf/struct.proto", "google/protobuf/wrappers.proto"
    ]
    enum_type { name: "Kind" value { name: "ON_TIME" number: 0 } value { name: "LATE" number: 1 } }
    message_type { name: "Other" }
    message_type { name: "Outer" nested_type {
      name: "Flight"
      nested_type {
        name: "DelayEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
      }
      field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      field { name: "tags" number: 2 type: TYPE_STRING label: LABEL_REPEATED }
      field { name: "kind" number: 3 type_name: ".airport.Kind" label: LABEL_OPTIONAL }
      field { name: "delay" number: 4 type_name: ".airport.Outer.Flight.DelayEntry" label: LABEL_REPEATED }
      field { name: "gate" number: 5 type_name: ".airport.Gate" label: LABEL_OPTIONAL }
      field { name: "at" number: 6 type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
      field { name: "more" number: 7 type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
      field { name: "name" number: 8 type_name: ".google.protobuf.StringValue" label: LABEL_OPTIONAL }
      field { name: "price" number: 9 type_name: ".confluent.type.Decimal" label: LABEL_OPTIONAL }
    } }""",
]


def make_flight_class() -> Any:
    """Return the class of a nested message whose file imports five others."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, struct_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for text in FILES:
        file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("airport.Outer.Flight"))


def test_invalid_messages_and_schemas_have_a_reason(
    official: SchemaRegistryClient, client: SchemaRegistry, registry: Registry
) -> None:
    good = official.register_schema("good", Schema('"string"', "AVRO"))
    broken = registry.register("broken", {"schema": '{"type": "nothing"}'})
    text = registry.register("text", {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"})
    union = official.register_schema("union", Schema('["null", "string"]', "AVRO"))
    avro, protobuf = AvroDecoder(client), ProtobufDecoder(client)
    assert avro.decode(frame(good, b"\x02a")).value == "a"
    for decoder, data, reason in (
        (avro, b"", "got nothing"),
        (avro, b'{"id": 1}', "expected a zero byte and a four-byte schema ID at its start, got 7b"),
        (avro, frame(good, b"\x04a"), "not a value of Avro schema 1"),
        (avro, frame(good, b"\x02ab"), "bytes follow"),
        (avro, frame(union, b"\x01\x02a"), "the index -1 of a union or enum is negative"),
        (avro, frame(999, b""), "no /schemas/ids/999"),
        (avro, frame(broken, b""), "schema 2 is not an Avro schema"),
        (avro, frame(text, b""), "schema 3 is of type PROTOBUF, expected AVRO"),
        (protobuf, frame(good, b"\0"), "schema 1 is of type AVRO, expected PROTOBUF"),
    ):
        with pytest.raises(MessageInvalid, match=reason):
            decoder.decode(data)
    with pytest.raises(SchemaRegistryUnavailable, match="expected a descriptor in base64"):
        protobuf.decode(frame(text, b"\0"))


def test_ids_are_cached_and_a_failed_registry_is_asked_with_backoff(
    official: SchemaRegistryClient, registry: Registry
) -> None:
    good = official.register_schema("good", Schema('"string"', "AVRO"))
    clock = ManualClock(dt.datetime(2026, 11, 24, tzinfo=dt.UTC))
    url = registry.url.replace("//", "//name:secret@")
    client = SchemaRegistry(RegistryOptions(f"http://127.0.0.1:1,{url}"), clock)
    registry.is_down = True
    registry.requests.clear()
    for _ in range(3):
        with pytest.raises(SchemaRegistryUnavailable, match="status 503") as failure:
            client.fetch_schema(good)
        assert "secret" not in str(failure.value)
    assert len(registry.requests) == 1
    clock.advance(1)
    with pytest.raises(SchemaRegistryUnavailable):
        client.fetch_schema(good)
    assert len(registry.requests) == 2
    registry.is_down = False
    clock.advance(2)
    for _ in range(3):
        assert client.fetch_schema(good).text == '"string"'
        with pytest.raises(MessageInvalid):
            client.fetch_schema(77)
    assert registry.requests[2:] == ["/schemas/ids/1", "/schemas/ids/77"]
    clock.advance(11)
    with pytest.raises(MessageInvalid):
        client.fetch_schema(77)
    assert registry.requests[4:] == ["/schemas/ids/77"]
