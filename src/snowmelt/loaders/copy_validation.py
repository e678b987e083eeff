"""COPY INTO with VALIDATION_MODE: return the errors or the first rows of files, and load nothing.

Each file is read as one portion, in the order of the paths. Record numbers and offsets therefore
count from the start of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.errors import LoadFailed, UserCodeFailed, UserError
from snowmelt.load.copy_ast import VALIDATION_COLUMNS, CopyStatement
from snowmelt.load.phase_protocols import ParseReject
from snowmelt.load.phase_registry import LoadFunctions
from snowmelt.load.planner import list_named_steps
from snowmelt.load.stack import run_portion
from snowmelt.load.task import LoadTask
from snowmelt.load.udx.worker_process import run_isolated
from snowmelt.loaders.copy_job import CopyContext, PreparedCopy, prepare_copy

_MAX_ERRORS = 10_000
_MAX_RECORD_CHARS = 1_000


def validate_copy(context: CopyContext, statement: CopyStatement) -> StatementResult:
    """Validate the files of a COPY in this process.

    RETURN_n_ROWS returns the first rows. The error modes return a row of VALIDATION_COLUMNS for
    each rejected record and each file that cannot be read. After 10,000 rows, a last row reports
    that the rest was not validated.

    Args:
        context: Role, catalog and namespace.
        statement: A COPY with `validation`.

    Raises:
        StatementError: If a column is unknown, or a NOT NULL column receives no value.
        TableNotFound: If the table does not exist or the role lacks INSERT on it.
        LoadRefused: If an option is invalid.
        LoadFailed: If RETURN_n_ROWS meets an error before the last of its rows.
    """
    mode = statement.validation
    statement = replace(
        statement,
        error_tolerance=True,
        abort_on_error=False,
        reject_max=0,
        file_reject_max=None,
        purge=False,
    )
    prepared = prepare_copy(context, statement, parallelism=1)
    tasks = sorted(prepared.plan.tasks, key=lambda task: task.portion.file.path)
    validator = _Validator(context, statement, prepared)
    if isinstance(mode, int):
        return validator.read_rows(tasks, mode)
    return StatementResult(VALIDATION_COLUMNS, tuple(validator.iter_errors(tasks)))


@dataclass(slots=True)
class _Findings:
    """Rows or rejects of one file, and the reason why it cannot be read further. Picklable."""

    rows: list[pa.Table] = field(default_factory=list)
    rejects: list[ParseReject] = field(default_factory=list)
    failure: str | None = None


def _read_file(
    task: LoadTask, functions: LoadFunctions, max_rows: int, max_rejects: int
) -> _Findings:
    """Read a file until it has `max_rejects` rejects or `max_rows` rows (0: no limit of rows)."""
    found = _Findings()
    rows = 0
    run = run_portion(task, functions)
    try:
        for block in run:
            found.rejects += block.rejects
            if max_rows:
                found.rows.append(block.rows)
                rows += block.rows.num_rows
            # `break` closes the iterator, because nothing else refers to it. This ends its steps.
            if len(found.rejects) >= max_rejects or rows >= max_rows > 0:
                break
    except (UserError, UnicodeError) as error:
        found.failure = str(error)
    return found


class _Validator:
    """Reader of the files of one statement. User code runs in another process."""

    def __init__(
        self, context: CopyContext, statement: CopyStatement, prepared: PreparedCopy
    ) -> None:
        self._limits = context.user_code_limits
        self._prepared = prepared
        self._has_user_code = any(
            map(prepared.functions.is_user_function, list_named_steps(statement))
        )

    def read_rows(self, tasks: Iterable[LoadTask], count: int) -> StatementResult:
        """Return the first `count` rows. Raise LoadFailed for an error before the last of them."""
        for path, reason in self._prepared.plan.failed_inputs:
            raise LoadFailed(where=path, reason=reason.rstrip("."))
        columns: tuple[str, ...] = ()
        rows: list[tuple[object, ...]] = []
        for task in tasks:
            found = self._read(task, max_rows=count - len(rows), max_rejects=1)
            first = found.rejects[0] if found.rejects else None
            # All records before the first reject are rows.
            if first is not None and first.record <= count - len(rows):
                raise LoadFailed(
                    where=f"{task.portion.file.path}, record {first.record:,}",
                    reason=first.reason.rstrip("."),
                )
            if found.failure is not None:
                raise LoadFailed(found.failure, where=task.portion.file.path, reason="")
            for table in found.rows:
                columns = tuple(table.column_names)
                values = (column.to_pylist() for column in table.columns)
                rows.extend(zip(*values, strict=True))
            if len(rows) >= count:
                break
        if not rows:
            return StatementResult(message="The files have no rows.")
        return StatementResult(columns, tuple(rows[:count]))

    def iter_errors(self, tasks: Iterable[LoadTask]) -> Iterator[tuple[object, ...]]:
        """Yield rows of VALIDATION_COLUMNS."""
        for path, reason in self._prepared.plan.failed_inputs:
            yield (reason, path, None, None, None, None)
        left = _MAX_ERRORS
        for task in tasks:
            path = task.portion.file.path
            found = self._read(task, max_rows=0, max_rejects=left + 1)
            for each in found.rejects[:left]:
                yield (
                    each.reason,
                    path,
                    each.record,
                    each.offset,
                    each.column,
                    _shorten(each.data.decode("utf-8", "replace")),
                )
            if len(found.rejects) > left:
                more = f"More than {_MAX_ERRORS:,} errors: the rest was not validated."
                yield (more, path, None, None, None, None)
                return
            left -= len(found.rejects)
            if found.failure is not None:
                yield (found.failure, path, None, None, None, None)

    def _read(self, task: LoadTask, *, max_rows: int, max_rejects: int) -> _Findings:
        given = (task, self._prepared.functions, max_rows, max_rejects)
        if not self._has_user_code:
            return _read_file(*given)
        try:
            return run_isolated(_read_file, *given, limits=self._limits)
        except UserCodeFailed as error:
            return _Findings(failure=str(error))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_RECORD_CHARS else f"{text[: _MAX_RECORD_CHARS - 1]}…"
