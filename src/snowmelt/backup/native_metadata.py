"""List the files of a native table, and rewrite its metadata for another warehouse.

Iceberg metadata refers to files by full URLs. Paths within the warehouse stay the same, so a
restoration replaces the start of each URL in the metadata file, the manifest lists and the
manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    ManifestContent,
    ManifestFile,
    read_manifest_list,
    write_manifest_list,
)

from snowmelt.backup.manifests import AddressConverter, FileKind, SourceDamaged
from snowmelt.table.file_io import BufferedOutputFile, make_file_io
from snowmelt.table.iceberg import load_native_table
from snowmelt.table.snapshot_publication import copy_manifest

_COMPRESSION: Literal["deflate"] = "deflate"


@dataclass(frozen=True, slots=True)
class NativeFileReference:
    """A file of a native table: kind, URL, and size (None if the metadata does not contain it)."""

    kind: FileKind
    address: str
    size: int | None


def list_table_files(pointer: str, incarnation: str) -> tuple[list[NativeFileReference], int]:
    """Return the files of all retained snapshots, and the number of rows of the current snapshot.

    Raises:
        SourceDamaged: If the table has files of a kind that backups do not support.
    """
    native = load_native_table(pointer, incarnation)
    if native.metadata.statistics or native.metadata.partition_statistics:
        raise SourceDamaged(
            path=pointer,
            reason="another tool has added statistics files, which backups do not support",
        )
    found = {pointer: NativeFileReference("metadata", pointer, None)}
    io = make_file_io(pointer)
    for snapshot in native.metadata.snapshots:
        address = snapshot.manifest_list
        found[address] = NativeFileReference("list", address, None)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path in found:
                continue
            path = manifest.manifest_path
            if manifest.content is not ManifestContent.DATA:
                raise SourceDamaged(path=path, reason="another tool has added delete files")
            found[path] = NativeFileReference("manifest", path, manifest.manifest_length)
            # Deleted entries refer to files of expired snapshots, which may no longer exist.
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                file = entry.data_file
                found[file.file_path] = NativeFileReference(
                    "data", file.file_path, file.file_size_in_bytes
                )
    return list(found.values()), native.facts.total_rows


def convert_manifest(
    local: Path, manifest: ManifestFile, converter: AddressConverter, output: OutputFile
) -> ManifestFile:
    """Write a copy of the manifest in file `local` with converted URLs. Return its manifest-list entry."""
    source = deepcopy(manifest)
    source[0] = str(local)
    copy_manifest(source, _local_io(local), output, converter.convert)
    converted = deepcopy(manifest)
    converted[0], converted[1] = output.location, len(output)
    return converted


def convert_manifest_list(
    local: Path, convert: Callable[[ManifestFile], ManifestFile], output: OutputFile
) -> None:
    """Write a copy of the manifest list in file `local`, with the entries that `convert` returns."""
    with AvroFile[ManifestFile](_local_io(local).new_input(str(local))) as original:
        header = dict(original.header.meta)
    parent = header.get("parent-snapshot-id", "null")
    buffer = BufferedOutputFile(output)
    with write_manifest_list(
        2,
        buffer,
        int(header["snapshot-id"]),
        None if parent == "null" else int(parent),
        int(header["sequence-number"]),
        _COMPRESSION,
    ) as writer:
        writer.add_manifests([convert(manifest) for manifest in read_local_list(local)])
    buffer.flush()


def read_local_list(local: Path) -> Iterator[ManifestFile]:
    """Yield the manifests of the manifest list in file `local`."""
    yield from read_manifest_list(_local_io(local).new_input(str(local)))


def _local_io(local: Path) -> FileIO:
    return make_file_io(str(local))
