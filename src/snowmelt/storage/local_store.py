"""Objects as files beneath one folder: no symbolic links, regular files only, atomic puts.

Everything is opened part by part from the root's descriptor with O_NOFOLLOW, so neither a path
nor a link planted in a shared stage leads outside. May be pickled and shared: the one state, the
watch for failed writes, stays with the process that began it.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import errno
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from snowmelt.errors import (
    AlreadyExists,
    ObjectChanged,
    ObjectMissing,
    PathRefused,
    StageUnavailable,
    SyncFailed,
)
from snowmelt.storage.disk_sync import DiskWatch, disk_md5, is_older, libc
from snowmelt.storage.store import UNFINISHED, ObjectInfo, Readable, is_path, path_parts, scan_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from snowmelt.storage.store import OpenObject

# --- Single files of a local store: one being read, one being written.

_BLOCK = 512 * 1024
# The disk begins to write this early, so that little is left to wait for at the end.
_WRITE_OUT_BYTES = 16 * 1024 * 1024
_SYNC_FILE_RANGE_WRITE = 2
_NO_COPY_IN_KERNEL = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class OpenFile:
    """A file held open: whoever replaces or deletes its name meanwhile does not change it.

    Whoever writes into the file itself does. That is noticed by the time of its last change, as
    finely as the file system keeps it; but a file that has grown since is taken for a log, whose
    first bytes stay what they were.
    """

    attributes: Mapping[str, str] = {}

    def __init__(self, descriptor: int, info: ObjectInfo) -> None:
        self.descriptor = descriptor
        self.info = info
        self._changed_ns = os.fstat(descriptor).st_mtime_ns

    @property
    def name(self) -> str:
        """Its path in the store."""
        return self.info.path

    @property
    def size(self) -> int:
        """Its length, in bytes."""
        return self.info.size

    @property
    def etag(self) -> str | None:
        """Its change mark."""
        return self.info.etag

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes from `offset` on into `view`; fewer than it takes only at the end.

        Raises:
            ObjectChanged: The file was written into since it was opened.
        """
        done = 0
        while done < len(view):
            count = os.preadv(self.descriptor, [view[done:]], offset + done)
            if count == 0:
                break
            done += count
        self.check_unchanged()
        return done

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to before `end`, a block at a time.

        Raises:
            ObjectChanged: The file was written into since it was opened.
        """
        end = self.size if end is None else min(end, self.size)
        while start < end:
            block = os.pread(self.descriptor, min(_BLOCK, end - start), start)
            self.check_unchanged()
            if not block:
                return
            start += len(block)
            yield block

    def check_unchanged(self) -> None:
        """Let pass a file that nobody has written into; what was read before is of one state.

        Raises:
            ObjectChanged: Somebody has.
        """
        status = os.fstat(self.descriptor)
        if status.st_mtime_ns != self._changed_ns and status.st_size <= self.size:
            raise ObjectChanged(key=self.name)

    def close(self) -> None:
        """Let go of the file; again is harmless."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class FileWriter:
    """A file that grows under a name of its own until `finish` gives it the object's name."""

    def __init__(
        self,
        folders: Sequence[int],
        names: tuple[str, str],
        *,
        failures: Callable[[], AbstractContextManager[None]],
        info: Callable[[os.stat_result], ObjectInfo],
    ) -> None:
        """Begin to write.

        Args:
            folders: Descriptors to make durable with the file, its own folder last; the writer
                closes them.
            names: That of the unfinished file, and the object's.
            failures: Makes Snowmelt's errors of the system's.
            info: Makes the answer of `finish`.
        """
        self._folders = folders
        self._folder = folders[-1]
        self._unfinished, self._name = names
        self._failures = failures
        self._info = info
        self._size = 0
        self._written_out = 0
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._unfinished, flags, 0o600, dir_fd=self._folder)
        except OSError:
            self._close_folders()
            raise

    def write(self, data: Readable) -> None:
        """Append bytes.

        Raises:
            StageUnavailable: No space left, or the like.
        """
        rest = memoryview(data).cast("B")
        with self._failures():
            while rest:
                count = os.write(self._file, rest[:_WRITE_STEP])
                self._size += count
                rest = rest[count:]
            self._write_out()

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object, in the kernel where both are files of one disk.

        Raises:
            StageUnavailable: No space left, or the like.
            ObjectChanged: The source was replaced meanwhile.
        """
        end = source.size if end is None else min(end, source.size)
        if isinstance(source, OpenFile):
            start += self._copy_in_kernel(source.descriptor, start, end)
            source.check_unchanged()
        for chunk in source.chunks(start, end):
            self.write(chunk)

    def finish(
        self,
        *,
        create_only: bool = False,
        attributes: Mapping[str, str] | None = None,  # noqa: ARG002 - files have none
    ) -> ObjectInfo:
        """Make the file durable, then visible under its name, durably so.

        Raises:
            AlreadyExists: `create_only`, and there is such an object.
            StageUnavailable: It cannot be made durable; nothing new is visible.
        """
        try:
            with self._failures():
                os.fsync(self._file)
                status = os.fstat(self._file)
                try:
                    publish(self._folder, self._unfinished, self._name, create_only=create_only)
                except FileExistsError:
                    raise AlreadyExists(kind="Object", name=self._name) from None
                for folder in reversed(self._folders):
                    os.fsync(folder)
                return self._info(status)
        finally:
            self.abort()

    def abort(self) -> None:
        """Leave nothing behind; after `finish`, or again, it is harmless."""
        file, self._file = self._file, -1
        if file < 0:
            return
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(self._unfinished, dir_fd=self._folder)
        self._close_folders()

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.abort()

    def _close_folders(self) -> None:
        for folder in self._folders:
            os.close(folder)

    def _copy_in_kernel(self, source: int, start: int, end: int) -> int:
        copied = 0
        with self._failures():
            while start + copied < end:
                wanted = min(end - start - copied, _WRITE_OUT_BYTES)
                try:
                    count = os.copy_file_range(source, self._file, wanted, start + copied)
                except OSError as error:
                    if error.errno in _NO_COPY_IN_KERNEL:
                        break
                    raise
                if count == 0:
                    break
                copied += count
                self._size += count
                self._write_out()
        return copied

    def _write_out(self) -> None:
        waiting = self._size - self._written_out
        if waiting >= _WRITE_OUT_BYTES and sys.platform.startswith("linux"):
            libc().sync_file_range(
                self._file,
                ctypes.c_int64(self._written_out),
                ctypes.c_int64(waiting),
                _SYNC_FILE_RANGE_WRITE,
            )
            self._written_out = self._size


def publish(folder: int, unfinished: str, name: str, *, create_only: bool) -> None:
    """Give a finished file its name.

    Raises:
        FileExistsError: `create_only`, and the name is taken.
    """
    if create_only:
        # A link, unlike a rename, fails when the name is taken.
        os.link(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)


def create_file(path: Path, data: Readable, *, mode: int = 0o600) -> None:
    """Create a file of the local disk, durable when this returns; what failed is removed.

    Raises:
        FileExistsError: There is such a file.
        OSError: It cannot be written.
    """
    with open_folder(path.parent) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path.name, flags, mode, dir_fd=folder)
        try:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(file, rest[:_WRITE_STEP]) :]
            os.fsync(file)
            os.fsync(folder)
        except BaseException:
            os.unlink(path.name, dir_fd=folder)
            raise
        finally:
            os.close(file)


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Create a folder of the local disk and those above it, durable when this returns.

    Raises:
        OSError: It cannot be made, or a file is there.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    with open_folder(path.parent) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=parent)
        os.fsync(parent)


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Hold a folder open; its fsync tells of the failed writes since."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a planted pipe must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_AND_THE_LIKE = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENODEV}
_WRITE_STEP = 8 * 1024 * 1024
_PUT_ATTEMPTS = 20


class LocalStore:
    """Objects beneath folder `root`, which is made (0700) when missing; files are 0600."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(root)
        os.makedirs(self._root, mode=0o700, exist_ok=True)  # noqa: PTH103 - text, not Path
        self._disk: DiskWatch | None = None

    def __getstate__(self) -> str:
        return self._root

    def __setstate__(self, root: str) -> None:
        self._root = root
        self._disk = None

    @property
    def root(self) -> Path:
        """The folder, absolute."""
        return Path(self._root)

    @property
    def url(self) -> str:
        """The folder as a `file:` URL."""
        return Path(self._root).as_uri()

    def get(self, path: str) -> bytes:
        """Return a whole object."""
        with self._opened(path) as (file, status):
            return _read(file, 0, status.st_size)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer when the object ends before."""
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        with self._opened(path) as (file, status):
            return _read(file, offset, min(length, max(status.st_size - offset, 0)))

    def read(self, path: str, most: int) -> tuple[ObjectInfo, bytes]:
        """Return what is known of an object and its first bytes, `most` at most."""
        with self._opened(path) as (file, status):
            return _info(path, status), _read(file, 0, min(most, status.st_size))

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and change mark of an object, None when it does not exist."""
        try:
            with self._opened(path) as (_, status):
                return _info(path, status)
        except ObjectMissing:
            return None

    def put(
        self, path: str, data: Readable, *, create_only: bool = False, durable: bool = False
    ) -> None:
        """Write beside the object, then rename; not durable before `sync` unless `durable`."""
        parts = path_parts(path)
        for _ in range(_PUT_ATTEMPTS):
            # Missing: a delete removed the folder, empty until now, from under this put.
            with contextlib.suppress(ObjectMissing), self._failures(path):
                if durable:
                    self._put_durably(path, data, create_only=create_only)
                else:
                    self._put(parts, data, create_only=create_only)
                return
        raise StageUnavailable(reason=f"{path}: its folder vanishes")

    def _put_durably(self, path: str, data: Readable, *, create_only: bool) -> None:
        writer = self.writer(path)
        try:
            writer.write(data)
            writer.finish(create_only=create_only)
        except AlreadyExists:
            raise AlreadyExists(kind="Object", name=path) from None
        finally:
            writer.abort()

    def _put(self, parts: tuple[str, ...], data: Readable, *, create_only: bool) -> None:
        with self._folder(parts[:-1], make=True) as folder:
            if self._disk is not None:
                self._disk.cover(folder)
            unfinished = UNFINISHED + secrets.token_hex(8)
            try:
                _write_new(folder, unfinished, data)
                publish(folder, unfinished, parts[-1], create_only=create_only)
            except FileExistsError:
                raise AlreadyExists(kind="Object", name="/".join(parts)) from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unfinished, dir_fd=folder)

    def open(self, path: str) -> OpenFile:
        """Open an object for random reads."""
        with self._opened(path) as (file, status):
            return OpenFile(os.dup(file), _info(path, status))

    def writer(self, path: str) -> FileWriter:
        """Begin to write an object piece by piece; `finish` makes it durable by itself."""
        parts = path_parts(path)
        with self._failures(path):
            folders = self._folders(parts[:-1])
            return FileWriter(
                folders,
                (UNFINISHED + secrets.token_hex(8), parts[-1]),
                failures=lambda: self._failures(path),
                info=lambda status: _info(path, status),
            )

    def copy(self, source: str, target: str) -> None:
        """Copy an object."""
        writer = self.writer(target)
        try:
            with contextlib.closing(self.open(source)) as opened:
                writer.append(opened)
            writer.finish()
        finally:
            writer.abort()

    def delete(self, path: str) -> None:
        """Delete an object, and the folders that it leaves empty; a missing one is fine."""
        parts = path_parts(path)
        try:
            with self._failures(path):
                with self._folder(parts[:-1]) as folder:
                    os.unlink(parts[-1], dir_fd=folder)
                self._prune(parts[:-1])
        except ObjectMissing:
            return

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects beneath folder `prefix`; links, pipes, unfinished puts are none."""
        pending = [path_parts(prefix.removesuffix("/")) if prefix else ()]
        while pending:
            parts = pending.pop()
            for name, status in self._entries(parts):
                if not is_path(name):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    pending.append((*parts, name))
                elif stat.S_ISREG(status.st_mode):
                    yield _info("/".join((*parts, name)), status)

    def scan(
        self, prefix: str = "", *, after: str = "", delimiter: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Yield objects and groups in the order of their bytes."""
        return scan_tree(self._children, prefix, after=after, delimiter=delimiter)

    def watch(self) -> None:
        """Hold the file system from now on, so that `sync` hears of every failed write."""
        with self._failures(self._root), self._folder(()) as folder:
            self._watched().cover(folder)

    def sync(self) -> None:
        """Make everything put since `watch` durable: one syncfs (elsewhere sync) for all files.

        Raises:
            SyncFailed: The kernel may have dropped what it could not write; trying again would
                succeed without having written it.
            StageUnavailable: The folder cannot be opened; nothing was tried.
        """
        # Another file system may have been mounted at the root since.
        self.watch()
        try:
            self._watched().sync()
        except OSError as error:
            raise SyncFailed(reason=f"{self._root}: {error.strerror}") from error

    def is_on_disk(self, path: str, md5: str) -> bool:
        """Return False if a write that failed before `watch` may have lost bytes of the object.

        One that was created since is taken at its word: `sync` hears of its failed writes.
        """
        parts = path_parts(path)
        with self._failures(path), self._folder(parts[:-1]) as folder:
            since_ns = self._watched().cover(folder)
            file = os.open(parts[-1], _FILE, dir_fd=folder)
            try:
                if not is_older(file, since_ns):
                    return True
            finally:
                os.close(file)
            return disk_md5(parts[-1], folder) == md5

    def sweep(self, before: dt.datetime, *, between: Callable[[], None] | None = None) -> int:
        """Remove what interrupted puts left behind before that instant; return how many."""
        removed = 0
        pending: list[tuple[str, ...]] = [()]
        while pending:
            if between is not None:
                between()
            parts = pending.pop()
            for name, status in self._entries(parts):
                if stat.S_ISDIR(status.st_mode):
                    pending.append((*parts, name))
                elif name.startswith(UNFINISHED) and status.st_mtime < before.timestamp():
                    with self._failures(name), self._folder(parts) as folder:
                        os.unlink(name, dir_fd=folder)
                    removed += 1
        return removed

    def _watched(self) -> DiskWatch:
        if self._disk is None:
            self._disk = DiskWatch()
        return self._disk

    def _folders(self, parts: tuple[str, ...]) -> Sequence[int]:
        """Return descriptors of an object's folder and of those above it that got a new entry.

        Made where missing. Each is open before it is written to, so that its fsync tells of every
        write that failed. The caller closes them.
        """
        # The root itself may be a link of the administrator's; nothing below it may.
        folders = [os.open(self._root, _FOLDER & ~os.O_NOFOLLOW)]
        try:
            for part in parts:
                with contextlib.suppress(FileNotFoundError):
                    child = os.open(part, _FOLDER, dir_fd=folders[-1])
                    if len(folders) == 1:
                        os.close(folders.pop())
                    folders.append(child)
                    continue
                folders.append(_open_folder(part, folders[-1], make=True))
        except BaseException:
            for folder in folders:
                os.close(folder)
            raise
        return folders

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        parts = path_parts(path)
        with self._failures(path), self._folder(parts[:-1]) as folder:
            file = os.open(parts[-1], _FILE, dir_fd=folder)
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise PathRefused(path=path, reason="it is not a regular file")
                yield file, status
            finally:
                os.close(file)

    @contextlib.contextmanager
    def _folder(self, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
        # The root itself may be a link of the administrator's; nothing below it may.
        folder = os.open(self._root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                child = _open_folder(part, folder, make=make)
                os.close(folder)
                folder = child
            yield folder
        finally:
            os.close(folder)

    def _entries(self, parts: tuple[str, ...]) -> Sequence[tuple[str, os.stat_result]]:
        found = []
        try:
            with self._failures("/".join(parts)), self._folder(parts) as folder:
                for name in os.listdir(folder):  # noqa: PTH208 - by descriptor
                    with contextlib.suppress(FileNotFoundError):
                        found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        except ObjectMissing:
            return ()
        return found

    def _children(self, folder: str) -> Sequence[ObjectInfo | str]:
        """Return what lies in a folder (a path that ends in `/`, or nothing): subfolders as text."""
        if folder and not is_path(folder[:-1]):
            return ()
        parts = tuple(folder.split("/")[:-1])
        return [
            f"{folder}{name}/" if stat.S_ISDIR(status.st_mode) else _info(folder + name, status)
            for name, status in self._entries(parts)
            if is_path(folder + name)
            and (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode))
        ]

    def _prune(self, parts: tuple[str, ...]) -> None:
        # A put that has just opened a folder which vanishes here begins again.
        for depth in range(len(parts), 0, -1):
            with self._folder(parts[: depth - 1]) as folder:
                try:
                    os.rmdir(parts[depth - 1], dir_fd=folder)
                except OSError as error:
                    if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                        return
                    raise

    @contextlib.contextmanager
    def _failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._translate(path, error)

    def _translate(self, path: str, error: OSError) -> NoReturn:
        if error.errno == errno.ENOENT and os.path.isdir(self._root):  # noqa: PTH112
            raise ObjectMissing(path=path, store=self.url) from None
        if error.errno in _LINKS_AND_THE_LIKE:
            raise PathRefused(path=path, reason="it is not a regular file") from None
        raise StageUnavailable(reason=f"{path}: {error.strerror}") from error


def _open_folder(part: str, parent: int, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=parent)
    return os.open(part, _FOLDER, dir_fd=parent)


def _write_new(folder: int, name: str, data: Readable) -> None:
    file = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(file, rest[:_WRITE_STEP]) :]
    finally:
        os.close(file)


def _read(file: int, offset: int, length: int) -> bytes:
    first = os.pread(file, length, offset)
    if len(first) == length:
        return first
    pieces, missing = [first], length - len(first)
    while missing and pieces[-1]:
        pieces.append(os.pread(file, missing, offset + length - missing))
        missing -= len(pieces[-1])
    return b"".join(pieces)


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        path=path,
        size=status.st_size,
        modified_at=dt.datetime.fromtimestamp(status.st_mtime, dt.UTC),
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
    )
