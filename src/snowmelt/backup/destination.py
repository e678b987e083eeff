"""Storage of a backup: layout, lock, journals, and objects that are verified when read and written.

Layout:

* `points/<id>.json`: manifests
* `objects/<sha256>`: contents, each stored once
* `journals/<run>`: objects that a run has copied and no manifest refers to yet
* `expiring.json`: points that are being deleted
* `lock.json`: the running backup or expiration
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from snowmelt.backup.manifests import (
    BackupDamaged,
    BackupRejected,
    InventoryEntry,
    PointManifest,
    StoredObject,
    decode_manifest,
    encode_manifest,
)
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import AlreadyExists, ObjectMissing
from snowmelt.storage.store import Store

_POINTS = "points"
_JOURNALS = "journals"
_OBJECTS = "objects"
_LOCK = "lock.json"
_EXPIRING = "expiring.json"
# Contents up to this size are verified in memory, larger ones in a temporary file.
_SPOOL_BYTES = 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_LOCK_RENEWAL_S = 10.0
# A holder that has not renewed the lock for this long counts as dead.
_LOCK_TTL_S = 60.0
_INSTANCE = secrets.token_hex(8)


class Spool:
    """A completely read content with its SHA-256, in memory or in a temporary file. Close it after use."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - `close`
        digest = hashlib.sha256()
        try:
            for block in blocks:
                digest.update(block)
                self.file.write(block)
            self.stored = StoredObject(digest.hexdigest(), self.file.tell())
        except BaseException:
            self.file.close()
            raise

    def read_blocks(self) -> Iterator[bytes]:
        """Yield the content from its start."""
        self.file.seek(0)
        while block := self.file.read(_READ_BYTES):
            yield block

    def compute_md5(self, offset: int, length: int) -> str:
        """Return the MD5 of a range."""
        self.file.seek(offset)
        return hashlib.md5(self.file.read(length), usedforsecurity=False).hexdigest()

    def close(self) -> None:
        """Release the memory or the temporary file."""
        self.file.close()


def read_object(store: Store, path: str) -> Iterator[bytes]:
    """Yield the content of an object in blocks."""
    with contextlib.closing(store.open(path)) as found:
        yield from found.read_blocks()


def hash_object(store: Store, path: str) -> StoredObject:
    """Read an object, and return its SHA-256 and size."""
    digest = hashlib.sha256()
    size = 0
    for block in read_object(store, path):
        digest.update(block)
        size += len(block)
    return StoredObject(digest.hexdigest(), size)


def write_verified(store: Store, path: str, spool: Spool) -> None:
    """Write a content and read it back to verify it. It is durable after the store's `sync`.

    Raises:
        BackupDamaged: If the store does not return the bytes that were written.
    """
    if spool.stored.size <= _SPOOL_BYTES:
        store.put(path, b"".join(spool.read_blocks()))
    else:
        writer = store.open_writer(path)
        try:
            for block in spool.read_blocks():
                writer.write(block)
            writer.finish()
        finally:
            writer.abort()
    if hash_object(store, path) != spool.stored:
        store.delete(path)
        raise BackupDamaged(
            reason=f"{path} in {store.url} does not have the bytes that were written. Check the disk, "
            "then run the command again"
        )


class BackupDestination:
    """A backup in a store. Thread-safe, except `locked`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock: _DestinationLock | None = None

    @property
    def url(self) -> str:
        """The URL or path of the backup."""
        return self.store.url

    def list_points(self) -> list[PointManifest]:
        """Return the points, oldest first, except those that are being deleted."""
        gone = set(self.read_expiring())
        names = sorted(each.path for each in self.store.list(_POINTS))
        points = [decode_manifest(self.store.get(name), name) for name in names]
        kept = [point for point in points if point.point_id not in gone]
        return sorted(kept, key=lambda point: (point.at, point.point_id))

    def add_point(self, manifest: PointManifest) -> None:
        """Sync all objects, then write the manifest, which completes the point.

        Raises:
            BackupRejected: If another process has taken over the lock.
        """
        self.store.sync()
        if self._lock is not None:
            self._lock.check()
        path = _point_path(manifest.point_id)
        self.store.put(path, encode_manifest(manifest), create_only=True, durable=True)

    def delete_point(self, point_id: str) -> None:
        """Delete the manifest of a point, but not its objects."""
        self.store.delete(_point_path(point_id))

    def read_expiring(self) -> list[str]:
        """Return the IDs of the points that are being deleted."""
        try:
            return msgspec.json.decode(self.store.get(_EXPIRING), type=list[str])
        except ObjectMissing:
            return []

    def write_expiring(self, point_ids: list[str]) -> None:
        """Replace the list of points that are being deleted. An empty list deletes the file."""
        if point_ids:
            self.store.put(_EXPIRING, msgspec.json.encode(point_ids), durable=True)
        else:
            self.store.delete(_EXPIRING)

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of the contents by SHA-256."""
        return {each.path.rpartition("/")[2]: each.size for each in self.store.list(_OBJECTS)}

    def delete_object(self, sha256: str) -> None:
        """Delete a content that no point refers to."""
        self.store.delete(StoredObject(sha256, 0).path)

    def add_object(self, spool: Spool, existing: Mapping[str, int]) -> bool:
        """Store a content unless it is already stored and intact. Return True if it was written."""
        path = spool.stored.path
        if spool.stored.sha256 in existing and hash_object(self.store, path) == spool.stored:
            return False
        write_verified(self.store, path, spool)
        return True

    def open_spool(self, stored: StoredObject) -> Spool:
        """Read and verify a complete content. The caller closes it.

        Raises:
            BackupDamaged: If the object is missing or has other bytes.
        """
        try:
            spool = Spool(read_object(self.store, stored.path))
        except ObjectMissing as error:
            raise BackupDamaged(
                reason=f"{stored.path} is missing in {self.url}. Use another point"
            ) from error
        if spool.stored != stored:
            spool.close()
            raise BackupDamaged(
                reason=f"the checksum of {stored.path} in {self.url} is wrong: {spool.stored.sha256}, "
                f"{spool.stored.size:,} bytes. Use another point"
            )
        return spool

    @contextlib.contextmanager
    def downloaded(self, stored: StoredObject, folder: Path) -> Iterator[Path]:
        """Write a verified content to a temporary file in a folder for the duration of the block."""
        path = folder / f"{secrets.token_hex(8)}.tmp"
        with contextlib.closing(self.open_spool(stored)) as spool, path.open("wb") as file:
            for block in spool.read_blocks():
                file.write(block)
        try:
            yield path
        finally:
            path.unlink()

    def add_journal(self, run_id: str, number: int, entries: list[InventoryEntry]) -> None:
        """Record objects that a run has copied, so that the next run can skip them."""
        self.store.sync()
        path = f"{_JOURNALS}/{run_id}/{number:06d}"
        self.store.put(path, msgspec.msgpack.encode(entries), durable=True)

    def read_journals(self, folder: str) -> Iterator[InventoryEntry]:
        """Yield the objects of runs that wrote no manifest and whose IDs begin with `folder`."""
        for each in list(self.store.list(f"{_JOURNALS}/{folder}")):
            with contextlib.suppress(ObjectMissing):
                yield from msgspec.msgpack.decode(
                    self.store.get(each.path), type=list[InventoryEntry]
                )

    def delete_journals(self) -> None:
        """Delete all journals. A manifest must refer to their objects."""
        for each in list(self.store.list(_JOURNALS)):
            self.store.delete(each.path)

    @contextlib.contextmanager
    def locked(self, clock: Clock | None = None) -> Iterator[None]:
        """Lock the destination against other backups and expirations while the block runs.

        Raises:
            BackupRejected: If another process holds the lock.
        """
        self.store.watch_writes()
        self._lock = _DestinationLock(self.store, clock or SystemClock())
        try:
            with self._lock.held():
                yield
        finally:
            self._lock = None


class _LockContent(msgspec.Struct, frozen=True):
    token: str
    host: str
    process: int
    renewals: int
    # Differs in processes with the same number, such as those of a container that starts again.
    instance: str = ""


class _DestinationLock:
    """A lock in an object that its holder renews every 10 s. Others take over a lock that is not renewed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._record = _LockContent(
            secrets.token_hex(8), platform.node(), os.getpid(), 0, _INSTANCE
        )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._acquire()
        done = threading.Event()

        def keep_renewing() -> None:
            while not done.wait(_LOCK_RENEWAL_S):
                with contextlib.suppress(Exception):
                    self._renew()

        thread = threading.Thread(target=keep_renewing, name="backup-lock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            if self._is_ours():
                self._store.delete(_LOCK)

    def check(self) -> None:
        """Raise BackupRejected if another process has taken over the lock."""
        if not self._is_ours():
            raise BackupRejected(
                reason=f"another backup or expiration has taken over {self._store.url}. Run the command "
                "again when that has ended"
            )

    def _acquire(self) -> None:
        while True:
            try:
                self._store.put(
                    _LOCK, msgspec.json.encode(self._record), create_only=True, durable=True
                )
            except AlreadyExists:
                other = self._read()
                if other is None:
                    continue
                if not self._has_died(other):
                    raise BackupRejected(
                        reason=f"another backup or expiration of {self._store.url} runs, as process "
                        f"{other.process} on {other.host}. Run the command again when that has ended"
                    ) from None
                self._store.delete(_LOCK)
            else:
                return

    def _has_died(self, other: _LockContent) -> bool:
        if other.host == self._record.host:
            return not _is_process_alive(other)
        # Only the local clock is used: wait until the record has not changed for the timeout.
        self._clock.sleep(_LOCK_TTL_S)
        return self._read() == other

    def _renew(self) -> None:
        if self._is_ours():
            self._record = msgspec.structs.replace(self._record, renewals=self._record.renewals + 1)
            self._store.put(_LOCK, msgspec.json.encode(self._record))

    def _is_ours(self) -> bool:
        found = self._read()
        return found is not None and found.token == self._record.token

    def _read(self) -> _LockContent | None:
        try:
            return msgspec.json.decode(self._store.get(_LOCK), type=_LockContent)
        except ObjectMissing:
            return None


def _is_process_alive(other: _LockContent) -> bool:
    if other.process == os.getpid():
        return other.instance == _INSTANCE
    try:
        os.kill(other.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _point_path(point_id: str) -> str:
    return f"{_POINTS}/{point_id}.json"


Progress = Callable[[int, int], None]


def report_nothing(_objects: int, _bytes: int) -> None:
    """Do nothing. Default of `progress` parameters."""
