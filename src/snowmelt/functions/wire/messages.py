"""Bodies of requests and responses.

A request is `{"data": [[number, argument, …], …]}`, a response `{"data": [[number, value], …]}`.
Callers can request row errors, a Snowmelt extension. The response key `errors` then has `[number,
code, message]` for each failed row, whose value in `data` is null.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec

from snowmelt.functions.errors import BatchInvalid, ResponseInvalid
from snowmelt.functions.signature import MAX_PRECISION, FunctionArgument, SqlType
from snowmelt.functions.wire.values import (
    Formats,
    ValueConverter,
    ValueMismatch,
    make_value_reader,
    make_value_writer,
)
from snowmelt.json import exact
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, LogicalType

# Python types that the fast decoder verifies. Other types are decoded as strings and then
# converted.
_DECODED_TYPES: dict[LogicalType, Any] = {
    LogicalType.REAL: float,
    LogicalType.BOOLEAN: bool,
    LogicalType.TEXT: str,
    LogicalType.DATE: dt.date,
    LogicalType.TIME: str,
    LogicalType.BINARY: str,
    LogicalType.VARIANT: Any,
    LogicalType.OBJECT: dict[str, Any],
    LogicalType.ARRAY: list[Any],
    **dict.fromkeys(TIMESTAMP_TYPES, str),
}


def get_decoded_type(sql_type: SqlType) -> Any:
    """Return the Python type to which the fast decoder decodes values of a SQL type."""
    if sql_type.kind is LogicalType.FIXED:
        # Do not use msgspec's Decimal: it also accepts strings, underscores and non-ASCII digits.
        return int if sql_type.is_integer else Any
    return _DECODED_TYPES[sql_type.kind]


def needs_conversion(sql_type: SqlType) -> bool:
    """Return True if values decoded as `get_decoded_type` need a conversion to the SQL type."""
    if sql_type.kind is LogicalType.FIXED:
        return not (sql_type.is_integer and sql_type.precision == MAX_PRECISION)
    has_length = sql_type.kind is LogicalType.TEXT and sql_type.length is not None
    converted = {LogicalType.TIME, LogicalType.BINARY, *TIMESTAMP_TYPES}
    return has_length or sql_type.kind in converted


@lru_cache(maxsize=64)
def make_row_numbers(count: int) -> list[int]:
    """Return the numbers from 0 to `count` - 1. The list is cached: do not modify it."""
    return list(range(count))


class ArgumentBatch(NamedTuple):
    """Rows of a request, as a column per argument. NULL is None."""

    rows: int
    columns: list[list[Any]]
    # True if an argument that is declared NOT NULL may have a NULL.
    has_nulls: bool


class RequestReader:
    """Reader of requests of one function. Thread-safe."""

    def __init__(
        self, arguments: Sequence[FunctionArgument], formats: Formats | None = None
    ) -> None:
        formats = formats or Formats()
        self._value_readers = [make_value_reader(each.type, formats) for each in arguments]
        self._converters = [
            (at, self._value_readers[at])
            for at, each in enumerate(arguments)
            if needs_conversion(each.type)
        ]
        # The decoder verifies that these are integers, but not their digits.
        self._full_integers = [
            at
            for at, each in enumerate(arguments)
            if each.type.kind is LogicalType.FIXED and not needs_conversion(each.type)
        ]
        self._item_getters = [itemgetter(at) for at in range(len(arguments) + 1)]
        types = [get_decoded_type(each.type) for each in arguments]
        # The declared decoder accepts NULL for these, because they are decoded as Any.
        self._unverified = [
            at
            for at, (kind, each) in enumerate(zip(types, arguments, strict=True))
            if kind is Any and not each.nullable
        ]
        self._declared_decoder = _make_decoder(
            kind | None if each.nullable and kind is not Any else kind
            for kind, each in zip(types, arguments, strict=True)
        )
        self._nullable_decoder = _make_decoder(
            kind if kind is Any else kind | None for kind in types
        )

    def read(self, body: bytes) -> ArgumentBatch:
        """Parse a request into the values of each argument.

        Raises:
            BatchInvalid: If the form is invalid, the row numbers are not 0, 1, 2 …, or a value does not
                fit its argument. The message contains no value.
        """
        for decoder in (self._declared_decoder, self._nullable_decoder):
            try:
                rows = decoder.decode(body).data
            except (
                msgspec.DecodeError,
                UnicodeDecodeError,
                exact.JsonSyntaxError,
                RecursionError,
            ):
                continue
            count = len(rows)
            # Read column by column, because zip(*rows) creates an object per row and takes a third
            # longer.
            numbers, *columns = ([*map(get, rows)] for get in self._item_getters)
            if numbers != make_row_numbers(count):
                raise BatchInvalid(reason="its row numbers are not 0, 1, 2 and so on")
            if not all(_fit_full_integers(columns[at]) for at in self._full_integers):
                break
            for at, convert in self._converters:
                columns[at] = self._convert_column(columns[at], convert, at)
            has_nulls = decoder is self._nullable_decoder or any(
                None in columns[at] for at in self._unverified
            )
            return ArgumentBatch(count, columns, has_nulls)
        return self._read_exact(body)

    def _read_exact(self, body: bytes) -> ArgumentBatch:
        """Parse a request that the fast decoders reject, or raise an error with the reason."""
        try:
            top = exact.parse_json(body, lenient=True)
        except exact.JsonSyntaxError as error:
            raise BatchInvalid(reason=f"its body is not JSON: {error}") from None
        rows = top.get("data") if isinstance(top, dict) else None
        if not isinstance(rows, list):
            raise BatchInvalid(reason='its body is not a JSON object with an array "data"')
        width = len(self._value_readers) + 1
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
            self._convert_column(column, convert, at)
            for at, (column, convert) in enumerate(zip(columns, self._value_readers, strict=True))
        ]
        return ArgumentBatch(len(rows), converted, has_nulls=True)

    def _convert_column(
        self, column: Iterable[Any], convert: ValueConverter, argument_index: int
    ) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(None if value is None else convert(value) for value in column)
        except ValueMismatch as error:
            where = f"argument {argument_index + 1} of row {len(found)}"
            raise BatchInvalid(reason=f"{where}: {error}") from None
        return found


def _fit_full_integers(values: Sequence[int | None]) -> bool:
    """Return True if all values fit into NUMBER(38,0)."""
    present = [value for value in values if value is not None]
    return not present or (max(present) < _NUMBER_LIMIT and min(present) > -_NUMBER_LIMIT)


def _make_decoder(types: Iterable[Any]) -> msgspec.json.Decoder[Any]:
    row = GenericAlias(tuple, (int, *types))
    rows: Any = GenericAlias(list, (row,))
    batch = msgspec.defstruct("Batch", [("data", rows)])
    return msgspec.json.Decoder(batch, float_hook=exact.parse_json_number)


class RequestWriter:
    """Writer of requests of one function, from columns of Python values."""

    def __init__(
        self, arguments: Sequence[FunctionArgument], formats: Formats | None = None
    ) -> None:
        formats = formats or Formats()
        self._value_writers = [make_value_writer(each.type, formats) for each in arguments]

    def encode_body(self, row_count: int, columns: Sequence[Iterable[Any]]) -> bytes:
        """Return the body of a batch. A `msgspec.Raw` value is written as JSON without conversion.

        Raises:
            ValueMismatch: If a value does not fit the type of its argument.
        """
        written = [
            [value if value is None or isinstance(value, msgspec.Raw) else write(value)
             for value in column]
            for write, column in zip(self._value_writers, columns, strict=True)
        ]  # fmt: skip
        return exact.serialize_json({"data": list(zip(range(row_count), *written, strict=True))})


MAX_RESPONSE_BYTES = 10_000_000  # Limit of the protocol for a batch.
_MISSING_DATA_MESSAGE = (
    'Error parsing JSON response: top-level JSON object must contain "data" JSON array element'
)
_ROW_ORDER_MESSAGE = "Row numbers out of order"
_ROW_COUNT_MESSAGE = "Function received the wrong number of rows"
# Values of exactly these Python types need no check.
_PASSTHROUGH_TYPES: dict[LogicalType, frozenset[type]] = {
    LogicalType.TEXT: frozenset({str}),
    LogicalType.BOOLEAN: frozenset({bool}),
    LogicalType.OBJECT: frozenset({dict}),
    LogicalType.ARRAY: frozenset({list}),
    LogicalType.VARIANT: frozenset({dict, list, str, bool, int}),
}
_NUMBER_LIMIT = 10**38


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Reason why a row has no value."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """Result of a batch: a value for each row, and failures by row number."""

    values: Sequence[Any]
    failures: Mapping[int, RowFailure] = field(default_factory=dict)


def _describe_unwritable(error: Exception) -> RowFailure:
    if isinstance(error, UnicodeEncodeError):
        return RowFailure("WrongType", "the result: the text has an unpaired surrogate")
    return RowFailure("WrongType", f"the result cannot be written ({type(error).__name__})")


class ResponseWriter:
    """Writer of responses of one function."""

    def __init__(self, returns: SqlType, formats: Formats | None = None) -> None:
        self._kind = returns.kind
        self._is_full_integer = returns.is_integer and returns.precision == MAX_PRECISION
        self._write_value = make_value_writer(returns, formats or Formats())
        self._passthrough_types = _PASSTHROUGH_TYPES.get(returns.kind, frozenset())
        if returns.kind is LogicalType.TEXT and returns.length is not None:
            self._passthrough_types = frozenset()

    def convert_values(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[int, RowFailure]]:
        """Convert values for `encode_body`. Return them, and the failures by row number.

        A value that does not fit the type is a failure, and None in the values.
        """
        kinds = set(map(type, values))
        kinds.discard(type(None))
        if kinds <= self._passthrough_types or self._are_plain_numbers(kinds, values):
            return values, {}
        failures = {}
        written: list[Any] = []
        for value in values:
            try:
                written.append(None if value is None else self._write_value(value))
            except ValueMismatch as error:
                failures[len(written)] = RowFailure("WrongType", f"the result: {error}")
                written.append(None)
            except (TypeError, ValueError, OverflowError) as error:
                failures[len(written)] = _describe_unwritable(error)
                written.append(None)
        return written, failures

    def find_unwritable(self, values: Sequence[Any]) -> dict[int, RowFailure]:
        """Return the failures of values that `encode_body` cannot write, by row number."""
        failures = {}
        for at, value in enumerate(values):
            try:
                exact.serialize_json(value)
                self._check_text(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                failures[at] = _describe_unwritable(error)
        return failures

    def _are_plain_numbers(self, kinds: set[type], values: Sequence[Any]) -> bool:
        if self._kind is LogicalType.REAL and kinds == {float}:
            # A finite sum proves that no value is NaN or infinite.
            return math.isfinite(sum(value for value in values if value is not None))
        if self._is_full_integer and kinds == {int}:
            return _fit_full_integers(values)
        return False

    def encode_body(
        self, values: Sequence[Any], failures: Mapping[int, RowFailure] | None
    ) -> bytes:
        """Return the body of a response, for values that `convert_values` returned.

        Raises:
            TypeError: If a VARIANT contains a value that JSON cannot represent.
            ValueError: If a VARIANT contains a value that JSON cannot represent, or a VARCHAR has an
                unpaired surrogate.
        """
        numbers = make_row_numbers(len(values))
        reply: dict[str, object] = {"data": list(zip(numbers, values, strict=True))}
        if failures:
            reply["errors"] = [(at, each.code, each.message) for at, each in failures.items()]
        body = exact.serialize_json(reply)
        if b"\\ud" in body:  # An escaped surrogate, or text that looks like one.
            for value in values:
                self._check_text(value)
        return body

    def _check_text(self, value: object) -> None:
        """Raise a UnicodeEncodeError if a VARCHAR has an unpaired surrogate, which no caller can store."""
        if self._kind is LogicalType.TEXT and isinstance(value, str):
            value.encode()


class _VerbatimRows(msgspec.Struct):
    data: list[tuple[int, msgspec.Raw]]


_WHITESPACE_OR_STRING_PATTERN = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)
_verbatim_decoder = msgspec.json.Decoder(_VerbatimRows)


class ResponseReader:
    """Reader of responses of one function. Thread-safe."""

    def __init__(
        self,
        returns: SqlType,
        formats: Formats | None = None,
        *,
        raw: bool = False,
        lenient: bool = False,
    ) -> None:
        """Prepare the conversion of values.

        Args:
            returns: Type of the result.
            formats: Text formats of the session. None: the defaults.
            raw: Return VARIANT, OBJECT and ARRAY as JSON text instead of Python values.
            lenient: Accept a byte order mark and the tokens NaN and Infinity.
        """
        self._type = returns
        self._is_raw = raw and returns.kind in SEMI_STRUCTURED_TYPES
        self._lenient = lenient
        self._read_value = make_value_reader(returns, formats or Formats())

    def read(self, body: bytes, row_count: int) -> BatchResponse:
        """Return the values of a response to `row_count` rows.

        Raises:
            ResponseInvalid: If the form is invalid, or a value does not fit the result type. The message
                contains no value.
        """
        try:
            top = exact.parse_json(body, lenient=self._lenient)
        except exact.JsonSyntaxError as error:
            raise ResponseInvalid(
                reason=f"Error parsing JSON: Format of the returned value is not JSON: {error}"
            ) from None
        rows = top.get("data") if isinstance(top, dict) else None
        if not isinstance(top, dict) or not isinstance(rows, list):
            raise ResponseInvalid(reason=_MISSING_DATA_MESSAGE)
        for at, row in enumerate(rows):
            size = len(row) if isinstance(row, list) else 0
            if size != 2:
                raise ResponseInvalid(
                    reason=f"Error parsing JSON response: index {at} contains {size} elements, "
                    "but 2 elements are expected"
                )
            if type(row[0]) is not int:
                raise ResponseInvalid(
                    reason=f"{_ROW_ORDER_MESSAGE}: index {at} has a row number that is not an integer"
                )
        failures = _parse_failures(top.get("errors"))
        values = self._check_rows(rows, row_count)
        if self._is_raw or self._type.kind is LogicalType.TEXT:
            return BatchResponse(self._restore_json_texts(body, values), failures)
        return BatchResponse(self._convert_values(values, self._read_value), failures)

    def _check_rows(self, rows: Sequence[Any], row_count: int) -> Sequence[Any]:
        if len(rows) != row_count:
            raise ResponseInvalid(reason=f"{_ROW_COUNT_MESSAGE}: {len(rows)} for {row_count}")
        if not rows:
            return ()
        numbers, values = zip(*rows, strict=True)
        if numbers != tuple(range(row_count)):
            raise ResponseInvalid(reason=_ROW_ORDER_MESSAGE)
        return values

    def _convert_values(self, values: Sequence[Any], convert: Callable[[Any], Any]) -> list[Any]:
        converted: list[Any] = []
        try:
            for value in values:
                converted.append(None if value is None else convert(value))  # noqa: PERF401
        except ValueMismatch as error:
            raise ResponseInvalid(reason=f"Row {len(converted)}: {error}") from None
        return converted

    def _restore_json_texts(self, body: bytes, values: Sequence[Any]) -> Sequence[str | None]:
        """Replace parsed values with the JSON text that the service sent, so that 1.10 stays 1.10."""
        converted = self._convert_values(values, self._read_value)
        try:
            fragments = _verbatim_decoder.decode(body.removeprefix(BOM_UTF8)).data
            written = [bytes(fragment).decode() for _, fragment in fragments]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            written = []
        found: list[str | None] = []
        for at, value in enumerate(values):
            if value is None:
                found.append(None)
            elif isinstance(value, str) and self._type.kind in {
                LogicalType.TEXT,
                LogicalType.ARRAY,
            }:
                found.append(value)
            elif at < len(written):
                text = written[at]
                found.append(
                    text if self._is_raw else _WHITESPACE_OR_STRING_PATTERN.sub(r"\1", text)
                )
            else:
                found.append(exact.serialize_json(converted[at]).decode())
        if self._type.kind is LogicalType.TEXT:
            return self._convert_values(found, self._read_value)
        return found


def _parse_failures(errors: object) -> dict[int, RowFailure]:
    found: dict[int, RowFailure] = {}
    for each in errors if isinstance(errors, list) else ():
        match each:
            case [int(at), code, message]:
                found[at] = RowFailure(str(code), str(message))
            case _:
                return {}  # Other services may use this key for another purpose.
    return found
