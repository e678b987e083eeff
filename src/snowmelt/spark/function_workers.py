"""What runs in Spark's Python workers for one use of an external function.

PySpark hands over columns and takes arrays; which call belongs to which work is read off the task,
so that a second attempt asks the service for the very same batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snowmelt.clock import SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.functions.calling.engine import call, call_trying
from snowmelt.functions.calling.forms import zone_of
from snowmelt.functions.calling.identity import query_id, streaming_query_id
from snowmelt.functions.calling.plan import Place
from snowmelt.spark.function_reader import reader

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from pyspark import TaskContext

    from snowmelt.functions.calling.plan import CallPlan
    from snowmelt.spark.function_spool import Spool

_ROOT = "-execution-root-id-"
_SESSION = "spark-session-"
_INSTANT = "%Y-%m-%d %H:%M:%S.%f"
# Context functions whose value is the query's own instant, in the session's zone.
INSTANTS: Mapping[str, Callable[[dt.datetime], str]] = {
    "CURRENT_DATE": lambda now: now.strftime("%Y-%m-%d"),
    "CURRENT_TIME": lambda now: now.strftime("%H:%M:%S"),
    "LOCALTIME": lambda now: now.strftime("%H:%M:%S"),
    "CURRENT_TIMESTAMP": lambda now: now.strftime(_INSTANT)[:-3] + now.strftime(" %z"),
    "LOCALTIMESTAMP": lambda now: now.strftime(_INSTANT)[:-3] + now.strftime(" %z"),
}


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a function, as it travels to the workers.

    `session` stands for the Spark session where a task does not tell its own. `site` tells calls
    of one VOLATILE function apart that are written in several places.
    """

    plan: CallPlan
    trying: bool
    session: str
    spool: Spool
    site: str = ""

    @property
    def instants(self) -> tuple[str, ...]:
        """The context headers that tell when the query is: Spark computes it, once per query."""
        return tuple(name for name in self.plan.function.context_headers if name in INSTANTS)

    @property
    def needs_column(self) -> bool:
        """Whether a column must come that is no argument: the instant, or how many rows there are."""
        return bool(self.instants) or not self.plan.function.signature.arguments

    @property
    def columns(self) -> int:
        """How many columns come."""
        return len(self.plan.function.signature.arguments) + self.needs_column


def serving(use: Use) -> Callable[[Any], Any]:
    """Return the function that PySpark is to call in its workers."""

    def serve(columns: Any) -> Any:
        return _answers(use, columns)

    one: Any = Iterator[pa.Array]
    several: Any = Iterator[tuple[pa.Array, ...]]
    serve.__annotations__ = {"columns": one if use.columns == 1 else several, "return": one}
    return serve


def _answers(use: Use, columns: Iterator[Any]) -> Iterator[pa.Array]:
    from pyspark import TaskContext

    first = next(columns, None)
    if first is None:
        return
    context = TaskContext.get()
    assert context is not None  # noqa: S101  PySpark calls this in tasks alone
    # A streaming query keeps its id over restarts, which number tasks anew; their times differ.
    task = f"{use.session} {context.taskAttemptId()}"
    place = replace(place_of(context, use.session), site=use.site, task=task)
    batches = (_batch(each) for each in chain([first], columns))
    ask = call_trying if use.trying else call
    ledger = use.spool.open(place)
    with closing(ledger):
        # Closed before the ledger: what is cancelled is written down, too.
        asked = ask(_planned(use, first), place, batches, ledger, SystemClock(), reader())
        with closing(asked):
            try:
                for answers in asked:
                    yield _as_spark_reads(answers)
            except SnowmeltError:
                # PySpark reads it when it reports the error, and ends this process afterwards: what
                # the error says stands first, and no frames of ours before it.
                os.environ["SPARK_HIDE_TRACEBACK"] = "true"  # noqa: TID251  PySpark reads it there
                raise


def _batch(columns: Any) -> pa.RecordBatch:
    arrays = list(columns) if isinstance(columns, tuple) else [columns]
    return pa.RecordBatch.from_arrays(arrays, names=[str(at) for at in range(len(arrays))])


def _planned(use: Use, first: Any) -> CallPlan:
    if not use.instants:
        return use.plan
    instants = first[-1] if isinstance(first, tuple) else first
    now = instants[0].as_py().astimezone(zone_of(use.plan.zone))
    told = {name: INSTANTS[name](now) for name in use.instants}
    return replace(use.plan, context={**use.plan.context, **told})


def place_of(context: TaskContext, session: str) -> Place:
    """Return where a task is in its query; the same for all attempts.

    Stages of a streaming query are numbered anew when it is started again, so they do not count.

    Args:
        context: Of the task.
        session: Stands for the Spark session where the task does not tell its own.
    """
    streaming = context.getLocalProperty("sql.streaming.queryId")
    if streaming is not None:
        batch = context.getLocalProperty("streaming.sql.batchId") or ""
        query, stage = streaming_query_id(streaming, batch), 0
    else:
        query, stage = _query_of(context, session), context.stageId()
    return Place(query, stage, context.partitionId(), context.attemptNumber())


def _query_of(context: TaskContext, session: str) -> str:
    for tag in (context.getLocalProperty("spark.job.tags") or "").split(","):
        owner, found, execution = tag.partition(_ROOT)
        if found and owner.startswith(_SESSION):
            return query_id(owner.removeprefix(_SESSION), execution)
    execution = context.getLocalProperty("spark.sql.execution.root.id") or ""
    return query_id(session, execution or f"stage {context.stageId()}")


def _as_spark_reads(array: pa.Array) -> pa.Array:
    """Spark knows times of day in nanoseconds alone."""
    if pa.types.is_time64(array.type):
        return array.cast(pa.time64("ns"))
    if pa.types.is_struct(array.type) and pa.types.is_time64(array.type[0].type):
        values = [array.field(at) for at in range(array.type.num_fields)]
        names = [field.name for field in array.type]
        values[0] = values[0].cast(pa.time64("ns"))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(values, names=names, mask=mask)
    return array
