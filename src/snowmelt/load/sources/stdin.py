"""The source Stdin: standard input of this process, saved to a file for the tasks."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.portion import InputFile
from snowmelt.load.sources import local_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.load.portion import Portion

_COPY_BUFFER_BYTES = 1024 * 1024


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
        return local_files.read(portion)

    def close(self) -> None:
        """Remove the file; again is harmless."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            atexit.unregister(self.close)
            self._folder = None


STDIN = PhaseDefinition("Stdin", SpooledStdinSource, (PhaseParameter("spool", str),))
