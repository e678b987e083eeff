"""Messages as rows: the fields of the value, the key, and RECORD_METADATA in Snowflake's form."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from snowmelt.json.exact import JsonSyntaxError, parse_json, parse_row
from snowmelt.loaders.kafka.stream_options import KafkaConnectorOptions, MessageFormat
from snowmelt.schema.types import to_internal_name

if TYPE_CHECKING:
    import confluent_kafka as ck

METADATA_COLUMN = "RECORD_METADATA"
_CREATE_TIME, _LOG_APPEND_TIME = 1, 2


class MessageInvalid(ValueError):
    """A key or value cannot be decoded. The text is the reason."""


class DecodedValue(NamedTuple):
    """A decoded key or value, and the ID of its schema."""

    value: object
    schema_id: int | None = None


class ValueDecoder(Protocol):
    """Decoder of keys or values of one format."""

    def decode(self, data: bytes) -> DecodedValue:
        """Return the value.

        Raises:
            MessageInvalid: If these bytes cannot be decoded.
            SchemaRegistryUnavailable: If the registry does not respond.
        """


class PlainDecoder:
    """Decoder of JSON, text and bytes."""

    def __init__(self, message_format: MessageFormat, *, is_key: bool) -> None:
        decoders: dict[MessageFormat, Callable[[bytes], object]] = {
            MessageFormat.JSON: _decode_json_key if is_key else _decode_json_row,
            MessageFormat.STRING: _decode_text,
            MessageFormat.BYTES: bytes,
        }
        self._decode = decoders[message_format]

    def decode(self, data: bytes) -> DecodedValue:
        """Return the value."""
        return DecodedValue(self._decode(data))


class MessageRowBuilder:
    """Builder of the rows of messages.

    Fields of the value are columns. With `key_column = "*"`, fields of the key are columns too,
    unless the value has a field of that name.
    """

    def __init__(
        self,
        options: KafkaConnectorOptions,
        value_decoder: ValueDecoder,
        key_decoder: ValueDecoder,
        make_change_row: Callable[[object], dict[str, Any] | None] | None = None,
    ) -> None:
        self._options = options
        self._value_decoder = value_decoder
        self._key_decoder = key_decoder
        self._make_change_row = make_change_row
        # Fast path for JSON rows without key and metadata.
        self._is_plain = (
            options.value_format is MessageFormat.JSON
            and not options.content_column
            and not options.key_column
            and make_change_row is None
        )

    def make_row(
        self, message: ck.Message, push_time_ms: int, *, with_metadata: bool
    ) -> dict[str, Any] | None:
        """Return the row of a message, or None for a skipped message.

        Raises:
            MessageInvalid: If key or value cannot be decoded.
            SchemaRegistryUnavailable: If the registry does not respond.
        """
        data = message.value()
        if self._is_plain and not with_metadata and data:
            row = parse_row(data)
            if row.__class__ is str:
                raise MessageInvalid(row)
            return row  # type: ignore[return-value]
        decoded, row_fields = self._decode_value(data)
        if row_fields is None:
            return None
        key: DecodedValue | None = None
        if self._options.key_column:
            key = self._decode_key(message)
            row_fields = _with_key(row_fields, self._options.key_column, key)
        if with_metadata:
            key = key or self._decode_key(message)
            row_fields[METADATA_COLUMN] = make_record_metadata(
                message, key, decoded.schema_id, push_time_ms, self._options
            )
        return row_fields

    def _decode_value(self, data: bytes | None) -> tuple[DecodedValue, dict[str, Any] | None]:
        if not data:
            if self._options.tombstones == "ignore" or self._make_change_row is not None:
                return DecodedValue(None), None
            return DecodedValue(None), {}
        decoded = self._value_decoder.decode(data)
        value = decoded.value
        if self._make_change_row is not None:
            return decoded, self._make_change_row(value)
        if self._options.content_column:
            return decoded, {self._options.content_column: value}
        if not isinstance(value, dict):
            raise MessageInvalid(
                "its value is not an object. Set `content_column` to load values into one column"
            )
        return decoded, dict(value)

    def _decode_key(self, message: ck.Message) -> DecodedValue:
        data = message.key()
        if data is None:
            return DecodedValue(None)
        try:
            return self._key_decoder.decode(data)
        except MessageInvalid as error:
            raise MessageInvalid(f"its key: {error}") from error


def make_record_metadata(
    message: ck.Message,
    key: DecodedValue,
    schema_id: int | None,
    push_time_ms: int,
    options: KafkaConnectorOptions,
) -> dict[str, object]:
    """Return the document for RECORD_METADATA."""
    parts = options.metadata
    found: dict[str, object] = {}
    if parts.has_topic:
        found["topic"] = message.topic()
    if parts.has_position:
        found["offset"] = message.offset()
        found["partition"] = message.partition()
    if parts.has_timestamp:
        kind, at_ms = message.timestamp()
        if kind == _CREATE_TIME:
            found["CreateTime"] = at_ms
        elif kind == _LOG_APPEND_TIME:
            found["LogAppendTime"] = at_ms
    if parts.has_push_time:
        found["SnowflakeConnectorPushTime"] = push_time_ms
    if key.value is not None:
        found["key"] = _to_document(key.value)
    if key.schema_id is not None:
        found["key_schema_id"] = key.schema_id
    if schema_id is not None:
        found["schema_id"] = schema_id
    headers: dict[str, object] = {}
    for name, data in list_headers(message):
        # If several headers have one name, the last one applies, as in Snowflake's connector.
        headers[name] = data if data is None else _to_document(_decode_if_text(data))
    if headers:
        found["headers"] = headers
    return found


def list_headers(message: ck.Message) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message in order."""
    headers: Any = message.headers() or ()
    return [(name, data.encode() if isinstance(data, str) else data) for name, data in headers]


def _with_key(row: dict[str, Any], column: str, key: DecodedValue) -> dict[str, Any]:
    if column != "*":
        return row if key.value is None else {column: key.value, **row}
    if key.value is None:
        return row
    if not isinstance(key.value, Mapping):
        raise MessageInvalid(
            "its key is not an object. Set `key_column` to load keys into one column"
        )
    present = {to_internal_name(name) for name in row}
    extra = {
        name: value for name, value in key.value.items() if to_internal_name(name) not in present
    }
    return {**row, **extra}


def _to_document(value: object) -> object:
    """Return a value that JSON can hold: bytes in base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _decode_if_text(data: bytes) -> bytes | str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MessageInvalid(f"byte {error.start} is not UTF-8") from error


def _decode_json_key(data: bytes) -> object:
    try:
        return parse_json(data)
    except JsonSyntaxError as error:
        raise MessageInvalid(f"it is not JSON: {error}") from error


def _decode_json_row(data: bytes) -> dict[str, Any]:
    row = parse_row(data)
    if isinstance(row, str):
        raise MessageInvalid(row)
    return row
