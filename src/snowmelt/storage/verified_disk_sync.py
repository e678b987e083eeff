"""Syncs that detect every failed write, and reads of files that bypass the page cache.

Linux reports a failed write-back once to each descriptor of the file system that was open at that
time (`errseq_t`, syncfs since 5.8). A descriptor that is opened later receives the report only if
no other program has received it. After the report, the kernel treats the pages as clean. They seem
intact until they are read from the disk again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import struct
import sys
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from snowmelt import failpoints

_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_STATX_BTIME_AT = 80
# Assumed maximum time from creation to last change of a file, if the creation time is unknown.
_MAX_WRITE_DURATION_NS = 60 * 1_000_000_000
_READ_BUFFER_BYTES = 4 * 1024 * 1024
_OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Errors of file systems that do not support direct reads.
_DIRECT_IO_UNSUPPORTED_ERRNOS = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
_FAILED_WRITE_ERRNOS = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
_UNREPORTED_FAILURE_REASONS = {
    "overlay": "overlayfs does not report failed writes of its lower layer. Use a volume",
    "9p": "the host does not report failed writes. Use a disk of this machine",
    "virtiofs": "the host does not report failed writes. Use a disk of this machine",
    "fuse": "a FUSE file system may not report failed writes. Use a disk of this machine",
}
_MIN_SYNCFS_KERNEL = (5, 8)


@dataclass(slots=True)
class _WatchedFilesystem:
    """A descriptor of a file system, and the time since which it receives every write error."""

    descriptor: int
    since_ns: int


class DiskWatch:
    """Open descriptors of the file systems below a folder, which receive every write error.

    Shared by all threads of a process. A forked child would share the error state of the
    descriptors, so it opens new ones.
    """

    def __init__(self) -> None:
        self._filesystems: dict[int, _WatchedFilesystem] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()

    def hold_file_system(self, folder: int) -> int:
        """Keep the file system of an open folder open. Return the start time in ns.

        Must be called before the first write that a later `sync` makes durable.
        """
        device = os.fstat(folder).st_dev
        held = self._filesystems.get(device)
        if held is None or self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    self._close_descriptors()
                held = self._filesystems.get(device)
                if held is None:
                    # Not dup, because a duplicate would share its error state with the folder's
                    # descriptor.
                    held = _WatchedFilesystem(
                        os.open(".", _OPEN_FOLDER_FLAGS, dir_fd=folder), time.time_ns()
                    )
                    self._filesystems[device] = held
        return held.since_ns

    def sync(self) -> None:
        """Sync the file systems, which makes all writes to them durable.

        Raises:
            OSError: If a write has failed since they were opened, or since the last sync.
        """
        failure: OSError | None = None
        for held in tuple(self._filesystems.values()):
            try:
                failpoints.hit_failpoint(failpoints.Failpoint.STORE_SYNC)
                sync_filesystem(held.descriptor)
            except OSError as error:
                # A file created before this time may have lost its first bytes.
                held.since_ns = time.time_ns()
                failure = failure or error
        if failure is not None:
            raise failure

    def _close_descriptors(self) -> None:
        held, self._filesystems = self._filesystems, {}
        self._process = os.getpid()
        for each in held.values():
            with contextlib.suppress(OSError):
                os.close(each.descriptor)

    def __del__(self) -> None:
        self._close_descriptors()


def sync_filesystem(folder: int) -> None:
    """Sync the file system of an open folder.

    Raises:
        OSError: If the sync fails, or a write has failed since the folder was opened.
    """
    if not sys.platform.startswith("linux"):
        os.sync()
        return
    if load_libc().syncfs(folder) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def may_file_predate(file: int, since_ns: int) -> bool:
    """Return False only if an open file was certainly created at or after `since_ns`."""
    born_ns = _creation_time_ns(file)
    # A creation time in the future means that the clock was set back.
    return not since_ns <= born_ns <= time.time_ns()


def compute_disk_md5(name: str, folder: int) -> str | None:
    """Return the MD5 in hex of a file as read from the disk, bypassing the page cache.

    Return None if the file cannot be written to the disk or read from it.

    Raises:
        OSError: If the file cannot be opened.
    """
    for direct in (getattr(os, "O_DIRECT", 0), 0):
        try:
            return _compute_md5(name, folder, direct)
        except OSError as error:
            if error.errno in _FAILED_WRITE_ERRNOS:
                return None
            if not direct or error.errno not in _DIRECT_IO_UNSUPPORTED_ERRNOS:
                raise
    return None


def find_sync_limitation(folder: Path) -> str | None:
    """Return why a sync of this folder may miss a failed write, or None."""
    if not sys.platform.startswith("linux"):
        return "this system does not report failed writes to a sync of all files"
    release = os.uname().release.split(".")
    with contextlib.suppress(ValueError, IndexError):
        if (int(release[0]), int(release[1])) < _MIN_SYNCFS_KERNEL:
            return f"Linux {os.uname().release} does not report failed writes to syncfs. Use Linux 5.8 or later"
    kind = _filesystem_type(folder)
    return _UNREPORTED_FAILURE_REASONS.get(kind.partition(".")[0])


@lru_cache(maxsize=1)
def load_libc() -> ctypes.CDLL:
    """Load the C library, with errno per thread."""
    return ctypes.CDLL(None, use_errno=True)


def _creation_time_ns(file: int) -> int:
    """Return a file's creation time in ns, or a lower bound if the file system does not store it."""
    if sys.platform.startswith("linux"):
        found = ctypes.create_string_buffer(_STATX_BYTES)
        with contextlib.suppress(AttributeError):
            done = load_libc().statx(file, b"", _AT_EMPTY_PATH, _STATX_BTIME, found)
            (known,) = struct.unpack_from("=I", found)
            if done == 0 and known & _STATX_BTIME:
                seconds, nanoseconds = struct.unpack_from("=qI", found, _STATX_BTIME_AT)
                return int(seconds) * 1_000_000_000 + int(nanoseconds)
    status = os.fstat(file)
    return min(status.st_mtime_ns, status.st_ctime_ns) - _MAX_WRITE_DURATION_NS


def _compute_md5(name: str, folder: int, direct: int) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | direct
    file = os.open(name, flags, dir_fd=folder)
    try:
        if not direct:
            os.fsync(file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.md5(usedforsecurity=False)
        # An anonymous memory map begins at a page boundary, which direct reads require.
        pages = -(-os.fstat(file).st_size // mmap.PAGESIZE)
        view = memoryview(mmap.mmap(-1, min(max(pages, 1) * mmap.PAGESIZE, _READ_BUFFER_BYTES)))
        offset = 0
        while count := os.preadv(file, [view], offset):
            digest.update(view[:count])
            offset += count
            # Only the last read is short. Another read would not start at a block boundary.
            if count < len(view):
                break
        return digest.hexdigest()
    finally:
        os.close(file)


def _filesystem_type(folder: Path) -> str:
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields, _, kinds = line.partition(" - ")
            if fields.split()[2] == wanted:
                return kinds.split()[0]
    return ""
