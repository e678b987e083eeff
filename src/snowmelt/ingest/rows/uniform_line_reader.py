"""Read bodies of uniform lines with a compiled kernel.

The official SDK writes all lines with the fields of the first line in the same order. Another
reader reads other bodies, and bodies with rare JSON values: unpaired surrogates, and numbers with
more than 18 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from snowmelt.ingest.rows import line_kernels
from snowmelt.ingest.rows.field_names import BodyField
from snowmelt.ingest.rows.line_kernels import WORD_BYTES
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Maximum number of runs. Each field whose texts differ in form from the first one requires another
# run.
_MAX_ATTEMPTS = 4
_NEWLINE = 10
_MIN_PARALLEL_BYTES = 4 << 20
# Each text column allocates the size of the whole body, so the number of such columns is limited.
_MAX_BUFFER_BYTES = 1 << 31
_KINDS_BY_ARROW_TYPE = {
    pa.int64(): line_kernels.INTEGER,
    pa.float64(): line_kernels.FLOAT,
    pa.bool_(): line_kernels.BOOLEAN,
    pa.string(): line_kernels.TEXT,
}


def read_uniform_lines(data: bytes, fields: Sequence[BodyField]) -> pa.Table | None:
    """Return rows as columns, or None if another reader must read them.

    Unambiguous texts of dates, timestamps and decimals are parsed. `data` is UTF-8. `fields` are
    the fields of its first row.
    """
    whole = data if data.endswith(b"\n") else data + b"\n"
    if len(whole) < _MIN_PARALLEL_BYTES:
        return _read_range(np.frombuffer(whole, np.uint8), fields)
    # A channel has only one request in flight, so two threads read a large body.
    middle = whole.find(b"\n", len(whole) // 2) + 1
    letters = np.frombuffer(whole, np.uint8)
    with ThreadPoolExecutor(1) as other:
        later = other.submit(_read_range, letters[middle:], fields)
        first = _read_range(letters[:middle], fields)
        second = later.result()
    if first is None or second is None or first.schema != second.schema:
        return None
    return pa.concat_tables((first, second))


def _read_range(line_bytes: NDArray[np.uint8], fields: Sequence[BodyField]) -> pa.Table | None:
    kinds = list(map(_choose_kind, fields))
    if len(line_bytes) * sum(kind in line_kernels.TEXT_KINDS for kind in kinds) > _MAX_BUFFER_BYTES:
        return None
    lines = int(np.count_nonzero(line_bytes == _NEWLINE))
    for _ in range(_MAX_ATTEMPTS):
        reading = _KernelRun(fields, kinds, lines, len(line_bytes))
        wrong = reading.run(line_bytes)
        if wrong == line_kernels.ALL_LINES_READ:
            return reading.build_table()
        if wrong == line_kernels.UNSUPPORTED_LINE:
            return None
        kinds[wrong] = line_kernels.TEXT
    return None


class _KernelRun:
    def __init__(
        self, fields: Sequence[BodyField], kinds: Sequence[int], lines: int, size: int
    ) -> None:
        self._fields = fields
        self._kinds = kinds
        self._lines = lines
        counts = [0, 0]
        self._places: list[int] = []
        for kind in kinds:
            is_text = kind in line_kernels.TEXT_KINDS
            self._places.append(counts[is_text])
            counts[is_text] += 1
        # The operating system allocates pages only when they are written.
        self._numbers = np.empty((counts[0], lines), np.int64)
        self._valid = np.ones((len(kinds), lines), np.uint8)
        self._ends = np.zeros((counts[1], lines + 1), np.int32)
        self._texts = np.empty((counts[1], size + WORD_BYTES), np.uint8)

    def run(self, line_bytes: NDArray[np.uint8]) -> int:
        """Read the lines. Return the result code of the kernel."""
        keys = [b"," + msgspec.json.encode(field.name) + b":" for field in self._fields]
        keys[0] = b"{" + keys[0][1:]
        self._lines, wrong = line_kernels.read_lines(
            line_bytes,
            np.frombuffer(b"".join(keys), np.uint8),
            np.cumsum(list(map(len, keys)), dtype=np.int64),
            np.array(self._kinds, np.int64),
            np.array([field.column.scale or 0 for field in self._fields], np.int64),
            np.array(self._places, np.int64),
            self._numbers,
            self._valid,
            self._ends,
            self._texts,
        )
        return wrong

    def build_table(self) -> pa.Table:
        """Return the rows that were read."""
        return pa.Table.from_arrays(
            [self._build_array(place) for place in range(len(self._kinds))],
            names=[field.name for field in self._fields],
        )

    def _build_array(self, field: int) -> pa.Array:
        kind, place, column = self._kinds[field], self._places[field], self._fields[field].column
        valid = self._valid[field, : self._lines]
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if kind in line_kernels.TEXT_KINDS:
            ends = self._ends[place, : self._lines + 1]
            letters = pa.py_buffer(self._texts[place, : ends[-1]])
            texts = pa.Array.from_buffers(
                pa.string(), self._lines, [bits, pa.py_buffer(ends), letters]
            )
            return texts if kind == line_kernels.TEXT else texts.cast(pa.float64())
        return _build_number_array(kind, self._numbers[place, : self._lines], bits, column)


def _build_number_array(
    kind: int, numbers: NDArray[np.int64], validity_bitmap: pa.Buffer | None, column: Column
) -> pa.Array:
    target: pa.DataType = pa.int64()
    values: NDArray[np.generic] = numbers
    if kind == line_kernels.BOOLEAN:
        target, values = pa.bool_(), np.packbits(numbers.astype(np.uint8), bitorder="little")
    elif kind == line_kernels.DATE:
        target, values = pa.date32(), numbers.astype(np.int32)
    elif kind == line_kernels.DECIMAL:
        # A decimal has two words. The second one is the sign extension.
        target = pa.decimal128(38, column.scale or 0)
        values = np.stack((numbers, numbers >> 63), axis=1)
    elif kind == line_kernels.UTC_TIMESTAMP:
        target = pa.timestamp("us", "UTC")
    elif kind == line_kernels.NAIVE_TIMESTAMP:
        target = pa.timestamp("us")
    return pa.Array.from_buffers(target, len(numbers), [validity_bitmap, pa.py_buffer(values)])


def _choose_kind(field: BodyField) -> int:
    kind = field.column.kind
    if field.type == pa.string() and kind is LogicalType.DATE:
        return line_kernels.DATE
    if field.type == pa.string() and kind is LogicalType.FIXED:
        return line_kernels.DECIMAL
    if field.type == pa.string() and kind in TIMESTAMP_TYPES:
        # Texts that end in Z are supported for TIMESTAMP_LTZ only. For other types the offset
        # matters.
        is_instant = isinstance(field.first_value, str) and field.first_value.endswith("Z")
        return (
            line_kernels.UTC_TIMESTAMP
            if is_instant and kind is LogicalType.TIMESTAMP_LTZ
            else line_kernels.NAIVE_TIMESTAMP
        )
    return _KINDS_BY_ARROW_TYPE[field.type]
