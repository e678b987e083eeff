"""What runs in Spark's Python workers for one use of an external function.

PySpark hands over columns and takes arrays; which call belongs to which work is read off the task,
so that a second attempt asks the service for the very same batches.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snowmelt.clock import SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.functions.caller.arrow_types import parse_time_zone
from snowmelt.functions.caller.batcher import make_query_id, make_streaming_query_id
from snowmelt.functions.caller.engine import call_function, try_call_function
from snowmelt.functions.caller.plan import QueryPosition

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from pyspark import TaskContext

    from snowmelt.functions.caller.plan import CallPlan
    from snowmelt.spark.functions.call_log import Spool

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
    place = replace(place_of(context, use.session), call_site=use.site, task_attempt_id=task)
    batches = (_batch(each) for each in chain([first], columns))
    ask = try_call_function if use.trying else call_function
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
    now = instants[0].as_py().astimezone(parse_time_zone(use.plan.zone))
    told = {name: INSTANTS[name](now) for name in use.instants}
    return replace(use.plan, context={**use.plan.context, **told})


def place_of(context: TaskContext, session: str) -> QueryPosition:
    """Return where a task is in its query; the same for all attempts.

    Stages of a streaming query are numbered anew when it is started again, so they do not count.

    Args:
        context: Of the task.
        session: Stands for the Spark session where the task does not tell its own.
    """
    streaming = context.getLocalProperty("sql.streaming.queryId")
    if streaming is not None:
        batch = context.getLocalProperty("streaming.sql.batchId") or ""
        query, stage = make_streaming_query_id(streaming, batch), 0
    else:
        query, stage = _query_of(context, session), context.stageId()
    return QueryPosition(query, stage, context.partitionId(), context.attemptNumber())


def _query_of(context: TaskContext, session: str) -> str:
    for tag in (context.getLocalProperty("spark.job.tags") or "").split(","):
        owner, found, execution = tag.partition(_ROOT)
        if found and owner.startswith(_SESSION):
            return make_query_id(owner.removeprefix(_SESSION), execution)
    execution = context.getLocalProperty("spark.sql.execution.root.id") or ""
    return make_query_id(session, execution or f"stage {context.stageId()}")


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


# --- Whether anybody still reads what a Python worker says.
#
# A query that has enough rows closes the worker's connection. The worker would notice when it writes
# for the second time after that; until then a LIMIT would go on calling a service.

_DESCRIPTORS = Path("/proc/self/fd")
# linux/inet_diag.h, linux/sock_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NETLINK = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_ANY = 0xFFFFFFFF
_RECEIVED_AT = 72
_QUEUE = struct.Struct("=I")


class Reader:
    """The process at the other end of the worker's connections."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._descriptors = _sockets()
        for descriptor in self._descriptors:
            self._poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            _send_at_once(descriptor)

    def is_open(self) -> bool:
        """Tell whether all connections are open."""
        return not self._poll.poll(0)

    def unread_bytes(self) -> int | None:
        """Return what was written and not read yet, in bytes; None where the kernel does not say."""
        try:
            return max(map(_unread, self._descriptors), default=None)
        except (OSError, struct.error):
            return None


@lru_cache(maxsize=1)
def _reader(_process: int) -> Reader:
    return Reader()


def reader() -> Reader:
    """Return the reader of this worker; asked for before the worker has connections of its own.

    Should it have some all the same, their end slows calls down and does nothing else.
    """
    return _reader(os.getpid())


def _sockets() -> list[int]:
    """Return one descriptor of each socket."""
    found: dict[str, int] = {}
    for path in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        try:
            target = str(path.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target.startswith("socket:"):
            found.setdefault(target, int(path.name))
    return [*found.values()]


def _send_at_once(descriptor: int) -> None:
    # The kernel otherwise keeps small arrays until 32 KiB have come together, or for 40 ms.
    with (
        socket.socket(fileno=os.dup(descriptor)) as ours,
        contextlib.suppress(OSError),
    ):
        if ours.family is not socket.AF_UNIX:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _unread(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as ours:
        if ours.family is socket.AF_UNIX:
            return int(_QUEUE.unpack(fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(_QUEUE.size)))[0])
        return _received(ours)


def _received(ours: socket.socket) -> int:
    """Return what the peer's kernel, which is ours as well, holds for a connection's other end."""
    (host, port), (peer, peer_port) = ours.getsockname()[:2], ours.getpeername()[:2]
    other_end = (
        _REQUEST.pack(ours.family, socket.IPPROTO_TCP, 0, 0, _ANY)
        + struct.pack(">HH", peer_port, port)
        + socket.inet_pton(ours.family, peer).ljust(16, b"\0")
        + socket.inet_pton(ours.family, host).ljust(16, b"\0")
        + struct.pack("=III", 0, _ANY, _ANY)
    )
    head = _NETLINK.pack(_NETLINK.size + len(other_end), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(head + other_end)
        said = kernel.recv(4096)
    if _NETLINK.unpack_from(said)[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError("the kernel does not know the other end")
    return int(_QUEUE.unpack_from(said, _RECEIVED_AT)[0])
