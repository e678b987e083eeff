"""Calls of functions from tests: plans with real URLs, rows and results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.queues import SimpleQueue
from typing import Any

import pyarrow as pa

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.pipeline import call_function
from snowmelt.functions.caller.plan import CallerOptions, CallPlan, QueryPosition
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from support import call_plans
from support.call_logs import InMemoryCallLog


def signature(
    name: str = "echo", arguments: Sequence[str] = ("VARCHAR",), returns: str = "VARCHAR"
) -> FunctionSignature:
    listed = (
        FunctionArgument(f"a{at}", parse_sql_type_text(each)) for at, each in enumerate(arguments)
    )
    return FunctionSignature(name, tuple(listed), parse_sql_type_text(returns))


def plan(
    url: str,
    *,
    name: str = "echo",
    arguments: Sequence[str] = ("VARCHAR",),
    returns: str = "VARCHAR",
    options: dict[str, Any] | None = None,
    **clauses: Any,
) -> CallPlan:
    """Return the plan of a function at a URL.

    `options` are fields of CallerOptions. Clauses may also be fields of the plan.
    """
    translators = {key: clauses.pop(key) for key in [*clauses] if key.endswith("_translator")}
    known = call_plans.plan(
        CallerOptions(**(options or {})),
        signature=signature(name, arguments, returns),
        url=url,
        **clauses,
    )
    prefix = url.rpartition("/")[0] + "/"
    integration = replace(known.integration, allowed_prefixes=(prefix,))
    return replace(known, integration=integration, **translators)


def rows(*columns: Any, size: int | None = None) -> list[Any]:
    """Return columns of Python values as record batches of `size` rows."""
    whole = pa.record_batch(
        [*map(pa.array, columns)], names=[f"c{at}" for at in range(len(columns))]
    )
    step = size or max(whole.num_rows, 1)
    return [whole.slice(at, step) for at in range(0, whole.num_rows, step)]


def clock() -> ManualClock:
    """Return a clock whose sleeps take no time."""
    return ManualClock(dt.datetime(2026, 1, 2, tzinfo=dt.UTC))


def ask(
    plan: CallPlan,
    batches: Any,
    *,
    ledger: InMemoryCallLog | None = None,
    place: QueryPosition | None = None,
    clock: ManualClock | None = None,
    trying: bool = False,
) -> list[Any]:
    """Return all values of a call as a list."""
    ledger = InMemoryCallLog() if ledger is None else ledger
    position = place or call_plans.place()
    arrays = call_function(plan, position, iter(batches), ledger, clock, trying=trying)
    return [value for array in arrays for value in array.to_pylist()]


def put_values(plan: CallPlan, column: list[int], attempt: int, results: SimpleQueue[Any]) -> None:
    """Put the result of calling for a column into a queue. Main function of another process."""
    results.put(ask(plan, rows(column), place=call_plans.place(attempt)))


@dataclass
class Connection:
    """Consumer of values whose state a test sets."""

    open: bool
    unread: int | None = 0

    def is_open(self) -> bool:
        return self.open

    def unread_bytes(self) -> int | None:
        return self.unread
