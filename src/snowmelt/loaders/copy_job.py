"""COPY: from the statement to the commit, on whatever runs the portions.

A load begins, its portions are run anywhere, their outcomes are added up. Rejects are published
first, keyed by the load, so that they are there even when the load is given up; then one
transaction makes the rows part of the table, or nothing is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from snowmelt.catalog.commands.session import Session
from snowmelt.catalog.jobs.loads import (
    LoadTotals,
    OffsetAdvance,
    find_loaded_files,
    read_stream_offsets,
)
from snowmelt.catalog.objects.libraries import list_load_functions, read_library_files
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.errors import (
    ConflictError,
    LoadFailed,
    LoadRefused,
    SnowmeltError,
    UnknownOutcome,
)
from snowmelt.load.copy_ast import StandardInput
from snowmelt.load.copy_parser import parse_copy
from snowmelt.load.function_registry import LoadFunctions, UserFunction
from snowmelt.load.planner import list_named_steps, plan_load
from snowmelt.load.portion import MIN_PORTION_BYTES
from snowmelt.load.udx.worker_progress import UserCodeLimits
from snowmelt.loaders.reconciliation import failed_inputs, settle
from snowmelt.loaders.reject_publisher import (
    check_reject_files,
    empty_reject_files,
    error_files,
    numbered_files,
    write_reject_files,
)
from snowmelt.loaders.task_runner import WorkPlan
from snowmelt.table.load_commit import (
    LoadRequest,
    LoadResult,
    abort_load,
    begin_load,
    commit_with_rejected,
    publish_rejects,
    renewing_load_lease,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import sqlalchemy as sa

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.load.copy_ast import CopyStatement
    from snowmelt.load.planner import LoadPlan
    from snowmelt.load.task import LoadStep, LoadTask
    from snowmelt.loaders.reconciliation import Settled
    from snowmelt.loaders.task_runner import Portioned
    from snowmelt.schema.types import TableName
    from snowmelt.table.load_commit import OpenLoad
    from snowmelt.table.native_writer import WrittenFile


class Runner(Protocol):
    """What runs the portions of a load: this process, or Spark."""

    @property
    def parallelism(self) -> int:
        """How many portions it runs at a time."""

    def __call__(self, plan: WorkPlan, tasks: Sequence[LoadTask]) -> Iterable[Portioned]:
        """Run portions, each once as far as is seen from here; their outcomes in any order."""


@dataclass(frozen=True, slots=True)
class CopyContext:
    """Whose COPY it is, and what short names mean to them; names are internal.

    No portion of a file is smaller than `smallest_portion` bytes. `reserved` are files and folders
    that no output may replace, besides the warehouse. `limits` are those of code of users.
    """

    database: Database
    warehouse_url: str
    role: str
    clock: Clock
    default_database: str | None = None
    default_schema: str | None = None
    lease_s: float = 60.0
    smallest_portion: int = MIN_PORTION_BYTES
    reserved: tuple[str, ...] = ()
    limits: UserCodeLimits = field(default_factory=UserCodeLimits)


@dataclass(frozen=True, slots=True)
class Copied:
    """What a COPY did. Without a `load_id` there was nothing to load.

    `skipped` counts files that the table has already; `reasons` are the most frequent ones of
    rejects, `rejected_to` says where those are (None: nowhere). `failed` are files that were
    left out, each with the reason (only with ERROR TOLERANCE). `repeated` are paths that were left
    out because they lead to the same file as the path behind each.
    """

    load_id: str | None
    table: TableName
    totals: LoadTotals
    skipped: int
    reasons: tuple[tuple[str, int], ...] = ()
    rejected_to: str | None = None
    failed: tuple[tuple[str, str], ...] = ()
    repeated: tuple[tuple[str, str], ...] = ()

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
    )

    def row(self) -> tuple[object, ...]:
        """Return it as a row of COLUMNS."""
        return (
            str(self.table),
            self.totals.rows,
            self.totals.rejects,
            self.totals.files,
            self.skipped,
            len(self.failed),
            self.totals.bytes,
            self.totals.first_error,
            self.rejected_to,
            self.load_id,
        )


def copy_into(
    context: CopyContext,
    text: str,
    run: Runner,
    *,
    progress: Callable[[Portioned, int], None] | None = None,
) -> Copied:
    """Run one COPY statement.

    Args:
        context: Whose it is.
        text: The statement.
        run: What runs the portions.
        progress: Is told of each portion that is done, and how many there are in all.

    Raises:
        StatementError: The statement cannot be understood.
        TableNotFound: The table does not exist, or the role may not insert into it.
        LoadRefused: A source, filter, parser, parameter or table of rejects is refused.
        OutputRefused: A file of rejects would replace an input, another file, or one of ours.
        LoadFailed: A file cannot be loaded, or too many records were rejected. Nothing was
            loaded; rejects are published all the same.
        LoadOvertaken: Another load was faster with the same files. Nothing was loaded.
        UnknownOutcome: It may have been committed; LOAD_HISTORY will tell.
    """
    statement = parse_copy(text)
    if statement.no_commit:
        raise LoadRefused(
            what="NO COMMIT",
            reason="each COPY is a transaction of its own here, and commits when it succeeds; "
            "leave the words out",
        )
    prepared = _prepared(context, statement, run.parallelism)
    if not prepared.plan.tasks:
        if prepared.plan.failed_inputs:
            where, reason = prepared.plan.failed_inputs[0]
            raise LoadFailed(where=where, reason=reason.rstrip("."))
        totals = LoadTotals(0, 0, 0, 0)
        return Copied(
            None,
            prepared.table.name,
            totals,
            len(prepared.plan.skipped_files),
            repeated=prepared.plan.duplicate_paths,
        )
    load = begin_load(
        context.database,
        LoadRequest(
            prepared.table.name,
            statement.to_redacted_text(),
            context.role,
            prepared.rejects,
            statement.stream_name,
            keep_rejected=not _has_sink(statement),
        ),
        warehouse_url=context.warehouse_url,
        clock=context.clock,
        lease_s=context.lease_s,
    )
    return _Copy(context, statement, prepared, load).run(run, progress)


def _has_sink(statement: CopyStatement) -> bool:
    sink = statement.rejects
    return any(each is not None for each in (sink.table, sink.data_path, sink.exceptions_path))


@dataclass(frozen=True, slots=True)
class _Prepared:
    table: TableRecord
    rejects: TableName | None
    functions: LoadFunctions
    plan: LoadPlan
    stream: str
    saved: Mapping[tuple[str, int], int]

    def advances(self, outcomes: Iterable[Portioned]) -> tuple[OffsetAdvance, ...]:
        """Return how streams move on with the commit."""
        return tuple(
            OffsetAdvance(
                self.stream,
                end.topic,
                end.partition,
                self.saved.get((end.topic, end.partition)),
                end.next_offset,
            )
            for each in outcomes
            for end in each.ends
        )


def _prepared(context: CopyContext, statement: CopyStatement, parallelism: int) -> _Prepared:
    with context.database.reading() as connection:
        session = Session(
            connection=connection,
            user=None,
            role=context.role,
            database=context.default_database,
            schema=context.default_schema,
            now=context.clock.now(),
        )
        table = find_table(connection, session.resolve_table_name(statement.table))
        require_table_privilege(connection, context.role, table, "INSERT")
        sink = statement.rejects.table
        rejects = None if sink is None else session.resolve_table_name(sink)
        functions = functions_in(connection, list_named_steps(statement))
        stream = f"{table.incarnation}/{statement.stream_name or ''}"
        saved = read_stream_offsets(connection, stream)
    plan = plan_load(
        statement,
        table.schema,
        functions,
        tasks=parallelism,
        started_at=context.clock.now(),
        smallest=context.smallest_portion,
        saved=saved,
        limits=context.limits,
    )
    if not statement.force:
        with context.database.reading() as connection:
            paths = {task.portion.file.path for task in plan.tasks}
            known = set(find_loaded_files(connection, table.table_id, paths))
        plan = plan.without_loaded_files({(key.path, key.size, key.tag) for key in known})
    check_reject_files(statement.rejects, plan, reserved=(*context.reserved, context.warehouse_url))
    return _Prepared(table, rejects, functions, plan, stream, saved)


def functions_in(connection: sa.Connection, steps: Sequence[LoadStep]) -> LoadFunctions:
    """Return the filters, parsers and sources of users, with the libraries that `steps` need."""
    made = list_load_functions(connection)
    functions = LoadFunctions(
        tuple(UserFunction(each.kind, each.name, each.factory, each.library) for each in made)
    )
    libraries = read_library_files(connection, sorted(functions.list_needed_libraries(steps)))
    return replace(functions, libraries=libraries)


def gaps_of(outcomes: Iterable[Portioned]) -> list[str]:
    """Return a sentence for each run of messages that were gone before they were read."""
    return [
        f"topic {end.topic}, partition {end.partition}: messages {gap.start} to {gap.end - 1} "
        "were gone before they were read"
        for each in outcomes
        for end in each.ends
        for gap in end.gaps
    ]


class _Copy:
    """One COPY that has begun: it ends by a commit, or is given up."""

    def __init__(
        self, context: CopyContext, statement: CopyStatement, prepared: _Prepared, load: OpenLoad
    ) -> None:
        self._context = context
        self._statement = statement
        self._prepared = prepared
        self._load = load
        self._plan = WorkPlan(
            load_id=load.load_id,
            warehouse_url=load.warehouse_url,
            folder=load.folder,
            schema=load.table.schema,
            cluster_by=load.table.cluster_by,
            reject_folder=self._reject_folder(),
            tolerant=statement.error_tolerance,
            shown="STDIN" if isinstance(statement.inputs, StandardInput) else None,
            functions=prepared.functions,
            limits=context.limits,
        )

    def run(self, run: Runner, progress: Callable[[Portioned, int], None] | None) -> Copied:
        context, load, tasks = self._context, self._load, self._prepared.plan.tasks
        settled: Settled | None = None
        outcomes: list[Portioned] = []
        try:
            with renewing_load_lease(context.database, load, clock=context.clock):
                for each in run(self._plan, tasks):
                    outcomes.append(each)
                    if progress is not None:
                        progress(each, len(tasks))
                settled = settle(
                    tasks,
                    outcomes,
                    unlisted=self._prepared.plan.failed_inputs,
                    shown=self._plan.shown,
                    reject_limit=self._statement.compute_reject_limit(),
                    tolerant=self._statement.error_tolerance,
                )
                kept = self._publish(outcomes, settled)
                self._commit(outcomes, settled, kept)
        except UnknownOutcome:
            # It may have been committed: only clean-up, when the lease has run out, closes it.
            raise
        except BaseException as error:
            self._give_up(error, settled)
            raise
        self._report(outcomes)
        return self._told(settled)

    def _publish(self, outcomes: Sequence[Portioned], settled: Settled) -> tuple[WrittenFile, ...]:
        """Publish rejects, or return them as files of the error table, for the commit."""
        folder = self._plan.reject_folder
        if folder is None or not any(each.reject_files for each in outcomes):
            # Rejects of an earlier load would be taken for those of this one.
            empty_reject_files(self._statement.rejects)
            return ()
        files = numbered_files(
            outcomes,
            settled.first_records,
            warehouse_url=self._load.warehouse_url,
            folder=folder,
        )
        if self._load.errors is not None:
            if settled.failure is not None:
                return ()
            return error_files(self._load, files, self._context.clock.now())
        publish_rejects(self._context.database, self._load, files, clock=self._context.clock)
        sink = self._statement.rejects
        if sink.table is None:
            write_reject_files(
                files,
                warehouse_url=self._load.warehouse_url,
                rejects=sink,
            )
        return ()

    def _commit(
        self,
        outcomes: Sequence[Portioned],
        settled: Settled,
        kept: tuple[WrittenFile, ...],
    ) -> None:
        if settled.failure is not None:
            where = f"COPY {self._load.table.name}"
            raise LoadFailed(where=where, reason=settled.failure.rstrip("."))
        result = LoadResult(
            settled.files,
            settled.inputs,
            settled.totals,
            offsets=self._prepared.advances(outcomes),
            force=self._statement.force,
            message="; ".join((*gaps_of(outcomes), *self._left_out())) or None,
        )
        commit_with_rejected(
            self._context.database, self._load, result, kept, clock=self._context.clock
        )

    def _left_out(self) -> list[str]:
        return [
            f"{path} was left out: it is the same file as {other}"
            for path, other in self._prepared.plan.duplicate_paths
        ]

    def _report(self, outcomes: Sequence[Portioned]) -> None:
        """Tell the source how far streams were loaded; what counts is in the commit."""
        ends = [end for each in outcomes for end in each.ends]
        if ends:
            step = self._prepared.plan.tasks[0].plan.source
            if self._prepared.functions.is_user_function(step):
                return
            report = getattr(self._prepared.functions.make_source(step), "report", None)
            if report is not None:
                report(ends)

    def _give_up(self, error: BaseException, settled: Settled | None) -> None:
        reason = str(error) or type(error).__name__
        inputs = () if settled is None else failed_inputs(settled.inputs, reason)
        totals = None
        if settled is not None and not isinstance(error, ConflictError):
            totals = LoadTotals(
                files=0,
                rows=0,
                rejects=settled.totals.rejects,
                bytes=settled.totals.bytes,
                first_error=settled.totals.first_error,
            )
        # Should the catalog not answer, clean-up closes the load when its lease has run out.
        with contextlib.suppress(SnowmeltError):
            abort_load(
                self._context.database,
                self._load,
                reason,
                clock=self._context.clock,
                inputs=inputs,
                totals=totals,
            )

    def _reject_folder(self) -> str | None:
        sink = self._statement.rejects
        if sink.table is not None:
            return self._load.reject_folder
        wanted = _has_sink(self._statement) or self._load.errors is not None
        return f"{self._load.folder}/rejects" if wanted else None

    def _told(self, settled: Settled) -> Copied:
        sink = self._statement.rejects
        paths = [path for path in (sink.data_path, sink.exceptions_path) if path is not None]
        place = str(self._prepared.rejects) if sink.table is not None else " and ".join(paths)
        if self._load.errors is not None and settled.totals.rejects:
            place = str(self._load.errors.name)
        return Copied(
            load_id=self._load.load_id,
            table=self._load.table.name,
            totals=settled.totals,
            skipped=len(self._prepared.plan.skipped_files),
            reasons=settled.reasons,
            rejected_to=place or None,
            failed=tuple(
                (each.path, each.first_error or "")
                for each in settled.inputs
                if each.state == "LOAD_FAILED"
            ),
            repeated=self._prepared.plan.duplicate_paths,
        )
