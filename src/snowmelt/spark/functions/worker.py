"""Runs an external function in Spark's Python workers, and detects unread output.

PySpark passes columns and receives arrays. The query position is derived from the task, so that a
second attempt sends the same batches to the service.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Mapping
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
from snowmelt.functions.caller.pipeline import call_function
from snowmelt.functions.caller.plan import CallPlan, QueryPosition
from snowmelt.spark.functions.call_log import CallLogFiles

if TYPE_CHECKING:
    from pyspark import TaskContext


_ROOT_EXECUTION_TAG = "-execution-root-id-"
_SESSION_TAG_PREFIX = "spark-session-"
_TIMESTAMP_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
# Context headers with the time of the query, in the session's zone.
TIME_HEADERS: Mapping[str, Callable[[dt.datetime], str]] = {
    "CURRENT_DATE": lambda now: now.strftime("%Y-%m-%d"),
    "CURRENT_TIME": lambda now: now.strftime("%H:%M:%S"),
    "LOCALTIME": lambda now: now.strftime("%H:%M:%S"),
    "CURRENT_TIMESTAMP": lambda now: now.strftime(_TIMESTAMP_FORMAT)[:-3] + now.strftime(" %z"),
    "LOCALTIMESTAMP": lambda now: now.strftime(_TIMESTAMP_FORMAT)[:-3] + now.strftime(" %z"),
}


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """Use of a function in a query, which Spark sends to the workers.

    `session` is the session ID for tasks that do not provide one. `site` distinguishes several
    calls of one VOLATILE function in a query.
    """

    plan: CallPlan
    trying: bool
    session: str
    call_log: CallLogFiles
    site: str = ""

    @property
    def time_headers(self) -> tuple[str, ...]:
        """Context headers that contain the time of the query. Spark computes it once per query."""
        return tuple(name for name in self.plan.function.context_headers if name in TIME_HEADERS)

    @property
    def needs_extra_column(self) -> bool:
        """True if an additional column is needed, for the time of the query or the number of rows."""
        return bool(self.time_headers) or not self.plan.function.signature.arguments

    @property
    def column_count(self) -> int:
        """Number of columns that the function receives."""
        return len(self.plan.function.signature.arguments) + self.needs_extra_column


def make_udf(use: FunctionUse) -> Callable[[Any], Any]:
    """Return the function that PySpark calls in its workers."""

    def serve(columns: Any) -> Any:
        return _call_service(use, columns)

    one: Any = Iterator[pa.Array]
    several: Any = Iterator[tuple[pa.Array, ...]]
    serve.__annotations__ = {"columns": one if use.column_count == 1 else several, "return": one}
    return serve


def _call_service(use: FunctionUse, columns: Iterator[Any]) -> Iterator[pa.Array]:
    from pyspark import TaskContext

    first = next(columns, None)
    if first is None:
        return
    context = TaskContext.get()
    assert context is not None  # noqa: S101  PySpark calls this only in tasks
    # A restarted streaming query keeps its ID but reuses task numbers. The session distinguishes
    # them.
    task = f"{use.session} {context.taskAttemptId()}"
    place = replace(
        find_query_position(context, use.session), call_site=use.site, task_attempt_id=task
    )
    batches = (_to_record_batch(each) for each in chain([first], columns))
    ledger = use.call_log.open_task_log(place)
    with closing(ledger):
        # Close `asked` before the call log, so that cancelled calls are recorded.
        plan = _add_time_headers(use, first)
        asked = call_function(
            plan, place, batches, ledger, SystemClock(), find_output_reader(), trying=use.trying
        )
        with closing(asked):
            try:
                for answers in asked:
                    yield _cast_times_to_nanoseconds(answers)
            except SnowmeltError:
                # PySpark reads this attribute when it reports the error, and then ends this
                # process. The report begins with the error message instead of a traceback.
                os.environ["SPARK_HIDE_TRACEBACK"] = "true"  # noqa: TID251  PySpark reads it there
                raise


def _to_record_batch(columns: Any) -> pa.RecordBatch:
    arrays = list(columns) if isinstance(columns, tuple) else [columns]
    return pa.RecordBatch.from_arrays(arrays, names=[str(at) for at in range(len(arrays))])


def _add_time_headers(use: FunctionUse, first_columns: Any) -> CallPlan:
    if not use.time_headers:
        return use.plan
    instants = first_columns[-1] if isinstance(first_columns, tuple) else first_columns
    now = instants[0].as_py().astimezone(parse_time_zone(use.plan.zone))
    told = {name: TIME_HEADERS[name](now) for name in use.time_headers}
    return replace(use.plan, context={**use.plan.context, **told})


def find_query_position(context: TaskContext, session: str) -> QueryPosition:
    """Return the position of a task in its query. All attempts of a task have the same position.

    A restarted streaming query numbers its stages from the beginning, so its position excludes them.

    Args:
        context: The task context.
        session: Session ID, used if the task does not provide one.
    """
    streaming = context.getLocalProperty("sql.streaming.queryId")
    if streaming is not None:
        batch = context.getLocalProperty("streaming.sql.batchId") or ""
        query, stage = make_streaming_query_id(streaming, batch), 0
    else:
        stage = context.stageId()
        execution = context.getLocalProperty("spark.sql.execution.root.id") or ""
        query = make_query_id(session, execution or f"stage {stage}")
        for tag in (context.getLocalProperty("spark.job.tags") or "").split(","):
            owner, found, execution = tag.partition(_ROOT_EXECUTION_TAG)
            if found and owner.startswith(_SESSION_TAG_PREFIX):
                query = make_query_id(owner.removeprefix(_SESSION_TAG_PREFIX), execution)
                break
    return QueryPosition(query, stage, context.partitionId(), context.attemptNumber())


def _cast_times_to_nanoseconds(array: pa.Array) -> pa.Array:
    """Cast times of day to nanoseconds, the only unit that Spark accepts."""
    if pa.types.is_time64(array.type):
        return array.cast(pa.time64("ns"))
    if pa.types.is_struct(array.type) and pa.types.is_time64(array.type[0].type):
        values = [array.field(at) for at in range(array.type.num_fields)]
        names = [field.name for field in array.type]
        values[0] = values[0].cast(pa.time64("ns"))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(values, names=names, mask=mask)
    return array


# When a query with LIMIT has all its rows, Spark closes the worker's connection. The worker would
# notice this only at its second write after that, and would call the service until then.

_DESCRIPTOR_FOLDER = Path("/proc/self/fd")
# Constants of linux/inet_diag.h and linux/sock_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NETLINK_HEADER = struct.Struct("=IHHII")
_SOCK_DIAG_REQUEST = struct.Struct("=BBBBI")
_ALL_BITS = 0xFFFFFFFF
_RECEIVE_QUEUE_OFFSET = 72
_QUEUE_LENGTH = struct.Struct("=I")


class OutputReader:
    """Process that reads this worker's output, observed through the worker's sockets."""

    def __init__(self) -> None:
        self._poller = select.poll()
        self._descriptors = _list_sockets()
        for descriptor in self._descriptors:
            self._poller.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            # Without this option, the kernel delays small arrays by up to 40 ms until 32 KiB are
            # buffered.
            with socket.socket(fileno=os.dup(descriptor)) as ours, contextlib.suppress(OSError):
                if ours.family is not socket.AF_UNIX:
                    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def is_open(self) -> bool:
        """Return True if all connections are open."""
        return not self._poller.poll(0)

    def unread_bytes(self) -> int | None:
        """Return the number of written but unread bytes, or None if the kernel does not report it."""
        try:
            return max(map(_count_unread_bytes, self._descriptors), default=None)
        except (OSError, struct.error):
            return None


@lru_cache(maxsize=1)
def _get_cached_output_reader(_process: int) -> OutputReader:
    return OutputReader()


def find_output_reader() -> OutputReader:
    """Return the output reader of this worker. Call it before the worker opens other connections.

    If the worker has other connections, closing one of them slows calls down, without other
    effects.
    """
    return _get_cached_output_reader(os.getpid())


def _list_sockets() -> list[int]:
    """Return one file descriptor per socket."""
    found: dict[str, int] = {}
    for path in _DESCRIPTOR_FOLDER.iterdir() if _DESCRIPTOR_FOLDER.exists() else ():
        # Skip the descriptor of this directory listing, which is closed.
        with contextlib.suppress(FileNotFoundError):
            target = str(path.readlink())
            if target.startswith("socket:"):
                found.setdefault(target, int(path.name))
    return [*found.values()]


def _count_unread_bytes(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as ours:
        if ours.family is socket.AF_UNIX:
            unread = fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(_QUEUE_LENGTH.size))
            return int(_QUEUE_LENGTH.unpack(unread)[0])
        return _query_peer_receive_queue(ours)


def _query_peer_receive_queue(own_socket: socket.socket) -> int:
    """Return the bytes in the peer socket's receive queue. The peer must be on this host."""
    (host, port), (peer, peer_port) = own_socket.getsockname()[:2], own_socket.getpeername()[:2]
    other_end = (
        _SOCK_DIAG_REQUEST.pack(own_socket.family, socket.IPPROTO_TCP, 0, 0, _ALL_BITS)
        + struct.pack(">HH", peer_port, port)
        + socket.inet_pton(own_socket.family, peer).ljust(16, b"\0")
        + socket.inet_pton(own_socket.family, host).ljust(16, b"\0")
        + struct.pack("=III", 0, _ALL_BITS, _ALL_BITS)
    )
    head = _NETLINK_HEADER.pack(
        _NETLINK_HEADER.size + len(other_end), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(head + other_end)
        said = kernel.recv(4096)
    if _NETLINK_HEADER.unpack_from(said)[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError("the kernel does not have the peer socket")
    return int(_QUEUE_LENGTH.unpack_from(said, _RECEIVE_QUEUE_OFFSET)[0])
