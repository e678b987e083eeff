"""Decoders of Avro and Protobuf. Each message has the ID of its schema in a registry."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    symbol_database,
)
from google.protobuf.message import DecodeError, Message

from snowmelt.load.parsers.avro_decoding import (
    install_readers,
    parse_avro_schema,
    read_avro_message,
)
from snowmelt.loaders.kafka.message_rows import DecodedValue, MessageInvalid
from snowmelt.loaders.kafka.schema_registry import (
    RegisteredSchema,
    SchemaReference,
    SchemaRegistry,
    split_wire_format,
)

install_readers()

# Exceptions that fastavro raises for bytes that the schema does not describe.
_AVRO_ERRORS = (
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
_VARINT_BITS = 7
_MAX_NESTING = 64
_WELL_KNOWN_FILES = frozenset(
    f"google/protobuf/{name}.proto"
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask"),
        *("source_context", "struct", "timestamp", "type", "wrappers"),
    )
)
_TEXT_TYPES = frozenset(
    f"google.protobuf.{kind}" for kind in ("Duration", "FieldMask", "Timestamp")
)
_DOCUMENT_TYPES = frozenset(f"google.protobuf.{kind}" for kind in ("ListValue", "Struct", "Value"))
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class AvroDecoder:
    """Decoder of Avro in Confluent's wire format."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._schemas: dict[int, Any] = {}

    def decode(self, data: bytes) -> DecodedValue:
        """Return the value, read with the schema that wrote it.

        Raises:
            MessageInvalid: If the message or its schema is invalid.
            SchemaRegistryUnavailable: If the registry does not respond.
        """
        schema_id, content = split_wire_format(data)
        schema = self._schemas.get(schema_id)
        if schema is None:
            schema = self._schemas[schema_id] = self._load_schema(schema_id)
        try:
            value = read_avro_message(content, schema)
        except _AVRO_ERRORS as error:
            problem = str(error) or type(error).__name__
            reason = f"it is not a value of Avro schema {schema_id}: {problem}"
            raise MessageInvalid(reason) from error
        return DecodedValue(value, schema_id)

    def _load_schema(self, schema_id: int) -> Any:
        registered = self._registry.fetch_schema(schema_id)
        _check_kind(registered, "AVRO", schema_id)
        named: dict[str, Any] = {}
        try:
            _load_references(
                self._registry, registered, lambda _, each: _define_avro_types(each, named)
            )
            return parse_avro_schema(json.loads(registered.text), named)
        except MessageInvalid:
            raise
        except (*_AVRO_ERRORS, fastavro.schema.SchemaParseException) as error:
            raise MessageInvalid(f"schema {schema_id} is not an Avro schema: {error}") from error


class ProtobufDecoder:
    """Decoder of Protobuf in Confluent's wire format."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._files: dict[int, tuple[Any, Any]] = {}
        self._classes: dict[tuple[int, tuple[int, ...]], Callable[[], Message]] = {}

    def decode(self, data: bytes) -> DecodedValue:
        """Return the message as a dict, by field name.

        Raises:
            MessageInvalid: If the message or its schema is invalid.
            SchemaRegistryUnavailable: If the registry does not respond.
        """
        schema_id, content = split_wire_format(data)
        indexes, content = _split_message_indexes(content)
        key = schema_id, indexes
        make = self._classes.get(key)
        if make is None:
            make = self._classes[key] = self._load_class(schema_id, indexes)
        message = make()
        try:
            message.ParseFromString(content)
        except DecodeError as error:
            reason = f"it is not a message of Protobuf schema {schema_id}: {error}"
            raise MessageInvalid(reason) from error
        return DecodedValue(_message_to_dict(message), schema_id)

    def _load_class(self, schema_id: int, indexes: tuple[int, ...]) -> Callable[[], Message]:
        if schema_id not in self._files:
            self._files[schema_id] = self._load_file(schema_id)
        pool, file = self._files[schema_id]
        kinds, names = file.message_type, [file.package] if file.package else []
        try:
            for index in indexes:
                names.append(kinds[index].name)
                kinds = kinds[index].nested_type
        except IndexError:
            reason = f"Protobuf schema {schema_id} has no message {list(indexes)}"
            raise MessageInvalid(reason) from None
        descriptor = pool.FindMessageTypeByName(".".join(names))
        made: Callable[[], Message] = message_factory.GetMessageClass(descriptor)
        return made

    def _load_file(self, schema_id: int) -> tuple[Any, Any]:
        """Return a pool with the file of a schema, and the file's description."""
        registered = self._registry.fetch_schema(schema_id, serialized=True)
        _check_kind(registered, "PROTOBUF", schema_id)
        pool = descriptor_pool.DescriptorPool()
        added: set[str] = set()

        def add(name: str, schema: RegisteredSchema) -> Any:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text))
            if name not in added and not _add_known_file(pool, name, added):
                added.add(name)
                file.name = name
                for imported in file.dependency:
                    _add_known_file(pool, imported, added)
                pool.AddSerializedFile(file.SerializeToString())
            return file

        name = f"snowmelt-schema-{schema_id}.proto"
        try:
            _load_references(
                self._registry,
                registered,
                lambda reference, schema: add(reference.name, schema),
                serialized=True,
            )
            return pool, add(name, registered)
        except (TypeError, KeyError, DecodeError) as error:
            raise MessageInvalid(f"Protobuf schema {schema_id} is invalid: {error}") from error


def _check_kind(schema: RegisteredSchema, kind: str, schema_id: int) -> None:
    if schema.kind != kind:
        raise MessageInvalid(f"schema {schema_id} is of type {schema.kind}, expected {kind}")


def _load_references(
    registry: SchemaRegistry,
    schema: RegisteredSchema,
    load: Callable[[SchemaReference, RegisteredSchema], object],
    *,
    serialized: bool = False,
    depth: int = 0,
) -> None:
    """Load the schemas that a schema uses, dependencies first."""
    if depth > _MAX_NESTING:
        raise MessageInvalid(f"its schema has references more than {_MAX_NESTING} levels deep")
    for reference in schema.references:
        found = registry.fetch_reference(reference, serialized=serialized)
        _load_references(registry, found, load, serialized=serialized, depth=depth + 1)
        load(reference, found)


def _define_avro_types(schema: RegisteredSchema, named: dict[str, Any]) -> None:
    text = json.loads(schema.text)
    # Two schemas may refer to the same third schema.
    if _find_avro_name(text) not in named:
        fastavro.parse_schema(text, named_schemas=named)


def _find_avro_name(schema: object) -> str:
    if not isinstance(schema, dict):
        return ""
    name, namespace = str(schema.get("name", "")), str(schema.get("namespace", ""))
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _split_message_indexes(content: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the indexes of the message type within its file, and the message."""
    count, at = _read_zigzag(content, 0)
    if count == 0:
        return (0,), content[at:]
    if not 0 < count <= _MAX_NESTING:
        raise MessageInvalid(f"it has {count} Protobuf message indexes")
    indexes = []
    for _ in range(count):
        index, at = _read_zigzag(content, at)
        indexes.append(index)
    if min(indexes) < 0:
        raise MessageInvalid(f"its Protobuf message indexes are {indexes}")
    return tuple(indexes), content[at:]


def _read_zigzag(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content) or shift > 5 * _VARINT_BITS:
            raise MessageInvalid("its Protobuf message indexes are truncated")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += _VARINT_BITS


def _add_known_file(pool: Any, name: str, added: set[str]) -> bool:
    """Add a file that Protobuf or Confluent defines. Return False for any other file."""
    if name in _CONFLUENT_FILES:
        if name not in added:
            added.add(name)
            pool.AddSerializedFile(_CONFLUENT_FILES[name].SerializeToString())
        return True
    if name not in _WELL_KNOWN_FILES:
        return False
    if name not in added:
        importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        known = symbol_database.Default().pool.FindFileByName(name)
        for imported in known.dependencies:
            _add_known_file(pool, imported.name, added)
        added.add(name)
        pool.AddSerializedFile(known.serialized_pb)
    return True


def _make_confluent_files() -> dict[str, Any]:
    """Return the files that Confluent's registry offers to each schema without a reference.

    The extensions of meta.proto are left out: they annotate schemas and do not change values.
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    meta = descriptor_pb2.FileDescriptorProto(name="confluent/meta.proto", package="confluent")
    decimal = descriptor_pb2.FileDescriptorProto(
        name="confluent/type/decimal.proto", package="confluent.type", syntax="proto3"
    )
    message = decimal.message_type.add(name="Decimal")
    for number, (name, kind) in enumerate(
        (
            ("value", kinds.TYPE_BYTES),
            ("precision", kinds.TYPE_UINT32),
            ("scale", kinds.TYPE_INT32),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    return {each.name: each for each in (meta, decimal)}


_CONFLUENT_FILES = _make_confluent_files()


def _message_to_dict(message: Any) -> dict[str, object]:
    row: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        kind, name = field.message_type, field.name
        if kind is not None and kind.GetOptions().map_entry:
            values = kind.fields_by_name["value"]
            entries = getattr(message, name)
            row[name] = {
                _make_map_key(key): _convert_value(values, entries[key]) for key in sorted(entries)
            }
        elif field.is_repeated:
            row[name] = [_convert_value(field, each) for each in getattr(message, name)]
        elif field.has_presence and not message.HasField(name):
            row[name] = None
        else:
            row[name] = _convert_value(field, getattr(message, name))
    return row


def _make_map_key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _convert_value(field: Any, value: Any) -> object:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    try:
        if name in _TEXT_TYPES:
            return value.ToJsonString()
        if name in _DOCUMENT_TYPES:
            return json_format.MessageToDict(value)
    except (ValueError, json_format.Error) as error:
        raise MessageInvalid(f"field {field.name}: {error}") from error
    if name in _WRAPPERS:
        return value.value
    if name == "confluent.type.Decimal":
        unscaled = int.from_bytes(value.value, "big", signed=True)
        return Decimal(f"{unscaled}e{-value.scale}")
    return _message_to_dict(value)
