"""Local files by path, glob or `file:` URL."""

from __future__ import annotations

import glob
import os
import stat
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import InputFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.load.portion import Portion

_READ_BYTES = 1024 * 1024


def find(path: str) -> Sequence[InputFile]:
    """List the file at a path, or those that a glob matches, with absolute paths, by name.

    Raises:
        PhaseFailed: It is a folder or a device, or may not be looked at.
    """
    path = os.path.abspath(_to_local_path(path))  # noqa: PTH100 - a glob is no Path
    # A file may have a name that looks like a glob.
    if glob.has_magic(path) and not os.path.lexists(path):
        return _list_matching_files(path)
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
    return (_make_input_file(path, status),)


def read(portion: Portion) -> Iterator[bytes]:
    """Yield the bytes from the portion's offset to the end of the file, 1 MiB at a time.

    Raises:
        PhaseFailed: The file cannot be read, or has changed since it was listed.
    """
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


def _list_matching_files(pattern: str) -> Sequence[InputFile]:
    found = []
    for path in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            # A link that leads nowhere, or a file that is gone by now.
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(_make_input_file(path, status))
    return found


def _make_input_file(path: str, status: os.stat_result) -> InputFile:
    return InputFile(path, status.st_size, _make_version_tag(status))


def _make_version_tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _check_unchanged(file: InputFile, status: os.stat_result) -> None:
    if file.tag is not None and file.tag != _make_version_tag(status):
        raise PhaseFailed(reason=f"{file.path} has changed since the load began")
