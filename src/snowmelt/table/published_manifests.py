"""Manifests and manifest lists of published snapshots, whose parts are encoded once.

A fresh file is in the manifests of many publications, five per second. PyIceberg encodes each entry
and schema again for each manifest. This module keeps the encoded form of a file and of a schema.
"""

from __future__ import annotations

import functools
import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from snowmelt.table.native_file_writer import WrittenFile, make_data_file
from snowmelt.table.warehouse_paths import Warehouse

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
# Maximum number of cached entries, for the tables of a large installation. An entry has about 1
# KiB.
_MAX_CACHED_ENTRIES = 8192
_decoder = msgspec.msgpack.Decoder(WrittenFile)


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A fresh file's number of rows, and its `data_file` in a manifest as Avro encodes it."""

    rows: int
    data_file: bytes


@functools.lru_cache(maxsize=_MAX_CACHED_ENTRIES)
def encode_file(entry: bytes, address: str) -> EncodedFile:
    """Encode the stored description (`FreshFile.entry`) of a fresh file at `address`."""
    written = _decoder.decode(entry)
    buffer = io.BytesIO()
    _data_file_writer().write(BinaryEncoder(buffer), make_data_file(written, address))
    return EncodedFile(written.rows, buffer.getvalue())


def write_fresh_manifest(
    warehouse: Warehouse,
    path: str,
    schema: Schema,
    files: Sequence[EncodedFile],
    *,
    snapshot_id: int,
    sequence_number: int,
) -> ManifestFile:
    """Write the manifest of a snapshot that adds fresh files. Return its entry for a list."""
    prefix = _encode_ints(
        # The status, then three nullable numbers. In Avro, a 1 precedes a number that is not null.
        *(ManifestEntryStatus.ADDED, 1, snapshot_id, 1, sequence_number, 1, sequence_number)
    )
    block = b"".join(part for file in files for part in (prefix, file.data_file))
    metadata = {
        "schema": schema.model_dump_json(),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "data",
        "avro.schema": _entry_schema_json(),
    }
    content = _encode_avro(metadata, block, len(files))
    warehouse.store.put(path, content, create_only=True, durable=True)
    return ManifestFile.from_args(
        manifest_path=warehouse.to_public_address(path),
        manifest_length=len(content),
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number,
        added_snapshot_id=snapshot_id,
        added_files_count=len(files),
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=sum(file.rows for file in files),
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[],
        key_metadata=None,
    )


def write_published_list(
    warehouse: Warehouse,
    path: str,
    manifests: Sequence[ManifestFile],
    parent: Snapshot | None,
    *,
    snapshot_id: int,
    sequence_number: int,
) -> str:
    """Write the manifest list of a snapshot. Return its address."""
    buffer = io.BytesIO()
    encoder = BinaryEncoder(buffer)
    for manifest in manifests:
        _manifest_writer().write(encoder, manifest)
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent.snapshot_id),
        "sequence-number": str(sequence_number),
        "format-version": "2",
        "avro.schema": _manifest_schema_json(),
    }
    content = _encode_avro(metadata, buffer.getvalue(), len(manifests))
    warehouse.store.put(path, content, create_only=True, durable=True)
    return warehouse.to_public_address(path)


def _encode_avro(metadata: Mapping[str, str], records: bytes, count: int) -> bytes:
    """Return an Avro file with one block of encoded records."""
    sync = os.urandom(_SYNC_BYTES)
    buffer = io.BytesIO()
    encoder = BinaryEncoder(buffer)
    encoder.write(_MAGIC)
    pairs = {**metadata, "avro.codec": "deflate"}
    encoder.write_int(len(pairs))
    for key, value in pairs.items():
        encoder.write_utf8(key)
        encoder.write_utf8(value)
    encoder.write_int(0)
    encoder.write(sync)
    if count:
        encoder.write_int(count)
        # Avro's codec is a raw deflate stream, without zlib's header and checksum.
        compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        encoder.write_bytes(compressor.compress(records) + compressor.flush())
        encoder.write(sync)
    return buffer.getvalue()


def _encode_ints(*values: int) -> bytes:
    buffer = io.BytesIO()
    encoder = BinaryEncoder(buffer)
    for value in values:
        encoder.write_int(value)
    return buffer.getvalue()


@functools.cache
def _entry_schema() -> Schema:
    return manifest_entry_schema_with_data_file(2, data_file_with_partition(StructType(), 2))


@functools.cache
def _data_file_writer() -> Writer:
    data_file: Any = _entry_schema().find_type("data_file")
    return resolve_writer(data_file, data_file)


@functools.cache
def _manifest_writer() -> Writer:
    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    return resolve_writer(schema, schema)


@functools.cache
def _entry_schema_json() -> str:
    return _to_avro_json(_entry_schema(), "manifest_entry")


@functools.cache
def _manifest_schema_json() -> str:
    return _to_avro_json(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file")


def _to_avro_json(schema: Schema, name: str) -> str:
    return json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))
