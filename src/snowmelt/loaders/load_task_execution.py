"""Execute portions of a load: read one portion, write native files. Does not use the catalog.

A task may run in any process and more than once. Each attempt writes its own files, and the commit
includes only the files of one result. An error in the input is part of the result, because a retry
would not help. A transient error, such as an unavailable store, is raised.

`LocalTaskRunner` runs the portions of a load in this process, two at a time if all steps are built
in. Arrow, decompression and Parquet encoding release the GIL: on two cores, two files take 0.53
(gzip: 0.6) of the time that they take one after the other.
"""

from __future__ import annotations

import platform
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from snowmelt import failpoints
from snowmelt.errors import LoadCancelled, LoadFailed, SnowmeltError, UserCodeFailed, UserError
from snowmelt.failpoints import Failpoint
from snowmelt.load.kafka.partition_ranges_and_results import PartitionEnd
from snowmelt.load.phase_protocols import ParseReject
from snowmelt.load.phase_registry import LoadFunctions
from snowmelt.load.stack import PortionRun, run_portion
from snowmelt.load.task import LoadTask, PortionCounts
from snowmelt.load.udx.shared_progress_page import UserCodeLimits, is_isolated
from snowmelt.load.udx.worker_process import run_isolated
from snowmelt.loaders.row_and_reject_files import (
    FileSpool,
    RejectSpool,
    RowSpool,
    open_reject_spool,
)
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import TableSchema
from snowmelt.storage.store import Store
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.rejects import RejectOrigin
from snowmelt.table.warehouse_paths import open_cached_store

_STOP_MARKER_NAME = "stopped"
# Number of row groups (about 100 MB) between two checks whether another portion has failed.
_ROW_GROUPS_PER_STOP_CHECK = 20
_MAX_REASONS = 20
_MAX_REASON_CHARS = 400


@dataclass(frozen=True, slots=True)
class LoadTaskPlan:
    """Parameters shared by all portions of a load. Picklable.

    Rows are written to files in `folder` of the warehouse, rejects to `reject_folder`. With
    `error_tolerance`, a failed file does not stop the others. `display_path` is the name of an
    input without a path (standard input).
    """

    load_id: str
    warehouse_url: str
    folder: str
    schema: TableSchema
    cluster_by: tuple[str, ...] = ()
    reject_folder: str | None = None
    error_tolerance: bool = False
    display_path: str | None = None
    functions: LoadFunctions = field(default_factory=LoadFunctions)
    user_code_limits: UserCodeLimits = field(default_factory=UserCodeLimits)


@dataclass(frozen=True, slots=True)
class PortionResult:
    """Result of one portion, with the portion's number in the load. Picklable.

    `error` is the reason why its file failed. `was_stopped` is True if the portion was abandoned
    after another one failed. `reject_reasons` counts the most frequent reasons of rejects.
    `partition_ends` are the offsets up to which streams were read.
    """

    number: int
    counts: PortionCounts = field(default_factory=PortionCounts)
    files: tuple[WrittenFile, ...] = ()
    reject_files: tuple[WrittenFile, ...] = ()
    first_reject: ParseReject | None = None
    reject_reasons: tuple[tuple[str, int], ...] = ()
    error: str | None = None
    was_stopped: bool = False
    partition_ends: tuple[PartitionEnd, ...] = ()


def run_load_task(
    plan: LoadTaskPlan,
    task: LoadTask,
    *,
    on_begin: Callable[[Callable[[], None]], None] | None = None,
) -> PortionResult:
    """Load one portion into native files. User code runs in another process.

    Args:
        plan: Parameters of all portions.
        task: The portion.
        on_begin: Receives a function that cancels the portion from any thread.

    Raises:
        LoadCancelled: If the portion was canceled.
        StageUnavailable: If the warehouse cannot be written.
        RemoteError: If the source does not respond.
    """
    if is_isolated() or not has_user_code(plan, task):
        return _run_in_this_process(plan, task, on_begin=on_begin)
    try:
        return run_isolated(
            _run_in_this_process,
            plan,
            task,
            limits=plan.user_code_limits,
            on_begin=on_begin,
            cancellable=True,
        )
    except UserCodeFailed as error:
        if not plan.error_tolerance:
            write_stop_marker(plan)
        failure = LoadFailed(
            where=f"{plan.display_path or task.portion.file.path}, {error.fields['what']}",
            reason=str(error.fields["reason"]),
        )
        return PortionResult(task.number, error=str(failure))


def has_user_code(plan: LoadTaskPlan, task: LoadTask) -> bool:
    """Return True if a step of a portion is user code."""
    steps = (task.plan.source, *task.filters, task.plan.parser)
    return any(map(plan.functions.is_user_function, steps))


def _run_in_this_process(
    plan: LoadTaskPlan,
    task: LoadTask,
    *,
    on_begin: Callable[[Callable[[], None]], None] | None = None,
) -> PortionResult:
    store = open_cached_store(plan.warehouse_url)
    if _has_stop_marker(store, plan):
        return PortionResult(task.number, was_stopped=True)
    attempt = _TaskAttempt(plan, task, store)
    if on_begin is not None:
        on_begin(attempt.cancel)
    try:
        done = attempt.run()
    except (UserError, UnicodeError) as error:
        if isinstance(error, LoadCancelled):
            raise
        done = attempt.make_failed_result(str(error))
    except (KeyboardInterrupt, SystemExit):
        attempt.cancel()
        raise
    finally:
        attempt.close()
    if (done.error is not None or done.counts.reject_limit_reached) and not plan.error_tolerance:
        write_stop_marker(plan)
    failpoints.hit_failpoint(Failpoint.LOAD_TASK)
    return done


def write_stop_marker(plan: LoadTaskPlan) -> None:
    """Signal to unfinished portions that the load has failed."""
    with suppress(SnowmeltError):
        open_cached_store(plan.warehouse_url).put(f"{plan.folder}/{_STOP_MARKER_NAME}", b"")


def _has_stop_marker(store: Store, plan: LoadTaskPlan) -> bool:
    return store.head(f"{plan.folder}/{_STOP_MARKER_NAME}") is not None


class _TaskAttempt:
    """One attempt to load a portion, with the files of its rows and rejects."""

    def __init__(self, plan: LoadTaskPlan, task: LoadTask, store: Store) -> None:
        self._plan = plan
        self._task = task
        self._store = store
        name = f"{task.number:05d}"
        self._files = FileSpool(plan.warehouse_url, plan.folder, name, native_schema(plan.schema))
        self._rows = RowSpool(self._files, plan.schema, plan.cluster_by)
        folder = plan.reject_folder
        self._reject_file_spool = (
            None
            if folder is None
            else open_reject_spool(plan.warehouse_url, folder, f"{name}-rejects")
        )
        self._rejects = (
            None
            if self._reject_file_spool is None
            else RejectSpool(self._reject_file_spool, self._make_reject_origin())
        )
        self._run: PortionRun | None = None
        self._cancelled = False
        self._reasons: Counter[str] = Counter()
        self._first_reject: ParseReject | None = None

    def run(self) -> PortionResult:
        self._run = run_portion(self._task, self._plan.functions)
        if self._cancelled:
            self._run.cancel()
        groups = 0
        for block in self._run:
            self._record_rejects(block.rejects)
            groups += self._rows.add(block.rows)
            if groups == _ROW_GROUPS_PER_STOP_CHECK:
                groups = 0
                if _has_stop_marker(self._store, self._plan):
                    return PortionResult(self._task.number, was_stopped=True)
        return self._make_result(self._rows.finish(), None)

    def make_failed_result(self, reason: str) -> PortionResult:
        """Return the result of a failed portion, which has rejects but no rows."""
        return self._make_result((), reason)

    def cancel(self) -> None:
        """Cancel the steps. Idempotent and thread-safe."""
        self._cancelled = True
        if self._run is not None:
            self._run.cancel()

    def close(self) -> None:
        """Abort unfinished steps and files."""
        self._files.abort_current_file()
        if self._reject_file_spool is not None:
            self._reject_file_spool.abort_current_file()

    def _make_result(self, files: Sequence[WrittenFile], error: str | None) -> PortionResult:
        rejects = () if self._rejects is None else self._rejects.finish()
        counts = PortionCounts() if self._run is None else self._run.counts
        return PortionResult(
            number=self._task.number,
            counts=counts,
            files=tuple(files),
            reject_files=tuple(rejects),
            first_reject=self._first_reject,
            reject_reasons=tuple(self._reasons.most_common(_MAX_REASONS)),
            error=error,
            partition_ends=tuple(getattr(self._run.source, "ends", ()))
            if self._run is not None
            else (),
        )

    def _record_rejects(self, rejects: Sequence[ParseReject]) -> None:
        if not rejects:
            return
        self._first_reject = self._first_reject or rejects[0]
        for each in rejects:
            reason = each.reason[:_MAX_REASON_CHARS]
            if reason in self._reasons or len(self._reasons) < _MAX_REASONS:
                self._reasons[reason] += 1
        if self._rejects is not None:
            self._rejects.add(rejects, self._locate_message)

    def _locate_message(self, record: int) -> str | None:
        """Return the position of a message: topic, partition and offset."""
        locate = None if self._run is None else getattr(self._run.source, "locate", None)
        found = None if locate is None else locate(record)
        return None if found is None else f"{found.topic}|{found.partition}|{found.offset}"

    def _make_reject_origin(self) -> RejectOrigin:
        file = self._plan.display_path or self._task.portion.file.path
        return RejectOrigin(self._plan.load_id, platform.node(), file, self._task.number)


# Local execution of portions, two at a time if all steps are built in.
#
# Arrow, decompression and Parquet encoding release the GIL: with two threads on two cores, two files
# take 0.53 (gzip: 0.6) of the time that they take one after the other.

_MAX_PARALLEL_TASKS = 2
# Maximum wait in seconds for a source that does not react to cancellation.
_CANCEL_TIMEOUT_S = 3.0


class LocalTaskRunner:
    """Runner of portions in this process. Yields each result when it is available."""

    parallelism = _MAX_PARALLEL_TASKS

    def __call__(self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]) -> Iterator[PortionResult]:
        """Run portions. Portions with user code run one after another, in a worker process.

        Raises:
            RemoteError: If a store does not respond.
        """
        if len(tasks) < _MAX_PARALLEL_TASKS or has_user_code(plan, tasks[0]):
            for task in tasks:
                yield run_load_task(plan, task)
            return
        crew = _TaskThreads(plan, tasks)
        try:
            yield from crew.iter_results()
        finally:
            crew.shut_down()


class _TaskThreads:
    """Threads that run portions from a queue."""

    def __init__(self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]) -> None:
        self._plan = plan
        self._count = len(tasks)
        self._pending_tasks: queue.SimpleQueue[LoadTask] = queue.SimpleQueue()
        for task in tasks:
            self._pending_tasks.put(task)
        self._results: queue.SimpleQueue[PortionResult | BaseException] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._cancels: dict[int, Callable[[], None]] = {}
        self._threads = [
            threading.Thread(target=self._run_tasks, name=f"snowmelt-load-{number}", daemon=True)
            for number in range(_MAX_PARALLEL_TASKS)
        ]
        for thread in self._threads:
            thread.start()

    def iter_results(self) -> Iterator[PortionResult]:
        """Yield the results of portions. Raise the first error of a portion."""
        for _ in range(self._count):
            done = self._results.get()
            if isinstance(done, BaseException):
                raise done
            yield done

    def shut_down(self) -> None:
        """Cancel running portions, and wait up to 3 s for them."""
        self._ended.set()
        if any(thread.is_alive() for thread in self._threads):
            write_stop_marker(self._plan)
            for cancel in list(self._cancels.values()):
                cancel()
            for thread in self._threads:
                thread.join(_CANCEL_TIMEOUT_S / _MAX_PARALLEL_TASKS)

    def _run_tasks(self) -> None:
        while not self._ended.is_set():
            try:
                task = self._pending_tasks.get_nowait()
            except queue.Empty:
                return
            try:
                self._results.put(run_load_task(self._plan, task, on_begin=self._register_cancel))
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                self._results.put(error)

    def _register_cancel(self, cancel: Callable[[], None]) -> None:
        self._cancels[threading.get_ident()] = cancel
        if self._ended.is_set():
            cancel()
