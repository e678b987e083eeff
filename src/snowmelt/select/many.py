"""Many objects read as one: their records follow each other in the order of the objects."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from snowmelt.select.query import CsvFields, ParquetFields
from snowmelt.select.records import open_records
from snowmelt.select.refusals import SelectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from snowmelt.select.compression import ObjectSource
    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.query import Fields, Query
    from snowmelt.select.records import Records, Unit
    from snowmelt.select.request import SelectRequest


class ManySources:
    """Objects by how each is opened; one after the other, so that few are open at a time."""

    def __init__(self, openers: Sequence[Callable[[], ObjectSource]]) -> None:
        """Take at least one way to open an object."""
        if not openers:
            raise SelectError("NoSuchKey", "There is no object to select from.")
        self._openers = deque(openers)

    def next(self) -> ObjectSource | None:
        """Open the next object; None after the last."""
        return self._openers.popleft()() if self._openers else None

    def close(self) -> None:
        """Open no more. Idempotent."""
        self._openers.clear()


class ManyRecords:
    """The records of all; every object must offer the same fields as the first."""

    def __init__(
        self,
        request: SelectRequest,
        sources: ManySources,
        settings: EngineSettings,
    ) -> None:
        """Open the first object.

        Raises:
            SelectError: A scan range, which means one object's bytes; or the first object cannot
                be read.
        """
        if request.scan_range is not None:
            raise SelectError(
                "UnsupportedScanRangeInput", "A ScanRange lies in one object, not in many."
            )
        self._request = request
        self._settings = settings
        self._sources = sources
        # Opened and not closed: units that workers still decode may read from them.
        self._open: deque[tuple[int, ObjectSource, Records]] = deque()
        self._closed_scanned = 0
        self._closed_processed = 0
        self._yielded = 0
        first = self._next()
        if first is None:
            raise SelectError("NoSuchKey", "There is no object to select from.")
        self._first = first
        self.fields: Fields = first.fields

    @property
    def scanned(self) -> int:
        """Bytes taken from all objects so far."""
        return self._closed_scanned + sum(records.scanned for _, _, records in self._open)

    @property
    def processed(self) -> int:
        """The same, inflated."""
        return self._closed_processed + sum(records.processed for _, _, records in self._open)

    @property
    def current(self) -> str:
        """The name of the object that the last unit came from."""
        return self._open[-1][1].name if self._open else ""

    def units(self, query: Query, *, whole: bool) -> Iterator[Unit]:
        """Yield the units of every object in turn.

        Raises:
            SelectError: An object cannot be read, or its fields differ; its name is told.
        """
        records: Records | None = self._first
        while records is not None:
            self._check(records)
            for unit in records.units(query, whole=whole):
                self._yielded += 1
                yield unit
            _, source, _ = self._open.pop()
            self._open.append((self._yielded, source, records))
            self._close_worked()
            records = self._next()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._sources.close()
        while self._open:
            self._close_oldest()

    def _next(self) -> Records | None:
        source = self._sources.next()
        if source is None:
            return None
        try:
            records = open_records(self._request, source, self._settings)
        except SelectError as error:
            source.close()
            message = str(error) if source.name in str(error) else f"{source.name}: {error}"
            raise SelectError(error.s3_code, message, status=error.status_code) from error
        except BaseException:
            source.close()
            raise
        self._open.append((-1, source, records))
        return records

    def _check(self, records: Records) -> None:
        if _names(records.fields) != _names(self.fields):
            name = self._open[-1][1].name
            raise SelectError(
                "InvalidDataSource",
                f"{name} has other columns than the first object; all must have the same.",
            )

    def _close_worked(self) -> None:
        """Close objects whose last unit is no longer among those that are worked on."""
        ahead = max(1, self._settings.blocks_in_flight)
        while self._open and self._yielded - self._open[0][0] >= ahead:
            self._close_oldest()

    def _close_oldest(self) -> None:
        _, source, records = self._open.popleft()
        self._closed_scanned += records.scanned
        self._closed_processed += records.processed
        records.close()
        source.close()


def _names(fields: Fields) -> object:
    return fields.names if isinstance(fields, CsvFields | ParquetFields) else None
