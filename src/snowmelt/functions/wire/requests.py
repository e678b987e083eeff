"""The body of a request: `{"data": [[number, argument, …], …]}`."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from operator import itemgetter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from snowmelt.functions.refusals import BatchInvalid
from snowmelt.functions.types import MAX_PRECISION
from snowmelt.functions.wire import exact
from snowmelt.functions.wire.values import Formats, Mismatch, reader, writer
from snowmelt.schema.types import TIMESTAMPS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from snowmelt.functions.signature import Argument
    from snowmelt.functions.types import SqlType
    from snowmelt.functions.wire.values import Convert

# What the fast decoder checks for each type; texts are converted afterwards.
_DECODED: dict[Kind, Any] = {
    Kind.REAL: float,
    Kind.BOOLEAN: bool,
    Kind.TEXT: str,
    Kind.DATE: dt.date,
    Kind.TIME: str,
    Kind.BINARY: str,
    Kind.VARIANT: Any,
    Kind.OBJECT: dict[str, Any],
    Kind.ARRAY: list[Any],
    **dict.fromkeys(TIMESTAMPS, str),
}


def decoded_type(sql_type: SqlType) -> Any:
    """Return the Python type that a value of this type is decoded to at first."""
    if sql_type.kind is Kind.FIXED:
        # msgspec's own Decimal takes texts as well, with underscores and digits of other scripts.
        return int if sql_type.is_whole else Any
    return _DECODED[sql_type.kind]


def needs_conversion(sql_type: SqlType) -> bool:
    """Return True if a value decoded as `decoded_type` says is no value of the type yet."""
    if sql_type.kind is Kind.FIXED:
        return not (sql_type.is_whole and sql_type.precision == MAX_PRECISION)
    has_length = sql_type.kind is Kind.TEXT and sql_type.length is not None
    converted = {Kind.TIME, Kind.BINARY, *TIMESTAMPS}
    return has_length or sql_type.kind in converted


@lru_cache(maxsize=64)
def _numbers(count: int) -> list[int]:
    return list(range(count))


class Batch(NamedTuple):
    """The rows of a request, by argument; NULL is None."""

    rows: int
    columns: list[list[Any]]
    # False only where no argument that is declared without NULL holds one.
    has_nulls: bool


class RequestReader:
    """Reads requests of one function; for any number of threads."""

    def __init__(self, arguments: Sequence[Argument], formats: Formats | None = None) -> None:
        formats = formats or Formats()
        self._readers = [reader(each.type, formats) for each in arguments]
        self._afterwards = [
            (at, self._readers[at])
            for at, each in enumerate(arguments)
            if needs_conversion(each.type)
        ]
        self._getters = [itemgetter(at) for at in range(len(arguments) + 1)]
        types = [decoded_type(each.type) for each in arguments]
        self._expected = _decoder(
            kind | None if each.nullable and kind is not Any else kind
            for kind, each in zip(types, arguments, strict=True)
        )
        self._with_nulls = _decoder(kind if kind is Any else kind | None for kind in types)

    def read(self, body: bytes) -> Batch:
        """Return the number of rows, and the values of each argument.

        Raises:
            BatchInvalid: It is not the form, the numbers are not 0, 1, 2 …, or a value does not
                fit its argument. The message holds no value.
        """
        for decoder in (self._expected, self._with_nulls):
            try:
                rows = decoder.decode(body).data
            except (msgspec.DecodeError, UnicodeDecodeError, exact.NotJson, RecursionError):
                continue
            return self._batch(rows, has_nulls=decoder is self._with_nulls)
        return self._read_slowly(body)

    def _batch(self, rows: list[tuple[Any, ...]], *, has_nulls: bool) -> Batch:
        count = len(rows)
        # Column by column: zip(*rows) makes an object for each row, and costs a third more.
        numbers, *columns = ([*map(get, rows)] for get in self._getters)
        if numbers != _numbers(count):
            raise BatchInvalid(reason="its row numbers are not 0, 1, 2 and so on")
        for at, convert in self._afterwards:
            columns[at] = self._converted(columns[at], convert, at)
        return Batch(count, columns, has_nulls)

    def _read_slowly(self, body: bytes) -> Batch:
        """Read what the fast decoders refuse: take it if it can be understood, else say why."""
        try:
            top = exact.parse(body, lenient=True)
        except exact.NotJson as error:
            raise BatchInvalid(reason=f"its body is not JSON: {error}") from None
        rows = top.get("data") if isinstance(top, dict) else None
        if not isinstance(rows, list):
            raise BatchInvalid(reason='its body is not a JSON object with an array "data"')
        width = len(self._readers) + 1
        for at, row in enumerate(rows):
            if not isinstance(row, list):
                raise BatchInvalid(reason=f"row {at} is not an array")
            if len(row) != width:
                raise BatchInvalid(
                    reason=f"row {at} has {len(row)} elements, not its number and "
                    f"{width - 1} arguments"
                )
            if type(row[0]) is not int or row[0] != at:
                raise BatchInvalid(reason="its row numbers are not 0, 1, 2 and so on")
        _, *columns = zip(*rows, strict=True) if rows else [()] * width
        converted = [
            self._converted(column, convert, at)
            for at, (column, convert) in enumerate(zip(columns, self._readers, strict=True))
        ]
        return Batch(len(rows), converted, has_nulls=True)

    def _converted(self, column: Iterable[Any], convert: Convert, argument: int) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(None if value is None else convert(value) for value in column)
        except Mismatch as error:
            where = f"argument {argument + 1} of row {len(found)}"
            raise BatchInvalid(reason=f"{where}: {error}") from None
        return found


def _decoder(types: Iterable[Any]) -> msgspec.json.Decoder[Any]:
    row = GenericAlias(tuple, (int, *types))
    rows: Any = GenericAlias(list, (row,))
    batch = msgspec.defstruct("Batch", [("data", rows)])
    return msgspec.json.Decoder(batch, float_hook=exact.number)


class RequestWriter:
    """Writes requests of one function from columns of Python values."""

    def __init__(self, arguments: Sequence[Argument], formats: Formats | None = None) -> None:
        formats = formats or Formats()
        self._writers = [writer(each.type, formats) for each in arguments]

    def body(self, count: int, columns: Sequence[Iterable[Any]]) -> bytes:
        """Return the body of a batch; a `msgspec.Raw` is JSON text already.

        Raises:
            Mismatch: A value does not fit its argument's type.
        """
        written = [
            [value if value is None or isinstance(value, msgspec.Raw) else write(value)
             for value in column]
            for write, column in zip(self._writers, columns, strict=True)
        ]  # fmt: skip
        return exact.write({"data": list(zip(range(count), *written, strict=True))})
