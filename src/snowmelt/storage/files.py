"""Single files of a local store: one being read, one being written."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING

from snowmelt.errors import AlreadyExists, ObjectChanged
from snowmelt.storage.disk import libc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from snowmelt.storage.store import ObjectInfo, OpenObject, Readable

_BLOCK = 512 * 1024
_WRITE_STEP = 8 * 1024 * 1024
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
