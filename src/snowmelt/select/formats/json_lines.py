"""JSON lines as columns: kernels read what lines hold, the decoder each record that they leave.

Numbers keep every digit: integers of any size, decimals as they are written; those with an
exponent are the nearest float, unless it is infinite.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from snowmelt.select.formats.csv_tokenizer import first_bad_byte
from snowmelt.select.kernels.json import (
    ABSENT,
    DECIMAL,
    FALSE,
    NULL,
    TEXT,
    TRUE,
    WHOLE,
    names_of,
    read_inside,
    read_lines,
)
from snowmelt.select.kernels.numbers import parse_integers
from snowmelt.select.scalar.paths import follow
from snowmelt.select.sql.ast import Column, Word, parts
from snowmelt.select.values import MISSING
from snowmelt.select.vectors import Kind, Slices, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from snowmelt.select.errors import SelectError
    from snowmelt.select.formats.blocks import Block
    from snowmelt.select.kernels.json import Found
    from snowmelt.select.sql.ast import Expression, Step
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.vectors import Bytes, Places

_FIRST = Word("_1")


def _number(text: str) -> object:
    if "e" in text or "E" in text:
        nearest = float(text)
        if math.isfinite(nearest):
            return nearest
    try:
        return Decimal(text)
    except ArithmeticError as error:
        raise ValueError(f"{text[:40]} is beyond every number") from error


_DECODER = msgspec.json.Decoder(float_hook=_number)
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(_PAIR + rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL)
_REPLACED = rb"\ufffd"
# Nested some hundred levels deep is as little JSON for us as what is none.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)


def decoded(text: memoryview) -> object:
    """Return the one value that a text says.

    Half of a surrogate pair, which is left where a text was cut within a character, is U+FFFD.

    Raises:
        msgspec.DecodeError: It is not JSON; so do all of `NOT_JSON`.
    """
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        written = bytes(text)
        mended = _ESCAPES.sub(_whole, written)
        if mended == written:
            raise
    return _DECODER.decode(mended)


def _whole(escape: re.Match[bytes]) -> bytes:
    return _REPLACED if escape["half"] else escape[0]


class LineColumns:
    """The fields that a query reads, where steps by name lead to them; finds them in blocks."""

    def __init__(self, query: Query) -> None:
        self._ceph = query.dialect.is_ceph
        self._paths: dict[tuple[Step, ...], tuple[tuple[bytes, bool], ...]] = {}
        firsts: list[tuple[bytes, bool]] = []
        for column in _columns(query):
            path = tuple(step for step in column.steps if isinstance(step, Word))
            # A name beyond ASCII has small letters that the kernels do not know.
            named = all(step.text.isascii() or self._is_exact(step) for step in path)
            if not (path and named) or len(path) != len(column.steps) or path[0] == _FIRST:
                continue
            names = tuple(self._name(step) for step in path)
            # A key is one name's: "a" beside a, which stands for A, too, is the evaluator's.
            if all(names[0] == each or names[0][0].lower() != each[0].lower() for each in firsts):
                self._paths[column.steps] = names
                if names[0] not in firsts:
                    firsts.append(names[0])
        self._places = {path: firsts.index(names[0]) for path, names in self._paths.items()}
        self._names = names_of(firsts)

    def _is_exact(self, step: Word) -> bool:
        return step.quoted and not self._ceph

    def _name(self, step: Word) -> tuple[bytes, bool]:
        folds = not self._is_exact(step)
        text = step.text.lower() if folds else step.text
        return text.encode("utf-8", "surrogateescape"), folds

    def read(self, block: Block) -> LinesBatch | None:
        """Return a block's records; None where lines are not one object each, or may not be."""
        if first_bad_byte(block.data, block.start, block.end) >= 0:
            return None
        most = block.memory.count(b"\n", block.start, block.end) + 1
        read = read_lines(block.data, block.start, block.end, self._names, most)
        if read is None:
            return None
        return LinesBatch(block, read[0], read[1], self)

    @property
    def ceph(self) -> bool:
        """Whether paths are followed as in Ceph."""
        return self._ceph

    def find(self, batch: LinesBatch, column: Column) -> tuple[Places, Places, Bytes] | None:
        """Return where a column's values lie; None where only the evaluator finds them."""
        names = self._paths.get(column.steps)
        if names is None:
            return None
        place = self._places[column.steps]
        starts, ends, kinds = batch.found
        found = starts[place], ends[place], kinds[place]
        for name in names[1:]:
            starts, ends, kinds = read_inside(batch.block.data, *found, names_of([name]))
            found = starts[0], ends[0], kinds[0]
        return found


def _columns(query: Query) -> Iterator[Column]:
    expressions: list[Expression] = [output.expression for output in query.outputs]
    expressions += [order.expression for order in query.order_by]
    expressions += [*query.aggregates, *query.group_by]
    if query.where is not None:
        expressions.append(query.where)
    for expression in expressions:
        yield from (part for part in parts(expression) if isinstance(part, Column))


@dataclass(frozen=True, slots=True)
class LinesBatch:
    """Records as places in a block's data; valid until the block is released."""

    block: Block
    # Where each record begins and ends.
    bounds: NDArray[np.int32]
    found: Found
    columns: LineColumns
    failure: SelectError | None = None

    @property
    def rows(self) -> int:
        """How many records."""
        return len(self.bounds[0])

    def vector(self, column: Column, *, shown: bool = False) -> Vector | None:
        """Return a column's values, those of other types than most are of deferred."""
        found = self.columns.find(self, column)
        if found is None:
            return None
        starts, ends, kinds = found
        null = kinds == NULL
        if not shown:
            null |= kinds == ABSENT
        counts = np.bincount(kinds, minlength=16)
        slices = Slices(self.block.data, starts, ends, np.zeros(len(kinds), np.uint8))
        numbers = counts[WHOLE] + counts[DECIMAL]
        truths = counts[TRUE] + counts[FALSE]
        if counts[TEXT] > max(numbers, truths):
            return Vector(Kind.TEXT, slices, null, ~(null | (kinds == TEXT)))
        if truths > numbers:
            odd = ~(null | (kinds == TRUE) | (kinds == FALSE))
            return Vector(Kind.BOOL, kinds == TRUE, null, odd)
        if counts[DECIMAL]:
            odd = ~(null | (kinds == WHOLE) | (kinds == DECIMAL))
            return Vector(Kind.NUMERAL, slices, null, odd)
        if numbers:
            values, status = parse_integers(slices)
            return Vector(Kind.INT, values, null, ~null & ((status != 0) | (kinds != WHOLE)))
        return Vector(Kind.VALUES, np.empty(len(kinds), np.object_), null, ~null)

    def row(self, place: int) -> JsonRow:
        """Return one record."""
        start, end = self.bounds[:, place].tolist()
        return JsonRow(decoded(memoryview(self.block.memory)[start:end]), self.columns.ceph)

    def offset(self, place: int) -> int:
        """Return the byte of the object's text where a record begins."""
        return self.block.offset + int(self.bounds[0, place]) - self.block.start


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One record as the evaluator reads it; MISSING where FROM's path led nowhere."""

    record: object
    ceph: bool

    def field(self, column: Column) -> object:
        """Return what the column's path leads to, MISSING if nowhere."""
        found = follow(self.record, column.steps, ceph=self.ceph)
        if found is MISSING and column.steps[:1] == (_FIRST,):
            # The record itself is its first, unnamed field.
            return follow(self.record, column.steps[1:], ceph=self.ceph)
        return found

    def fields(self) -> Sequence[object]:
        """Return the values of `*`."""
        if isinstance(self.record, dict):
            return list(self.record.values())
        return [] if self.record is MISSING else [self.record]

    def names(self) -> Sequence[str]:
        """Return the names of these values."""
        return list(self.record) if isinstance(self.record, dict) else ["_1"]
