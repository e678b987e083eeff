"""Parquet objects as batches of records: needed columns of the row groups that may matter."""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from snowmelt.select.errors import SelectError
from snowmelt.select.kernels.strings import has_byte
from snowmelt.select.kernels.timestamps import pack_micros
from snowmelt.select.scalar.paths import follow
from snowmelt.select.sql.ast import Between, Binary, Column, Literal
from snowmelt.select.sql.bound_query import Fields, ParquetFields
from snowmelt.select.timestamps import NANOS, Precision, Timestamp, days_of
from snowmelt.select.values import MISSING
from snowmelt.select.vectors import Form, Instants, Kind, Slices, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.formats.decompression import ObjectSource
    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.request import SelectRequest
    from snowmelt.select.sql.ast import Expression
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.vectors import Mask

# --- Row groups that no record of can pass, by their statistics.
#
# Only comparisons of a column with a literal of its own kind count: they cannot fail, so that
# leaving a row group out hides no error. They count from the left of WHERE up to the first
# condition of another sort.

_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Column, relation, literal.
Bound: TypeAlias = tuple[int, str, object]


def bounds_of(where: Expression | None, schema: pa.Schema) -> tuple[list[Bound], bool]:
    """Return the conditions that count, and whether they are all there are."""
    found: list[Bound] = []
    for condition in _conjuncts(where):
        bounds = _bounds(condition, schema)
        if bounds is None:
            return found, False
        found += bounds
    return found, True


def can_pass(
    group: pq.RowGroupMetaData, bounds: list[Bound], places: dict[int, int], *, all_known: bool
) -> bool:
    """Tell whether a record of a row group may fulfil all conditions.

    `places` tells where a top-level column lies among the leaves. Where other conditions follow
    (not `all_known`), a NULL lets them be evaluated, and they may fail: nothing is left out.
    """
    for column, relation, literal in bounds:
        place = places.get(column)
        statistics = None if place is None else group.column(place).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        if not all_known and statistics.null_count != 0:
            continue
        if not _may_hold(relation, literal, statistics.min, statistics.max):
            return False
    return True


def _may_hold(relation: str, literal: Any, least: Any, most: Any) -> bool:
    if isinstance(literal, str) != isinstance(least, str):
        return True
    if isinstance(literal, str):
        # Statistics order texts by their bytes.
        low, high, wanted = (str(each).encode() for each in (least, most, literal))
        return _overlaps(relation, low < wanted, low == wanted, high > wanted, high == wanted)
    if not all(isinstance(each, int | float | Decimal) for each in (literal, least, most)):
        return True
    return _overlaps(
        relation,
        least < literal,
        least == literal,
        most > literal,
        most == literal,
    )


def _overlaps(relation: str, below: bool, starts: bool, above: bool, ends: bool) -> bool:
    return {
        "=": (below or starts) and (above or ends),
        "<": below,
        "<=": below or starts,
        ">": above,
        ">=": above or ends,
    }[relation]


def _conjuncts(where: Expression | None) -> list[Expression]:
    if where is None:
        return []
    if isinstance(where, Binary) and where.operator == "AND":
        return [*_conjuncts(where.left), *_conjuncts(where.right)]
    return [where]


def _bounds(condition: Expression, schema: pa.Schema) -> list[Bound] | None:
    if isinstance(condition, Between) and not condition.negated:
        low = _bound(condition.value, ">=", condition.low, schema)
        high = _bound(condition.value, "<=", condition.high, schema)
        return None if low is None or high is None else [low, high]
    if not isinstance(condition, Binary) or condition.operator not in _MIRRORED:
        return None
    bound = _bound(condition.left, condition.operator, condition.right, schema)
    if bound is None:
        mirrored = _MIRRORED[condition.operator]
        bound = _bound(condition.right, mirrored, condition.left, schema)
    return None if bound is None else [bound]


def _bound(
    column: Expression, relation: str, literal: Expression, schema: pa.Schema
) -> Bound | None:
    if not isinstance(column, Column) or column.steps or column.index is None:
        return None
    if not isinstance(literal, Literal) or isinstance(literal.value, bool):
        return None
    kind = schema.field(column.index).type
    numeric = pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)
    if numeric and isinstance(literal.value, int | float | Decimal):
        return column.index, relation, literal.value
    textual = pt.is_string(kind) or pt.is_large_string(kind)
    if textual and isinstance(literal.value, str):
        return column.index, relation, literal.value
    return None


# --- Arrow's values as values of a query, one by one and as vectors without copies.

_UNITS = {"s": (0, NANOS), "ms": (3, 10**6), "us": (6, 1000), "ns": (9, 1)}
_DAY_NANOS = 86_400 * NANOS
_DAY_MICROS = 86_400_000_000
_FIRST_DAY, _LAST_DAY = days_of(1, 1, 1), days_of(9999, 12, 31)
_EXPONENT = ord("E")
_LARGEST = 2**63


def plain(scalar: pa.Scalar) -> object:
    """Return one Arrow value as the evaluator knows it.

    Dates and timestamps are timestamps of their precision (in UTC), other times, binaries and
    what else SQL has no type for are texts.
    """
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pt.is_timestamp(kind):
        digits, nanos = _UNITS[kind.unit]
        return Timestamp(scalar.value * nanos, 0, Precision.SECOND, digits)
    if pt.is_date(kind):
        days = scalar.value if pt.is_date32(kind) else scalar.value // 86_400_000
        return Timestamp(days * _DAY_NANOS, 0, Precision.DAY)
    return _nested(scalar, kind) if pt.is_nested(kind) else _of_python(scalar.as_py())


def _nested(scalar: pa.Scalar, kind: pa.DataType) -> object:
    if pt.is_struct(kind):
        return {name: plain(scalar[name]) for name in scalar}
    if pt.is_map(kind):
        return {str(key): _of_python(item) for key, item in scalar.as_py()}
    return [plain(item) for item in scalar.values]


def _of_python(value: Any) -> object:
    if value is None or isinstance(value, bool | int | float | str | Decimal):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {str(name): _of_python(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_of_python(item) for item in value]
    return value.isoformat() if isinstance(value, dt.time) else str(value)


def vector_of(array: pa.Array) -> Vector | None:
    """Return an array as a vector, without a copy where Arrow's form is ours; None: no form fits."""
    kind = array.type
    null = _nulls(array)
    none = np.zeros(len(array), np.bool_)
    if pt.is_boolean(kind):
        values = array.fill_null(False).to_numpy(zero_copy_only=False)
        return Vector(Kind.BOOL, values, null, none)
    if pt.is_integer(kind):
        numbers = _numbers(array, kind)
        too_large = numbers >= _LARGEST if kind == pa.uint64() else none
        return Vector(Kind.INT, numbers.astype(np.int64, copy=False), null, too_large)
    if pt.is_float32(kind) or pt.is_float64(kind):
        return Vector(Kind.FLOAT, _numbers(array, kind).astype(np.float64, copy=False), null, none)
    return _written(array, null)


def _written(array: pa.Array, null: Mask) -> Vector | None:
    """Return what has a text of its own as a vector: texts, timestamps, decimals."""
    kind = array.type
    if pt.is_string(kind) or pt.is_large_string(kind):
        return Vector(Kind.TEXT, _texts(array), null, np.zeros(len(array), np.bool_))
    if pt.is_timestamp(kind) or pt.is_date(kind):
        instants, odd = _instants(array)
        return Vector(Kind.INSTANT, instants, null, odd & ~null)
    if pt.is_decimal(kind) and kind.scale > 0:
        # With a point in it, so that the evaluator, too, reads a decimal and not an integer.
        texts = _texts(array.cast(pa.string()))
        odd = has_byte(texts.buffer, texts.start, texts.end, _EXPONENT)
        return Vector(Kind.NUMERAL, texts, null, odd & ~null)
    return None


def _instants(array: pa.Array) -> tuple[Instants, Mask]:
    """Return dates or timestamps, and which of them lie beyond microseconds or calendars."""
    kind = array.type
    form = Form(Precision.DAY, 0)
    if pt.is_timestamp(kind):
        digits, nanos = _UNITS[kind.unit]
        form, per_day = Form(Precision.SECOND, digits), _DAY_NANOS // nanos
    else:
        per_day = 1 if pt.is_date32(kind) else 86_400_000
    numbers = _numbers(array, pa.int32() if pt.is_date32(kind) else pa.int64()).astype(np.int64)
    days, rest = np.divmod(numbers, per_day)
    odd = (days < _FIRST_DAY) | (days > _LAST_DAY)
    if pt.is_date(kind):
        rest = np.zeros_like(rest)
    # Microseconds of the day; what is finer than one is the evaluator's.
    factor, divisor = max(_DAY_MICROS // per_day, 1), max(per_day // _DAY_MICROS, 1)
    odd |= rest % divisor != 0
    micros = np.where(odd, 0, days) * _DAY_MICROS + rest * factor // divisor
    offset = np.zeros(len(array), np.int16)
    return Instants(pack_micros(micros), offset, form), odd


def _nulls(array: pa.Array) -> Mask:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _numbers(array: pa.Array, kind: pa.DataType) -> np.ndarray[Any, Any]:
    whole = np.frombuffer(array.buffers()[1], kind.to_pandas_dtype())
    return whole[array.offset : array.offset + len(array)]


def _texts(array: pa.Array) -> Slices:
    offset_type = np.int64 if pt.is_large_string(array.type) else np.int32
    _, places, data = array.buffers()
    if not len(array):
        empty = np.zeros(0, np.int32)
        return Slices(empty.astype(np.uint8), empty, empty, empty.astype(np.uint8))
    offsets = np.frombuffer(places, offset_type)[array.offset : array.offset + len(array) + 1]
    first = int(offsets[0])
    # A slice of a large array reads but its own part of the buffer.
    buffer = np.frombuffer(data, np.uint8) if data is not None else np.zeros(1, np.uint8)
    buffer = buffer[first : int(offsets[-1])]
    offsets = offsets - first
    flags = np.zeros(len(array), np.uint8)
    starts, ends = offsets[:-1].astype(np.int32), offsets[1:].astype(np.int32)
    return Slices(buffer, starts, ends, flags)


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
