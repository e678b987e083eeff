"""A declared function: what turns the body of a request into the body of a reply."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snowmelt.errors import SnowmeltError
from snowmelt.functions.refusals import PermanentError
from snowmelt.functions.service import working
from snowmelt.functions.service.arrow import from_json_texts
from snowmelt.functions.service.context import Context
from snowmelt.functions.service.messages import Answer
from snowmelt.functions.wire import headers as names
from snowmelt.functions.wire.replies import ReplyWriter, RowFailure
from snowmelt.functions.wire.requests import RequestReader
from snowmelt.schema.types import SEMI_STRUCTURED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from snowmelt.functions.signature import Signature
    from snowmelt.functions.wire.values import Formats


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
        selection = working.Selection(self._reader.read(body), self.signature)
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
        selection: working.Selection,
        outcome: working.Outcome,
        headers: Mapping[str, str],
    ) -> bytes:
        if self.options.mode is Mode.ARROW and self.signature.returns.kind in SEMI_STRUCTURED:
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

    def _bound(self, selection: working.Selection, headers: Mapping[str, str]) -> Any:
        call, at = self._call, self._context_at
        if at is None:
            return call
        context = Context(self.name, selection.count, headers)
        return lambda *row: call(*row[:at], context, *row[at:])

    def _arguments(self, selection: working.Selection) -> Sequence[Any]:
        if self.options.mode is Mode.ARROW:
            return working.arrow_columns(selection.columns, self.signature.arguments)
        return selection.columns

    @property
    def _per_row(self) -> bool:
        return self.options.mode in {Mode.ROW, Mode.ASYNC}

    def _run(self, selection: working.Selection, headers: Mapping[str, str]) -> working.Outcome:
        call = self._bound(selection, headers)
        if self._per_row:
            return working.run_rows(call, selection.columns, selection.count)
        return working.listed(call(*self._arguments(selection)), selection.count), {}

    async def _awaited(
        self, selection: working.Selection, headers: Mapping[str, str]
    ) -> working.Outcome:
        call = self._bound(selection, headers)
        if self._per_row:
            return await working.run_rows_at_once(
                call, selection.columns, selection.count, self.options.rows_at_once
            )
        return working.listed(await call(*self._arguments(selection)), selection.count), {}
