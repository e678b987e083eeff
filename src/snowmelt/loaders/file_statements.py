"""Run a statement that reads files: a COPY, or its validation."""

from __future__ import annotations

from collections.abc import Callable

from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.load.copy_parser import parse_copy
from snowmelt.loaders.copy_job import CopyContext, CopyResult, TaskRunner, run_copy
from snowmelt.loaders.copy_validation import validate_copy
from snowmelt.loaders.load_task_execution import PortionResult


def run_file_statement(
    context: CopyContext,
    text: str,
    runner: TaskRunner,
    *,
    on_progress: Callable[[PortionResult, int], None] | None = None,
) -> CopyResult | StatementResult:
    """Run a COPY with `run_copy`, or validate its files with `validate_copy`.

    Raises the errors of these functions.
    """
    statement = parse_copy(text)
    if statement.validation is not None:
        return validate_copy(context, statement)
    return run_copy(context, text, runner, on_progress=on_progress)
