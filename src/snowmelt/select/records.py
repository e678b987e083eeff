"""An object of any format as units of work: handed out in order, decoded by workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from snowmelt.select.csv_records import CsvReader
from snowmelt.select.query import CsvFields
from snowmelt.select.reading import BlockLimits
from snowmelt.select.request import CsvInput, JsonInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.compression import ObjectSource
    from snowmelt.select.csv_records import CsvBatch, CsvTokenizer
    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.query import Fields, Query
    from snowmelt.select.reading import Block
    from snowmelt.select.refusals import SelectError
    from snowmelt.select.request import SelectRequest
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
        from snowmelt.select.json_records import JsonRecords

        return JsonRecords(request, request.input, source, settings)
    from snowmelt.select.parquet_records import ParquetRecords

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
