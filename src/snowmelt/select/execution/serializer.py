"""Output records: CSV per dialect and JSON, from values one by one or from columns at once.

CSV, quotes where needed: a field is quoted when it holds a byte of a delimiter, of the quote or
of the escape. The Ceph dialects quote only when all is to be quoted, and the record of an
aggregate has no delimiter behind it; `ceph-2020` puts a field delimiter behind every value.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.execution.block_executor import AllFields
from snowmelt.select.kernels.output import (
    SPECIAL,
    gather_csv,
    gather_json,
    split_items,
    write_integers,
)
from snowmelt.select.kernels.timestamps import print_instants
from snowmelt.select.request import CsvOutput, JsonOutput
from snowmelt.select.timestamps import Precision, Timestamp
from snowmelt.select.values import MISSING, print_decimal, print_value
from snowmelt.select.vector.operands import plain_values
from snowmelt.select.vectors import PADDING, Kind, Slices, Vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from snowmelt.select.execution.block_executor import Passed
    from snowmelt.select.formats.csv_dialect import CsvRules
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.vectors import Bytes, Instants, Places

_NEVER, _NEEDED, _ALWAYS = 0, 1, 2
# Between these Python writes a float without an exponent.
_PLAIN_FROM, _PLAIN_UP_TO = 1e-4, 1e16


class RecordWriter(Protocol):
    """Writes output records, each with its delimiter."""

    names: Sequence[str]

    def record(self, values: Sequence[object], names: Sequence[str] | None = None) -> bytes:
        """Return one record; `names` where they differ from record to record (`SELECT *`)."""

    def records(
        self, vectors: Sequence[Vector], names: Sequence[str] | None = None
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Return the records of some columns, none of whose rows is deferred."""


def record_writer(query: Query, output: CsvOutput | JsonOutput) -> RecordWriter:
    """Return the writer of a query's records."""
    names = [each.name for each in query.outputs]
    folded = query.grouped and not query.group_by
    if isinstance(output, JsonOutput):
        if folded and query.dialect.is_ceph:
            # Ceph writes the values of an aggregate bare, whatever the output is to be.
            return CsvWriter(CsvOutput(), query.dialect, names, folded=True)
        return JsonWriter(output, names, query.dialect)
    return CsvWriter(output, query.dialect, names, folded=folded)


class CsvWriter:
    """Fields with delimiters between and behind them."""

    def __init__(
        self,
        output: CsvOutput,
        dialect: Dialect,
        names: Sequence[str] = (),
        *,
        folded: bool = False,
    ) -> None:
        """Settle delimiters and quotes; `folded` is for the one record of an aggregate."""
        self.names = names
        self._dialect = dialect
        self._quote, self._escape = output.quote, output.escape or output.quote
        self._between = output.field_delimiter
        self._after = b"" if folded and dialect.is_ceph else output.record_delimiter
        if dialect is Dialect.CEPH_2020:
            self._after = output.field_delimiter + self._after
        self._mode = _NEVER if dialect.is_ceph or not output.quote else _NEEDED
        if output.quote_always and output.quote:
            self._mode = _ALWAYS
        plain = output.field_delimiter + output.record_delimiter
        self._special = np.zeros(256, np.uint8)
        self._special[list(plain)] = 1
        self._special[list(self._quote + self._escape)] = 2
        self._needing = frozenset(plain + self._quote + self._escape)
        looked_for = sorted(self._needing)[:SPECIAL]
        self._looked_for = tuple(map(np.uint8, (looked_for * SPECIAL)[:SPECIAL]))
        self._null = b"null" if dialect is Dialect.CEPH else b""

    def copies(self, rules: CsvRules) -> bool:
        """Tell whether records read by these rules may be copied where they are regular."""
        return (
            self._mode == _NEEDED
            and self._between == rules.field
            and self._after == rules.record
            and len(rules.field) == len(rules.record) == 1
            and self._quote == self._escape == rules.quote
            and not rules.escape
        )

    def record(self, values: Sequence[object], names: Sequence[str] | None = None) -> bytes:  # noqa: ARG002  CSV has no names
        """Return one record with its delimiter."""
        return self._between.join([self._field(value) for value in values]) + self._after

    def records(
        self,
        vectors: Sequence[Vector],
        names: Sequence[str] | None = None,  # noqa: ARG002  CSV has no names
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Return the records of some columns."""
        single = len(self._quote) == len(self._escape) == 1
        if self._mode and not (single and len(self._needing) <= SPECIAL):
            return _one_by_one(self, vectors)
        buffer, starts, ends = _table(vectors, self._dialect, self._null)
        marks = (
            np.frombuffer(self._between + self._after + bytes(PADDING), np.uint8),
            len(self._between),
            self._quote[0] if self._mode else 0,
            self._escape[0] if self._mode else 0,
            self._mode,
        )
        out, row_ends = gather_csv(buffer, starts, ends, (self._special, self._looked_for), marks)
        return out.tobytes(), row_ends

    def _field(self, value: object) -> bytes:
        if value is None or value is MISSING:
            text = self._null
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogateescape")
        else:
            text = plain_text(value, self._dialect).encode("utf-8", "surrogateescape")
        if self._mode == _NEVER or (self._mode == _NEEDED and self._needing.isdisjoint(text)):
            return text
        if self._escape != self._quote:
            text = text.replace(self._escape, self._escape * 2)
        return self._quote + text.replace(self._quote, self._escape + self._quote) + self._quote


class JsonWriter:
    """One object for each record; MISSING is left out."""

    def __init__(self, output: JsonOutput, names: Sequence[str], dialect: Dialect) -> None:
        self.after = output.record_delimiter
        self._dialect = dialect
        self.names = names
        self._labels = _labels(names)

    def record(self, values: Sequence[object], names: Sequence[str] | None = None) -> bytes:
        """Return one record with its delimiter."""
        labels = self._labels if names is None else _labels(names)
        fields = [
            label + json_text(value, self._dialect)
            for label, value in zip(labels, values, strict=False)
            if value is not MISSING
        ]
        return b"{" + b",".join(fields) + b"}" + self.after

    def records(
        self, vectors: Sequence[Vector], names: Sequence[str] | None = None
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Return the records of some columns."""
        labels = self._labels if names is None else _labels(names)
        vectors = [_finite(vector) for vector in vectors]
        buffer, starts, ends = _table(vectors, self._dialect, b"null", json=True)
        shapes = np.zeros(starts.shape, np.uint8)
        for at, vector in enumerate(vectors):
            if vector.kind in (Kind.TEXT, Kind.INSTANT):
                shapes[at] = ~vector.null
        places = np.cumsum([0, *(len(label) for label in labels)], dtype=np.int32)
        written = b"".join((*labels, self.after, bytes(PADDING)))
        named = (np.frombuffer(written, np.uint8), places)
        out, row_ends = gather_json(buffer, starts, ends, shapes, named, len(self.after))
        return out.tobytes(), row_ends


def write_passed(
    passed: Passed, writer: RecordWriter, outputs: int
) -> tuple[bytes, NDArray[np.int64]]:
    """Return the records that passed, in order: from columns where these say all.

    The first `outputs` expressions are what is shown.
    """
    if not len(passed):
        return b"", np.empty(0, np.int64)
    if not len(passed.slow):
        return writer.records(passed.vectors[:outputs])
    slow = [_record(writer, values[:outputs]) for values in passed.slow_values]
    if len(slow) == len(passed):
        return b"".join(slow), np.cumsum([len(each) for each in slow], dtype=np.int64)
    fast = np.ones(len(passed), np.bool_)
    fast[passed.slow] = False
    rows = np.flatnonzero(fast)
    output, ends = writer.records([vector.take(rows) for vector in passed.vectors[:outputs]])
    return interleaved(output, ends, rows, slow, passed.slow)


def _record(writer: RecordWriter, values: Sequence[object]) -> bytes:
    """Return a record, with `*` among its values written out."""
    if not any(isinstance(value, AllFields) for value in values):
        return writer.record(values)
    names: list[str] = []
    spread: list[object] = []
    for place, value in enumerate(values):
        if isinstance(value, AllFields):
            names += value.names
            spread += value.values
        else:
            names.append(writer.names[place])
            spread.append(value)
    return writer.record(spread, names)


def interleaved(
    output: bytes,
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    others: Sequence[bytes],
    places: NDArray[np.int64],
) -> tuple[bytes, NDArray[np.int64]]:
    """Put records that lie in one output at `rows`, and others at their `places`."""
    sizes = np.empty(len(rows) + len(places), np.int64)
    sizes[rows] = np.diff(ends, prepend=0)
    sizes[places] = [len(other) for other in others]
    before = np.concatenate((np.zeros(1, np.int64), ends))
    # So many records of the output come before each of the others.
    counts = places - np.arange(len(places))
    parts: list[bytes] = []
    at = 0
    for other, end in zip(others, before[counts].tolist(), strict=True):
        parts += (output[at:end], other)
        at = end
    parts.append(output[at:])
    return b"".join(parts), np.cumsum(sizes)


def _one_by_one(writer: RecordWriter, vectors: Sequence[Vector]) -> tuple[bytes, NDArray[np.int64]]:
    columns = [plain_values(vector) for vector in vectors]
    records = [writer.record(values) for values in zip(*columns, strict=True)]
    return b"".join(records), np.cumsum([len(each) for each in records], dtype=np.int64)


def _labels(names: Sequence[str]) -> list[bytes]:
    return [json_text(name, Dialect.AWS) + b":" for name in names]


def _table(
    vectors: Sequence[Vector], dialect: Dialect, null: bytes, *, json: bool = False
) -> tuple[Bytes, Places, Places]:
    """Lay the texts of some columns into one buffer; nulls are the text `null`.

    The buffer goes on for `PADDING` bytes behind all texts. `json` writes truths as JSON does.
    """
    rows = len(vectors[0]) if vectors else 0
    starts = np.empty((len(vectors), rows), np.int32)
    ends = np.empty((len(vectors), rows), np.int32)
    buffers: list[Bytes] = []
    places: dict[int, int] = {}
    size = 0
    for at, vector in enumerate(vectors):
        slices = _slices(vector, Dialect.AWS if json and vector.kind is Kind.BOOL else dialect)
        if id(slices.buffer) not in places:
            places[id(slices.buffer)] = size
            buffers.append(slices.buffer)
            size += len(slices.buffer)
        shift = places[id(slices.buffer)]
        np.add(slices.start, shift, out=starts[at], casting="unsafe")
        np.add(slices.end, shift, out=ends[at], casting="unsafe")
    nulls = [(at, vector.null) for at, vector in enumerate(vectors) if vector.null.any()]
    if nulls:
        if null:
            buffers.append(np.frombuffer(null, np.uint8))
        for at, mask in nulls:
            starts[at][mask] = size if null else 0
            ends[at][mask] = size + len(null) if null else 0
    if len(buffers) == 1 and (not rows or int(ends.max()) + PADDING <= size):
        return buffers[0], starts, ends
    return np.concatenate([*buffers, np.zeros(PADDING, np.uint8)]), starts, ends


def _slices(vector: Vector, dialect: Dialect) -> Slices:
    """Return the texts of a vector's values."""
    flags = np.empty(0, np.uint8)
    if isinstance(vector.data, Slices):
        return vector.data
    if vector.kind is Kind.INT:
        return Slices(*write_integers(vector.array), flags)
    if vector.kind is Kind.INSTANT and _prints_alike(vector.instants, dialect):
        return _printed(vector.instants, dialect)
    if vector.kind is Kind.FLOAT and not dialect.is_ceph:
        text = np.frombuffer(_floats(vector), np.uint8)
    else:
        values = plain_values(vector) if vector.kind is Kind.INSTANT else vector.array.tolist()
        items = ",".join([plain_text(value, dialect) for value in values])
        text = np.frombuffer(f"[{items}]".encode(), np.uint8)
    return Slices(text, *split_items(text, len(vector)), flags)


def _floats(vector: Vector) -> bytes:
    """Return `[a,b,c]` with each number as `repr` gives it."""
    values = np.where(vector.null, 0.0, vector.array)
    size = np.abs(values)
    # The encoder finds the same shortest digits, but has other words for what needs an exponent.
    if (((size >= _PLAIN_FROM) & (size < _PLAIN_UP_TO)) | (size == 0)).all():
        return msgspec.json.encode(values.tolist())
    return f"[{','.join(map(repr, values.tolist()))}]".encode()


def _finite(vector: Vector) -> Vector:
    """Make NaN and the infinities, which JSON has not, null."""
    if vector.kind is not Kind.FLOAT:
        return vector
    odd = ~np.isfinite(vector.array)
    if not odd.any():
        return vector
    return Vector(vector.kind, vector.array, vector.null | odd, vector.deferred)


def _prints_alike(instants: Instants, dialect: Dialect) -> bool:
    """Tell whether all timestamps of a form have one width; Ceph leaves out what is zero."""
    fraction = instants.form is not None and instants.form.digits > 0
    return dialect is Dialect.AWS or (dialect is Dialect.CEPH and not fraction)


def _printed(instants: Instants, dialect: Dialect) -> Slices:
    """Return timestamps that have a form as the dialect shows them."""
    form = instants.form
    if form is None:
        raise TypeError(Kind.INSTANT)
    # The first engine's days have their midnight with them.
    days_alone = form.precision is Precision.DAY and dialect is Dialect.AWS
    found = print_instants(instants.packed, form.digits, days_alone=days_alone)
    return Slices(*found, np.empty(0, np.uint8))


# --- Values as JSON text: numbers keep every digit, timestamps are strings.


def json_text(value: object, dialect: Dialect) -> bytes:
    """Return a value as JSON; NaN and the infinities, which JSON has not, are null.

    Floats and timestamps are shown as the dialect shows them. Bytes that were no UTF-8 where they were read are written as they were.

    Raises:
        SelectError: It is nested hundreds of levels deep.
    """
    return _joined(value, dialect).encode("utf-8", "surrogateescape")


def plain_text(value: object, dialect: Dialect) -> str:
    """Return a value as a CSV field shows it; lists and records as JSON.

    Raises:
        SelectError: It is nested hundreds of levels deep.
    """
    if isinstance(value, list | dict):
        return _joined(value, dialect)
    return print_value(value, dialect)


def _joined(value: object, dialect: Dialect) -> str:
    try:
        return "".join(_pieces(value, dialect))
    except RecursionError:
        raise SelectError("JSONParsingError", "A value is nested too deep to be written.") from None


def _pieces(value: object, dialect: Dialect) -> list[str]:
    if isinstance(value, dict):
        return _record_json_output(value, dialect)
    if isinstance(value, list):
        items = [piece for item in value for piece in (",", *_pieces(item, dialect))]
        return ["[", *items[1:], "]"]
    return [_scalar(value, dialect)]


def _record_json_output(value: dict[object, object], dialect: Dialect) -> list[str]:
    fields: list[str] = []
    for name, item in value.items():
        if item is not MISSING:
            fields += [",", _string(str(name)), ":", *_pieces(item, dialect)]
    return ["{", *fields[1:], "}"]


def _scalar(value: object, dialect: Dialect) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):
        return _number(value, dialect)
    if isinstance(value, Timestamp):
        return _string(print_value(value, dialect))
    return str(value) if isinstance(value, int) else "null"


def _number(value: float | Decimal, dialect: Dialect) -> str:
    if isinstance(value, Decimal):
        # By its own word: a decimal that no float holds is finite all the same.
        return print_decimal(value) if value.is_finite() else "null"
    return print_value(value, dialect) if math.isfinite(value) else "null"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
