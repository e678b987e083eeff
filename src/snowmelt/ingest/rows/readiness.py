"""The compiled reader of rows, made ready beside the rows that come meanwhile.

Numba's import takes half a second, and its first compilation after an installation some seconds;
a service to which few rows are sent needs neither.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from snowmelt.ingest.rows.fields import fields_of
from snowmelt.schema.types import Column, Kind, TableSchema

if TYPE_CHECKING:
    from snowmelt.ingest.rows.columnar import Plain

_log = logging.getLogger("snowmelt.ingest")
_LARGE_BYTES = 200_000
_LINE = b'{"a":1}\n'
_SCHEMA = TableSchema(1, (Column("A", Kind.FIXED, 1, precision=1, scale=0),))


class Readiness:
    """Gives the compiled reader once it is ready; thread-safe."""

    def __init__(self) -> None:
        self._plain: Plain | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def reader(self, size: int) -> Plain | None:
        """Return the reader for a body of so many bytes; the first large one has it made ready."""
        if self._plain is None and size >= _LARGE_BYTES:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._prepare, name="rows-compiled", daemon=True
                    )
                    self._thread.start()
        return self._plain

    def wait(self) -> None:
        """Wait until what has begun is ready."""
        if self._thread is not None:
            self._thread.join()

    def _prepare(self) -> None:
        try:
            from snowmelt.ingest.rows.plain_lines import read_plain

            # One call compiles for rows of any kind.
            read_plain(_LINE, fields_of(_LINE, _SCHEMA) or [])
        except ImportError:
            _log.info("numba is not installed: rows are read by Arrow, at some more cost")
        except Exception:  # noqa: BLE001 - the other reader reads the same rows
            _log.exception("making the compiled reader of rows ready failed")
        else:
            self._plain = read_plain
