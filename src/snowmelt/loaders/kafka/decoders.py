"""The decoders of a connector's keys and values, from its options."""

from __future__ import annotations

from collections.abc import Mapping

from snowmelt.errors import ConfigurationError
from snowmelt.loaders.kafka.change_events import make_change_row
from snowmelt.loaders.kafka.message_rows import MessageRowBuilder, PlainDecoder, ValueDecoder
from snowmelt.loaders.kafka.stream_options import KafkaConnectorOptions, MessageFormat

_REGISTRY_FORMATS = (MessageFormat.AVRO, MessageFormat.PROTOBUF)


def make_row_builder(options: KafkaConnectorOptions) -> MessageRowBuilder:
    """Return the builder that turns messages into rows.

    Raises:
        ConfigurationError: If a format requires a schema registry and none is configured.
    """
    registry_decoders: Mapping[MessageFormat, ValueDecoder] = {}
    for message_format in (options.value_format, options.key_format):
        if message_format in _REGISTRY_FORMATS:
            registry_decoders = _make_registry_decoders(options, message_format)

    def make(message_format: MessageFormat, *, is_key: bool) -> ValueDecoder:
        found = registry_decoders.get(message_format)
        return found or PlainDecoder(message_format, is_key=is_key)

    return MessageRowBuilder(
        options,
        make(options.value_format, is_key=bool(options.content_column)),
        make(options.key_format, is_key=True),
        make_change_row if options.change_events else None,
    )


def _make_registry_decoders(
    options: KafkaConnectorOptions, message_format: MessageFormat
) -> dict[MessageFormat, ValueDecoder]:
    if not options.registry.url:
        reason = f"the format {message_format.value} requires the URL of a schema registry"
        raise ConfigurationError(setting="registry_url", reason=reason)
    from snowmelt.loaders.kafka.registry_decoders import AvroDecoder, ProtobufDecoder
    from snowmelt.loaders.kafka.schema_registry import SchemaRegistry

    registry = SchemaRegistry(options.registry)
    return {
        MessageFormat.AVRO: AvroDecoder(registry),
        MessageFormat.PROTOBUF: ProtobufDecoder(registry),
    }
