"""Avro parsers for files, which contain their schema, and for messages with a separate schema.

The options are those of FAVROPARSER and KAFKAAVROPARSER.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import fastavro
import httpx

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.parsers.avro_decoding import (
    install_readers,
    make_indexes_strict,
    parse_avro_schema,
    read_avro_message,
)
from snowmelt.load.parsers.record_columns import RecordEntry, RecordRowBuilder
from snowmelt.load.phase_protocols import ByteReader, ParsedBatch, ParseTarget, Records
from snowmelt.load.portion import Portion

install_readers()

# --- Options of FAVROPARSER and KAFKAAVROPARSER.


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """Options of FAVROPARSER.

    A value that does not fit its column is NULL, or rejects the record with
    `reject_on_materialized_type_error`.
    """

    flatten_maps: bool = True
    flatten_arrays: bool = False
    reject_on_materialized_type_error: bool = False
    key_separator: str = "."


@dataclass(frozen=True, slots=True)
class StrictAvroOptions(AvroOptions):
    """Options of Snowmelt's parser AVRO: a value that does not fit its column rejects the record."""

    reject_on_materialized_type_error: bool = True


@dataclass(frozen=True, slots=True)
class KafkaAvroOptions(AvroOptions):
    """Options of KAFKAAVROPARSER: the schema is given or comes from a schema registry.

    With a registry, a message starts with a zero byte and the four-byte schema ID (the registry's
    wire format). With `with_metadata`, each message is an Avro file with its own schema. `codec` is
    ignored, because an Avro file names its codec.
    """

    external_schema: str = ""
    schema_registry_url: str = ""
    with_metadata: bool = False
    codec: str = "default"


_BATCH_RECORDS = 4096
_REGISTRY_HEADER_BYTES = 5
_REGISTRY_TIMEOUT_S = 30.0
# Exceptions that fastavro raises for a corrupt file.
_DECODE_ERRORS = (
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    ArithmeticError,
    RecursionError,
)


class AvroParser:
    """Parser of Avro files. Fails on a corrupt file, because record boundaries cannot be found."""

    splittable = False

    def __init__(self, options: AvroOptions) -> None:
        self._options = options

    def parse(
        self,
        reader: ByteReader,
        target: ParseTarget,
        portion: Portion,  # noqa: ARG002
    ) -> Iterator[ParsedBatch]:
        """Yield batches of up to 4,096 parsed records.

        Raises:
            PhaseFailed: If the input is not an Avro file, or a block is corrupt.
        """
        objects = _make_row_builder(target, self._options)
        source = _ReaderFile(reader)
        if reader.at_end:
            return
        entries: list[RecordEntry] = []
        try:
            blocks = fastavro.block_reader(cast("Any", source))
            make_indexes_strict(blocks.writer_schema)
            for block in blocks:
                for record in block:
                    entries.append(RecordEntry(block.offset, None, _wrap_unnamed_value(record)))
                    if len(entries) >= _BATCH_RECORDS:
                        yield objects.build_rows(entries)
                        entries = []
        except _DECODE_ERRORS as error:
            if entries:
                yield objects.build_rows(entries)
            reason = f"not an Avro file, or broken: {str(error) or type(error).__name__}"
            raise PhaseFailed(reason=reason, offset=reader.offset) from None
        if entries:
            yield objects.build_rows(entries)


class AvroMessageParser:
    """Parser of messages with one Avro record each."""

    def __init__(self, options: KafkaAvroOptions) -> None:
        """Validate the options.

        Raises:
            LoadRefused: If not exactly one schema source is given, or the schema is invalid.
        """
        given = [options.external_schema, options.schema_registry_url, options.with_metadata]
        if sum(map(bool, given)) != 1:
            reason = (
                "exactly one of external_schema, schema_registry_url and with_metadata is required"
            )
            raise LoadRefused(what="KAFKAAVROPARSER", reason=reason)
        self._options = options
        self._schemas: dict[int, Any] = {}
        self._schema: Any = None
        if options.external_schema:
            try:
                self._schema = parse_avro_schema(json.loads(options.external_schema))
            except (ValueError, fastavro.schema.SchemaParseException) as error:
                reason = f"external_schema is not an Avro schema: {error}"
                raise LoadRefused(what="KAFKAAVROPARSER", reason=reason) from None

    def parse_records(
        self, records: Iterator[Records], target: ParseTarget
    ) -> Iterator[ParsedBatch]:
        """Yield batches of parsed messages.

        Raises:
            PhaseFailed: If the registry fails or returns no valid schema.
        """
        objects = _make_row_builder(target, self._options)
        offset = 0
        for batch in records:
            for at in range(0, len(batch), _BATCH_RECORDS):
                entries = []
                for message in batch.slice(at, _BATCH_RECORDS).to_pylist():
                    entries.append(self._make_record_entry(message, offset))
                    offset += len(message)
                yield objects.build_rows(entries)

    def _make_record_entry(self, message: bytes, offset: int) -> RecordEntry:
        try:
            value = self._decode_value(message)
        except _DECODE_ERRORS as error:
            problem = f"the record does not match the schema: {str(error) or type(error).__name__}"
            return RecordEntry(offset, message, None, problem)
        return RecordEntry(offset, message, _wrap_unnamed_value(value))

    def _decode_value(self, message: bytes) -> object:
        if self._options.with_metadata:
            records = fastavro.reader(io.BytesIO(message))
            make_indexes_strict(records.writer_schema)
            (record,) = list(records)
            return record
        schema, body = self._schema, message
        if schema is None:
            frame, body = message[:_REGISTRY_HEADER_BYTES], message[_REGISTRY_HEADER_BYTES:]
            if len(frame) < _REGISTRY_HEADER_BYTES or frame[0]:
                raise ValueError("expected a zero byte and a four-byte schema ID at the start")
            schema = self._fetch_schema(int.from_bytes(frame[1:], "big"))
        return read_avro_message(body, schema)

    def _fetch_schema(self, schema_id: int) -> Any:
        known = self._schemas.get(schema_id)
        if known is None:
            url = f"{self._options.schema_registry_url.rstrip('/')}/schemas/ids/{schema_id}"
            try:
                answer = httpx.get(url, timeout=_REGISTRY_TIMEOUT_S).raise_for_status()
                known = parse_avro_schema(json.loads(answer.json()["schema"]))
            except (httpx.HTTPError, ValueError, KeyError) as error:
                raise PhaseFailed(reason=f"no schema {schema_id} at {url}: {error}") from None
            self._schemas[schema_id] = known
        return known


class _ReaderFile:
    """Adapter from a reader to a forward-only file for fastavro."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, or fewer at the end. A negative size reads all remaining bytes."""
        return self._reader.read(None if size < 0 else size)

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._reader.offset


def _make_row_builder(target: ParseTarget, options: AvroOptions) -> RecordRowBuilder:
    return RecordRowBuilder(
        target,
        strict=options.reject_on_materialized_type_error,
        flatten_maps=options.flatten_maps,
        flatten_arrays=options.flatten_arrays,
        key_separator=options.key_separator,
    )


def _wrap_unnamed_value(record: object) -> dict[str, Any]:
    """Return a record unchanged, or wrap another value as `{"VALUE": value}`."""
    return record if isinstance(record, dict) else {"VALUE": record}
