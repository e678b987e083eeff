"""The sources File, Url and Stdin: files by path or glob, local, in an object store, or by HTTP.

Standard input of this process is saved to a file for the tasks.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.sources import http, object_store

_READ_BYTES = 1024 * 1024
_COPY_BUFFER_BYTES = 1024 * 1024


class FileGlobSource:
    """Files by paths, each of which may be a glob: `*`, `?`, `[…]`, and `**` for any depth.

    Paths without a scheme are of this machine, as are `file:` URLs; `http(s)://` is the web;
    other URLs (`s3://bucket/path` …) are opened as stores with the credentials of stores.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """Take the paths that `files` lists; tasks, which only read, need none."""
        self._paths = tuple(paths)

    def files(self) -> Sequence[InputFile]:
        """List the files, those of one glob by name; a file that is named twice is there once.

        Raises:
            PhaseFailed: No path is given, one leads to no file, or a store does not answer.
        """
        if not self._paths:
            raise PhaseFailed(reason="no path is given")
        found = {file.path: file for path in self._paths for file in list_files(path)}
        return tuple(found.values())

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's offset on, to the end of the file if asked.

        Raises:
            PhaseFailed: The file cannot be read, or has changed since it was listed.
        """
        return _choose_functions(portion.file.path)[1](portion)


def list_files(path: str) -> Sequence[InputFile]:
    """List the files that one path or glob leads to, by name.

    Raises:
        PhaseFailed: There is none, or the store does not answer.
    """
    if not path:
        raise PhaseFailed(reason="an empty path leads to no file")
    found = _choose_functions(path)[0](path)
    if not found:
        raise PhaseFailed(reason=f"no file matches {path}")
    return found


def _choose_functions(
    path: str,
) -> tuple[Callable[[str], Sequence[InputFile]], Callable[[Portion], Iterator[bytes]]]:
    """Return how files of the kind are found, and read."""
    scheme = path.partition("://")[0].lower() if "://" in path else "file"
    if scheme == "file":
        return _find_local, _read_local
    module = http if scheme in {"http", "https"} else object_store
    return module.find, module.read


FILE = PhaseDefinition(
    "File",
    lambda file=None: FileGlobSource(() if file is None else (file,)),
    (PhaseParameter("file", str),),
)
URL = PhaseDefinition(
    "Url", lambda url: FileGlobSource((url,)), (PhaseParameter("url", str, required=True),)
)


def _find_local(path: str) -> Sequence[InputFile]:
    """List the file at a path, or those that a glob matches, with absolute paths, by name."""
    path = os.path.abspath(_to_local_path(path))  # noqa: PTH100 - a glob is no Path
    # A file may have a name that looks like a glob.
    if glob.has_magic(path) and not os.path.lexists(path):
        found = []
        for each in sorted(glob.iglob(path, recursive=True)):  # noqa: PTH207
            # A link may lead nowhere, and a file be gone by now.
            with contextlib.suppress(OSError):
                status = os.stat(each)  # noqa: PTH116
                if stat.S_ISREG(status.st_mode):
                    found.append(InputFile(each, status.st_size, _make_version_tag(status)))
        return found
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise PhaseFailed(reason=f"{path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise PhaseFailed(reason=f"{path} is a folder; {path.rstrip('/')}/* are its files")
    if not stat.S_ISREG(status.st_mode):
        raise PhaseFailed(reason=f"{path} is not a regular file; what has no end is read by STDIN")
    return (InputFile(path, status.st_size, _make_version_tag(status)),)


def _read_local(portion: Portion) -> Iterator[bytes]:
    """Yield the bytes from the portion's offset to the end of the file, 1 MiB at a time."""
    path, offset = portion.file.path, portion.offset
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            _check_unchanged(portion.file, os.fstat(file.fileno()))
            file.seek(offset)
            while piece := file.read(_READ_BYTES):
                offset += len(piece)
                yield piece
            _check_unchanged(portion.file, os.fstat(file.fileno()))
    except OSError as error:
        raise PhaseFailed(reason=f"{path}: {error.strerror}", offset=offset) from error


def _to_local_path(path: str) -> str:
    if not path.lower().startswith("file:"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in {"", "localhost"}:
        raise PhaseFailed(reason=f"{path}: a file: URL has no host")
    return unquote(parts.path)


def _make_version_tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _check_unchanged(file: InputFile, status: os.stat_result) -> None:
    if file.tag is not None and file.tag != _make_version_tag(status):
        raise PhaseFailed(reason=f"{file.path} has changed since the load began")


class SpooledStdinSource:
    """Standard input, kept in a file first: tasks are other processes, and may run again.

    The file is made in a new folder of `spool`, which all tasks must see, and goes with `close`
    or when this process ends.
    """

    def __init__(self, spool: str | None = None, *, stream: BinaryIO | None = None) -> None:
        self._spool = spool
        self._stream = stream
        self._folder: str | None = None

    def files(self) -> Sequence[InputFile]:
        """Read all of it, on the driver; it is listed as one file.

        Raises:
            PhaseFailed: There is no room for it, or it cannot be read.
        """
        self.close()
        try:
            self._folder = tempfile.mkdtemp(prefix="snowmelt-stdin-", dir=self._spool)
            atexit.register(self.close)
            path = Path(self._folder, "stdin")
            with path.open("xb") as file:
                shutil.copyfileobj(self._stream or sys.stdin.buffer, file, _COPY_BUFFER_BYTES)
            return (InputFile(str(path), path.stat().st_size),)
        except OSError as error:
            self.close()
            raise PhaseFailed(reason=f"standard input: {error.strerror}") from error

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's offset to the end.

        Raises:
            PhaseFailed: The file is gone or cannot be read.
        """
        return _read_local(portion)

    def close(self) -> None:
        """Remove the file; again is harmless."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            atexit.unregister(self.close)
            self._folder = None


STDIN = PhaseDefinition("Stdin", SpooledStdinSource, (PhaseParameter("spool", str),))
