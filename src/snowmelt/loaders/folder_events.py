"""Events of local folders on Linux (inotify): files that were moved in, or closed by a writer.

Events only reduce the delay. Listings find files without events, such as those of network file
systems.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from snowmelt.clock import SystemClock
from snowmelt.load.copy_ast import InputPath
from snowmelt.load.sources.files import find_base_folder, is_object_url, match_location

_log = logging.getLogger("snowmelt.load")

# Masks of <sys/inotify.h>.
_CLOSE_WRITE = 0x00000008
_MOVED_TO = 0x00000080
_CREATE = 0x00000100
_ONLYDIR = 0x01000000
_IGNORED = 0x00008000
_IS_FOLDER = 0x40000000
_MASK = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLYDIR
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 64 * 1024
# Maximum number of watched folders. All programs of a user share the system's limit. Listings find
# the files in other folders.
_MAX_FOLDERS = 1000
# A wait ends when no event has arrived for this time, so that a burst of files is one batch.
_QUIET_S = 0.05


class FolderEvents:
    """Watcher of the folders of local inputs. Not thread-safe.

    Closed when it is garbage-collected.
    """

    def __init__(self, inputs: Sequence[InputPath]) -> None:
        """Watch the folders of these inputs that are local.

        Raises:
            OSError: If the system has no inotify, or its limit is reached.
        """
        self._inputs = [each for each in inputs if _is_watchable(each)]
        if not self._inputs or sys.platform != "linux":
            raise OSError(errno.ENOSYS, "there is no folder to watch")
        # Use the system's clock, because `select` waits in real time.
        self._clock = SystemClock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        weakref.finalize(self, os.close, self._descriptor)
        self._changed: dict[str, bool] = {}
        # Path of each watched folder, and True if its subfolders are watched too.
        self._folders: dict[int, tuple[str, bool]] = {}
        self._watched: set[str] = set()
        self.watch_new_folders()

    def watch_new_folders(self) -> None:
        """Watch folders of the inputs that did not exist before."""
        for each in self._inputs:
            base = find_base_folder(each.path, is_prefix=each.is_prefix)
            if base not in self._watched:
                self._watch(base, is_recursive=_is_recursive(each, base))

    def wait(self, timeout_s: float) -> bool:
        """Wait for an event, and then until a burst of events ends. Return False if there was none."""
        if not self._has_event(timeout_s):
            return False
        deadline = self._clock.monotonic() + timeout_s
        self._read()
        while (left_s := deadline - self._clock.monotonic()) > 0 and self._has_event(
            min(_QUIET_S, left_s)
        ):
            self._read()
        return True

    def take_files(self) -> dict[str, bool]:
        """Return the paths of the inputs' files with events since the last call.

        The value is True if the last event moved the file in, False if a writer closed it.
        """
        self._read()
        paths, self._changed = self._changed, {}
        return {path: moved for path, moved in paths.items() if self._matches(path)}

    def _has_event(self, timeout_s: float) -> bool:
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])

    def _matches(self, path: str) -> bool:
        return any(
            match_location(each.path, path, is_prefix=each.is_prefix, pattern=each.pattern)
            for each in self._inputs
        )

    def _read(self) -> None:
        while self._has_event(0):
            for number, mask, name in _split_events(os.read(self._descriptor, _BUFFER_BYTES)):
                # An overflow of the queue has no folder. The next listing finds those files.
                folder, is_recursive = self._folders.get(number, ("", False))
                if mask & _IGNORED:
                    self._folders.pop(number, None)
                    self._watched.discard(folder)
                elif mask & _IS_FOLDER:
                    if is_recursive and not name.startswith("."):
                        self._watch(f"{folder}{name}/", is_recursive=True)
                elif folder and mask & (_CLOSE_WRITE | _MOVED_TO):
                    self._changed[f"{folder}{name}"] = bool(mask & _MOVED_TO)

    def _watch(self, folder: str, *, is_recursive: bool) -> None:
        if len(self._watched) >= _MAX_FOLDERS:
            return
        number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK)
        if number < 0:
            code = ctypes.get_errno()
            if code not in {errno.ENOENT, errno.ENOTDIR}:
                _log.warning(
                    "cannot watch folder %s, it is only listed: %s", folder, os.strerror(code)
                )
                self._watched.add(folder)
            return
        self._folders[number] = (folder, is_recursive)
        self._watched.add(folder)
        if is_recursive:
            for name in _list_folders(folder):
                self._watch(f"{folder}{name}/", is_recursive=True)


def open_folder_events(inputs: Sequence[InputPath]) -> FolderEvents | None:
    """Watch the local folders of inputs. Return None if there is none, or watching fails."""
    if not any(map(_is_watchable, inputs)):
        return None
    try:
        return FolderEvents(inputs)
    except (OSError, AttributeError) as error:
        _log.info("folders are only listed: %s", error)
        return None


def _is_watchable(path: InputPath) -> bool:
    """Return True for a local path that listings return unchanged."""
    text = path.path
    if is_object_url(text) or "://" in text or not text.startswith("/"):
        return False
    folder = find_base_folder(text, is_prefix=path.is_prefix)
    return folder == "/" or f"{os.path.abspath(folder)}/" == folder  # noqa: PTH100 - not for globs


def _is_recursive(path: InputPath, base: str) -> bool:
    return path.is_prefix or "/" in path.path[len(base) :]


def _list_folders(folder: str) -> list[str]:
    try:
        return [
            each.name
            for each in Path(folder).iterdir()
            if each.is_dir() and not each.is_symlink() and not each.name.startswith(".")
        ]
    except OSError:
        return []


def _split_events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield number of the folder, mask and name of each event."""
    at = 0
    while at < len(data):
        number, mask, _, size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        yield number, mask, os.fsdecode(data[at : at + size].rstrip(b"\0"))
        at += size
