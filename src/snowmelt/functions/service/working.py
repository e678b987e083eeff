"""Runs an author's function over the rows of one batch, per row, per columns, or on Arrow.

Each runner takes columns and gives a value for each row and an exception for each row that
failed. What fails as a whole, and being overloaded, is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from snowmelt.functions.refusals import Overloaded, PermanentError
from snowmelt.functions.service.arrow import as_column, as_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from snowmelt.functions.signature import Argument, Signature
    from snowmelt.functions.wire.requests import Batch

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
