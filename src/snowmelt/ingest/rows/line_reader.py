"""Read lines of JSON objects with the compiled scanner: the fields of the first line are columns.

Another reader reads bodies whose lines have other fields than the first one, and bodies with rare
JSON values: unpaired surrogates, and numbers with more than 18 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.ingest.rows.field_names import BodyField
from snowmelt.json.columns import LEFT_ALONE, NULL_VALUE, read_booleans, read_decimals, read_texts
from snowmelt.json.scanner import (
    ABSENT,
    DECIMAL,
    EXPONENT,
    INTEGER,
    NULL,
    OTHER,
    TEXT,
    encode_field_names,
    scan_json_records,
)
from snowmelt.kernels.slices import Bytes, pad_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.json.columns import FieldPositions

_NEWLINE = 10
_MAX_INTEGER_DIGITS = 18
_MIN_PARALLEL_BYTES = 4 << 20
# The scanner has 32-bit positions.
_MAX_BYTES = (1 << 31) - 1_000
# Table that maps the kind of a number to TEXT, so that the kernel copies the number's digits.
_NUMBER_AS_TEXT = np.full(16, OTHER, np.uint8)
_NUMBER_AS_TEXT[[INTEGER, DECIMAL, EXPONENT]] = TEXT
_NUMBER_AS_TEXT[NULL] = NULL


def read_scalar_lines(data: bytes, fields: Sequence[BodyField]) -> pa.Table | None:
    """Return rows as columns, or None if another reader must read them.

    `data` is UTF-8. `fields` are the fields of its first row.
    """
    if len(data) > _MAX_BYTES:
        return None
    padded = pad_bytes(data if data.endswith(b"\n") else data + b"\n")
    ends = np.flatnonzero(padded == _NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lines = np.stack((starts, ends))[:, starts < ends]
    if len(data) < _MIN_PARALLEL_BYTES:
        return _read_range(padded, lines, fields)
    # Read a large body in two threads: a channel has only one request in flight, so the other
    # threads may be idle.
    middle = lines.shape[1] // 2
    with ThreadPoolExecutor(1) as other:
        later = other.submit(_read_range, padded, lines[:, middle:], fields)
        first = _read_range(padded, lines[:, :middle], fields)
        second = later.result()
    return None if first is None or second is None else pa.concat_tables((first, second))


def _read_range(
    padded: Bytes, lines: NDArray[np.int64], fields: Sequence[BodyField]
) -> pa.Table | None:
    names = encode_field_names([(field.name.encode(), False) for field in fields])
    (starts, ends, kinds), is_read = scan_json_records(padded, lines[0], lines[1], names)
    if not is_read.all() or (kinds == ABSENT).any():
        return None
    arrays: list[pa.Array] = []
    for place, field in enumerate(fields):
        found = _read_values(padded, (starts[place], ends[place], kinds[place]), field.type)
        if found is None:
            return None
        arrays.append(found)
    return pa.Table.from_arrays(arrays, names=[field.name for field in fields])


def _read_values(padded: Bytes, found: FieldPositions, target: pa.DataType) -> pa.Array | None:
    if target == pa.int64():
        values, status = read_decimals(padded, found, _MAX_INTEGER_DIGITS, 0)
        array = pa.array(values, mask=status == NULL_VALUE)
    elif target == pa.bool_():
        booleans, status = read_booleans(found)
        array = pa.array(booleans, mask=status == NULL_VALUE)
    else:
        if target == pa.float64():
            starts, ends, kinds = found
            found = starts, ends, _NUMBER_AS_TEXT[kinds]
        offsets, texts, status = read_texts(padded, found)
        validity = np.packbits(status != NULL_VALUE, bitorder="little")
        array = pa.StringArray.from_buffers(
            len(status), pa.py_buffer(offsets), pa.py_buffer(texts), pa.py_buffer(validity)
        )
    return None if (status == LEFT_ALONE).any() else array.cast(target)
