"""Small files with numbers and locks that the worker processes of one machine and user share.

The files are in a private folder. Nothing outlives its use: locks are released when their process
ends. A file name contains the machine's boot ID, so monotonic times in a file are always of the
current boot.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from snowmelt.clock import Clock
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    import struct


_Shared = TypeVar("_Shared")
_BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
# Locks of slots lie beyond everything that is ever written.
_SLOT_LOCKS_OFFSET_BYTES = 1 << 20


def ensure_private_folder(parent: Path | None = None) -> Path:
    """Return the folder of this user in the machine's folder of temporary files.

    Raises:
        ConfigurationError: Somebody else owns it, or can look into it.
    """
    folder = (parent or Path(tempfile.gettempdir())) / f"snowmelt-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            setting="TMPDIR", reason=f"{folder} is not a folder that only this user can open"
        )
    return folder


def make_shared_file_name(kind: str, *keys: str) -> str:
    """Return the name of the file that is shared by all who give the same keys."""
    digest = hashlib.sha256("\0".join((_read_boot_id(), *keys)).encode())
    return f"{kind}-{digest.hexdigest()[:32]}"


def delete_stale_files(folder: Path, kind: str, clock: Clock, max_age_s: float) -> None:
    """Delete the files of a kind that no process has written to for so long."""
    oldest = clock.now().timestamp() - max_age_s
    for path in folder.glob(f"{kind}-*"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except FileNotFoundError:
            continue


# By process, because what a fork inherits would not be its own: locks above all.
_shared_objects: dict[tuple[int, Path], Any] = {}


def share_in_process(path: Path, make: Callable[[], _Shared]) -> _Shared:
    """Return the one object of this process for a file."""
    key = (os.getpid(), path)
    found: _Shared = _shared_objects.get(key) or _shared_objects.setdefault(key, make())
    return found


@lru_cache(maxsize=1)
def _read_boot_id() -> str:
    try:
        return _BOOT_ID_PATH.read_text()
    except OSError:
        return ""


class SharedFile:
    """A few numbers that processes share, and locks that die with their holder.

    Closing any descriptor of a file lets go of all slots that this process holds there, so a
    process has one HostFile for a file with slots, and keeps it.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, made if there is none; reading what was never written gives zeros."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._thread_lock = threading.Lock()

    def close(self) -> None:
        """Close it; only for files without slots."""
        os.close(self._descriptor)

    @contextmanager
    def locking(self) -> Iterator[None]:
        """Keep other threads and processes out; for microseconds only."""
        with self._thread_lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def read_numbers(self, layout: struct.Struct, offset_bytes: int = 0) -> tuple[Any, ...]:
        """Return the numbers that lie at a place."""
        found = os.pread(self._descriptor, layout.size, offset_bytes)
        return layout.unpack(found.ljust(layout.size, b"\0"))

    def write_numbers(
        self, layout: struct.Struct, *values: float | bytes, offset_bytes: int = 0
    ) -> None:
        """Put numbers at a place; one of up to 4096 bytes is there as a whole or not at all."""
        os.pwrite(self._descriptor, layout.pack(*values), offset_bytes)

    def append_key_and_count_previous(self, key: bytes) -> int:
        """Add a key to the file's list; return how often it was there before.

        Args:
            key: As long as all others of the file.
        """
        with self.locking():
            end = os.fstat(self._descriptor).st_size
            listed = os.pread(self._descriptor, end, 0)
            os.pwrite(self._descriptor, key, end - end % len(key))
        keys = (listed[at : at + len(key)] for at in range(0, end, len(key)))
        return sum(each == key for each in keys)

    def try_lock_slot(self, slot: int) -> bool:
        """Take a slot unless another process holds it; tell whether it is ours."""
        try:
            fcntl.lockf(
                self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _SLOT_LOCKS_OFFSET_BYTES + slot
            )
        except OSError:
            return False
        return True

    def unlock_slot(self, slot: int) -> None:
        """Give a slot back."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _SLOT_LOCKS_OFFSET_BYTES + slot)
