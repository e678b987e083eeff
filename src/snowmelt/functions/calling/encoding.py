"""Arrow columns to the body of a request: what `RequestWriter` writes, without a look at each value.

Many rows are put together as Arrow texts, the values between what JSON wants around them. Few
rows, and those with texts that need escapes or quotation marks for some only, go through msgspec.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.functions.calling.forms import arrow_form, floor_micros
from snowmelt.functions.calling.framing import FEW_ROWS, leads, numbers
from snowmelt.functions.calling.texts import needs_escapes, writer
from snowmelt.functions.refusals import BatchInvalid
from snowmelt.functions.wire import exact
from snowmelt.functions.wire.values import BinaryForm
from snowmelt.schema.types import SEMI_STRUCTURED, TIMESTAMPS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.functions.signature import Argument

_UNQUOTED = frozenset({Kind.FIXED, Kind.BOOLEAN, *SEMI_STRUCTURED})
_UNCHECKED = pc.TakeOptions(boundscheck=False)


class ColumnWriter:
    """Writes requests of one function from Arrow columns; for any number of threads."""

    def __init__(
        self,
        arguments: Sequence[Argument],
        zone: str = "UTC",
        *,
        binary: BinaryForm = BinaryForm.HEX,
        array_as_string: bool = False,
    ) -> None:
        """Prepare.

        Args:
            arguments: The function's.
            zone: The session's time zone, in which instants are written.
            binary: How BINARY becomes text.
            array_as_string: Write an ARRAY as text that holds JSON, as the published format says
                of all types but objects, instead of a JSON array.
        """
        self._columns = [
            _Column(each, zone, binary, array_as_string=array_as_string) for each in arguments
        ]
        marks = [each.mark for each in self._columns]
        between = [f"{mark},{after}" for mark, after in pairwise(marks)]
        # What is between the columns of a row, and after the last row.
        self._between = pa.array([*between, *(f"{mark}]]}}" for mark in marks[-1:])], pa.string())

    def listed(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return what msgspec writes for each value, by argument.

        Raises:
            BatchInvalid: A column does not fit its argument.
        """
        return [each.listed(column) for each, column in zip(self._columns, columns, strict=False)]

    def body(self, count: int, columns: Sequence[pa.Array]) -> bytes:
        """Return the body of a batch of `count` rows.

        Args:
            count: Of the rows.
            columns: By argument; a column beyond the arguments is not sent.

        Raises:
            BatchInvalid: A column does not fit its argument.
        """
        if count >= FEW_ROWS and self._columns:
            found = self._by_column(count, columns)
            if found is not None:
                return found
        return exact.write({"data": list(zip(numbers(count), *self.listed(columns), strict=True))})

    def _by_column(self, count: int, columns: Sequence[pa.Array]) -> bytes | None:
        texts = []
        for each, column in zip(self._columns, columns, strict=False):
            found = each.fragments(column)
            if found is None:
                return None
            if len(found) != count:
                raise ValueError("columns differ in their number of rows")
            texts.append(found)
        before = leads(count, self._columns[0].mark, self._columns[-1].mark)
        pieces = pa.concat_arrays([before, self._between, *texts])
        body = pc.call_function("array_take", [pieces, _order(count, len(texts))], _UNCHECKED)
        return body.buffers()[2].to_pybytes()  # type: ignore[no-any-return]


@lru_cache(maxsize=8)
def _order(count: int, width: int) -> pa.Array:
    """Return where the pieces of a body are: leads, what is between columns, and the columns."""
    rows = np.arange(count, dtype=np.int32)
    order = np.empty((count, 2 * width), np.int32)
    order[:, 0] = rows
    for column in range(width):
        order[:, 2 * column + 1] = count + width + column * count + rows
        if column:
            order[:, 2 * column] = count + column - 1
    return pa.array(np.append(order.ravel(), np.int32(count + width - 1)))


class _Column:
    """How one argument is written."""

    def __init__(
        self, argument: Argument, zone: str, binary: BinaryForm, *, array_as_string: bool
    ) -> None:
        self._name = argument.name
        self._type = sql_type = argument.type
        self._kind = Kind.TEXT if array_as_string and sql_type.kind is Kind.ARRAY else sql_type.kind
        self._form = arrow_form(sql_type, zone)
        self._write = writer(self._kind, zone, binary)
        self.mark = "" if self._kind in _UNQUOTED else '"'

    def fragments(self, column: pa.Array) -> pa.StringArray | None:
        """Return texts to stand between the marks; None where it takes a look at each value."""
        # A float that is whole would lose its point; only some of the texts would have marks.
        if self._kind is Kind.REAL or (self.mark and column.null_count):
            return None
        found = self._texts(column)
        if self._kind is Kind.TEXT and needs_escapes(found):
            return None
        return found.fill_null("null") if found.null_count else found

    def listed(self, column: pa.Array) -> list[Any]:
        """Return what msgspec writes for each value."""
        if self._kind is Kind.REAL:
            return _floats(self._as_form(column))
        if self._kind is Kind.BOOLEAN or column.type == pa.int64():
            return column.to_pylist()  # type: ignore[no-any-return]
        texts = self._texts(column).to_pylist()
        if self.mark:
            return texts  # type: ignore[no-any-return]
        return [None if text is None else msgspec.Raw(text) for text in texts]

    def _texts(self, column: pa.Array) -> pa.StringArray:
        column = self._as_form(column)
        if self._type.length is not None:
            self._check_length(column)
        if self._kind in TIMESTAMPS:
            column = floor_micros(column, self._type.scale)
        try:
            return self._write(column)
        except pa.ArrowException as error:
            raise self._refusal(column) from error

    def _check_length(self, column: pa.Array) -> None:
        is_text = self._kind is Kind.TEXT
        lengths = pc.utf8_length(column) if is_text else pc.binary_length(column)
        longest = pc.max(lengths).as_py()
        if longest is not None and longest > (self._type.length or 0):
            row = pc.index(lengths, longest).as_py()
            unit = "characters" if is_text else "bytes"
            raise BatchInvalid(
                reason=f"argument {self._name} of row {row} has {longest} {unit}, more than "
                f"{self._type.full()}"
            )

    def _as_form(self, column: pa.Array) -> pa.Array:
        kind, form = column.type, self._form
        if kind == form:
            return column
        if self._kind is Kind.FIXED and (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            return column
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(form) and form.tz and kind.tz:
            form = pa.timestamp("us", kind.tz)  # the zone of a type says nothing of its values
        try:
            return column.cast(form)
        except pa.ArrowException as error:
            raise self._refusal(column) from error

    def _refusal(self, column: pa.Array) -> BatchInvalid:
        return BatchInvalid(reason=f"argument {self._name} is {column.type}, not {self._form}")


def _floats(column: pa.Array) -> list[Any]:
    values = column.to_pylist()
    finite = pc.is_finite(column)
    if pc.all(finite).as_py() is False:
        for place in pc.indices_nonzero(pc.invert(finite)).to_pylist():
            value = values[place]
            values[place] = "NaN" if value != value else ("inf" if value > 0 else "-inf")
    return values  # type: ignore[no-any-return]
