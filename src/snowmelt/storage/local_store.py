"""Store of objects as files below one folder: regular files, no links, atomic puts.

Each path is opened from the root's descriptor without following links: segment by segment with
O_NOFOLLOW, or with openat2. So neither a path nor a malicious link in a shared stage can lead
outside of the root. A store can be pickled and
shared. Its only state, the watch for failed writes, belongs to the process that started it.

The first section handles the files themselves: an open object, an object being written, and
durable creation of files and folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import errno
import os
import secrets
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from snowmelt.errors import (
    AlreadyExists,
    ObjectChanged,
    ObjectMissing,
    PathRefused,
    StageUnavailable,
    SyncFailed,
)
from snowmelt.storage.store import (
    PARTIAL_PREFIX,
    BytesLike,
    ObjectInfo,
    OpenObject,
    is_valid_path,
    list_tree,
    split_path,
)
from snowmelt.storage.verified_disk_sync import (
    DiskWatch,
    compute_disk_md5,
    load_libc,
    may_file_predate,
)

# --- Single files of a local store: reading and writing.

_READ_BLOCK_BYTES = 512 * 1024
# Start write-back after this many bytes, so that the final sync is fast.
_WRITEBACK_BYTES = 16 * 1024 * 1024
_SYNC_FILE_RANGE_WRITE = 2
_COPY_UNSUPPORTED_ERRNOS = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class LocalObject(OpenObject):
    """An open file. Replacing or deleting its name does not change what is read.

    A write into the file is detected by its modification time, at the resolution of the file
    system. A file that has only grown is treated as a log, whose existing bytes do not change.
    """

    attributes: Mapping[str, str] = {}

    def __init__(self, descriptor: int, info: ObjectInfo) -> None:
        self.descriptor = descriptor
        self.info = info
        self._changed_ns = os.fstat(descriptor).st_mtime_ns

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes at `offset` into `view`. Reads fewer than its size only at the end of the object.

        Raises:
            ObjectChanged: If the file was written to since it was opened.
        """
        done = 0
        while done < len(view):
            count = os.preadv(self.descriptor, [view[done:]], offset + done)
            if count == 0:
                break
            done += count
        self.check_unchanged()
        return done

    def read_blocks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` (inclusive) to `end` (exclusive) in blocks.

        Raises:
            ObjectChanged: If the file was written to since it was opened.
        """
        end = self.size if end is None else min(end, self.size)
        while start < end:
            block = os.pread(self.descriptor, min(_READ_BLOCK_BYTES, end - start), start)
            self.check_unchanged()
            if not block:
                return
            start += len(block)
            yield block

    def check_unchanged(self) -> None:
        """Verify that nothing was written into the file, so all reads returned the same version.

        Raises:
            ObjectChanged: If the file was written to since it was opened.
        """
        status = os.fstat(self.descriptor)
        if status.st_mtime_ns != self._changed_ns and status.st_size <= self.size:
            raise ObjectChanged(key=self.name)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class LocalObjectWriter:
    """Writer of a file, which has a temporary name until `finish` gives it the object's name."""

    def __init__(
        self,
        folders: Sequence[int],
        file_names: tuple[str, str],
        *,
        translating_errors: Callable[[], AbstractContextManager[None]],
        make_info: Callable[[os.stat_result], ObjectInfo],
    ) -> None:
        """Create the file.

        Args:
            folders: Descriptors of folders to sync with the file, the file's folder last. The
                writer closes them.
            file_names: Names of the temporary file and of the object.
            translating_errors: Context manager that converts OSError to Snowmelt errors.
            make_info: Builds the result of `finish`.
        """
        self._folders = folders
        self._folder = folders[-1]
        self._partial_name, self._name = file_names
        self._translating_errors = translating_errors
        self._make_info = make_info
        self._size = 0
        self._written_back_bytes = 0
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._partial_name, flags, 0o600, dir_fd=self._folder)
        except OSError:
            self._close_folders()
            raise

    def write(self, data: BytesLike) -> None:
        """Append bytes.

        Raises:
            StageUnavailable: If the file cannot be written, for example without free space.
        """
        rest = memoryview(data).cast("B")
        with self._translating_errors():
            while rest:
                count = os.write(self._file, rest[:_MAX_WRITE_BYTES])
                self._size += count
                rest = rest[count:]
            self._start_writeback()

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object, inside the kernel if both files are on the same file system.

        Raises:
            StageUnavailable: If the file cannot be written, for example without free space.
            ObjectChanged: If the source changed while it was read.
        """
        end = source.size if end is None else min(end, source.size)
        if isinstance(source, LocalObject):
            start += self._copy_in_kernel(source.descriptor, start, end)
            source.check_unchanged()
        for chunk in source.read_blocks(start, end):
            self.write(chunk)

    def finish(
        self,
        *,
        create_only: bool = False,
        attributes: Mapping[str, str] | None = None,  # noqa: ARG002 - files have none
    ) -> ObjectInfo:
        """Make the file durable, give it its final name, and sync the folder.

        Raises:
            AlreadyExists: If `create_only` is set and the object exists.
            StageUnavailable: If it cannot be made durable. Nothing new is visible then.
        """
        try:
            with self._translating_errors():
                os.fsync(self._file)
                status = os.fstat(self._file)
                try:
                    publish_file(
                        self._folder, self._partial_name, self._name, create_only=create_only
                    )
                except FileExistsError:
                    raise AlreadyExists(kind="Object", name=self._name) from None
                for folder in reversed(self._folders):
                    os.fsync(folder)
                return self._make_info(status)
        finally:
            self.abort()

    def abort(self) -> None:
        """Delete the temporary file. Does nothing after `finish`. Idempotent."""
        file, self._file = self._file, -1
        if file < 0:
            return
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(self._partial_name, dir_fd=self._folder)
        self._close_folders()

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.abort()

    def _close_folders(self) -> None:
        for folder in self._folders:
            os.close(folder)

    def _copy_in_kernel(self, source_descriptor: int, start: int, end: int) -> int:
        copied = 0
        with self._translating_errors():
            while start + copied < end:
                wanted = min(end - start - copied, _WRITEBACK_BYTES)
                try:
                    count = os.copy_file_range(
                        source_descriptor, self._file, wanted, start + copied
                    )
                except OSError as error:
                    if error.errno in _COPY_UNSUPPORTED_ERRNOS:
                        break
                    raise
                if count == 0:
                    break
                copied += count
                self._size += count
                self._start_writeback()
        return copied

    def _start_writeback(self) -> None:
        waiting = self._size - self._written_back_bytes
        if waiting >= _WRITEBACK_BYTES and sys.platform.startswith("linux"):
            load_libc().sync_file_range(
                self._file,
                ctypes.c_int64(self._written_back_bytes),
                ctypes.c_int64(waiting),
                _SYNC_FILE_RANGE_WRITE,
            )
            self._written_back_bytes = self._size


def publish_file(folder: int, partial_name: str, name: str, *, create_only: bool) -> None:
    """Rename a finished file to its final name.

    Raises:
        FileExistsError: If `create_only` is set and the name exists.
    """
    if create_only:
        # Unlike rename, link fails if the name exists.
        os.link(partial_name, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.rename(partial_name, name, src_dir_fd=folder, dst_dir_fd=folder)


def create_durable_file(path: Path, data: BytesLike, *, mode: int = 0o600) -> None:
    """Create a durable file on the local disk. Delete a partial file after an error.

    Raises:
        FileExistsError: If the file exists.
        OSError: If the file cannot be written.
    """
    with open_folder(path.parent) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path.name, flags, mode, dir_fd=folder)
        try:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(file, rest[:_MAX_WRITE_BYTES]) :]
            os.fsync(file)
            os.fsync(folder)
        except BaseException:
            os.unlink(path.name, dir_fd=folder)
            raise
        finally:
            os.close(file)


def make_durable_folder(path: Path, *, mode: int = 0o777) -> None:
    """Create a durable folder and its missing parents on the local disk.

    Raises:
        OSError: If it cannot be created, or a file with its name exists.
    """
    if path.is_dir():
        return
    make_durable_folder(path.parent)
    with open_folder(path.parent) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=parent)
        os.fsync(parent)


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder. An fsync of the descriptor reports failed writes since then."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


_OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a malicious pipe must not block until it has a writer.
_OPEN_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# Arguments of Linux's openat2, which Python does not have. Sandboxes reject it with EPERM.
_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS = 0x04
_OPEN_HOW = struct.pack("=QQQ", _OPEN_FILE_FLAGS, 0, _RESOLVE_NO_SYMLINKS)
_NO_OPENAT2_ERRNOS = {errno.ENOSYS, errno.EPERM}
_CREATE_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_REGULAR_FILE_ERRNOS = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENODEV}
_MAX_WRITE_BYTES = 8 * 1024 * 1024
_MAX_PUT_ATTEMPTS = 20


class LocalStore:
    """Objects below folder `root`. A missing root is created with mode 0700; files have mode 0600."""

    _has_openat2 = sys.platform == "linux"

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(root)
        os.makedirs(self._root, mode=0o700, exist_ok=True)  # noqa: PTH103 - text, not Path
        self._disk_watch: DiskWatch | None = None

    def __getstate__(self) -> str:
        return self._root

    def __setstate__(self, root: str) -> None:
        self._root = root
        self._disk_watch = None

    @property
    def root(self) -> Path:
        """Absolute path of the folder."""
        return Path(self._root)

    @property
    def url(self) -> str:
        """`file:` URL of the folder."""
        return Path(self._root).as_uri()

    def get(self, path: str) -> bytes:
        """Return a whole object."""
        # Without context managers, which take as long as reading a small file.
        parts = split_path(path)
        try:
            file = self._open_file(path, parts)
            try:
                return _read_range(file, 0, _read_regular_status(file, path).st_size)
            finally:
                os.close(file)
        except OSError as error:
            raise self._translate_error(error, path) from error

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`, fewer at the end of the object."""
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        with self._opening_file(path) as (file, status):
            return _read_range(file, offset, min(length, max(status.st_size - offset, 0)))

    def read_prefix(self, path: str, max_bytes: int) -> tuple[ObjectInfo, bytes]:
        """Return the properties of an object and at most its first `max_bytes` bytes."""
        with self._opening_file(path) as (file, status):
            return _make_object_info(path, status), _read_range(
                file, 0, min(max_bytes, status.st_size)
            )

    def head(self, path: str) -> ObjectInfo | None:
        """Return the properties of an object, or None if it does not exist."""
        try:
            with self._opening_file(path) as (_, status):
                return _make_object_info(path, status)
        except ObjectMissing:
            return None

    def put(
        self, path: str, data: BytesLike, *, create_only: bool = False, durable: bool = False
    ) -> None:
        """Write a temporary file, then rename it. Durable after `sync`, or immediately with `durable`."""
        parts = split_path(path)
        for _ in range(_MAX_PUT_ATTEMPTS):
            # FileNotFoundError: a concurrent delete has removed the folder, which was still empty.
            with contextlib.suppress(ObjectMissing), self._translating_errors(path):
                if durable:
                    self._put_durably(path, data, create_only=create_only)
                else:
                    self._put_atomically(parts, data, create_only=create_only)
                return
        raise StageUnavailable(reason=f"{path}: its folder was deleted repeatedly")

    def _put_durably(self, path: str, data: BytesLike, *, create_only: bool) -> None:
        writer = self.open_writer(path)
        try:
            writer.write(data)
            writer.finish(create_only=create_only)
        except AlreadyExists:
            raise AlreadyExists(kind="Object", name=path) from None
        finally:
            writer.abort()

    def _put_atomically(
        self, parts: tuple[str, ...], data: BytesLike, *, create_only: bool
    ) -> None:
        with self._opening_folder(parts[:-1], make=True) as folder:
            if self._disk_watch is not None:
                self._disk_watch.hold_file_system(folder)
            unfinished = PARTIAL_PREFIX + secrets.token_hex(8)
            try:
                _write_new_file(folder, unfinished, data)
                publish_file(folder, unfinished, parts[-1], create_only=create_only)
            except FileExistsError:
                raise AlreadyExists(kind="Object", name="/".join(parts)) from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unfinished, dir_fd=folder)

    def open(self, path: str) -> LocalObject:
        """Open an object for random reads."""
        with self._opening_file(path) as (file, status):
            return LocalObject(os.dup(file), _make_object_info(path, status))

    def open_writer(self, path: str) -> LocalObjectWriter:
        """Start to write an object incrementally. `finish` makes it durable."""
        parts = split_path(path)
        for _ in range(_MAX_PUT_ATTEMPTS):
            # FileNotFoundError: a concurrent delete has removed the folder, which was still empty.
            with contextlib.suppress(ObjectMissing), self._translating_errors(path):
                folders = self._open_folders_to_sync(parts[:-1])
                return LocalObjectWriter(
                    folders,
                    (PARTIAL_PREFIX + secrets.token_hex(8), parts[-1]),
                    translating_errors=lambda: self._translating_errors(path),
                    make_info=lambda status: _make_object_info(path, status),
                )
        raise StageUnavailable(reason=f"{path}: its folder was deleted repeatedly")

    def copy(self, source: str, target: str) -> None:
        """Copy an object."""
        writer = self.open_writer(target)
        try:
            with contextlib.closing(self.open(source)) as opened:
                writer.append(opened)
            writer.finish()
        finally:
            writer.abort()

    def delete(self, path: str) -> None:
        """Delete an object and folders that become empty. A missing object is not an error."""
        parts = split_path(path)
        try:
            with self._translating_errors(path):
                with self._opening_folder(parts[:-1]) as folder:
                    os.unlink(parts[-1], dir_fd=folder)
                self._remove_empty_folders(parts[:-1])
        except ObjectMissing:
            return

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below folder `prefix`, without links, pipes and unfinished puts."""
        pending = [split_path(prefix.removesuffix("/")) if prefix else ()]
        while pending:
            parts = pending.pop()
            for name, status in self._list_entries(parts):
                if not is_valid_path(name):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    pending.append((*parts, name))
                elif stat.S_ISREG(status.st_mode):
                    yield _make_object_info("/".join((*parts, name)), status)

    def list_ordered(
        self, prefix: str = "", *, after: str = "", delimiter: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Yield objects and groups in byte order."""
        return list_tree(self._list_children, prefix, after=after, delimiter=delimiter)

    def watch_writes(self) -> None:
        """Keep the file system open, so that `sync` reports every later failed write."""
        with self._translating_errors(self._root), self._opening_folder(()) as folder:
            self._get_disk_watch().hold_file_system(folder)

    def sync(self) -> None:
        """Make all puts since `watch_writes` durable, with one syncfs (sync on other systems than Linux).

        Raises:
            SyncFailed: If the kernel may have dropped pages that it could not write. A retry would
                succeed without writing them.
            StageUnavailable: If the folder cannot be opened. No sync was attempted.
        """
        # Another file system may have been mounted at the root since `watch_writes`.
        self.watch_writes()
        try:
            self._get_disk_watch().sync()
        except OSError as error:
            raise SyncFailed(reason=f"{self._root}: {error.strerror}") from error

    def is_on_disk(self, path: str, md5: str) -> bool:
        """Return False if a write that failed before `watch_writes` may have lost bytes of the object.

        Return True for objects created since then, because `sync` reports their failed writes.
        """
        parts = split_path(path)
        with self._translating_errors(path), self._opening_folder(parts[:-1]) as folder:
            since_ns = self._get_disk_watch().hold_file_system(folder)
            file = os.open(parts[-1], _OPEN_FILE_FLAGS, dir_fd=folder)
            try:
                if not may_file_predate(file, since_ns):
                    return True
            finally:
                os.close(file)
            return compute_disk_md5(parts[-1], folder) == md5

    def delete_partial_writes(
        self, before: dt.datetime, *, on_step: Callable[[], None] | None = None
    ) -> int:
        """Delete temporary files of puts that were interrupted before a time. Return their number."""
        removed = 0
        pending: list[tuple[str, ...]] = [()]
        while pending:
            if on_step is not None:
                on_step()
            parts = pending.pop()
            for name, status in self._list_entries(parts):
                if stat.S_ISDIR(status.st_mode):
                    pending.append((*parts, name))
                elif name.startswith(PARTIAL_PREFIX) and status.st_mtime < before.timestamp():
                    with self._translating_errors(name), self._opening_folder(parts) as folder:
                        os.unlink(name, dir_fd=folder)
                    removed += 1
        return removed

    def _get_disk_watch(self) -> DiskWatch:
        if self._disk_watch is None:
            self._disk_watch = DiskWatch()
        return self._disk_watch

    def _open_folders_to_sync(self, parts: tuple[str, ...]) -> Sequence[int]:
        """Return descriptors of an object's folder and of parents that have a new entry.

        Creates missing folders. Each one is opened before it is written to, so its fsync reports
        every failed write. The caller closes the descriptors.
        """
        # The root itself may be a link that the administrator has created. Links below it are
        # rejected.
        folders = [os.open(self._root, _OPEN_FOLDER_FLAGS & ~os.O_NOFOLLOW)]
        try:
            for part in parts:
                with contextlib.suppress(FileNotFoundError):
                    child = os.open(part, _OPEN_FOLDER_FLAGS, dir_fd=folders[-1])
                    if len(folders) == 1:
                        os.close(folders.pop())
                    folders.append(child)
                    continue
                folders.append(_open_subfolder(part, folders[-1], make=True))
        except BaseException:
            for folder in folders:
                os.close(folder)
            raise
        return folders

    @contextlib.contextmanager
    def _opening_file(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        parts = split_path(path)
        with self._translating_errors(path):
            file = self._open_file(path, parts)
            try:
                yield file, _read_regular_status(file, path)
            finally:
                os.close(file)

    def _open_file(self, path: str, parts: tuple[str, ...]) -> int:
        if LocalStore._has_openat2:
            root = os.open(self._root, _OPEN_FOLDER_FLAGS & ~os.O_NOFOLLOW)
            try:
                return _open_beneath(root, path)
            except OSError as error:
                if error.errno not in _NO_OPENAT2_ERRNOS:
                    raise
                LocalStore._has_openat2 = False
            finally:
                os.close(root)
        with self._opening_folder(parts[:-1]) as folder:
            return os.open(parts[-1], _OPEN_FILE_FLAGS, dir_fd=folder)

    @contextlib.contextmanager
    def _opening_folder(self, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
        # The root itself may be a link that the administrator has created. Links below it are
        # rejected.
        folder = os.open(self._root, _OPEN_FOLDER_FLAGS & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                child = _open_subfolder(part, folder, make=make)
                os.close(folder)
                folder = child
            yield folder
        finally:
            os.close(folder)

    def _list_entries(self, parts: tuple[str, ...]) -> Sequence[tuple[str, os.stat_result]]:
        found = []
        try:
            with self._translating_errors("/".join(parts)), self._opening_folder(parts) as folder:
                for name in os.listdir(folder):  # noqa: PTH208 - by descriptor
                    with contextlib.suppress(FileNotFoundError):
                        found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        except ObjectMissing:
            return ()
        return found

    def _list_children(self, folder: str) -> Sequence[ObjectInfo | str]:
        """Return the entries of a folder, whose path ends in `/` or is empty. Subfolders are texts."""
        if folder and not is_valid_path(folder[:-1]):
            return ()
        parts = tuple(folder.split("/")[:-1])
        return [
            f"{folder}{name}/"
            if stat.S_ISDIR(status.st_mode)
            else _make_object_info(folder + name, status)
            for name, status in self._list_entries(parts)
            if is_valid_path(folder + name)
            and (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode))
        ]

    def _remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        # If a concurrent put has opened a folder that is removed here, it retries.
        for depth in range(len(parts), 0, -1):
            with self._opening_folder(parts[: depth - 1]) as folder:
                try:
                    os.rmdir(parts[depth - 1], dir_fd=folder)
                except OSError as error:
                    if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                        return
                    raise

    @contextlib.contextmanager
    def _translating_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translate_error(error, path) from error

    def _translate_error(self, error: OSError, path: str) -> Exception:
        if error.errno == errno.ENOENT and os.path.isdir(self._root):  # noqa: PTH112
            return ObjectMissing(path=path, store=self.url)
        if error.errno in _NOT_REGULAR_FILE_ERRNOS:
            return PathRefused(path=path, reason="it is not a regular file")
        return StageUnavailable(reason=f"{path}: {error.strerror}")


def _read_regular_status(file: int, path: str) -> os.stat_result:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused(path=path, reason="it is not a regular file")
    return status


def _open_beneath(folder: int, path: str) -> int:
    """Open a file below a folder with one system call, which rejects links in the path.

    This takes half of the time of opening each folder of the path.
    """
    how = _OPEN_HOW
    file: int = load_libc().syscall(_OPENAT2, folder, os.fsencode(path), how, len(how))
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return file


def _open_subfolder(name: str, parent: int, *, make: bool) -> int:
    try:
        return os.open(name, _OPEN_FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _OPEN_FOLDER_FLAGS, dir_fd=parent)


def _write_new_file(folder: int, name: str, data: BytesLike) -> None:
    file = os.open(name, _CREATE_FILE_FLAGS, 0o600, dir_fd=folder)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(file, rest[:_MAX_WRITE_BYTES]) :]
    finally:
        os.close(file)


def _read_range(file: int, offset: int, length: int) -> bytes:
    first = os.pread(file, length, offset)
    if len(first) == length:
        return first
    pieces, missing = [first], length - len(first)
    while missing and pieces[-1]:
        pieces.append(os.pread(file, missing, offset + length - missing))
        missing -= len(pieces[-1])
    return b"".join(pieces)


def _make_object_info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        path=path,
        size=status.st_size,
        modified_at=dt.datetime.fromtimestamp(status.st_mtime, dt.UTC),
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
    )
