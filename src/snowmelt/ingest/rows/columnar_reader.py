"""Read newline-delimited JSON into columns without creating row objects.

Used only if the result certainly equals that of the row converter. Arrow reads the lines with the
types of the first line. All lines are converted row by row if a value does not have the type of its
column, or if the exact reader would reject a value that Arrow accepts. Texts of dates and
timestamps are parsed in one batch if all have the one unambiguous format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from snowmelt.ingest.rows.field_names import BodyField, parse_any_fields, parse_scalar_fields
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType, TableSchema

if TYPE_CHECKING:
    KernelReader = Callable[[bytes, Sequence[BodyField]], pa.Table | None]

_NEWLINE, _BRACE = ord("\n"), ord("{")
# For smaller bodies, the setup of about 100 µs takes longer than it saves.
_MIN_COLUMNAR_BYTES = 2_000
# Read a large body in several threads: a channel has only one request in flight, so the other
# threads may be idle.
_READ_BLOCKS = 4
_MIN_BLOCK_BYTES = 1 << 20
_NEGATIVE_ZERO_PATTERN = re.compile(rb"-0(?![.0-9eE])")
_INTEGER_PATTERN = rb"\s*:\s*-?[0-9]+\s*[,}]"
_DATE_PATTERN = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"


def read_table_columns(
    data: bytes, schema: TableSchema, kernel_reader: KernelReader | None = None
) -> pa.Table | None:
    """Return the rows as a table with the converter's column names.

    Return None if the table could differ from the result of the row converter. `kernel_reader`
    reads bodies in which all values are scalars. It returns None for other bodies.
    """
    if len(data) < _MIN_COLUMNAR_BYTES or data[:1] != b"{":
        return None
    fields = parse_scalar_fields(data[: data.find(b"\n")], schema)
    if fields is None or not _is_utf8(data):
        return None
    table = _read_columns(data, fields, kernel_reader)
    return None if table is None else table.rename_columns([field.column_name for field in fields])


def read_field_columns(data: bytes, kernel_reader: KernelReader | None = None) -> pa.Table | None:
    """Return the rows as a table with the names in the body, for evaluation of a pipe.

    Return None if the values could differ from those of the exact reader.
    """
    fields = (
        parse_any_fields(data[: data.find(b"\n")]) if len(data) >= _MIN_COLUMNAR_BYTES else None
    )
    if fields is None or not _is_utf8(data):
        return None
    if any(pa.types.is_nested(field.type) for field in fields):
        kernel_reader = None
        # Arrow accepts NaN and Infinity within nested values, but they are not valid JSON.
        if b"NaN" in data or b"Inf" in data:
            return None
    return _read_columns(data, fields, kernel_reader)


def _read_columns(
    data: bytes, fields: Sequence[BodyField], kernel_reader: KernelReader | None
) -> pa.Table | None:
    if any(_has_integer_among_fractions(data, field) for field in fields):
        return None
    table = None if kernel_reader is None else kernel_reader(data, fields)
    if table is None:
        table = _read_with_arrow(data, fields)
    # Arrow accepts NaN and Infinity, which are not valid JSON.
    if table is None or not all(map(_are_all_finite, table.columns)):
        return None
    for place, field in enumerate(fields):
        if field.type == pa.string():
            found = parse_text_column(table.column(place), field.column)
            if found is not None:
                table = table.set_column(place, field.name, found)
    return table


def _has_integer_among_fractions(data: bytes, field: BodyField) -> bool:
    """Return True if a field of doubles may have an integer, which only a FLOAT column stores as a double."""
    if field.column.kind is LogicalType.REAL:
        return False
    names = _list_double_names(field.name, field.type)
    if not names:
        return False
    # A name with escapes has several forms.
    if None in names or b"\\u" in data or b"\\/" in data:
        return True
    texts = (json.dumps(name, ensure_ascii=False).encode() for name in names)
    pattern = b"(?:%s)%s" % (b"|".join(map(re.escape, texts)), _INTEGER_PATTERN)
    return re.search(pattern, data) is not None


def _list_double_names(name: str, kind: pa.DataType) -> set[str | None]:
    """Return the names of the doubles in a value. None is an element of a list."""
    if pa.types.is_floating(kind):
        return {name}
    if pa.types.is_struct(kind):
        return set().union(*(_list_double_names(each.name, each.type) for each in kind))
    if pa.types.is_list(kind):
        return {None} if _list_double_names(name, kind.value_type) else set()
    return set()


def _read_with_arrow(data: bytes, fields: Sequence[BodyField]) -> pa.Table | None:
    lines = _count_object_lines(data)
    if not lines:
        return None
    size = max(len(data) // _READ_BLOCKS + 1, _MIN_BLOCK_BYTES)
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
    # Arrow accepts several objects on a line, and null as a row. Arrow keeps the sign of the
    # integer -0.
    if table.num_rows != lines or (
        any(map(_has_negative_zero, table.columns)) and _NEGATIVE_ZERO_PATTERN.search(data)
    ):
        return None
    return table


def parse_text_column(texts: pa.ChunkedArray, column: Column) -> pa.ChunkedArray | None:
    """Parse a column of texts to dates, timestamps or numbers, or return None to use the exact reader."""
    try:
        if column.kind in TIMESTAMP_TYPES:
            # Texts that end in Z are supported for TIMESTAMP_LTZ only. For other types the offset
            # matters.
            return parse_timestamps(
                texts,
                are_utc=column.kind is LogicalType.TIMESTAMP_LTZ and _does_first_end_in_z(texts),
            )
        if column.kind is LogicalType.DATE:
            return _cast_if_all_match(texts, _DATE_PATTERN, pa.date32())
        if column.kind is LogicalType.FIXED:
            scale = column.scale or 0
            fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
            return _cast_if_all_match(
                texts, rf"^-?(0|[1-9][0-9]{{0,17}}){fraction}$", pa.decimal128(38, scale)
            )
    except pa.ArrowException:
        return None
    return None


def _cast_if_all_match(
    texts: pa.ChunkedArray, pattern: str, arrow_type: pa.DataType
) -> pa.ChunkedArray | None:
    matches = pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    return texts.cast(arrow_type) if matches is True else None


def _count_object_lines(data: bytes) -> int:
    """Return the number of lines that begin with an object, or 0 if any line begins otherwise.

    Each such line results in at least one row. If there are as many rows as lines, each line is one
    row.
    """
    marks = np.frombuffer(data, np.uint8)
    after = marks[np.flatnonzero(marks[:-1] == _NEWLINE) + 1]
    objects = int(np.count_nonzero(after == _BRACE))
    blanks = int(np.count_nonzero(after == _NEWLINE))
    return objects + 1 if objects + blanks == len(after) else 0


def _are_all_finite(values: pa.ChunkedArray) -> bool:
    is_float = pa.types.is_floating(values.type)
    return not is_float or pc.all(pc.is_finite(values)).as_py() is not False


def _has_negative_zero(values: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(values.type):
        return False
    return bool(np.signbit(values.filter(pc.equal(values, 0.0)).to_numpy()).any())


def _does_first_end_in_z(texts: pa.ChunkedArray) -> bool:
    first = texts[0].as_py() if len(texts) else None
    return isinstance(first, str) and first.endswith("Z")


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_PUNCTUATION_POSITIONS = ((4, "-"), (7, "-"), (13, ":"), (16, ":"))
_POINT, _Z = ord("."), ord("Z")
# Separators in dates and times, and their positions.
_SEPARATOR_POSITION, _SEPARATORS = 10, (ord("T"), ord(" "))
# Lengths of YYYY-MM-DDThh:mm:ss without and with six fraction digits.
_SECONDS_LENGTH, _MICROSECONDS_LENGTH = 19, 26
# Years 1000 to 2999, in microseconds since 1970.
_MIN_TIMESTAMP_US, _MAX_TIMESTAMP_US = -30_610_224_000_000_000, 32_503_679_999_999_999


def parse_timestamps(texts: pa.ChunkedArray, *, are_utc: bool) -> pa.ChunkedArray | None:
    """Parse texts such as `2026-11-21T10:00:00.123456`. Return None if a text has another form.

    A space may replace the T. If `are_utc` is true, each text ends with Z. Years are 1000 to 2999.

    Raises:
        ArrowException: If a text of that form is not a timestamp.
    """
    if not all(_have_timestamp_format(chunk.drop_null(), int(are_utc)) for chunk in texts.chunks):
        return None
    # The cast rejects characters that are not digits.
    found = texts.cast(pa.timestamp("us", "UTC" if are_utc else None))
    bounds = pc.min_max(found.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return found if low is None or _MIN_TIMESTAMP_US <= low <= high <= _MAX_TIMESTAMP_US else None


def _have_timestamp_format(texts: pa.StringArray, suffix_length: int) -> bool:
    """Return True if punctuation and lengths are correct, with `suffix_length` letters Z at the end."""
    if not len(texts):
        return True
    _, places, data = texts.buffers()
    ends = np.frombuffer(places, np.int32, len(texts) + 1, texts.offset * 4)
    begins, lengths = ends[:-1], np.diff(ends) - suffix_length
    if lengths.min() < _SECONDS_LENGTH or lengths.max() > _MICROSECONDS_LENGTH:
        return False
    letters = np.frombuffer(data, np.uint8)
    between = letters[begins + _SEPARATOR_POSITION]
    longer = begins[lengths > _SECONDS_LENGTH]
    return bool(
        not (lengths == _SECONDS_LENGTH + 1).any()
        and all(
            (letters[begins + place] == ord(sign)).all() for place, sign in _PUNCTUATION_POSITIONS
        )
        and np.isin(between, _SEPARATORS).all()
        and (letters[longer + _SECONDS_LENGTH] == _POINT).all()
        and (not suffix_length or (letters[ends[1:] - 1] == _Z).all())
    )
