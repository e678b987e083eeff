"""Parquet objects as batches of records: needed columns of the row groups that may matter."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.select.parquet_pruning import bounds_of, can_pass
from snowmelt.select.parquet_values import plain, vector_of
from snowmelt.select.paths import follow
from snowmelt.select.query import Fields, ParquetFields
from snowmelt.select.refusals import SelectError
from snowmelt.select.syntax import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.compression import ObjectSource
    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.query import Query
    from snowmelt.select.request import SelectRequest
    from snowmelt.select.syntax import Column
    from snowmelt.select.vectors import Vector

_BATCH_ROWS = 32_768
_MIB = 1024 * 1024


class ParquetRecords:
    """One Parquet object; its footer is read first."""

    def __init__(
        self, request: SelectRequest, source: ObjectSource, settings: EngineSettings
    ) -> None:
        """Open the object and read its footer.

        Raises:
            SelectError: It is no Parquet, cannot be read from any place, or the request asks for
                what Parquet has not: compression around it, a ScanRange.
        """
        if request.compression != "NONE":
            raise SelectError(
                "InvalidCompressionFormat", "Parquet is compressed inside; use CompressionType NONE"
            )
        if request.scan_range is not None:
            raise SelectError("UnsupportedScanRangeInput", "A ScanRange needs CSV or JSON lines.")
        if source.size < 0:
            raise SelectError("InvalidDataSource", "Parquet cannot be read from a pipe.")
        self._settings = settings
        self._file = _SourceFile(source)
        self._processed = 0
        try:
            self._parquet = pq.ParquetFile(pa.PythonFile(self._file, mode="r"))
        except (pa.ArrowException, OSError) as error:
            raise _broken(error) from error
        schema = self._parquet.schema_arrow
        self.fields: Fields = ParquetFields(tuple(schema.names), schema)

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far."""
        return self._file.scanned

    @property
    def processed(self) -> int:
        """Bytes of the columns read so far, decompressed."""
        return self._processed

    def units(self, query: Query, *, whole: bool) -> Iterator[ParquetUnit]:
        """Yield the needed columns of the row groups that may hold passing records.

        Raises:
            SelectError: A row group that is larger than the setting, or that cannot be read.
        """
        parquet = self._parquet
        schema = parquet.schema_arrow
        every = tuple(range(len(schema.names)))
        columns = every if whole or query.star else query.columns
        leaves = _leaves(parquet, schema)
        bounds, all_known = bounds_of(query.where, schema)
        places = {at: leaf[0] for at, leaf in enumerate(leaves) if len(leaf) == 1}
        for number in range(parquet.metadata.num_row_groups):
            group = parquet.metadata.row_group(number)
            if not can_pass(group, bounds, places, all_known=all_known):
                continue
            if not columns:
                yield ParquetUnit(group.num_rows, None, ())
                continue
            needed = [leaf for at in columns for leaf in leaves[at]]
            self._check(number, sum(group.column(at).total_uncompressed_size for at in needed))
            yield from self._batches(number, columns, [schema.names[at] for at in columns])

    def close(self) -> None:
        """Stop reading."""
        self._file.closing = True

    def _batches(
        self, number: int, columns: Sequence[int], names: Sequence[str]
    ) -> Iterator[ParquetUnit]:
        try:
            batches = self._parquet.iter_batches(
                _BATCH_ROWS,
                row_groups=[number],
                columns=list(names),
                use_threads=self._settings.threads != 1,
            )
            for batch in batches:
                self._processed += batch.nbytes
                yield ParquetUnit(batch.num_rows, batch, columns)
        except (pa.ArrowException, OSError) as error:
            raise _broken(error) from error

    def _check(self, number: int, size: int) -> None:
        limit = self._settings.row_group_bytes
        if size > limit:
            raise SelectError(
                "OverMaxParquetBlockSize",
                f"The needed columns of row group {number} take {size // _MIB} MiB; the setting "
                f"select_row_group_bytes allows {limit} bytes.",
            )


class ParquetUnit:
    """Some records of one row group."""

    def __init__(self, rows: int, batch: pa.RecordBatch | None, columns: Sequence[int]) -> None:
        self._rows = rows
        self._batch = batch
        self._columns = tuple(columns)

    def count(self) -> int | None:
        """Return how many records there are."""
        return self._rows

    def decode(self) -> ParquetBatch:
        """Return the records."""
        return ParquetBatch(self._rows, self._batch, self._columns)

    def release(self) -> None:
        """Forget the columns."""
        self._batch = None


@dataclass(frozen=True, slots=True)
class ParquetBatch:
    """Columns of Arrow with their places in the file."""

    rows: int
    batch: pa.RecordBatch | None
    columns: tuple[int, ...]
    failure: SelectError | None = None

    def column(self, index: int) -> pa.Array:
        """Return a column by its place in the file."""
        if self.batch is None:
            raise KeyError(index)
        return self.batch.column(self.columns.index(index))

    def vector(self, column: Column, *, shown: bool = False) -> Vector | None:  # noqa: ARG002  all are shown
        """Return a column's values; None for nested ones and types without kernels."""
        if column.steps or column.index is None:
            return None
        return vector_of(self.column(column.index))

    def every_column(self) -> tuple[tuple[str, ...], list[Vector]] | None:
        """Return names and values of all columns; None if the evaluator has to read some."""
        vectors: list[Vector] = []
        for column in () if self.batch is None else self.batch.columns:
            vector = vector_of(column)
            if vector is None or vector.deferred.any():
                return None
            vectors.append(vector)
        return (tuple(self.batch.schema.names), vectors) if self.batch is not None else None

    def row(self, place: int) -> ParquetRow:
        """Return one record."""
        return ParquetRow(self, place)

    def offset(self, place: int) -> None:
        """Return None: there is none."""


@dataclass(frozen=True, slots=True)
class ParquetRow:
    """One record as the evaluator reads it."""

    batch: ParquetBatch
    place: int

    def field(self, column: Column) -> object:
        """Return a column's value, or what its path leads to in it."""
        if column.index is None:
            return MISSING
        value = plain(self.batch.column(column.index)[self.place])
        return follow(value, column.steps) if column.steps else value

    def fields(self) -> Sequence[object]:
        """Return the values of all columns."""
        batch = self.batch.batch
        return [] if batch is None else [plain(column[self.place]) for column in batch.columns]

    def names(self) -> Sequence[str]:
        """Return the names of these values."""
        batch = self.batch.batch
        return [] if batch is None else batch.schema.names


class _SourceFile(io.RawIOBase):
    """An object source as a file that Arrow reads."""

    def __init__(self, source: ObjectSource) -> None:
        super().__init__()
        self._source = source
        self._at = 0
        self.scanned = 0
        self.closing = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        self._at = base + offset
        return self._at

    def size(self) -> int:
        return self._source.size

    def read(self, size: int = -1) -> bytes:
        if self.closing:
            raise OSError("the query was closed")
        if size < 0:
            size = self._source.size - self._at
        buffer = bytearray(size)
        filled = 0
        with memoryview(buffer) as view:
            while filled < size:
                count = self._source.read_into(self._at + filled, view[filled:])
                if count == 0:
                    break
                filled += count
        self._at += filled
        self.scanned += filled
        return bytes(buffer) if filled == size else bytes(buffer[:filled])


def _leaves(parquet: pq.ParquetFile, schema: pa.Schema) -> list[list[int]]:
    """Return for each top-level column its leaves' places in a row group."""
    found: list[list[int]] = [[] for _ in schema.names]
    by_name = {name: at for at, name in enumerate(schema.names)}
    for leaf in range(len(parquet.schema)):
        top = parquet.schema.column(leaf).path.split(".")[0]
        if top in by_name:
            found[by_name[top]].append(leaf)
    return found


def _broken(error: Exception) -> SelectError:
    text = str(error)
    if "codec" in text.lower():
        return SelectError("ParquetUnsupportedCompressionCodec", text)
    return SelectError("ParquetParsingError", f"The object cannot be read as Parquet: {text}")
