"""The sources File, Url and Stdin: files by path or glob, local, in an object store, or by HTTP."""

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
    """A source of files by paths or globs (`*`, `?`, `[…]`, and `**` for any depth).

    Paths without a scheme and `file:` URLs are local. `http(s)://` is read by HTTP. Other URLs
    (`s3://bucket/path`) are objects of stores.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """Set the paths that `files` lists. Tasks only read and need none."""
        self._paths = tuple(paths)

    def files(self) -> Sequence[InputFile]:
        """List the distinct files. Those of one glob are sorted by name.

        Raises:
            PhaseFailed: If there is no path, a path matches no file, or a store fails.
        """
        if not self._paths:
            raise PhaseFailed(reason="no path is given")
        found = {file.path: file for path in self._paths for file in list_files(path)}
        return tuple(found.values())

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's offset to the end of the file.

        Raises:
            PhaseFailed: If the file cannot be read, or has changed since it was listed.
        """
        return _choose_functions(portion.file.path)[1](portion)


def list_files(path: str) -> Sequence[InputFile]:
    """List the files that a path or glob matches, sorted by name.

    Raises:
        PhaseFailed: If there is none, or the store fails.
    """
    if not path:
        raise PhaseFailed(reason="the path is empty")
    found = _choose_functions(path)[0](path)
    if not found:
        raise PhaseFailed(reason=f"no file matches {path}")
    return found


def _choose_functions(
    path: str,
) -> tuple[Callable[[str], Sequence[InputFile]], Callable[[Portion], Iterator[bytes]]]:
    """Return the functions that list and read files of the path's scheme."""
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
    """List the file at a path, or those that a glob matches, with absolute paths."""
    path = os.path.abspath(_to_local_path(path))  # noqa: PTH100 - not for globs
    # A file name may contain glob characters.
    if glob.has_magic(path) and not os.path.lexists(path):
        found = []
        for each in sorted(glob.iglob(path, recursive=True)):  # noqa: PTH207
            # Skip broken links and files that were deleted in the meantime.
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
        raise PhaseFailed(reason=f"{path} is a folder. To load its files, use {path.rstrip('/')}/*")
    if not stat.S_ISREG(status.st_mode):
        raise PhaseFailed(reason=f"{path} is not a regular file. To load a pipe, use STDIN")
    return (InputFile(path, status.st_size, _make_version_tag(status)),)


def _read_local(portion: Portion) -> Iterator[bytes]:
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
        raise PhaseFailed(reason=f"{path}: a file: URL must not have a host")
    return unquote(parts.path)


def _make_version_tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _check_unchanged(file: InputFile, status: os.stat_result) -> None:
    if file.tag is not None and file.tag != _make_version_tag(status):
        raise PhaseFailed(reason=f"{file.path} has changed since the load began")


class SpooledStdinSource:
    """Standard input, spooled to a file, because tasks are other processes and may retry.

    The file is in a new folder below `spool`, which all tasks must be able to read. `close` or the
    end of this process deletes it.
    """

    def __init__(self, spool: str | None = None, *, stream: BinaryIO | None = None) -> None:
        self._spool = spool
        self._stream = stream
        self._folder: str | None = None

    def files(self) -> Sequence[InputFile]:
        """Spool all input, on the driver; return one file.

        Raises:
            PhaseFailed: If the input cannot be read, or the file cannot be written.
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
            PhaseFailed: If the file cannot be read.
        """
        return _read_local(portion)

    def close(self) -> None:
        """Delete the file. Idempotent."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            atexit.unregister(self.close)
            self._folder = None


STDIN = PhaseDefinition("Stdin", SpooledStdinSource, (PhaseParameter("spool", str),))
