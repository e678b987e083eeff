"""Lines to columns without a row in between, where that is surely what the rows would give.

Arrow reads the lines by types that the first one suggests, strictly: whatever is not of its column's
type, or that Arrow would take and the exact reader not, sends all lines the ordinary way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from snowmelt.ingest.rows.field_names import any_fields_of, fields_of
from snowmelt.schema.types import TIMESTAMP_TYPES, LogicalType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.ingest.rows.field_names import Field
    from snowmelt.schema.types import Column, TableSchema

if TYPE_CHECKING:
    Plain = Callable[[bytes, Sequence[Field]], pa.Table | None]

_NEWLINE, _BRACE = ord("\n"), ord("{")
# From there on the set-up, some 100 µs, is worth it.
_LEAST_BYTES = 2_000
# A channel has one request under way: what is large is read by several threads.
_BLOCKS = 4
_LEAST_BLOCK_BYTES = 1 << 20
_MINUS_ZERO = re.compile(rb"-0(?![.0-9eE])")
_DAY = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"


def columns_of(data: bytes, schema: TableSchema, plain: Plain | None = None) -> pa.Table | None:
    """Return the rows as a table with the names that a converter takes; None where in doubt.

    Args:
        data: Newline-delimited JSON.
        schema: The columns that there are.
        plain: Reads bodies whose lines are all alike, None for others.
    """
    if len(data) < _LEAST_BYTES or data[:1] != b"{":
        return None
    fields = fields_of(data[: data.find(b"\n")], schema)
    if fields is None or not _is_text(data):
        return None
    table = None if plain is None else plain(data, fields)
    if table is None:
        table = _read_by_types(data, fields)
    # Arrow takes numbers that JSON has not.
    if table is None or not all(map(_is_finite, table.columns)):
        return None
    return table.rename_columns([field.meant for field in fields])


def fields_alone(data: bytes, plain: Plain | None = None) -> pa.Table | None:
    """Return rows as a table of the values as they are, whatever table they go to; None where in doubt."""
    fields = any_fields_of(data[: data.find(b"\n")]) if len(data) >= _LEAST_BYTES else None
    if fields is None or not _is_text(data):
        return None
    if any(pa.types.is_nested(field.type) for field in fields):
        plain = None
        # Arrow takes them within other values, too.
        if b"NaN" in data or b"Inf" in data:
            return None
    table = None if plain is None else plain(data, fields)
    if table is None:
        table = _read_by_types(data, fields)
    return table if table is not None and all(map(_is_finite, table.columns)) else None


def _read_by_types(data: bytes, fields: Sequence[Field]) -> pa.Table | None:
    lines = _lines(data)
    if not lines:
        return None
    size = max(len(data) // _BLOCKS + 1, _LEAST_BLOCK_BYTES)
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=len(data) > size, block_size=size),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([(field.name, field.type) for field in fields]),
                newlines_in_values=False,
                unexpected_field_behavior="error",
            ),
        )
    except (pa.ArrowException, UnicodeError):
        return None
    # Arrow takes several objects on a line, and null for a row; and it keeps the sign of the
    # integer -0.
    if table.num_rows != lines or (
        any(map(_has_minus_zero, table.columns)) and _MINUS_ZERO.search(data)
    ):
        return None
    for place, field in enumerate(fields):
        if field.type == pa.string():
            found = read_texts(table.column(place), field.column)
            if found is not None:
                table = table.set_column(place, field.name, found)
    return table


def read_texts(texts: pa.ChunkedArray, column: Column) -> pa.ChunkedArray | None:
    """Read plain texts of a day, a moment or a number at once; None leaves them to the exact reader."""
    try:
        if column.kind in TIMESTAMP_TYPES:
            # An instant is one whatever the zone; for other kinds the offset counts.
            return moments(
                texts, instants=column.kind is LogicalType.TIMESTAMP_LTZ and _ends_in_z(texts)
            )
        if column.kind is LogicalType.DATE:
            return _matching(texts, _DAY, pa.date32())
        if column.kind is LogicalType.FIXED:
            scale = column.scale or 0
            fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
            return _matching(
                texts, rf"^-?(0|[1-9][0-9]{{0,17}}){fraction}$", pa.decimal128(38, scale)
            )
    except pa.ArrowException:
        return None
    return None


def _matching(texts: pa.ChunkedArray, pattern: str, kind: pa.DataType) -> pa.ChunkedArray | None:
    matches = pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    return texts.cast(kind) if matches is True else None


def _lines(data: bytes) -> int:
    """Return how many lines begin with an object, 0 when others do with something else.

    As each of these gives at least one row, so many rows are one for each.
    """
    marks = np.frombuffer(data, np.uint8)
    after = marks[np.flatnonzero(marks[:-1] == _NEWLINE) + 1]
    objects = int(np.count_nonzero(after == _BRACE))
    blanks = int(np.count_nonzero(after == _NEWLINE))
    return objects + 1 if objects + blanks == len(after) else 0


def _is_finite(values: pa.ChunkedArray) -> bool:
    is_float = pa.types.is_floating(values.type)
    return not is_float or pc.all(pc.is_finite(values)).as_py() is not False


def _has_minus_zero(values: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(values.type):
        return False
    zeros = pc.equal(values, 0.0)
    if not pc.any(zeros).as_py():
        return False
    return bool(np.signbit(values.filter(zeros).to_numpy()).any())


def _ends_in_z(texts: pa.ChunkedArray) -> bool:
    first = texts[0].as_py() if len(texts) else None
    return isinstance(first, str) and first.endswith("Z")


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- Texts of dates with times, read at once where all are of the one form that has one meaning.

_SIGNS = ((4, "-"), (7, "-"), (13, ":"), (16, ":"))
_POINT, _Z = ord("."), ord("Z")
# What may stand between a date and a time, at that place.
_BETWEEN, _SEPARATORS = 10, (ord("T"), ord(" "))
# YYYY-MM-DDThh:mm:ss, and with six digits after a point.
_SHORTEST, _LONGEST = 19, 26
# Years 1000 to 2999, in microseconds since 1970.
_FIRST, _LAST = -30_610_224_000_000_000, 32_503_679_999_999_999


def moments(texts: pa.ChunkedArray, *, instants: bool) -> pa.ChunkedArray | None:
    """Return timestamps of texts as `2026-11-21T10:00:00.123456`, None where one has another form.

    A blank may stand for the T. With `instants` each ends in Z. Years are those from 1000 to 2999.

    Raises:
        ArrowException: A text of that form is no timestamp.
    """
    if not all(_are_formed(chunk.drop_null(), int(instants)) for chunk in texts.chunks):
        return None
    # What is not a digit between the signs is refused here.
    found = texts.cast(pa.timestamp("us", "UTC" if instants else None))
    bounds = pc.min_max(found.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return found if low is None or _FIRST <= low <= high <= _LAST else None


def _are_formed(texts: pa.StringArray, ending: int) -> bool:
    """Tell whether signs and lengths are those of the form, with so many letters Z at the end."""
    if not len(texts):
        return True
    _, places, data = texts.buffers()
    ends = np.frombuffer(places, np.int32, len(texts) + 1, texts.offset * 4)
    begins, lengths = ends[:-1], np.diff(ends) - ending
    if lengths.min() < _SHORTEST or lengths.max() > _LONGEST:
        return False
    letters = np.frombuffer(data, np.uint8)
    between = letters[begins + _BETWEEN]
    longer = begins[lengths > _SHORTEST]
    return bool(
        not (lengths == _SHORTEST + 1).any()
        and all((letters[begins + place] == ord(sign)).all() for place, sign in _SIGNS)
        and np.isin(between, _SEPARATORS).all()
        and (letters[longer + _SHORTEST] == _POINT).all()
        and (not ending or (letters[ends[1:] - 1] == _Z).all())
    )
