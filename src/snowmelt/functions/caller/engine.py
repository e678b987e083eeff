"""Entry points: call a function for the rows of one task, with results in row order.

Several batches are in flight at a time. `call_function` ends with the first error that the
function's clauses do not turn into NULL. `try_call_function` never does: it returns an error for
each row that has no value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.clock import SystemClock
from snowmelt.errors import RemoteError
from snowmelt.functions.caller.arrow_types import to_arrow_type, to_try_result_arrow_type
from snowmelt.functions.caller.pipeline import CallPipeline
from snowmelt.functions.definition import BatchFailureAction, RowErrorAction

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from snowmelt.clock import Clock
    from snowmelt.errors import SnowmeltError
    from snowmelt.functions.caller.call_log import CallLog
    from snowmelt.functions.caller.pipeline import BatchOutcome, BatchPart, ValueConsumer
    from snowmelt.functions.caller.plan import CallPlan, QueryPosition


def call_function(
    plan: CallPlan,
    position: QueryPosition,
    batches: Iterable[pa.RecordBatch],
    call_log: CallLog,
    clock: Clock | None = None,
    consumer: ValueConsumer | None = None,
) -> Generator[pa.Array, None, None]:
    """Return the function's values, one for each row, in the rows' order.

    Arrays are cut where batches of calls end; small ones may come together, up to 1,000 rows. At
    most as many batches are called for as are in flight and in one such array beyond those whose
    values were taken; whoever stops taking values closes the iterator,
    which cancels the rest.

    `batches`: Arguments by position; columns beyond them are not sent. A function without
        arguments needs one that only says how many rows there are.
    `consumer`: Who reads values that were taken; None if that is who takes them. Where nobody
        does any more, batches are called for one at a time.

    Raises:
        CallFailed: A batch has no answer, or a row has an error, and the function's clauses do not
            say RETURN_NULL. Names function, batch, status, attempts and time.
        CircuitOpen: Its service is left alone; under the same clause.
        SnowmeltError: Nothing may be called: the budget is spent, the URL is refused, a secret is
            missing. No clause makes that NULL.
    """
    pipeline = CallPipeline(plan, position, call_log, clock or SystemClock(), consumer)
    form = to_arrow_type(plan.function.signature.returns, plan.zone)
    try:
        for outcomes in pipeline.run_batches(batches):
            arrays = []
            for outcome in outcomes:
                answers = _concat_arrays(
                    [_get_part_values(part, plan, pipeline) for part in outcome.parts], form
                )
                arrays.append(outcome.work.spread_to_rows(answers, outcome.work.cached_values))
            yield _concat_arrays(arrays, form)
    finally:
        pipeline.close()


def _get_part_values(part: BatchPart, plan: CallPlan, pipeline: CallPipeline) -> pa.Array:
    error = part.error
    if error is None and part.failures and plan.function.row_errors is RowErrorAction.ABORT:
        at, failure = next(iter(part.failures.items()))
        error = part.make_error(
            f"row {at} of {part.request.rows}: {failure.code}"
            + (f": {failure.message}" if plan.options.debug_payload else "")
        )
    elif plan.function.on_batch_failure is BatchFailureAction.RETURN_NULL and not _is_local_error(
        error
    ):
        error = None
    if error is not None:
        pipeline.cache_failure(part, error)
        raise error
    return part.values


def _is_local_error(error: SnowmeltError | None) -> bool:
    """Tell whether calls are not allowed, or not possible as they are asked for."""
    return error is not None and not isinstance(error, RemoteError)


def try_call_function(
    plan: CallPlan,
    position: QueryPosition,
    batches: Iterable[pa.RecordBatch],
    call_log: CallLog,
    clock: Clock | None = None,
    consumer: ValueConsumer | None = None,
) -> Generator[pa.StructArray, None, None]:
    """Return value, error, status and batch id of each row, in the rows' order.

    A row that was not sent, because STRICT found NULL in it, is NULL as a whole.

    Raises:
        SnowmeltError: As for `call_function`, where nothing may be called at all.
    """
    pipeline = CallPipeline(plan, position, call_log, clock or SystemClock(), consumer)
    form = to_try_result_arrow_type(plan.function.signature.returns, plan.zone)
    try:
        for outcomes in pipeline.run_batches(batches):
            arrays = []
            for outcome in outcomes:
                answers = _concat_arrays(
                    [_make_try_results(part, form) for part in outcome.parts], form
                )
                arrays.append(
                    outcome.work.spread_to_rows(answers, _make_cached_try_results(outcome, form))
                )
            yield _concat_arrays(arrays, form)
    finally:
        pipeline.close()


def _make_try_results(part: BatchPart, result_type: pa.StructType) -> pa.StructArray:
    rows = part.request.rows
    if part.error is not None:
        if _is_local_error(part.error):
            raise part.error
        errors = pa.repeat(pa.scalar(str(part.error), pa.string()), rows)
    elif part.failures:
        texts: list[str | None] = [None] * rows
        for at, failure in part.failures.items():
            texts[at] = f"{failure.code}: {failure.message}"
        errors = pa.array(texts, pa.string())
    else:
        errors = pa.nulls(rows, pa.string())
    status = pa.repeat(pa.scalar(part.record.status, pa.int32()), rows)
    ids = pa.repeat(pa.scalar(part.request.batch_id, pa.string()), rows)
    return pa.StructArray.from_arrays([part.values, errors, status, ids], fields=list(result_type))


def _make_cached_try_results(
    outcome: BatchOutcome, result_type: pa.StructType
) -> pa.StructArray | None:
    known = outcome.work.cached_values
    if known is None:
        return None
    empty = [pa.nulls(len(known), field.type) for field in list(result_type)[1:]]
    return pa.StructArray.from_arrays([known, *empty], fields=list(result_type))


def _concat_arrays(arrays: list[pa.Array], arrow_type: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, arrow_type)
