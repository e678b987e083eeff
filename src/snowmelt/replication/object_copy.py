"""Copy the objects that a state refers to: blobs, objects of buckets, and files of native tables.

Paths are never reused, so an object that exists here with the correct bytes is not copied again.
Metadata of native tables refers to files by URL. The copies of metadata have the URLs of this
warehouse. Metadata is written after the files that it refers to. If a metadata file exists at a
follower, its files therefore exist too. This does not hold for a former primary: its garbage
collection retains metadata files longer than the files of their snapshots.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from snowmelt import failpoints
from snowmelt.backup.destination import Spool, hash_object, write_verified
from snowmelt.backup.manifests import AddressConverter, StoreName
from snowmelt.errors import RemoteError
from snowmelt.failpoints import Failpoint
from snowmelt.storage.store import Store
from snowmelt.table.warehouse_paths import Warehouse

# Import PyIceberg only to copy metadata: most states have none.
if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile

_THREADS = 6

# Each request costs the primary as much as tens of blobs, so small blobs share one.
_BATCH_BYTES = 1 << 20
_MAX_BATCH_BLOBS = 500
# Blobs whose chunks end after this position are read in ranges.
_MAX_WHOLE_BYTES = 4 << 20

# Reads a range of an object at the primary. Returns the size of the object, and the bytes.
ReadRange = Callable[[StoreName, str, int], tuple[int, bytes]]
# Reads one or more blobs at the primary, from the start of a list of paths. Returns their contents,
# and None for a blob that does not exist.
ReadBlobs = Callable[[list[str]], list[bytes | None]]


# Offset, length and MD5 of a chunk.
_BlobRange = tuple[int, int, str]


class ObjectRemoved(RemoteError):
    """The primary has deleted {path}. The next round requests a state without it."""


class ObjectDamaged(RemoteError):
    """{path} does not have the checksum in the catalog of the primary. The next round copies it again."""


@dataclass(slots=True)
class NeededObjects:
    """Objects that a state refers to.

    `blobs` maps paths in the stage to (offset, length, MD5) of their chunks. `bucket_files` maps
    paths in the bucket store to sizes. `pointers` are paths of metadata files in the warehouse.
    `checksums` maps paths of native files to their SHA-256.
    """

    blobs: dict[str, list[_BlobRange]] = field(default_factory=dict)
    bucket_files: dict[str, int] = field(default_factory=dict)
    pointers: set[str] = field(default_factory=set)
    checksums: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectTarget:
    """Stores of this site."""

    stage: Store
    warehouse: Warehouse
    bucket: Store

    def list_stores(self) -> list[Store]:
        """Return the stores of stage, warehouse and buckets."""
        return [self.stage, self.warehouse.store, self.bucket]


class ObjectCopier:
    """Copier of objects from the primary.

    `received` are the contents of blobs that came with the state, by path. `on_copied` is called
    with the size of each object that was read, in bytes. If `trusts_metadata` is False, the copier
    also checks the files of metadata that exists at this site.
    """

    def __init__(
        self,
        target: ObjectTarget,
        read_range: ReadRange,
        read_blobs: ReadBlobs,
        warehouse_root: str,
        on_copied: Callable[[int], None],
        *,
        trusts_metadata: bool,
        received: Mapping[str, bytes] | None = None,
    ) -> None:
        self._target = target
        self._trusts_metadata = trusts_metadata
        self._read_range = read_range
        self._read_blobs = read_blobs
        self._addresses = AddressConverter(warehouse_root, target.warehouse.to_address(""))
        self._on_copied = on_copied
        self._received = received or {}
        self._converted: dict[str, ManifestFile] = {}

    def copy(self, needed: NeededObjects) -> None:
        """Copy the missing objects, and sync the stores.

        Raises:
            ObjectRemoved: If the primary has deleted an object of the state.
            ObjectDamaged: If an object has wrong bytes.
            ServiceUnavailable: If the primary does not respond.
            StageUnavailable: If a store of this site does not respond.
        """
        for store in self._target.list_stores():
            store.watch_writes()
        with (
            ThreadPoolExecutor(_THREADS, thread_name_prefix="replica") as threads,
            # They wait for the others, which check and write the blobs of a batch.
            ThreadPoolExecutor(_THREADS, thread_name_prefix="replica-batches") as batches,
        ):
            _run_all(
                batches,
                [
                    *((self._copy_blobs, batch, threads) for batch in _make_batches(needed.blobs)),
                    *(
                        (self._copy_bucket_file, path, size)
                        for path, size in needed.bucket_files.items()
                    ),
                ],
            )
            with tempfile.TemporaryDirectory(prefix="snowmelt-replica-") as name:
                for pointer in sorted(needed.pointers):
                    self._copy_table(pointer, needed.checksums, Path(name), threads)
        for store in self._target.list_stores():
            store.sync()

    def _copy_blobs(
        self, blobs: Mapping[str, list[_BlobRange]], threads: ThreadPoolExecutor
    ) -> None:
        has_ranges = partial(_has_ranges, self._target.stage)
        are_here = threads.map(has_ranges, blobs.keys(), blobs.values())
        missing = [path for path, is_here in zip(blobs, are_here, strict=True) if not is_here]
        given = [path for path in missing if path in self._received]
        _run_all(
            threads,
            [(self._write_content, path, blobs[path], self._received[path]) for path in given],
        )
        missing = [path for path in missing if path not in self._received]
        while missing:
            if _find_end(blobs[missing[0]]) > _MAX_WHOLE_BYTES:
                with self._fetched("stage", missing[0]) as spool:
                    self._write_blob(missing[0], blobs[missing[0]], spool)
                del missing[0]
                continue
            contents = self._read_blobs(missing)
            if not contents:
                raise ObjectDamaged(path=missing[0])
            _run_all(
                threads,
                [
                    (self._write_content, path, blobs[path], content)
                    for path, content in zip(missing, contents, strict=False)
                ],
            )
            del missing[: len(contents)]

    def _write_content(
        self, path: str, ranges: Iterable[_BlobRange], content: bytes | None
    ) -> None:
        if content is None:
            raise ObjectRemoved(path=path)
        with contextlib.closing(Spool([content])) as spool:
            self._on_copied(len(content))
            self._write_blob(path, ranges, spool)

    def _write_blob(self, path: str, ranges: Iterable[_BlobRange], spool: Spool) -> None:
        for offset, length, md5 in ranges:
            if spool.compute_md5(offset, length) != md5:
                raise ObjectDamaged(path=path)
        write_verified(self._target.stage, path, spool)
        failpoints.hit_failpoint(Failpoint.REPLICA_OBJECT)

    def _copy_bucket_file(self, path: str, size: int) -> None:
        found = self._target.bucket.head(path)
        if found is not None and found.size == size:
            return
        with self._fetched("bucket", path) as spool:
            if spool.stored.size != size:
                raise ObjectDamaged(path=path)
            write_verified(self._target.bucket, path, spool)

    def _copy_table(
        self,
        pointer: str,
        checksums: Mapping[str, str],
        folder: Path,
        threads: ThreadPoolExecutor,
    ) -> None:
        """Copy the files of all snapshots of a native table. Write the metadata file last."""
        store = self._target.warehouse.store
        is_here = store.head(pointer) is not None
        if is_here and self._trusts_metadata:
            return
        with self._fetched("warehouse", pointer) as spool:
            content = b"".join(spool.read_blocks())
        for address in _list_manifest_lists(content):
            self._copy_manifest_list(self._to_path(address), checksums, folder, threads)
        if is_here:
            return
        with contextlib.closing(Spool([self._addresses.convert_metadata(content)])) as new:
            write_verified(store, pointer, new)

    def _copy_manifest_list(
        self,
        path: str,
        checksums: Mapping[str, str],
        folder: Path,
        threads: ThreadPoolExecutor,
    ) -> None:
        from snowmelt.backup.native_metadata import convert_manifest_list, read_local_list
        from snowmelt.table.file_io import WholeOutputFile

        output = WholeOutputFile(self._target.warehouse, path)
        is_here = output.exists()
        if is_here and self._trusts_metadata:
            return
        local = folder / hashlib.sha256(path.encode()).hexdigest()
        self._download(path, local)
        for manifest in read_local_list(local):
            if manifest.manifest_path not in self._converted:
                self._copy_manifest(manifest, checksums, folder, threads)
        if not is_here:
            convert_manifest_list(local, self._convert_entry, output)
        local.unlink()

    def _copy_manifest(
        self,
        manifest: ManifestFile,
        checksums: Mapping[str, str],
        folder: Path,
        threads: ThreadPoolExecutor,
    ) -> None:
        from snowmelt.backup.native_metadata import convert_manifest
        from snowmelt.table.file_io import WholeOutputFile, make_file_io

        path = self._to_path(manifest.manifest_path)
        output = WholeOutputFile(self._target.warehouse, path)
        is_here = output.exists()
        if is_here:
            converted = deepcopy(manifest)
            converted[0], converted[1] = output.location, len(output)
            self._converted[manifest.manifest_path] = converted
            if self._trusts_metadata:
                return
        local = folder / hashlib.sha256(path.encode()).hexdigest()
        self._download(path, local)
        source = deepcopy(manifest)
        source[0] = str(local)
        files = [
            entry.data_file
            for entry in source.fetch_manifest_entry(make_file_io(str(local)), discard_deleted=True)
        ]
        _run_all(
            threads,
            [
                (
                    self._copy_data_file,
                    self._to_path(file.file_path),
                    file.file_size_in_bytes,
                    checksums.get(self._to_path(file.file_path)),
                    is_here,
                )
                for file in files
            ],
        )
        if not is_here:
            # An existing manifest implies that its files exist, so write it after them.
            self._converted[manifest.manifest_path] = convert_manifest(
                local, manifest, self._addresses, output
            )
        local.unlink()

    def _copy_data_file(self, path: str, size: int, sha256: str | None, was_complete: bool) -> None:
        """Copy a file unless it exists. With `was_complete`, do not hash a file of the right size.

        `was_complete` is True if a manifest at this site refers to the file.
        """
        store = self._target.warehouse.store
        found = store.head(path)
        is_there = found is not None and found.size == size
        if is_there and (
            was_complete or sha256 is None or hash_object(store, path).sha256 == sha256
        ):
            return
        with self._fetched("warehouse", path) as spool:
            if spool.stored.size != size or sha256 not in {None, spool.stored.sha256}:
                raise ObjectDamaged(path=path)
            write_verified(store, path, spool)
        failpoints.hit_failpoint(Failpoint.REPLICA_OBJECT)

    def _convert_entry(self, manifest: ManifestFile) -> ManifestFile:
        # Keep the entry's counts and sequence numbers; take path and length of the copy.
        converted = deepcopy(manifest)
        copy = self._converted[manifest.manifest_path]
        converted[0], converted[1] = copy.manifest_path, copy.manifest_length
        return converted

    def _to_path(self, address: str) -> str:
        return self._target.warehouse.to_path(self._addresses.convert(address))

    def _download(self, path: str, local: Path) -> None:
        with self._fetched("warehouse", path) as spool, local.open("wb") as file:
            for block in spool.read_blocks():
                file.write(block)

    @contextlib.contextmanager
    def _fetched(self, store: StoreName, path: str) -> Iterator[Spool]:
        with contextlib.closing(Spool(self._read(store, path))) as spool:
            self._on_copied(spool.stored.size)
            yield spool

    def _read(self, store: StoreName, path: str) -> Iterator[bytes]:
        offset = 0
        while True:
            size, data = self._read_range(store, path, offset)
            if size < 0:
                raise ObjectRemoved(path=path)
            yield data
            offset += len(data)
            if offset >= size:
                return
            if not data:
                raise ObjectDamaged(path=path)


def _find_end(ranges: Iterable[_BlobRange]) -> int:
    return max(offset + length for offset, length, _ in ranges)


def _make_batches(
    blobs: Mapping[str, list[_BlobRange]],
) -> Iterator[dict[str, list[_BlobRange]]]:
    """Divide blobs into batches of limited size."""
    batch: dict[str, list[_BlobRange]] = {}
    size = 0
    for path, ranges in blobs.items():
        end = _find_end(ranges)
        if batch and (len(batch) == _MAX_BATCH_BLOBS or size + end > _BATCH_BYTES):
            yield batch
            batch, size = {}, 0
        batch[path] = ranges
        size += end
    if batch:
        yield batch


def _run_all(threads: ThreadPoolExecutor, calls: Iterable[tuple[Any, ...]]) -> None:
    futures = [threads.submit(*call) for call in calls]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()


def _has_ranges(store: Store, path: str, ranges: Iterable[_BlobRange]) -> bool:
    if store.head(path) is None:
        return False
    return all(
        hashlib.md5(store.get_range(path, offset, length), usedforsecurity=False).hexdigest() == md5
        for offset, length, md5 in ranges
    )


class _SnapshotPart(msgspec.Struct, rename="kebab"):
    manifest_list: str


class _MetadataPart(msgspec.Struct):
    snapshots: list[_SnapshotPart] = []


def _list_manifest_lists(content: bytes) -> list[str]:
    metadata = msgspec.json.decode(content, type=_MetadataPart)
    return [snapshot.manifest_list for snapshot in metadata.snapshots]
