"""Manifests that are built from cached parts have the content that PyIceberg writes."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.snapshots import Snapshot

from fixtures.chunks import Lakehouse
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.table.file_io import PublishedOutputFile, WholeOutputFile, make_file_io
from snowmelt.table.iceberg import to_iceberg_schema
from snowmelt.table.native_file_writer import WrittenFile, make_data_file, write_native_file
from snowmelt.table.published_manifests import (
    encode_file,
    write_fresh_manifest,
    write_published_list,
)
from snowmelt.table.snapshot_publication import copy_manifest

_SCHEMA = TableSchema(
    3,
    (
        Column("N", LogicalType.FIXED, 1, nullable=False, precision=18, scale=0),
        Column("X", LogicalType.REAL, 2),
        Column("TEXT", LogicalType.TEXT, 3, length=100, byte_length=400),
    ),
)
_ICEBERG_SCHEMA = to_iceberg_schema(_SCHEMA)
_SNAPSHOT_ID = 2**63 - 2
_PARENT = Snapshot.model_validate(
    {"snapshot-id": 5, "sequence-number": 6, "timestamp-ms": 1, "manifest-list": "list"}
)


def write_files(lakehouse: Lakehouse) -> list[WrittenFile]:
    """Write files with NaN, with NULL only, and with text that has no short upper bound."""
    rows = (
        [{"N": 1, "X": float("nan"), "TEXT": None}, {"N": 2, "X": -0.5, "TEXT": "é" * 40}],
        [{"N": -(10**17), "X": None, "TEXT": "\U0010ffff" * 20}],
    )
    return [
        write_native_file(
            lakehouse.warehouse.store,
            f"t/data/{number}.parquet",
            pa.Table.from_pylist(each, native_schema(_SCHEMA)),
        )
        for number, each in enumerate(rows)
    ]


def read_avro(lakehouse: Lakehouse, path: str, schema: Any) -> tuple[dict[str, str], list[Any]]:
    """Return the metadata and the records of an Avro file of the warehouse."""
    address = lakehouse.warehouse.to_address(path)
    is_list = schema is MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
    kinds: dict[int, Any] = {-1: ManifestFile if is_list else ManifestEntry}
    with AvroFile[Any](make_file_io(address).new_input(address), schema, kinds) as file:
        return file.header.meta, list(file)


def test_manifest_has_the_metadata_and_entries_that_pyiceberg_writes(lakehouse: Lakehouse) -> None:
    warehouse = lakehouse.warehouse
    files = write_files(lakehouse)
    addresses = [warehouse.to_public_address(file.path) for file in files]
    made = write_fresh_manifest(
        warehouse,
        "t/ours.avro",
        _ICEBERG_SCHEMA,
        [
            encode_file(msgspec.msgpack.encode(file), address)
            for file, address in zip(files, addresses, strict=True)
        ],
        snapshot_id=_SNAPSHOT_ID,
        sequence_number=7,
    )
    output = PublishedOutputFile(warehouse, "t/theirs.avro")
    with write_manifest(
        2, UNPARTITIONED_PARTITION_SPEC, _ICEBERG_SCHEMA, output, _SNAPSHOT_ID, "deflate"
    ) as writer:
        for file, address in zip(files, addresses, strict=True):
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=_SNAPSHOT_ID,
                    sequence_number=7,
                    file_sequence_number=7,
                    data_file=make_data_file(file, address),
                )
            )
    schema = MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION]
    ours, theirs = (read_avro(lakehouse, path, schema) for path in ("t/ours.avro", "t/theirs.avro"))
    assert ours == theirs
    assert len(ours[1]) == len(files)
    expected = writer.to_manifest_file()
    # PyIceberg leaves the sequence number to the list, which assigns the snapshot's.
    expected.sequence_number = 7
    expected[0], expected[1] = warehouse.to_public_address("t/ours.avro"), made.manifest_length
    assert made == expected
    info = warehouse.store.head("t/ours.avro")
    assert info is not None
    assert made.manifest_length == info.size


def test_list_has_the_metadata_and_manifests_that_pyiceberg_writes(lakehouse: Lakehouse) -> None:
    warehouse = lakehouse.warehouse
    [file, _] = write_files(lakehouse)
    encoded = encode_file(msgspec.msgpack.encode(file), "s3://bucket/file")
    manifests = [
        write_fresh_manifest(
            warehouse,
            f"t/{sequence}.avro",
            _ICEBERG_SCHEMA,
            [encoded],
            snapshot_id=_SNAPSHOT_ID - sequence,
            sequence_number=sequence,
        )
        for sequence in (7, 3)
    ]
    for parent in (None, _PARENT):
        name = "none" if parent is None else "parent"
        address = write_published_list(
            warehouse,
            f"t/{name}-ours.avro",
            manifests,
            parent,
            snapshot_id=_SNAPSHOT_ID,
            sequence_number=7,
        )
        assert address == warehouse.to_public_address(f"t/{name}-ours.avro")
        parent_id = None if parent is None else parent.snapshot_id
        output = PublishedOutputFile(warehouse, f"t/{name}-theirs.avro")
        with write_manifest_list(2, output, _SNAPSHOT_ID, parent_id, 7, "deflate") as writer:
            writer.add_manifests(manifests)
        schema = MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
        ours, theirs = (
            read_avro(lakehouse, f"t/{name}-{which}.avro", schema) for which in ("ours", "theirs")
        )
        assert ours == theirs
        assert len(ours[1]) == 2


@pytest.mark.parametrize("kind", [WholeOutputFile, PublishedOutputFile])
def test_a_copy_that_cannot_be_finished_does_not_exist(
    lakehouse: Lakehouse, kind: type[WholeOutputFile]
) -> None:
    warehouse = lakehouse.warehouse
    files = write_files(lakehouse)
    addresses = [warehouse.to_address(file.path) for file in files]
    made = write_fresh_manifest(
        warehouse,
        "t/original.avro",
        _ICEBERG_SCHEMA,
        [
            encode_file(msgspec.msgpack.encode(file), address)
            for file, address in zip(files, addresses, strict=True)
        ],
        snapshot_id=_SNAPSHOT_ID,
        sequence_number=7,
    )
    made[0] = warehouse.to_address("t/original.avro")

    def convert(address: str) -> str:
        if address == addresses[-1]:
            raise InterruptedError
        return address

    output = kind(warehouse, "t/copy.avro")
    with pytest.raises(InterruptedError):
        copy_manifest(made, make_file_io(made.manifest_path), output, convert)
    # Without its last entry it would look complete.
    assert not output.exists()
