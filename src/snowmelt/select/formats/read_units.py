"""Object readers: split objects of any format into read units, which workers decode.

Units are yielded in record order. Several objects are read in order as one sequence, and must all
have the same fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import BlockLimits, RecordBlock
from snowmelt.select.formats.byte_streams import ObjectSource
from snowmelt.select.formats.csv_reader import CsvBatch, CsvReader, CsvTokenizer
from snowmelt.select.request import CsvInput, JsonInput, SelectRequest
from snowmelt.select.resource_limits import EngineSettings
from snowmelt.select.sql.bound_query import BoundQuery, CsvFields, ObjectFields, ParquetFields
from snowmelt.select.vectors import ColumnBatch


class ReadUnit(Protocol):
    """Consecutive records, not decoded."""

    def count_records(self) -> int | None:
        """Return the number of records, or None if they must be decoded to count them."""

    def decode(self) -> ColumnBatch:
        """Decode the records. Called once, in a worker."""

    def release(self) -> None:
        """Release the memory. The batch must not be used after that. Idempotent."""


class ObjectReader(Protocol):
    """Reader of one object. The constructor sets `fields`; `read_units` requires a bound query."""

    fields: ObjectFields

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""

    def read_units(self, query: BoundQuery, *, all_fields: bool) -> Iterator[ReadUnit]:
        """Yield all units once. `all_fields` means that the output contains every field separately.

        Raises:
            SelectError: If the object cannot be read further.
        """

    def close(self) -> None:
        """Stop reading. Idempotent. Does not close the source."""


def open_object_reader(
    request: SelectRequest, source: ObjectSource, settings: EngineSettings
) -> ObjectReader:
    """Open a reader for the input format of the request.

    Raises:
        SelectError: If the request does not fit the object, or its header cannot be read.
    """
    if isinstance(request.input, CsvInput):
        return CsvObjectReader(request, request.input, source, settings)
    if isinstance(request.input, JsonInput):
        from snowmelt.select.formats.json_reader import JsonObjectReader

        return JsonObjectReader(request, request.input, source, settings)
    from snowmelt.select.formats.parquet_reader import ParquetObjectReader

    return ParquetObjectReader(request, source, settings)


class CsvObjectReader:
    """Reader of one CSV object."""

    def __init__(
        self,
        request: SelectRequest,
        options: CsvInput,
        source: ObjectSource,
        settings: EngineSettings,
    ) -> None:
        """Open the object and read its header.

        Raises:
            SelectError: If `CsvReader` rejects the request or the object.
        """
        self.reader = CsvReader(
            source,
            options,
            request.dialect,
            compression=request.compression,
            scan_range=request.scan_range,
            limits=BlockLimits(settings.block_bytes, settings.record_bytes),
        )
        self.fields: ObjectFields = CsvFields(self.reader.header_names)

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""
        return self.reader.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""
        return self.reader.processed_bytes

    def read_units(self, query: BoundQuery, *, all_fields: bool) -> Iterator[ReadUnit]:
        """Yield the blocks."""
        places: Sequence[int] | None = None if all_fields else query.columns
        tokenizer = self.reader.make_tokenizer(places)
        for block in self.reader.read_blocks():
            yield CsvReadUnit(tokenizer, block)

    def close(self) -> None:
        """Stop reading."""
        self.reader.close()


class CsvReadUnit:
    """Block of CSV text."""

    def __init__(self, tokenizer: CsvTokenizer, block: RecordBlock) -> None:
        self._tokenizer = tokenizer
        self._block = block

    def count_records(self) -> int | None:
        """Count the records by their delimiters. Return None if a record may be invalid."""
        self._block.load_bytes()
        return self._tokenizer.count_records(self._block)

    def decode(self) -> CsvBatch:
        """Tokenize the block."""
        self._block.load_bytes()
        return self._tokenizer(self._block)

    def release(self) -> None:
        """Return the block's buffer to the pool."""
        self._block.release()


class SourceSequence:
    """Sequence of objects. Each is opened when the reader needs it, not before."""

    def __init__(self, openers: Sequence[Callable[[], ObjectSource]]) -> None:
        """Create a sequence from at least one function that opens an object."""
        if not openers:
            raise SelectError("NoSuchKey", "There is no object to select from.")
        self._openers = deque(openers)

    def open_next(self) -> ObjectSource | None:
        """Open the next object, or return None after the last one."""
        return self._openers.popleft()() if self._openers else None

    def close(self) -> None:
        """Discard the remaining objects. Idempotent."""
        self._openers.clear()


class MultiObjectReader:
    """Reader of several objects as one. Every object must have the same fields as the first."""

    def __init__(
        self,
        request: SelectRequest,
        sources: SourceSequence,
        settings: EngineSettings,
    ) -> None:
        """Open the first object.

        Raises:
            SelectError: If the request has a ScanRange, or the first object cannot be read.
        """
        if request.scan_range is not None:
            raise SelectError("UnsupportedScanRangeInput", "A ScanRange requires a single object.")
        self._request = request
        self._settings = settings
        self._sources = sources
        # Decoding a unit may read from its object, so an object stays open until its units are
        # decoded.
        self._open_objects: deque[tuple[int, ObjectSource, ObjectReader]] = deque()
        self._closed_scanned = 0
        self._closed_processed = 0
        self._units_yielded = 0
        first = self._open_next()
        if first is None:
            raise SelectError("NoSuchKey", "There is no object to select from.")
        self._first_records = first
        self.fields: ObjectFields = first.fields

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from all objects, compressed if they are compressed."""
        return self._closed_scanned + sum(
            records.scanned_bytes for _, _, records in self._open_objects
        )

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""
        return self._closed_processed + sum(
            records.processed_bytes for _, _, records in self._open_objects
        )

    @property
    def current_object_name(self) -> str:
        """Name of the object of the last unit."""
        return self._open_objects[-1][1].name if self._open_objects else ""

    def read_units(self, query: BoundQuery, *, all_fields: bool) -> Iterator[ReadUnit]:
        """Yield the units of each object in turn.

        Raises:
            SelectError: If an object cannot be read or has other fields. The message names the object.
        """
        records: ObjectReader | None = self._first_records
        while records is not None:
            self._check_fields(records)
            for unit in records.read_units(query, all_fields=all_fields):
                self._units_yielded += 1
                yield unit
            _, source, _ = self._open_objects.pop()
            self._open_objects.append((self._units_yielded, source, records))
            self._close_finished()
            records = self._open_next()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._sources.close()
        while self._open_objects:
            self._close_oldest()

    def _open_next(self) -> ObjectReader | None:
        source = self._sources.open_next()
        if source is None:
            return None
        try:
            records = open_object_reader(self._request, source, self._settings)
        except SelectError as error:
            source.close()
            message = str(error) if source.name in str(error) else f"{source.name}: {error}"
            raise SelectError(error.s3_code, message, status=error.status_code) from error
        except BaseException:
            source.close()
            raise
        self._open_objects.append((-1, source, records))
        return records

    def _check_fields(self, records: ObjectReader) -> None:
        if _get_field_names(records.fields) != _get_field_names(self.fields):
            name = self._open_objects[-1][1].name
            raise SelectError(
                "InvalidDataSource",
                f"The columns of {name} differ from those of the first object. Select from objects with the same columns.",
            )

    def _close_finished(self) -> None:
        """Close objects that have no more units in flight."""
        ahead = max(1, self._settings.blocks_in_flight)
        while self._open_objects and self._units_yielded - self._open_objects[0][0] >= ahead:
            self._close_oldest()

    def _close_oldest(self) -> None:
        _, source, records = self._open_objects.popleft()
        self._closed_scanned += records.scanned_bytes
        self._closed_processed += records.processed_bytes
        records.close()
        source.close()


def _get_field_names(fields: ObjectFields) -> object:
    return fields.names if isinstance(fields, CsvFields | ParquetFields) else None
