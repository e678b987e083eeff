"""Record serializers: write CSV (by the rules of each dialect) or JSON, row by row or by column.

CSV with quotes as needed: a field is quoted if it contains a byte of a delimiter, of the quote or
of the escape. The Ceph dialects quote either all fields or none, and write no delimiter after the
record of an aggregate. `ceph-2020` writes a field delimiter after every value.

JSON: numbers keep every digit, timestamps are strings, NaN and infinities are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from snowmelt.kernels.csv_tokenizer import CsvRules
from snowmelt.kernels.slices import PADDING_BYTES, Bytes, Positions, StringSlices, view_bytes
from snowmelt.select.dialect import Dialect
from snowmelt.select.execution.block_executor import SelectedRecords, StarValue
from snowmelt.select.kernels.output import (
    SPECIAL_BYTE_COUNT,
    format_integers,
    split_list_items,
    write_csv_rows,
    write_json_rows,
)
from snowmelt.select.kernels.timestamps import format_timestamps
from snowmelt.select.request import CsvOutput, JsonOutput
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.timestamps import TimestampPrecision
from snowmelt.select.values import MISSING, format_json, format_value
from snowmelt.select.vector.operands_and_frames import vector_to_values
from snowmelt.select.vectors import TimestampVector, ValueVector, VectorKind

_QUOTE_NEVER, _QUOTE_AS_NEEDED, _QUOTE_ALWAYS = 0, 1, 2
# `repr` writes a float in this range without an exponent.
_FIXED_POINT_START, _FIXED_POINT_END = 1e-4, 1e16


# Concatenated records, and the end offset of each.
OutputSegment: TypeAlias = "tuple[bytes | memoryview, NDArray[np.int64]]"


class RecordSerializer(Protocol):
    """Writer of output records, each with its delimiter."""

    names: Sequence[str]

    def serialize_record(
        self, values: Sequence[object], names: Sequence[str] | None = None
    ) -> bytes:
        """Return one record. `names` is given if names differ between records (`SELECT *`)."""

    def serialize_columns(
        self, vectors: Sequence[ValueVector], names: Sequence[str] | None = None
    ) -> OutputSegment:
        """Return the records of some columns. No row may be deferred."""


def make_record_serializer(query: BoundQuery, output: CsvOutput | JsonOutput) -> RecordSerializer:
    """Return the writer for the records of a query."""
    names = [each.name for each in query.outputs]
    folded = query.grouped and not query.group_by
    if isinstance(output, JsonOutput):
        if folded and query.dialect.is_ceph:
            # Ceph writes the values of an aggregate as plain CSV for every output format.
            return CsvSerializer(CsvOutput(), query.dialect, names, is_aggregate=True)
        return JsonSerializer(output, names, query.dialect)
    return CsvSerializer(output, query.dialect, names, is_aggregate=folded)


class CsvSerializer:
    """CSV writer."""

    def __init__(
        self,
        output: CsvOutput,
        dialect: Dialect,
        names: Sequence[str] = (),
        *,
        is_aggregate: bool = False,
    ) -> None:
        """Set delimiters and quoting. `is_aggregate` is True for the single record of an aggregate."""
        self.names = names
        self._dialect = dialect
        self._quote, self._escape = output.quote, output.escape or output.quote
        self._field_delimiter = output.field_delimiter
        self._record_delimiter = (
            b"" if is_aggregate and dialect.is_ceph else output.record_delimiter
        )
        if dialect is Dialect.CEPH_2020:
            self._record_delimiter = output.field_delimiter + self._record_delimiter
        self._mode = _QUOTE_NEVER if dialect.is_ceph or not output.quote else _QUOTE_AS_NEEDED
        if output.quote_always and output.quote:
            self._mode = _QUOTE_ALWAYS
        plain = output.field_delimiter + output.record_delimiter
        self._byte_quote_classes = np.zeros(256, np.uint8)
        self._byte_quote_classes[list(plain)] = 1
        self._byte_quote_classes[list(self._quote + self._escape)] = 2
        self._bytes_needing_quotes = frozenset(plain + self._quote + self._escape)
        looked_for = sorted(self._bytes_needing_quotes)[:SPECIAL_BYTE_COUNT]
        self._searched_bytes = tuple(
            map(np.uint8, (looked_for * SPECIAL_BYTE_COUNT)[:SPECIAL_BYTE_COUNT])
        )
        self._null = b"null" if dialect is Dialect.CEPH else b""

    def can_copy_records(self, rules: CsvRules) -> bool:
        """Return True if records with these rules can be copied, unless they need requoting."""
        return (
            self._mode == _QUOTE_AS_NEEDED
            and self._field_delimiter == rules.field
            and self._record_delimiter == rules.record
            and len(rules.field) == len(rules.record) == 1
            and self._quote == self._escape == rules.quote
            and not rules.escape
        )

    def serialize_record(
        self,
        values: Sequence[object],
        names: Sequence[str] | None = None,  # noqa: ARG002 - CSV has no names
    ) -> bytes:
        """Return one record with its delimiter."""
        return (
            self._field_delimiter.join([self._format_field(value) for value in values])
            + self._record_delimiter
        )

    def serialize_columns(
        self,
        vectors: Sequence[ValueVector],
        names: Sequence[str] | None = None,  # noqa: ARG002  CSV has no names
    ) -> OutputSegment:
        """Return the records of some columns."""
        single = len(self._quote) == len(self._escape) == 1
        if self._mode and not (single and len(self._bytes_needing_quotes) <= SPECIAL_BYTE_COUNT):
            return _serialize_row_by_row(self, vectors)
        buffer, starts, ends = _build_text_table(vectors, self._dialect, self._null)
        marks = (
            view_bytes(self._field_delimiter + self._record_delimiter + bytes(PADDING_BYTES)),
            len(self._field_delimiter),
            self._quote[0] if self._mode else 0,
            self._escape[0] if self._mode else 0,
            self._mode,
        )
        out, row_ends = write_csv_rows(
            buffer, starts, ends, (self._byte_quote_classes, self._searched_bytes), marks
        )
        return out.data, row_ends

    def _format_field(self, value: object) -> bytes:
        if value is None or value is MISSING:
            text = self._null
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogateescape")
        else:
            text = format_value(value, self._dialect).encode("utf-8", "surrogateescape")
        if self._mode == _QUOTE_NEVER or (
            self._mode == _QUOTE_AS_NEEDED and self._bytes_needing_quotes.isdisjoint(text)
        ):
            return text
        if self._escape != self._quote:
            text = text.replace(self._escape, self._escape * 2)
        return self._quote + text.replace(self._quote, self._escape + self._quote) + self._quote


class JsonSerializer:
    """JSON writer: one object per record, without MISSING values."""

    def __init__(self, output: JsonOutput, names: Sequence[str], dialect: Dialect) -> None:
        self.record_delimiter = output.record_delimiter
        self._dialect = dialect
        self.names = names
        self._encoded_keys = _encode_json_keys(names)

    def serialize_record(
        self, values: Sequence[object], names: Sequence[str] | None = None
    ) -> bytes:
        """Return one record with its delimiter."""
        labels = self._encoded_keys if names is None else _encode_json_keys(names)
        fields = [
            label + encode_json_value(value, self._dialect)
            for label, value in zip(labels, values, strict=False)
            if value is not MISSING
        ]
        return b"{" + b",".join(fields) + b"}" + self.record_delimiter

    def serialize_columns(
        self, vectors: Sequence[ValueVector], names: Sequence[str] | None = None
    ) -> OutputSegment:
        """Return the records of some columns."""
        labels = self._encoded_keys if names is None else _encode_json_keys(names)
        vectors = [_nullify_non_finite(vector) for vector in vectors]
        buffer, starts, ends = _build_text_table(vectors, self._dialect, b"null", is_json=True)
        shapes = np.zeros(starts.shape, np.uint8)
        for at, vector in enumerate(vectors):
            if vector.kind in (VectorKind.TEXT, VectorKind.TIMESTAMP):
                shapes[at] = ~vector.null
        places = np.cumsum([0, *(len(label) for label in labels)], dtype=np.int32)
        written = b"".join((*labels, self.record_delimiter, bytes(PADDING_BYTES)))
        named = (view_bytes(written), places)
        out, row_ends = write_json_rows(
            buffer, starts, ends, shapes, named, len(self.record_delimiter)
        )
        return out.data, row_ends


def serialize_records(
    selected: SelectedRecords, writer: RecordSerializer, output_count: int
) -> OutputSegment:
    """Serialize the selected records in order: by column, or row by row if they are scalar rows.

    Only the first `output_count` expressions are output.
    """
    if not len(selected):
        return b"", np.empty(0, np.int64)
    if not len(selected.scalar_rows):
        return writer.serialize_columns(selected.vectors[:output_count])
    slow = [
        _serialize_expanded_record(writer, values[:output_count])
        for values in selected.scalar_values
    ]
    if len(slow) == len(selected):
        return b"".join(slow), np.cumsum([len(each) for each in slow], dtype=np.int64)
    fast = np.ones(len(selected), np.bool_)
    fast[selected.scalar_rows] = False
    rows = np.flatnonzero(fast)
    output, ends = writer.serialize_columns(
        [vector.take(rows) for vector in selected.vectors[:output_count]]
    )
    return interleave_records(output, ends, rows, slow, selected.scalar_rows)


def _serialize_expanded_record(writer: RecordSerializer, values: Sequence[object]) -> bytes:
    """Return a record, with `*` expanded to its fields."""
    if not any(isinstance(value, StarValue) for value in values):
        return writer.serialize_record(values)
    names: list[str] = []
    spread: list[object] = []
    for place, value in enumerate(values):
        if isinstance(value, StarValue):
            names += value.names
            spread += value.values
        else:
            names.append(writer.names[place])
            spread.append(value)
    return writer.serialize_record(spread, names)


def interleave_records(
    output: bytes | memoryview,
    record_ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    other_records: Sequence[bytes | memoryview],
    other_rows: NDArray[np.int64],
) -> OutputSegment:
    """Merge the records of `output` (at indexes `rows`) with others (at indexes `other_rows`)."""
    sizes = np.empty(len(rows) + len(other_rows), np.int64)
    sizes[rows] = np.diff(record_ends, prepend=0)
    sizes[other_rows] = [len(other) for other in other_records]
    before = np.concatenate((np.zeros(1, np.int64), record_ends))
    # For each of the other records, the number of records of `output` before it.
    counts = other_rows - np.arange(len(other_rows))
    parts: list[bytes | memoryview] = []
    at = 0
    for other, end in zip(other_records, before[counts].tolist(), strict=True):
        parts += (output[at:end], other)
        at = end
    parts.append(output[at:])
    return b"".join(parts), np.cumsum(sizes)


def _serialize_row_by_row(
    writer: RecordSerializer, vectors: Sequence[ValueVector]
) -> OutputSegment:
    columns = [vector_to_values(vector) for vector in vectors]
    records = [writer.serialize_record(values) for values in zip(*columns, strict=True)]
    return b"".join(records), np.cumsum([len(each) for each in records], dtype=np.int64)


def _encode_json_keys(names: Sequence[str]) -> list[bytes]:
    return [encode_json_value(name, Dialect.AWS) + b":" for name in names]


def _build_text_table(
    vectors: Sequence[ValueVector], dialect: Dialect, null_text: bytes, *, is_json: bool = False
) -> tuple[Bytes, Positions, Positions]:
    """Write the strings of some columns into one buffer. NULL is written as `null_text`.

    At least `PADDING_BYTES` bytes follow the last string. `is_json` writes booleans as in JSON.
    """
    rows = len(vectors[0]) if vectors else 0
    starts = np.empty((len(vectors), rows), np.int32)
    ends = np.empty((len(vectors), rows), np.int32)
    buffers: list[Bytes] = []
    places: dict[int, int] = {}
    size = 0
    for at, vector in enumerate(vectors):
        slices = _format_vector(
            vector, Dialect.AWS if is_json and vector.kind is VectorKind.BOOL else dialect
        )
        if id(slices.buffer) not in places:
            places[id(slices.buffer)] = size
            buffers.append(slices.buffer)
            size += len(slices.buffer)
        shift = places[id(slices.buffer)]
        np.add(slices.start, shift, out=starts[at], casting="unsafe")
        np.add(slices.end, shift, out=ends[at], casting="unsafe")
    nulls = [(at, vector.null) for at, vector in enumerate(vectors) if vector.null.any()]
    if nulls:
        if null_text:
            buffers.append(np.frombuffer(null_text, np.uint8))
        for at, mask in nulls:
            starts[at][mask] = size if null_text else 0
            ends[at][mask] = size + len(null_text) if null_text else 0
    if len(buffers) == 1 and (not rows or int(ends.max()) + PADDING_BYTES <= size):
        return buffers[0], starts, ends
    return np.concatenate([*buffers, np.zeros(PADDING_BYTES, np.uint8)]), starts, ends


def _format_vector(vector: ValueVector, dialect: Dialect) -> StringSlices:
    """Return the values of a vector as strings."""
    flags = np.empty(0, np.uint8)
    if isinstance(vector.data, StringSlices):
        return vector.data
    if vector.kind is VectorKind.INT:
        return StringSlices(*format_integers(vector.array), flags)
    if vector.kind is VectorKind.TIMESTAMP and _has_fixed_width(vector.timestamps, dialect):
        return _format_timestamp_vector(vector.timestamps, dialect)
    if vector.kind is VectorKind.FLOAT and not dialect.is_ceph:
        text = view_bytes(_format_floats(vector))
    else:
        values = (
            vector_to_values(vector)
            if vector.kind is VectorKind.TIMESTAMP
            else vector.array.tolist()
        )
        items = ",".join([format_value(value, dialect) for value in values])
        text = view_bytes(f"[{items}]".encode())
    return StringSlices(text, *split_list_items(text, len(vector)), flags)


def _format_floats(vector: ValueVector) -> bytes:
    """Return `[a,b,c]` with each number formatted as by `repr`."""
    values = np.where(vector.null, 0.0, vector.array)
    size = np.abs(values)
    # The encoder writes the same shortest digits as `repr`, but formats exponents differently.
    if (((size >= _FIXED_POINT_START) & (size < _FIXED_POINT_END)) | (size == 0)).all():
        return msgspec.json.encode(values.tolist())
    return f"[{','.join(map(repr, values.tolist()))}]".encode()


def _nullify_non_finite(vector: ValueVector) -> ValueVector:
    """Replace NaN and infinities with null, because JSON cannot represent them."""
    if vector.kind is not VectorKind.FLOAT:
        return vector
    odd = ~np.isfinite(vector.array)
    if not odd.any():
        return vector
    return ValueVector(vector.kind, vector.array, vector.null | odd, vector.deferred)


def _has_fixed_width(timestamps: TimestampVector, dialect: Dialect) -> bool:
    """Return True if a dialect writes all timestamps of a format with the same width.

    Ceph omits a zero fraction, so the width varies.
    """
    fraction = (
        timestamps.display_format is not None and timestamps.display_format.fraction_digits > 0
    )
    return dialect is Dialect.AWS or (dialect is Dialect.CEPH and not fraction)


def _format_timestamp_vector(timestamps: TimestampVector, dialect: Dialect) -> StringSlices:
    """Format timestamps that have a display format."""
    form = timestamps.display_format
    if form is None:
        raise TypeError(VectorKind.TIMESTAMP)
    # Ceph writes dates with the time midnight.
    days_alone = form.precision is TimestampPrecision.DAY and dialect is Dialect.AWS
    found = format_timestamps(timestamps.packed, form.fraction_digits, date_only=days_alone)
    return StringSlices(*found, np.empty(0, np.uint8))


def encode_json_value(value: object, dialect: Dialect) -> bytes:
    """Encode a value as JSON. NaN and infinities are null, because JSON cannot represent them.

    Floats and timestamps are formatted as in the dialect. Input bytes that are not UTF-8 are written
    unchanged.

    Raises:
        SelectError: If the nesting of the value exceeds Python's recursion limit.
    """
    return format_json(value, dialect).encode("utf-8", "surrogateescape")
