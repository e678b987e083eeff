"""Cells of one column of delimited text, and compiled casts for them.

Kernels parse only unambiguous forms. Other text is left to the column's converter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snowmelt.kernels import cells as kernels
from snowmelt.kernels.numbers import parse_decimals, parse_floats
from snowmelt.kernels.slices import NEEDS_UNQUOTING, PADDING_BYTES, Mask, RowIndexes, StringSlices
from snowmelt.kernels.timestamps import parse_iso_days, parse_iso_timestamps, unpack_utc_micros
from snowmelt.load.arrow_text_casts import FALSE_WORDS, TRUE_WORDS, ArrowTextCaster
from snowmelt.schema.chunk_types import chunk_arrow_type, pack_bitmap
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType

_MAX_INT64_DIGITS = 18
_BOOLEAN_WORDS = np.array(
    [
        int.from_bytes(word.encode(), "little") | len(word) << 56
        for word in (*TRUE_WORDS, *FALSE_WORDS)
    ],
    np.uint64,
)
# Limits of the years and offsets that the kernels parse. The exact rules parse all others.
_FIRST_YEAR_PACKED = 1000 << 46
_LAST_DAY_PACKED = 9999 << 46 | 12 << 42 | 31 << 37
_FIRST_YEAR_DAYS = -354_285
_END_OFFSET_MINUTES = 18 * 60


@dataclass(frozen=True, slots=True)
class TextCells:
    """Cells of one column. `quote` and `escape` are byte values, or -1 if not used."""

    slices: StringSlices
    is_null: Mask
    quote: int
    escape: int
    is_utf8: bool

    def take(self, rows: RowIndexes) -> TextCells:
        """Return the cells of these rows, in this order."""
        return TextCells(
            self.slices.take(rows), self.is_null[rows], self.quote, self.escape, self.is_utf8
        )

    def to_array(self, arrow_type: pa.DataType) -> pa.Array:
        """Return the values of the cells, as an array of bytes or strings."""
        cells = self.slices
        size = int((cells.end - cells.start).sum(dtype=np.int64))
        offsets = np.empty(len(cells) + 1, np.int32)
        out = np.empty(size + PADDING_BYTES, np.uint8)
        size = kernels.copy_values(
            cells.buffer,
            cells.start,
            cells.end,
            cells.flags,
            self.is_null,
            self.quote,
            self.escape,
            offsets,
            out,
        )
        buffers = [_pack_validity(self.is_null), pa.py_buffer(offsets), pa.py_buffer(out[:size])]
        return pa.Array.from_buffers(arrow_type, len(cells), buffers)

    def cast(self, column: Column, caster: ArrowTextCaster) -> tuple[list[pa.Array], Mask] | None:
        """Return native arrays, and a mask of the cells whose text was not parsed (null).

        Return None if no cell can be parsed. Parsed values are in the range of their type.
        """
        if column.kind is LogicalType.TEXT:
            return self._cast_texts(caster) if self.is_utf8 else None
        cells = self.slices
        place = (cells.buffer, cells.start, cells.end)
        unclean = (cells.flags & NEEDS_UNQUOTING) != 0
        if column.kind in TIMESTAMP_TYPES:
            packed, offsets, odd = parse_iso_timestamps(*place)
            odd |= (packed < _FIRST_YEAR_PACKED) | (np.abs(offsets) >= _END_OFFSET_MINUTES)
            if column.kind is LogicalType.TIMESTAMP_NTZ:
                offsets[:] = 0
            # Conversion to UTC may move a timestamp out of the supported years.
            odd |= (packed >= _LAST_DAY_PACKED) & (offsets < 0)
            null = self.is_null | odd | unclean
            micros = unpack_utc_micros(packed, offsets)
            return caster.make_timestamps(micros, offsets, null), null & ~self.is_null
        values: NDArray[np.generic]
        match column.kind:
            case LogicalType.FIXED:
                scale, precision = column.scale or 0, column.precision or 38
                if scale > _MAX_INT64_DIGITS:
                    return None
                digits = min(precision, _MAX_INT64_DIGITS)
                factors = 10 ** np.arange(scale, -1, -1, dtype=np.int64)
                values, good = parse_decimals(*place, factors, 10**digits // factors)
                odd = ~good
            case LogicalType.REAL:
                values, status = parse_floats(cells)
                odd = status != 0
            case LogicalType.DATE:
                values, odd = parse_iso_days(*place)
                odd |= values < _FIRST_YEAR_DAYS
            case LogicalType.BOOLEAN:
                values, good = kernels.parse_booleans(*place, _BOOLEAN_WORDS)
                values, odd = np.packbits(values, bitorder="little"), ~good
            case _:
                return None
        null = self.is_null | odd | unclean
        data = [_pack_validity(null), pa.py_buffer(values)]
        array = pa.Array.from_buffers(chunk_arrow_type(column), len(cells), data)
        return [array], null & ~self.is_null

    def _cast_texts(self, caster: ArrowTextCaster) -> tuple[list[pa.Array], Mask]:
        array = self.to_array(pa.string())
        longest = int((self.slices.end - self.slices.start).max(initial=0))
        fits = caster.mask_castable(array) if caster.has_text_over_byte_limit(longest) else None
        if fits is None or fits.all():
            return [array], np.zeros(len(array), np.bool_)
        return [pc.if_else(pa.array(fits), array, pa.scalar(None, pa.string()))], ~fits


def _pack_validity(null: Mask) -> pa.Buffer | None:
    return pack_bitmap(~null) if null.any() else None
