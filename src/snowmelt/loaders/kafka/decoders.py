"""The decoders of a connector's keys and values, from its options."""

from __future__ import annotations

from snowmelt.loaders.kafka.message_rows import MessageRowBuilder, PlainDecoder
from snowmelt.loaders.kafka.stream_options import KafkaConnectorOptions


def make_row_builder(options: KafkaConnectorOptions) -> MessageRowBuilder:
    """Return what makes rows of messages."""
    return MessageRowBuilder(
        options,
        PlainDecoder(options.value_format, is_key=bool(options.content_column)),
        PlainDecoder(options.key_format, is_key=True),
    )
