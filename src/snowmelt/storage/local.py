"""Objects as files beneath one folder: no symbolic links, regular files only, atomic puts.

Everything is opened part by part from the root's descriptor with O_NOFOLLOW, so neither a path
nor a link planted in a shared stage leads outside. May be pickled and shared: the one state, the
watch for failed writes, stays with the process that began it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from snowmelt.errors import AlreadyExists, ObjectMissing, PathRefused, StageUnavailable, SyncFailed
from snowmelt.storage.disk import DiskWatch, disk_md5, is_older
from snowmelt.storage.files import FileWriter, OpenFile, publish
from snowmelt.storage.scanning import scan_tree
from snowmelt.storage.store import UNFINISHED, ObjectInfo, Readable, is_path, path_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
