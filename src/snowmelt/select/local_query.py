"""Local queries: run a SELECT over files or a pipe without a running service."""

from __future__ import annotations

import functools
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from snowmelt.select.errors import SelectError
from snowmelt.select.execution.engine import EngineSettings, SelectExecution, open_select
from snowmelt.select.formats.byte_streams import ConcurrentSource, ObjectSource
from snowmelt.select.formats.read_units import SourceSequence
from snowmelt.select.request import SelectRequest


class LocalFileSource(ConcurrentSource):
    """Regular file that stays open, so replacing the file at the path does not affect the query."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            OSError: If the file cannot be opened.
        """
        self._name = str(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._file)
        self._size = status.st_size
        self._changed_ns = status.st_mtime_ns
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Size of the file in bytes when it was opened."""
        return self._size

    @property
    def name(self) -> str:
        """Path of the file."""
        return self._name

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read into the start of `view` and return the byte count, 0 at the end of the file.

        Raises:
            SelectError: If the file was truncated or modified. Appended data is not an error.
        """
        wanted = min(len(view), self._size - offset)
        if wanted <= 0:
            return 0
        count = os.preadv(self._file, [view[:wanted]], offset)
        if count == 0:
            raise SelectError(
                "TruncatedInput", f"{self._name} was truncated during the query. Retry the query."
            )
        status = os.fstat(self._file)
        if status.st_mtime_ns != self._changed_ns and status.st_size <= self._size:
            raise SelectError(
                "InvalidDataSource", f"{self._name} was changed during the query. Retry the query."
            )
        return count

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class PipeSource:
    """Stream that is read once, in order. The stream is not closed."""

    def __init__(self, stream: BinaryIO, name: str = "-") -> None:
        """Wrap a binary stream, such as `sys.stdin.buffer`."""
        self._stream = stream
        self._name = name
        self._offset = 0

    @property
    def size(self) -> int:
        """Always -1: the size is unknown."""
        return -1

    @property
    def name(self) -> str:
        """Name of the stream in messages."""
        return self._name

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read the next bytes into the start of `view` and return their count.

        Raises:
            SelectError: If `offset` is not the current position (InvalidDataSource).
        """
        if offset != self._offset:
            raise SelectError("InvalidDataSource", "A pipe can be read only once and in order.")
        part = self._stream.read(len(view)) or b""
        view[: len(part)] = part
        self._offset += len(part)
        return len(part)

    def close(self) -> None:
        """Do nothing: the caller owns the stream."""


def open_local_select(
    request: SelectRequest,
    source: Path | Sequence[Path] | BinaryIO,
    *,
    settings: EngineSettings | None = None,
) -> SelectExecution:
    """Start a SELECT over a path, several paths or a stream.

    A single path that is not a regular file is read as a pipe.

    Raises:
        OSError: If the path cannot be opened.
        SelectError: If the statement or the start of the data is invalid.
    """
    return open_select(request, _open_source(source), settings=settings)


def _open_source(source: Path | Sequence[Path] | BinaryIO) -> ObjectSource | SourceSequence:
    if isinstance(source, Path):
        if stat.S_ISREG(source.stat().st_mode):
            return LocalFileSource(source)
        return PipeSource(source.open("rb"), str(source))
    if isinstance(source, Sequence):
        return SourceSequence([functools.partial(LocalFileSource, path) for path in source])
    return PipeSource(source)
