"""What FAVROPARSER and KAFKAAVROPARSER let one choose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """FAVROPARSER's: a value that does not fit its column is NULL unless it is to be rejected."""

    flatten_maps: bool = True
    flatten_arrays: bool = False
    reject_on_materialized_type_error: bool = False
    key_separator: str = "."


@dataclass(frozen=True, slots=True)
class StrictAvroOptions(AvroOptions):
    """Ours: a value that does not fit its column rejects the record."""

    reject_on_materialized_type_error: bool = True


@dataclass(frozen=True, slots=True)
class KafkaAvroOptions(AvroOptions):
    """KAFKAAVROPARSER's: the schema of messages is given, or asked for at a registry.

    With a registry a message begins with a zero byte and the four bytes of its schema's number,
    as the registry's own serialisers write it. `with_metadata` says that each message is an Avro
    file with a schema of its own; `codec` is written there, too, and has no meaning here.
    """

    external_schema: str = ""
    schema_registry_url: str = ""
    with_metadata: bool = False
    codec: str = "default"
