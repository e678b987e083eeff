"""Declared functions: infers their SQL signatures, and runs them on request bodies.

A function is called once per row, or once per batch with a list or an Arrow array per argument.
Each mode returns a value per row and an exception per failed row. It raises `Overloaded` and
exceptions that concern the whole batch. Results may be columns of Arrow, NumPy, Polars or pandas,
which are converted to lists.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import partial
from itertools import compress, repeat, starmap
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

import msgspec

from snowmelt.errors import SnowmeltError
from snowmelt.functions.errors import DeclarationInvalid, Overloaded, PermanentError
from snowmelt.functions.service.request_response_types import BatchResponseBody, Context
from snowmelt.functions.signature import (
    FunctionArgument,
    FunctionSignature,
    SqlType,
    parse_sql_type_text,
)
from snowmelt.functions.wire import headers as names
from snowmelt.functions.wire.messages import (
    ArgumentBatch,
    RequestReader,
    ResponseWriter,
    RowFailure,
)
from snowmelt.functions.wire.values import Formats
from snowmelt.json import exact
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType

if TYPE_CHECKING:
    import pyarrow as pa

RowResults: TypeAlias = tuple[Sequence[Any], dict[int, Exception]]
AsyncFunctionCallable: TypeAlias = Callable[..., Awaitable[Any]]


class StoppedIteration(RuntimeError):
    """The function raised StopIteration."""


class ResultsMissing(PermanentError):
    """The function returned {found} results for {rows} rows."""

    code = "results_missing"


async def call_per_row_concurrently(
    call: AsyncFunctionCallable,
    columns: Sequence[Sequence[Any]],
    row_count: int,
    max_concurrency: int,
) -> RowResults:
    """Call an async function once per row, with up to `max_concurrency` concurrent calls."""
    values: list[Any] = [None] * row_count
    failures: dict[int, Exception] = {}
    overloaded: list[Overloaded] = []
    rows: Iterator[Sequence[Any]] = iter(zip(*columns, strict=True)) if columns else repeat(())
    numbered = zip(range(row_count), rows, strict=False)

    async def work() -> None:
        for at, row in numbered:
            try:
                values[at] = await call(*row)
            except Overloaded as error:
                overloaded.append(error)
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                failures[at] = error
            if overloaded:
                return

    await asyncio.gather(*(work() for _ in range(min(max_concurrency, row_count))))
    if overloaded:
        raise overloaded[0]
    return values, dict(sorted(failures.items()))


def require_value_per_row(result: Any, row_count: int) -> Sequence[Any]:
    """Convert a column that a function returned to a sequence with one value per row.

    Raises:
        ResultsMissing: If the number of values differs from the number of rows.
    """
    # The values of a set have no order.
    if isinstance(result, (str, bytes, dict, set, frozenset)) or result is None:
        raise ResultsMissing(
            found=f"one {type(result).__name__} instead of a list of", rows=row_count
        )
    values = result if isinstance(result, (list, tuple)) else to_value_list(result)
    if len(values) != row_count:
        raise ResultsMissing(found=len(values), rows=row_count)
    return values


class RowSelection:
    """Rows of a batch that a function receives. Omits rows with a NULL that it does not accept."""

    def __init__(self, batch: ArgumentBatch, signature: FunctionSignature) -> None:
        self.row_count, self.columns = batch.rows, batch.columns
        self._selected_rows: list[int] | None = None
        self._batch_row_count = batch.rows
        if not batch.has_nulls:
            return
        strict = [
            column
            for column, each in zip(batch.columns, signature.arguments, strict=True)
            if not each.nullable
        ]
        wanted = [all(value is not None for value in row) for row in zip(*strict, strict=True)]
        if all(wanted):
            return
        self._selected_rows = list(compress(range(batch.rows), wanted))
        self.row_count = len(self._selected_rows)
        self.columns = [list(compress(column, wanted)) for column in batch.columns]

    def spread_to_rows(
        self, values: Sequence[Any], failures: Mapping[int, Exception]
    ) -> tuple[Sequence[Any], Mapping[int, Exception]]:
        """Return results and failures by row of the batch. Rows that were not selected are NULL."""
        if self._selected_rows is None:
            return values, failures
        spread: list[Any] = [None] * self._batch_row_count
        for at, value in zip(self._selected_rows, values, strict=True):
            spread[at] = value
        return spread, {self._selected_rows[at]: error for at, error in failures.items()}


class InvocationMode(StrEnum):
    """Form in which a function receives its arguments."""

    ROW = "row"
    BATCH = "batch"
    ARROW = "arrow"
    ASYNC = "async"


_PER_ROW_MODES = frozenset({InvocationMode.ROW, InvocationMode.ASYNC})


class RowErrorMode(StrEnum):
    """Result of a failed row for a caller that does not accept row errors."""

    FAIL = "fail"
    NULL = "null"
    VALUE = "value"


class RowFailed(SnowmeltError):
    """Row {row} failed: {reason}."""

    code = "row_failed"


class RowRefused(PermanentError):
    """Row {row} is rejected: {reason}."""

    code = "row_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOptions:
    """Options of a function. See the arguments of `RemoteService.function`."""

    mode: InvocationMode = InvocationMode.ROW
    blocking: bool = True
    deadline_s: float | None = None
    keep_s: float = 0.0
    on_error: RowErrorMode = RowErrorMode.FAIL
    rows_at_once: int = 16
    immutable: bool = False
    max_batch_rows: int | None = None
    comment: str | None = None
    debug: bool = False


class DeclaredFunction:
    """One function of a service."""

    def __init__(
        self,
        call: Callable[..., Any],
        signature: FunctionSignature,
        context_index: int | None,
        options: FunctionOptions,
        formats: Formats,
    ) -> None:
        self.signature = signature
        self.options = options
        self._call = call
        self._context_index = context_index
        self._reader = RequestReader(signature.arguments, formats)
        self._writer = ResponseWriter(signature.returns, formats)
        self._is_coroutine = asyncio.iscoroutinefunction(call)

    @property
    def name(self) -> str:
        """Name of the function as declared."""
        return self.signature.name

    @property
    def runs_inline(self) -> bool:
        """True if the function runs on the event loop and never waits."""
        return not self._is_coroutine and not self.options.blocking

    async def run_batch(
        self, body: bytes, headers: Mapping[str, str], executor: Executor
    ) -> BatchResponseBody:
        """Run the function on the rows of one request.

        Raises:
            SnowmeltError: If the request is invalid or the function rejects it.
            Exception: If the function raises an exception for the whole batch.
        """
        selection = RowSelection(self._reader.read(body), self.signature)
        if self._is_coroutine:
            values, failures = await self._run_async(selection, headers)
        elif self.options.blocking:
            run = partial(self._run_sync, selection, headers)
            values, failures = await asyncio.get_running_loop().run_in_executor(executor, run)
        else:
            values, failures = self._run_sync(selection, headers)
        return BatchResponseBody(200, self._encode_results(selection, (values, failures), headers))

    def _encode_results(
        self,
        selection: RowSelection,
        results: RowResults,
        headers: Mapping[str, str],
    ) -> bytes:
        if (
            self.options.mode is InvocationMode.ARROW
            and self.signature.returns.kind in SEMI_STRUCTURED_TYPES
        ):
            results = _check_json_texts(results[0], self.signature.returns.kind)
        values, failures = selection.spread_to_rows(*results)
        values, unfit = self._writer.convert_values(values)
        try:
            return self._encode_rows(values, failures, unfit, headers)
        except (TypeError, ValueError, OverflowError, RecursionError):
            unwritable = self._writer.find_unwritable(values)
            if not unwritable:
                raise
            left = [None if at in unwritable else value for at, value in enumerate(values)]
            return self._encode_rows(left, failures, unfit | unwritable, headers)

    def _encode_rows(
        self,
        values: Sequence[Any],
        failures: Mapping[int, Exception],
        unfit: dict[int, RowFailure],
        headers: Mapping[str, str],
    ) -> bytes:
        if not failures and not unfit:
            return self._writer.encode_body(values, None)
        named = {
            at: RowFailure(
                error.code if isinstance(error, SnowmeltError) else type(error).__name__, str(error)
            )
            for at, error in failures.items()
        }
        row_failures = dict(sorted((named | unfit).items()))
        if "1" in {headers.get(names.ROW_ERRORS), headers.get(names.CUSTOM_ROW_ERRORS)}:
            return self._writer.encode_body(values, row_failures)
        if self.options.on_error is RowErrorMode.NULL:
            return self._writer.encode_body(values, None)
        if self.options.on_error is RowErrorMode.VALUE:
            shown = list(values)
            for at, each in row_failures.items():
                shown[at] = {"error": {"code": each.code, "message": each.message}}
            return self._writer.encode_body(shown, None)
        at, first = next(iter(row_failures.items()))
        error = failures.get(at)
        if isinstance(error, PermanentError):
            raise RowRefused(row=at, reason=str(error).rstrip("."))
        if error is None:
            raise RowFailed(row=at, reason=first.message)
        reason = f"{first.code}: {first.message}" if self.options.debug else first.code
        raise RowFailed(row=at, reason=reason) from error

    def _bind_context(self, selection: RowSelection, headers: Mapping[str, str]) -> Any:
        call, at = self._call, self._context_index
        if at is None:
            return call
        context = Context(self.name, selection.row_count, headers)
        return lambda *row: call(*row[:at], context, *row[at:])

    def _get_arguments(self, selection: RowSelection) -> Sequence[Any]:
        if self.options.mode is InvocationMode.ARROW:
            return [
                to_arrow_array(column, each.type)
                for column, each in zip(selection.columns, self.signature.arguments, strict=True)
            ]
        return selection.columns

    def _run_sync(self, selection: RowSelection, headers: Mapping[str, str]) -> RowResults:
        call, count = self._bind_context(selection, headers), selection.row_count
        if self.options.mode in _PER_ROW_MODES:
            calls = (
                map(call, *selection.columns)
                if selection.columns
                else starmap(call, repeat((), count))
            )
            values: list[Any] = []
            failures: dict[int, Exception] = {}
            while len(values) < count:
                try:
                    # After an exception, the list has the values before it, and `calls` continues
                    # after it.
                    values.extend(calls)
                    if len(values) < count:
                        raise StoppedIteration("it raised StopIteration")  # noqa: TRY301 - a failed row
                except Overloaded:
                    raise
                except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                    failures[len(values)] = error
                    values.append(None)
            return values, failures
        return require_value_per_row(call(*self._get_arguments(selection)), count), {}

    async def _run_async(self, selection: RowSelection, headers: Mapping[str, str]) -> RowResults:
        call, count = self._bind_context(selection, headers), selection.row_count
        if self.options.mode in _PER_ROW_MODES:
            return await call_per_row_concurrently(
                call, selection.columns, count, self.options.rows_at_once
            )
        return require_value_per_row(await call(*self._get_arguments(selection)), count), {}


def to_arrow_array(values: Sequence[Any], sql_type: SqlType) -> pa.Array:
    """Convert values of a type to an Arrow array. Timestamps are in UTC."""
    import pyarrow as pa

    from snowmelt.functions.caller.arrow_types import to_arrow_type

    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        values = [
            None if value is None else exact.serialize_json(value).decode() for value in values
        ]
    return pa.array(values, to_arrow_type(sql_type))


def to_value_list(column: Any) -> list[Any]:
    """Convert an Arrow or NumPy array, a Polars or pandas series, or an iterable to a list."""
    dtype: Any = getattr(column, "dtype", None)
    if getattr(dtype, "kind", "") in ("m", "M"):
        # In nanoseconds, the default of pandas, NumPy returns integers.
        column = column.astype(str(column.dtype).replace("[ns]", "[us]"))
    for name in ("to_pylist", "to_list", "tolist"):
        method = getattr(column, name, None)
        if method is not None:
            values = list(method())
            # Arrow's arrays, and NumPy's of numbers, never have the missing values of pandas.
            is_plain = name == "to_pylist" or (
                type(dtype).__module__.startswith("numpy") and dtype.kind in "biuf"
            )
            return values if is_plain else [*map(_replace_missing, values)]
    return list(column)


def _replace_missing(value: Any) -> Any:
    """Return None for NaT and NA of pandas."""
    return None if type(value).__name__ in {"NaTType", "NAType"} else value


_JSON_TYPES = {LogicalType.OBJECT: dict, LogicalType.ARRAY: list}


def _check_json_texts(values: Sequence[Any], kind: LogicalType) -> RowResults:
    """Verify JSON texts and return them as raw JSON. Invalid JSON would corrupt the whole response."""
    checked: list[Any] = []
    failures: dict[int, Exception] = {}
    for value in values:
        found = value
        if isinstance(value, str):
            try:
                parsed = exact.parse_json(value.encode())
                if not isinstance(parsed, _JSON_TYPES.get(kind, object)):
                    raise exact.JsonSyntaxError(f"the JSON text is not of type {kind}")
                found = msgspec.Raw(value.encode())
            except ValueError as error:
                found, failures[len(checked)] = None, error
        checked.append(found)
    return checked, failures


# Inference of SQL signatures from the annotations of Python functions. The string of
# `Annotated[Decimal, "NUMBER(12,2)"]` is the SQL type. An argument annotated `X | None` accepts
# NULL.

_SQL_TYPES: dict[Any, str] = {
    int: "NUMBER(38,0)",
    float: "FLOAT",
    str: "VARCHAR",
    bool: "BOOLEAN",
    bytes: "BINARY",
    dt.date: "DATE",
    dt.time: "TIME",
    dt.datetime: "TIMESTAMP_NTZ",
    list: "ARRAY",
    tuple: "ARRAY",
    Sequence: "ARRAY",
    dict: "OBJECT",
    Mapping: "OBJECT",
    Any: "VARIANT",
    object: "VARIANT",
}
_COLUMN_TYPES = (list, tuple, Sequence)
_POSITIONAL_KINDS = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def infer_signature(
    function: Callable[..., object],
    name: str,
    *,
    is_columnar: bool,
    arguments: Sequence[str] | None = None,
    returns: str | None = None,
) -> tuple[FunctionSignature, int | None]:
    """Return a function's signature, and the index of its context argument or None.

    Args:
        function: The function.
        name: Name of the function in SQL.
        is_columnar: True if annotations describe whole columns: `list[str]` is a column of VARCHAR.
        arguments: SQL types of the arguments. None: use the annotations.
        returns: SQL type of the result. None: use the annotation.

    Raises:
        DeclarationInvalid: If an annotation is missing or has no SQL type.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationInvalid(
            reason=f"an annotation of {name} cannot be read: {error}"
        ) from None
    context_at: int | None = None
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is Context:
            context_at = len(names)
        elif parameter.kind in _POSITIONAL_KINDS:
            names.append(parameter.name)
        else:
            raise DeclarationInvalid(
                reason=f"{parameter.name} of {name} is not an ordinary positional argument"
            )
    if arguments is not None and len(arguments) != len(names):
        raise DeclarationInvalid(
            reason=f"{name} has {len(names)} arguments, but {len(arguments)} types were given"
        )
    found = []
    for at, each in enumerate(names):
        if arguments is not None:
            found.append(FunctionArgument(each, parse_sql_type_text(arguments[at])))
            continue
        sql_type, nullable = _infer_sql_type(
            hints.get(each), f"{each} of {name}", is_columnar=is_columnar
        )
        found.append(FunctionArgument(each, sql_type, nullable))
    if returns is not None:
        result = parse_sql_type_text(returns)
    else:
        result, _ = _infer_sql_type(
            hints.get("return"), f"the result of {name}", is_columnar=is_columnar
        )
    return FunctionSignature(name, tuple(found), result), context_at


def _infer_sql_type(annotation: Any, subject: str, *, is_columnar: bool) -> tuple[SqlType, bool]:
    if annotation is None:
        raise DeclarationInvalid(
            reason=f"{subject} has no annotation; write one, such as `str`, or give its SQL type"
        )
    if is_columnar and typing.get_origin(annotation) is not Annotated:
        annotation = _infer_element_type(annotation, subject)
    said = None
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        said = next((each for each in extras if isinstance(each, str)), None)
        if is_columnar and said is None:
            annotation = _infer_element_type(annotation, subject)
    annotation, nullable = _strip_optional(annotation)
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        said = next((each for each in extras if isinstance(each, str)), said)
    if said is not None:
        return parse_sql_type_text(said), nullable
    return parse_sql_type_text(_find_sql_type_name(annotation, subject)), nullable


def _infer_element_type(annotation: Any, subject: str) -> Any:
    """Return the element type of a column's annotation: `str` for `list[str]`."""
    origin = typing.get_origin(annotation) or annotation
    if origin not in _COLUMN_TYPES:
        raise DeclarationInvalid(
            reason=f"{subject} is a column: annotate it as `list[str]`, or any other column as "
            '`Annotated[numpy.ndarray, "FLOAT"]`'
        )
    inner = typing.get_args(annotation)
    return inner[0] if inner else Any


def _strip_optional(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in {Union, types.UnionType}:
        # A function that accepts any VARIANT also accepts NULL.
        return annotation, annotation in {Any, object}
    members = typing.get_args(annotation)
    rest = [each for each in members if each is not type(None)]
    nullable = len(rest) < len(members)
    return (rest[0] if len(rest) == 1 else Any), nullable or len(rest) > 1


def _find_sql_type_name(annotation: Any, subject: str) -> str:
    origin = typing.get_origin(annotation) or annotation
    if origin is Decimal:
        raise DeclarationInvalid(
            reason=f"{subject} is a Decimal without precision and scale: annotate it as "
            '`Annotated[Decimal, "NUMBER(12,2)"]`'
        )
    if typing.is_typeddict(origin):
        return "OBJECT"
    try:
        return _SQL_TYPES[origin]
    except (KeyError, TypeError):
        raise DeclarationInvalid(
            reason=f'{subject} has no SQL type of its own: annotate it as `Annotated[…, "VARCHAR"]`'
        ) from None
