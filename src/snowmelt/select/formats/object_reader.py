"""An object of any format as units of work: handed out in order, decoded by workers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import BlockLimits
from snowmelt.select.formats.csv_reader import CsvReader
from snowmelt.select.request import CsvInput, JsonInput
from snowmelt.select.sql.bound_query import CsvFields, ParquetFields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from snowmelt.select.formats.blocks import Block
    from snowmelt.select.formats.csv_reader import CsvBatch, CsvTokenizer
    from snowmelt.select.formats.decompression import ObjectSource
    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.request import SelectRequest
    from snowmelt.select.sql.bound_query import Fields, Query
    from snowmelt.select.vectors import Batch


class DecodedBatch(Protocol):
    """A batch with the error of the record behind its last one, if that cannot be read."""

    @property
    def failure(self) -> SelectError | None:
        """What ends the query after these records."""


class Unit(Protocol):
    """Some records that lie one after the other, not decoded yet."""

    def count(self) -> int | None:
        """Return how many records there are; None where they have to be decoded to know."""

    def decode(self) -> Batch:
        """Return the records; called once, in a worker."""

    def release(self) -> None:
        """Give the memory back; the batch is not used any more. May be called twice."""


class Records(Protocol):
    """One object. `fields` is known from the start, `units` once a query is bound."""

    fields: Fields

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far."""

    @property
    def processed(self) -> int:
        """The same, inflated."""

    def units(self, query: Query, *, whole: bool) -> Iterator[Unit]:
        """Yield all units, once; `whole` says that output shows all fields one by one.

        Raises:
            SelectError: The object cannot be read further.
        """

    def close(self) -> None:
        """Stop reading; the source stays open. Idempotent."""


def open_records(request: SelectRequest, source: ObjectSource, settings: EngineSettings) -> Records:
    """Open an object as the request says.

    Raises:
        SelectError: The request does not fit the object, or its header cannot be read.
    """
    if isinstance(request.input, CsvInput):
        return CsvRecords(request, request.input, source, settings)
    if isinstance(request.input, JsonInput):
        from snowmelt.select.formats.json_reader import JsonRecords

        return JsonRecords(request, request.input, source, settings)
    from snowmelt.select.formats.parquet_reader import ParquetRecords

    return ParquetRecords(request, source, settings)


class CsvRecords:
    """Delimited text."""

    def __init__(
        self,
        request: SelectRequest,
        options: CsvInput,
        source: ObjectSource,
        settings: EngineSettings,
    ) -> None:
        """Open the object and read its header.

        Raises:
            SelectError: As `CsvReader` says.
        """
        self.reader = CsvReader(
            source,
            options,
            request.dialect,
            compression=request.compression,
            scan_range=request.scan_range,
            limits=BlockLimits(settings.block_bytes, settings.record_bytes),
        )
        self.fields: Fields = CsvFields(self.reader.header_names)

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far."""
        return self.reader.scanned

    @property
    def processed(self) -> int:
        """The same, inflated."""
        return self.reader.processed

    def units(self, query: Query, *, whole: bool) -> Iterator[Unit]:
        """Yield the blocks."""
        places: Sequence[int] | None = None if whole else query.columns
        tokenizer = self.reader.tokenizer(places)
        for block in self.reader.blocks():
            yield CsvUnit(tokenizer, block)

    def close(self) -> None:
        """Stop reading."""
        self.reader.close()


class CsvUnit:
    """One block of text."""

    def __init__(self, tokenizer: CsvTokenizer, block: Block) -> None:
        self._tokenizer = tokenizer
        self._block = block

    def count(self) -> int | None:
        """Count delimiters; None where a record may break the rules."""
        self._block.load()
        return self._tokenizer.count(self._block)

    def decode(self) -> CsvBatch:
        """Find the fields."""
        self._block.load()
        return self._tokenizer(self._block)

    def release(self) -> None:
        """Give the block's buffer back."""
        self._block.release()


# --- Many objects read as one: their records follow each other in the order of the objects.


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
