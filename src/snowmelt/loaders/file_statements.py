"""Run a statement that reads files: a COPY, its validation, or INFER_SCHEMA."""

from __future__ import annotations

from collections.abc import Callable

from snowmelt.catalog.sql.lexer import is_infer_schema
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.load.copy_parser import parse_copy
from snowmelt.loaders.copy_job import CopyContext, CopyResult, TaskRunner, run_copy
from snowmelt.loaders.copy_validation import validate_copy
from snowmelt.loaders.load_task_execution import PortionResult
from snowmelt.loaders.schema_inference import infer_schema


def run_file_statement(
    context: CopyContext,
    text: str,
    runner: TaskRunner,
    *,
    on_progress: Callable[[PortionResult, int], None] | None = None,
) -> CopyResult | StatementResult:
    """Run a COPY with `run_copy`, its validation with `validate_copy`, or `infer_schema`.

    Raises the errors of these functions.
    """
    if is_infer_schema(text):
        return infer_schema(text)
    statement = parse_copy(text)
    if statement.validation is not None:
        return validate_copy(context, statement)
    return run_copy(context, text, runner, on_progress=on_progress)
