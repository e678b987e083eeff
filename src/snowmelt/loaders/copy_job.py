"""Execute one COPY statement, from planning to the commit.

A `TaskRunner` runs the portions of the load, here or on Spark. `load_result_check` then combines
their results. Rejects are published first, with the load's ID, so that they exist even if the load
is aborted. Finally, one transaction adds all rows to the table, or none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.load_history import (
    LoadFileState,
    LoadTotals,
    OffsetAdvance,
    find_loaded_files,
    read_stream_offsets,
)
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.libraries import list_load_functions, read_library_files
from snowmelt.catalog.objects.name_suggestions import suggesting_names
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.catalog.statements.statement_context import StatementSession
from snowmelt.clock import Clock
from snowmelt.errors import (
    ConflictError,
    LoadFailed,
    LoadRefused,
    SnowmeltError,
    UnknownOutcome,
)
from snowmelt.load.copy_ast import CopyStatement, StandardInput
from snowmelt.load.copy_parser import parse_copy
from snowmelt.load.phase_registry import LoadFunctions, UserLoadFunction
from snowmelt.load.planner import LoadPlan, list_named_steps, plan_load
from snowmelt.load.portion import MIN_PORTION_BYTES, InputFile
from snowmelt.load.sources.files import delete_file
from snowmelt.load.task import LoadStep, LoadTask
from snowmelt.load.udx.shared_progress_page import UserCodeLimits
from snowmelt.loaders.load_result_check import (
    CopyReconciliation,
    HeaderDifference,
    describe_truncation,
    reconcile_load,
    to_failed_file_records,
)
from snowmelt.loaders.load_task_execution import LoadTaskPlan, PortionResult
from snowmelt.loaders.reject_publisher import (
    check_reject_files,
    renumber_reject_files,
    truncate_reject_files,
    write_error_table_files,
    write_reject_files,
)
from snowmelt.loaders.row_and_reject_files import merge_small_files
from snowmelt.schema.notebook_tables import render_notebook_table
from snowmelt.schema.types import TableName
from snowmelt.storage.overwrite_protection import check_output_outside_deployment
from snowmelt.table.load_commit import (
    LoadRequest,
    LoadResult,
    OpenLoad,
    abort_load,
    begin_load,
    commit_load,
    publish_rejects,
    renewing_load_lease,
)
from snowmelt.table.native_file_writer import WrittenFile

_log = logging.getLogger("snowmelt.load")


class TaskRunner(Protocol):
    """Interface of runners of the portions of a load, in this process or on Spark."""

    @property
    def parallelism(self) -> int:
        """Number of portions that run at the same time."""

    def __call__(self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]) -> Iterable[PortionResult]:
        """Run each portion once. Yield the results in any order."""


@dataclass(frozen=True, slots=True)
class CopyContext:
    """Role, catalog and default namespace of a COPY. Names are internal names.

    Portions of a file have at least `min_portion_bytes`. Reject files must not replace the
    warehouse or `reserved_paths`. `user_code_limits` are the limits of worker processes.
    """

    database: Database
    warehouse_url: str
    role: str
    clock: Clock
    default_database: str | None = None
    default_schema: str | None = None
    lease_s: float = 60.0
    min_portion_bytes: int = MIN_PORTION_BYTES
    reserved_paths: tuple[str, ...] = ()
    user_code_limits: UserCodeLimits = field(default_factory=UserCodeLimits)


@dataclass(frozen=True, slots=True)
class ArrivedFiles:
    """A batch of new files, and the name that their loads have in the history.

    `repeated_paths` are files whose current version has already failed.
    """

    files: Sequence[InputFile]
    load_name: str | None = None
    repeated_paths: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result of a COPY. `load_id` is None if there was nothing to load.

    `skipped_files` counts files that were loaded before. `reject_reasons` are the most frequent
    reasons. `rejected_to` is where rejects are stored, or None. `failed_files` are files that were
    not loaded, with the reason (only with ERROR TOLERANCE). `duplicate_paths` are pairs of paths of
    the same file; the first path was not loaded. `changed_files` are files that have changed since
    an earlier load, and were loaded again completely.
    `truncated_values` counts values that were cut to the length of their column.
    `header_differences` says which header names have no column, and which columns get no value.
    """

    load_id: str | None
    table: TableName
    totals: LoadTotals
    skipped_files: int
    reject_reasons: tuple[tuple[str, int], ...] = ()
    rejected_to: str | None = None
    failed_files: tuple[tuple[str, str], ...] = ()
    duplicate_paths: tuple[tuple[str, str], ...] = ()
    changed_files: tuple[str, ...] = ()
    truncated_values: int = 0
    header_differences: tuple[HeaderDifference, ...] = ()

    COLUMNS: ClassVar = (
        "table",
        "rows_loaded",
        "rows_rejected",
        "files_loaded",
        "files_skipped",
        "files_failed",
        "bytes",
        "first_error",
        "rejected_to",
        "load_id",
        "values_truncated",
    )

    def to_row(self) -> tuple[object, ...]:
        """Return the result as a row of COLUMNS."""
        return (
            str(self.table),
            self.totals.rows,
            self.totals.rejects,
            self.totals.files,
            self.skipped_files,
            len(self.failed_files),
            self.totals.bytes,
            self.totals.first_error,
            self.rejected_to,
            self.load_id,
            self.truncated_values,
        )

    def _repr_html_(self) -> str:
        """Return counts, failed files and the most frequent reasons as tables, for notebooks."""
        parts = [render_notebook_table(self.COLUMNS, [self.to_row()], f"COPY into {self.table}")]
        if self.failed_files:
            failed = render_notebook_table(("file", "error"), self.failed_files, "Failed files")
            parts.append(failed)
        if self.reject_reasons:
            reasons = [(count, reason) for reason, count in self.reject_reasons]
            parts.append(render_notebook_table(("records", "reason"), reasons, "Rejected records"))
        return "".join(parts)


def run_copy(
    context: CopyContext,
    statement_text: str,
    runner: TaskRunner,
    *,
    on_progress: Callable[[PortionResult, int], None] | None = None,
    arrived: ArrivedFiles | None = None,
) -> CopyResult:
    """Run one COPY statement.

    Args:
        context: Role, catalog and namespace.
        statement_text: The statement.
        runner: Runs the portions.
        on_progress: Called with each finished portion and the number of portions.
        arrived: A batch of files to load in place of all files that match the paths. A failed file
            then does not fail the load, even if it is the only one. Limits of rejects apply per
            file.

    Raises:
        StatementError: If the statement cannot be parsed.
        TableNotFound: If the table does not exist or the role lacks INSERT on it.
        LoadRefused: If a source, filter, parser, parameter or reject table is invalid.
        OutputRefused: If a reject file would replace an input or a file of the installation.
        LoadFailed: If a file cannot be loaded, or too many records were rejected. No row was loaded;
            rejects are published.
        LoadOvertaken: If another load committed the same files first. No row was loaded.
        UnknownOutcome: If the load may have been committed. LOAD_HISTORY has the outcome.
    """
    statement = parse_copy(statement_text)
    if arrived is not None:
        statement = statement.for_arriving_files()
    if statement.validation is not None:
        raise LoadRefused(
            what="VALIDATION_MODE",
            reason="this call loads rows. Validate with `lake.sql`, `snowmelt sql` or `snowmelt copy`",
        )
    if statement.no_commit:
        raise LoadRefused(
            what="NO COMMIT",
            reason="each COPY is one transaction, which commits when it succeeds. "
            "Leave out NO COMMIT",
        )
    prepared = prepare_copy(
        context, statement, runner.parallelism, None if arrived is None else arrived.files
    )
    if not prepared.plan.tasks:
        if prepared.plan.failed_inputs:
            where, reason = prepared.plan.failed_inputs[0]
            raise LoadFailed(where=where, reason=reason.rstrip("."))
        totals = LoadTotals(0, 0, 0, 0)
        return CopyResult(
            None,
            prepared.table.name,
            totals,
            len(prepared.plan.skipped_files),
            duplicate_paths=prepared.plan.duplicate_paths,
        )
    load = begin_load(
        context.database,
        LoadRequest(
            prepared.table.name,
            statement.to_redacted_text(),
            context.role,
            prepared.reject_table,
            statement.stream_name if arrived is None else arrived.load_name,
            keep_rejected=not _has_reject_sink(statement),
        ),
        warehouse_url=context.warehouse_url,
        clock=context.clock,
        lease_s=context.lease_s,
    )
    run = _CopyRun(context, statement, prepared, load, arrived)
    return run.run(runner, on_progress)


def _find_common_failure(reconciliation: CopyReconciliation) -> str | None:
    """Return the reason of the first file if all files of a load failed, else None."""
    records = reconciliation.file_records
    if not records or any(each.state != "LOAD_FAILED" for each in records):
        return None
    return records[0].first_error or "no file could be loaded"


def _has_reject_sink(statement: CopyStatement) -> bool:
    sink = statement.rejects
    return any(each is not None for each in (sink.table, sink.data_path, sink.exceptions_path))


@dataclass(frozen=True, slots=True)
class PreparedCopy:
    """A planned COPY."""

    table: TableRecord
    reject_table: TableName | None
    functions: LoadFunctions
    plan: LoadPlan
    stream_key: str
    saved_offsets: Mapping[tuple[str, int], int]

    def list_offset_advances(self, results: Iterable[PortionResult]) -> tuple[OffsetAdvance, ...]:
        """Return the stream offsets to commit."""
        return tuple(
            OffsetAdvance(
                self.stream_key,
                end.topic,
                end.partition,
                self.saved_offsets.get((end.topic, end.partition)),
                end.next_offset,
            )
            for each in results
            for end in each.partition_ends
        )


def prepare_copy(
    context: CopyContext,
    statement: CopyStatement,
    parallelism: int,
    listed_files: Sequence[InputFile] | None = None,
) -> PreparedCopy:
    """Resolve the names of a COPY, and plan it without the files that the table already has.

    Raises:
        StatementError: If a column is unknown, or a NOT NULL column receives no value.
        TableNotFound: If the table does not exist or the role lacks INSERT on it.
        LoadRefused: If a source, filter, parser, parameter or reject table is invalid.
        LoadFailed: If the inputs cannot be listed.
    """
    with context.database.reading() as connection:
        session = StatementSession(
            connection=connection,
            user=None,
            role=context.role,
            database=context.default_database,
            schema=context.default_schema,
            now=context.clock.now(),
        )
        name = session.resolve_table_name(statement.table)
        with suggesting_names(connection, context.role, name):
            table = find_table(connection, name)
            require_table_privilege(connection, context.role, table, "INSERT")
        sink = statement.rejects.table
        rejects = None if sink is None else session.resolve_table_name(sink)
        functions = find_load_functions(connection, list_named_steps(statement))
        stream = f"{table.incarnation}/{statement.stream_name or ''}"
        saved = read_stream_offsets(connection, stream)
    plan = plan_load(
        statement,
        table.schema,
        functions,
        parallelism=parallelism,
        started_at=context.clock.now(),
        min_portion_bytes=context.min_portion_bytes,
        saved_offsets=saved,
        limits=context.user_code_limits,
        listed_files=listed_files,
    )
    if not statement.force:
        with context.database.reading() as connection:
            paths = {task.portion.file.path for task in plan.tasks}
            known = find_loaded_files(
                connection,
                table.table_id,
                paths,
                # Without this, every round of a watch would load files without valid records again.
                with_rejected=listed_files is not None,
                without_rejects=statement.validation == "RETURN_ALL_ERRORS",
            )
        plan = plan.without_loaded_files({(key.path, key.size, key.tag) for key in known})
    if statement.purge:
        reserved = (*context.reserved_paths, context.warehouse_url)
        for task in plan.tasks:
            check_output_outside_deployment("PURGE", task.portion.file.path, reserved=reserved)
    check_reject_files(
        statement.rejects, plan, reserved_paths=(*context.reserved_paths, context.warehouse_url)
    )
    return PreparedCopy(table, rejects, functions, plan, stream, saved)


def find_load_functions(connection: sa.Connection, steps: Sequence[LoadStep]) -> LoadFunctions:
    """Return the user-defined load functions, with the libraries that `steps` need."""
    made = list_load_functions(connection)
    functions = LoadFunctions(
        tuple(UserLoadFunction(each.kind, each.name, each.factory, each.library) for each in made)
    )
    libraries = read_library_files(connection, sorted(functions.list_needed_libraries(steps)))
    return replace(functions, libraries=libraries)


class _CopyRun:
    """A running COPY. It ends with a commit or an abort."""

    def __init__(
        self,
        context: CopyContext,
        statement: CopyStatement,
        prepared: PreparedCopy,
        load: OpenLoad,
        arrived: ArrivedFiles | None,
    ) -> None:
        self._context = context
        self._repeated_paths = None if arrived is None else arrived.repeated_paths
        self._statement = statement
        self._prepared = prepared
        self._load = load
        self._plan = LoadTaskPlan(
            load_id=load.load_id,
            warehouse_url=load.warehouse_url,
            folder=load.folder,
            schema=load.table.schema,
            cluster_by=load.table.cluster_by,
            reject_folder=self._choose_reject_folder(),
            error_tolerance=statement.error_tolerance,
            display_path="STDIN" if isinstance(statement.inputs, StandardInput) else None,
            functions=prepared.functions,
            user_code_limits=context.user_code_limits,
        )

    def run(
        self, runner: TaskRunner, on_progress: Callable[[PortionResult, int], None] | None
    ) -> CopyResult:
        context, load, tasks = self._context, self._load, self._prepared.plan.tasks
        settled: CopyReconciliation | None = None
        outcomes: list[PortionResult] = []
        try:
            with renewing_load_lease(context.database, load, clock=context.clock):
                for each in runner(self._plan, tasks):
                    outcomes.append(each)
                    if on_progress is not None:
                        on_progress(each, len(tasks))
                settled = reconcile_load(
                    tasks,
                    outcomes,
                    missing_inputs=self._prepared.plan.failed_inputs,
                    display_path=self._plan.display_path,
                    reject_limit=self._statement.compute_reject_limit(),
                    error_tolerance=self._statement.error_tolerance,
                    file_reject_limit=self._statement.file_reject_max,
                    repeated_paths=self._repeated_paths,
                )
                settled = self._merge_small_files(settled)
                kept = self._publish_rejects(outcomes, settled)
                self._commit_load(outcomes, settled, kept)
        except UnknownOutcome:
            # The load may have been committed. Garbage collection closes it after its lease has
            # expired.
            raise
        except BaseException as error:
            self._abort(error, settled)
            raise
        self._report_offsets(outcomes)
        if self._statement.purge:
            self._purge_files(settled)
        return self._make_result(settled)

    def _merge_small_files(self, reconciliation: CopyReconciliation) -> CopyReconciliation:
        if reconciliation.failure_reason is not None:
            return reconciliation
        plan = self._plan
        files = merge_small_files(
            reconciliation.files,
            plan.schema,
            warehouse_url=plan.warehouse_url,
            folder=plan.folder,
            cluster_by=plan.cluster_by,
        )
        return replace(reconciliation, files=files)

    def _find_record_terminator(self) -> str:
        # All tasks have the same parser. Without files to load, there is no task.
        for task in self._prepared.plan.tasks[:1]:
            for name, value in task.plan.parser.parameters.items():
                if name.lower() == "record_terminator" and value:
                    return str(value)
        return "\n"

    def _publish_rejects(
        self, results: Sequence[PortionResult], reconciliation: CopyReconciliation
    ) -> tuple[WrittenFile, ...]:
        """Publish rejects, or return them as files of the error table for the commit."""
        folder = self._plan.reject_folder
        results = [
            replace(each, reject_files=())
            if each.number in reconciliation.uncounted_tasks
            else each
            for each in results
        ]
        if folder is None or not any(each.reject_files for each in results):
            # Truncate the files: rejects of an earlier load would seem to belong to this load.
            truncate_reject_files(self._statement.rejects)
            return ()
        files = renumber_reject_files(
            results,
            reconciliation.first_records,
            warehouse_url=self._load.warehouse_url,
            folder=folder,
        )
        if self._load.errors is not None:
            if reconciliation.failure_reason is not None:
                return ()
            return write_error_table_files(self._load, files, self._context.clock.now())
        publish_rejects(self._context.database, self._load, files, clock=self._context.clock)
        sink = self._statement.rejects
        if sink.table is None:
            write_reject_files(
                files,
                warehouse_url=self._load.warehouse_url,
                options=sink,
                terminator=self._find_record_terminator().encode(),
            )
        return ()

    def _commit_load(
        self,
        results: Sequence[PortionResult],
        reconciliation: CopyReconciliation,
        error_table_files: tuple[WrittenFile, ...],
    ) -> None:
        if reconciliation.failure_reason is not None:
            where = f"COPY {self._load.table.name}"
            raise LoadFailed(where=where, reason=reconciliation.failure_reason.rstrip("."))
        gaps = (
            f"topic {end.topic}, partition {end.partition}: messages {gap.start} to {gap.end - 1} "
            "were deleted before they were read"
            for each in results
            for end in each.partition_ends
            for gap in end.gaps
        )
        duplicates = (
            f"{path} was skipped: it is the same file as {other}"
            for path, other in self._prepared.plan.duplicate_paths
        )
        losses = list(map(str, reconciliation.header_differences))
        if reconciliation.truncated_values:
            losses.append(describe_truncation(reconciliation.truncated_values))
        result = LoadResult(
            reconciliation.files,
            reconciliation.file_records,
            reconciliation.totals,
            offsets=self._prepared.list_offset_advances(results),
            force=self._statement.force,
            message="; ".join((*gaps, *duplicates, *losses)) or None,
            failure=_find_common_failure(reconciliation),
        )
        commit_load(
            self._context.database,
            self._load,
            result,
            clock=self._context.clock,
            rejected_files=error_table_files,
        )

    def _purge_files(self, reconciliation: CopyReconciliation) -> None:
        """Delete the files that were loaded completely. Other files may have the only copy of a record.

        Failures are only logged, because the rows are committed.
        """
        for each in reconciliation.file_records:
            if each.state is LoadFileState.LOADED:
                try:
                    delete_file(each.path)
                except SnowmeltError as error:
                    _log.warning("PURGE: cannot delete: %s", error)

    def _report_offsets(self, results: Sequence[PortionResult]) -> None:
        """Report the loaded offsets to a built-in source, for monitoring only."""
        ends = [end for each in results for end in each.partition_ends]
        if ends:
            step = self._prepared.plan.tasks[0].plan.source
            if self._prepared.functions.is_user_function(step):
                return
            report = getattr(self._prepared.functions.make_phase(step), "report", None)
            if report is not None:
                report(ends)

    def _abort(self, error: BaseException, reconciliation: CopyReconciliation | None) -> None:
        reason = str(error) or type(error).__name__
        inputs = (
            ()
            if reconciliation is None
            else to_failed_file_records(reconciliation.file_records, reason)
        )
        totals = None
        if reconciliation is not None and not isinstance(error, ConflictError):
            totals = LoadTotals(
                files=0,
                rows=0,
                rejects=reconciliation.totals.rejects,
                bytes=reconciliation.totals.bytes,
                first_error=reconciliation.totals.first_error,
            )
        # If the catalog does not respond, garbage collection closes the load after its lease has
        # expired.
        with contextlib.suppress(SnowmeltError):
            abort_load(
                self._context.database,
                self._load,
                reason,
                clock=self._context.clock,
                inputs=inputs,
                totals=totals,
            )

    def _choose_reject_folder(self) -> str | None:
        sink = self._statement.rejects
        if sink.table is not None:
            return self._load.reject_folder
        wanted = _has_reject_sink(self._statement) or self._load.errors is not None
        return f"{self._load.folder}/rejects" if wanted else None

    def _make_result(self, reconciliation: CopyReconciliation) -> CopyResult:
        sink = self._statement.rejects
        paths = [path for path in (sink.data_path, sink.exceptions_path) if path is not None]
        place = str(self._prepared.reject_table) if sink.table is not None else " and ".join(paths)
        if self._load.errors is not None and reconciliation.totals.rejects:
            place = str(self._load.errors.name)
        return CopyResult(
            load_id=self._load.load_id,
            table=self._load.table.name,
            totals=reconciliation.totals,
            skipped_files=len(self._prepared.plan.skipped_files),
            reject_reasons=reconciliation.reject_reasons,
            rejected_to=place or None,
            failed_files=tuple(
                (each.path, each.first_error or "")
                for each in reconciliation.file_records
                if each.state == "LOAD_FAILED"
            ),
            duplicate_paths=self._prepared.plan.duplicate_paths,
            changed_files=self._prepared.plan.changed_files,
            truncated_values=reconciliation.truncated_values,
            header_differences=reconciliation.header_differences,
        )
