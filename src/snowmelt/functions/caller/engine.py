"""Calls for the rows of one task: batches go out, several at a time, and values come back in order.

`call` ends with the first error that its function's clauses do not make NULL; `call_trying` never
does, and says for each row why it has no value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.clock import SystemClock
from snowmelt.errors import RemoteError
from snowmelt.functions.caller.arrow_types import arrow_form, trying_form
from snowmelt.functions.caller.pipeline import Pipeline
from snowmelt.functions.definition import BatchFailure, RowErrors

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from snowmelt.clock import Clock
    from snowmelt.errors import SnowmeltError
    from snowmelt.functions.caller.call_log import Ledger
    from snowmelt.functions.caller.pipeline import Outcome, Part, Reader
    from snowmelt.functions.caller.plan import CallPlan, Place


def call(
    plan: CallPlan,
    place: Place,
    batches: Iterable[pa.RecordBatch],
    ledger: Ledger,
    clock: Clock | None = None,
    reader: Reader | None = None,
) -> Generator[pa.Array, None, None]:
    """Return the function's values, one for each row, in the rows' order.

    Arrays are cut where batches of calls end; small ones may come together, up to 1,000 rows. At
    most as many batches are called for as are in flight and in one such array beyond those whose
    values were taken; whoever stops taking values closes the iterator,
    which cancels the rest.

    Args:
        plan: What is called, and how.
        place: Where in a query the rows are.
        batches: Arguments by position; columns beyond them are not sent. A function without
            arguments needs one that only says how many rows there are.
        ledger: Told of each batch.
        clock: The machine's if None.
        reader: Who reads values that were taken; None if that is who takes them. Where nobody
            does any more, batches are called for one at a time.

    Raises:
        CallFailed: A batch has no answer, or a row has an error, and the function's clauses do not
            say RETURN_NULL. Names function, batch, status, attempts and time.
        CircuitOpen: Its service is left alone; under the same clause.
        SnowmeltError: Nothing may be called: the budget is spent, the URL is refused, a secret is
            missing. No clause makes that NULL.
    """
    pipeline = Pipeline(plan, place, ledger, clock or SystemClock(), reader)
    form = arrow_form(plan.function.signature.returns, plan.zone)
    try:
        for outcomes in pipeline.outcomes(batches):
            arrays = []
            for outcome in outcomes:
                answers = _joined([_values(part, plan, pipeline) for part in outcome.parts], form)
                arrays.append(outcome.work.restored(answers, outcome.work.known))
            yield _joined(arrays, form)
    finally:
        pipeline.close()


def _values(part: Part, plan: CallPlan, pipeline: Pipeline) -> pa.Array:
    error = part.error
    if error is None and part.failures and plan.function.row_errors is RowErrors.ABORT:
        at, failure = next(iter(part.failures.items()))
        error = part.failed(
            f"row {at} of {part.request.rows}: {failure.code}"
            + (f": {failure.message}" if plan.options.debug_payload else "")
        )
    elif plan.function.on_batch_failure is BatchFailure.RETURN_NULL and not _is_refusal(error):
        error = None
    if error is not None:
        pipeline.remember(part, error)
        raise error
    return part.values


def _is_refusal(error: SnowmeltError | None) -> bool:
    """Tell whether calls are not allowed, or not possible as they are asked for."""
    return error is not None and not isinstance(error, RemoteError)


def call_trying(
    plan: CallPlan,
    place: Place,
    batches: Iterable[pa.RecordBatch],
    ledger: Ledger,
    clock: Clock | None = None,
    reader: Reader | None = None,
) -> Generator[pa.StructArray, None, None]:
    """Return value, error, status and batch id of each row, in the rows' order.

    A row that was not sent, because STRICT found NULL in it, is NULL as a whole.

    Args:
        plan: As for `call`.
        place: As for `call`.
        batches: As for `call`.
        ledger: As for `call`.
        clock: As for `call`.
        reader: As for `call`.

    Raises:
        SnowmeltError: As for `call`, where nothing may be called at all.
    """
    pipeline = Pipeline(plan, place, ledger, clock or SystemClock(), reader)
    form = trying_form(plan.function.signature.returns, plan.zone)
    try:
        for outcomes in pipeline.outcomes(batches):
            arrays = []
            for outcome in outcomes:
                answers = _joined([_tried(part, form) for part in outcome.parts], form)
                arrays.append(outcome.work.restored(answers, _tried_before(outcome, form)))
            yield _joined(arrays, form)
    finally:
        pipeline.close()


def _tried(part: Part, form: pa.StructType) -> pa.StructArray:
    rows = part.request.rows
    if part.error is not None:
        if _is_refusal(part.error):
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
    return pa.StructArray.from_arrays([part.values, errors, status, ids], fields=list(form))


def _tried_before(outcome: Outcome, form: pa.StructType) -> pa.StructArray | None:
    known = outcome.work.known
    if known is None:
        return None
    empty = [pa.nulls(len(known), field.type) for field in list(form)[1:]]
    return pa.StructArray.from_arrays([known, *empty], fields=list(form))


def _joined(arrays: list[pa.Array], form: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, form)
