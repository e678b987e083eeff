"""A declared function: what turns the body of a request into the body of a reply."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from snowmelt.errors import SnowmeltError
from snowmelt.functions.errors import Overloaded, PermanentError
from snowmelt.functions.service.context import Context
from snowmelt.functions.service.messages import Answer
from snowmelt.functions.wire import exact_json as exact
from snowmelt.functions.wire import headers as names
from snowmelt.functions.wire.messages import ReplyWriter, RequestReader, RowFailure
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor

    import pyarrow as pa

    from snowmelt.functions.signature import Argument, Signature, SqlType
    from snowmelt.functions.wire.messages import Batch
    from snowmelt.functions.wire.values import Formats

# --- Runs an author's function over the rows of one batch, per row, per columns, or on Arrow.
#
# Each runner takes columns and gives a value for each row and an exception for each row that
# failed. What fails as a whole, and being overloaded, is raised.

Outcome: TypeAlias = tuple[Sequence[Any], dict[int, Exception]]
Call: TypeAlias = Callable[..., Any]
AsyncCall: TypeAlias = Callable[..., Awaitable[Any]]


class StoppedIteration(RuntimeError):
    """The function raised StopIteration."""


class ResultsMissing(PermanentError):
    """The function returned {found} results for {rows} rows."""

    code = "results_missing"


def run_rows(call: Call, columns: Sequence[Sequence[Any]], count: int) -> Outcome:
    """Call once for each row; an exception is that row's alone."""
    calls = map(call, *columns) if columns else map(partial(_without, call), range(count))
    values: list[Any] = []
    failures: dict[int, Exception] = {}
    while len(values) < count:
        try:
            # What came before an exception stays in the list, and `calls` goes on behind it.
            values.extend(calls)
            _complain_if_short(values, count)
        except Overloaded:
            raise
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            failures[len(values)] = error
            values.append(None)
    return values, failures


async def run_rows_at_once(
    call: AsyncCall, columns: Sequence[Sequence[Any]], count: int, at_once: int
) -> Outcome:
    """Await a call for each row, up to `at_once` of them at a time."""
    # Imported here: a service of plain functions on Lambda never needs it at import.
    import asyncio

    values: list[Any] = [None] * count
    failures: dict[int, Exception] = {}
    overloaded: list[Overloaded] = []
    rows: Iterator[Sequence[Any]] = iter(zip(*columns, strict=True)) if columns else repeat(())
    numbered = zip(range(count), rows, strict=False)

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

    await asyncio.gather(*(work() for _ in range(min(at_once, count))))
    if overloaded:
        raise overloaded[0]
    return values, dict(sorted(failures.items()))


def _without(call: Call, _row: int) -> Any:
    return call()


def _complain_if_short(values: Sequence[Any], count: int) -> None:
    if len(values) < count:
        raise StoppedIteration("it raised StopIteration")


def listed(result: Any, count: int) -> Sequence[Any]:
    """Return a column that a function gave back as values, one for each row.

    Raises:
        ResultsMissing: It has another number of values.
    """
    if isinstance(result, (str, bytes, dict)) or result is None:
        raise ResultsMissing(found=f"one {type(result).__name__} and no list of", rows=count)
    values = result if isinstance(result, (list, tuple)) else as_values(result)
    if len(values) != count:
        raise ResultsMissing(found=len(values), rows=count)
    return values


def arrow_columns(columns: Sequence[Sequence[Any]], arguments: Sequence[Argument]) -> list[Any]:
    """Return the columns as Arrow arrays of the arguments' types."""
    return [as_column(column, each.type) for column, each in zip(columns, arguments, strict=True)]


class Selection:
    """The rows of a batch that a function is to see: those without a NULL it does not want."""

    def __init__(self, batch: Batch, signature: Signature) -> None:
        self.count, self.columns = batch.rows, batch.columns
        self._kept: list[int] | None = None
        self._all = batch.rows
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
        self._kept = list(compress(range(batch.rows), wanted))
        self.count = len(self._kept)
        self.columns = [list(compress(column, wanted)) for column in batch.columns]

    def spread(
        self, values: Sequence[Any], failures: Mapping[int, Exception]
    ) -> tuple[Sequence[Any], Mapping[int, Exception]]:
        """Put results back to the rows they are of; the others are NULL."""
        if self._kept is None:
            return values, failures
        spread: list[Any] = [None] * self._all
        for at, value in zip(self._kept, values, strict=True):
            spread[at] = value
        return spread, {self._kept[at]: error for at, error in failures.items()}


class Mode(StrEnum):
    """What a function is given."""

    ROW = "row"
    BATCH = "batch"
    ARROW = "arrow"
    ASYNC = "async"


class OnError(StrEnum):
    """What becomes of a row that failed, for a caller that did not ask for errors of rows."""

    FAIL = "fail"
    NULL = "null"
    VALUE = "value"


class RowFailed(SnowmeltError):
    """Row {row} failed: {reason}."""

    code = "row_failed"


class RowRefused(PermanentError):
    """Row {row} is refused: {reason}."""

    code = "row_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a function is run; the arguments of `RemoteService.function` say more."""

    mode: Mode = Mode.ROW
    blocking: bool = True
    deadline_s: float | None = None
    keep_s: float = 0.0
    on_error: OnError = OnError.FAIL
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
        signature: Signature,
        context_at: int | None,
        options: Options,
        formats: Formats,
    ) -> None:
        self.signature = signature
        self.options = options
        self._call = call
        self._context_at = context_at
        self._reader = RequestReader(signature.arguments, formats)
        self._writer = ReplyWriter(signature.returns, formats)
        self._is_coroutine = asyncio.iscoroutinefunction(call)

    @property
    def name(self) -> str:
        """As declared."""
        return self.signature.name

    @property
    def at_once(self) -> bool:
        """Whether it runs on the event loop without ever giving it back."""
        return not self._is_coroutine and not self.options.blocking

    async def reply(self, body: bytes, headers: Mapping[str, str], executor: Executor) -> Answer:
        """Work on the rows of one request.

        Raises:
            SnowmeltError: The request cannot be read, or the function refuses it.
            Exception: Whatever the function raises for the batch as a whole.
        """
        selection = Selection(self._reader.read(body), self.signature)
        if self._is_coroutine:
            values, failures = await self._awaited(selection, headers)
        elif self.options.blocking:
            run = functools.partial(self._run, selection, headers)
            values, failures = await asyncio.get_running_loop().run_in_executor(executor, run)
        else:
            values, failures = self._run(selection, headers)
        return Answer(200, self._written(selection, (values, failures), headers))

    def _written(
        self,
        selection: Selection,
        outcome: Outcome,
        headers: Mapping[str, str],
    ) -> bytes:
        if self.options.mode is Mode.ARROW and self.signature.returns.kind in SEMI_STRUCTURED_TYPES:
            outcome = (from_json_texts(outcome[0]), outcome[1])
        values, failures = selection.spread(*outcome)
        values, unfit = self._writer.values(values)
        if not failures and not unfit:
            return self._writer.body(values, None)
        named = {at: self._named(error) for at, error in failures.items()}
        return self._with_failures(values, dict(sorted((named | unfit).items())), failures, headers)

    def _with_failures(
        self,
        values: Sequence[Any],
        named: dict[int, RowFailure],
        failures: Mapping[int, Exception],
        headers: Mapping[str, str],
    ) -> bytes:
        if "1" in {headers.get(names.ROW_ERRORS), headers.get(names.CUSTOM_ROW_ERRORS)}:
            return self._writer.body(values, named)
        if self.options.on_error is OnError.NULL:
            return self._writer.body(values, None)
        if self.options.on_error is OnError.VALUE:
            shown = list(values)
            for at, each in named.items():
                shown[at] = {"error": {"code": each.code, "message": each.message}}
            return self._writer.body(shown, None)
        at, first = next(iter(named.items()))
        error = failures.get(at)
        if isinstance(error, PermanentError):
            raise RowRefused(row=at, reason=str(error).rstrip("."))
        if error is None:
            raise RowFailed(row=at, reason=first.message)
        reason = f"{first.code}: {first.message}" if self.options.debug else first.code
        raise RowFailed(row=at, reason=reason) from error

    @staticmethod
    def _named(error: Exception) -> RowFailure:
        code = error.code if isinstance(error, SnowmeltError) else type(error).__name__
        return RowFailure(code, str(error))

    def _bound(self, selection: Selection, headers: Mapping[str, str]) -> Any:
        call, at = self._call, self._context_at
        if at is None:
            return call
        context = Context(self.name, selection.count, headers)
        return lambda *row: call(*row[:at], context, *row[at:])

    def _arguments(self, selection: Selection) -> Sequence[Any]:
        if self.options.mode is Mode.ARROW:
            return arrow_columns(selection.columns, self.signature.arguments)
        return selection.columns

    @property
    def _per_row(self) -> bool:
        return self.options.mode in {Mode.ROW, Mode.ASYNC}

    def _run(self, selection: Selection, headers: Mapping[str, str]) -> Outcome:
        call = self._bound(selection, headers)
        if self._per_row:
            return run_rows(call, selection.columns, selection.count)
        return listed(call(*self._arguments(selection)), selection.count), {}

    async def _awaited(self, selection: Selection, headers: Mapping[str, str]) -> Outcome:
        call = self._bound(selection, headers)
        if self._per_row:
            return await run_rows_at_once(
                call, selection.columns, selection.count, self.options.rows_at_once
            )
        return listed(await call(*self._arguments(selection)), selection.count), {}


# --- Columns as Arrow arrays, and what libraries return as lists.


def arrow_type(sql_type: SqlType) -> pa.DataType:
    """Return the Arrow type of a column; instants are UTC."""
    from snowmelt.functions.caller.arrow_types import arrow_form

    return arrow_form(sql_type)


def as_column(values: Sequence[Any], sql_type: SqlType) -> pa.Array:
    """Return values of a type as an Arrow array."""
    import pyarrow as pa

    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        values = [None if value is None else exact.write(value).decode() for value in values]
    return pa.array(values, arrow_type(sql_type))


def as_values(column: Any) -> list[Any]:
    """Return the values of an Arrow or NumPy array, a Polars or pandas series, or an iterable."""
    for name in ("to_pylist", "to_list", "tolist"):
        method = getattr(column, name, None)
        if method is not None:
            return list(method())
    return list(column)


def from_json_texts(values: Sequence[Any]) -> list[Any]:
    """Return JSON texts as JSON, checked, so that a broken one does not break the whole reply.

    Raises:
        NotJson: A text is not JSON.
    """
    found: list[Any] = []
    for value in values:
        if isinstance(value, str):
            exact.parse(value.encode())
            found.append(msgspec.Raw(value.encode()))
        else:
            found.append(value)
    return found
