"""Planner that turns a COPY statement and the columns of its table into tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from snowmelt.catalog.sql.lexer import SourcePosition
from snowmelt.errors import LoadFailed, LoadRefused, PhaseFailed, StatementError
from snowmelt.load.column_converter import make_text_normalizer
from snowmelt.load.copy_ast import (
    ColumnListItem,
    ComputedColumn,
    CopySelection,
    CopyStatement,
    FillerColumn,
    InputCompression,
    InputPath,
    ParsedColumn,
    PhaseCall,
    StandardInput,
)
from snowmelt.load.file_metadata import make_partition_expression, uses_row_numbers
from snowmelt.load.phase_protocols import ColumnOptions, ParseTarget, RecordSource, Source
from snowmelt.load.phase_registry import LoadFunctions
from snowmelt.load.portion import MIN_PORTION_BYTES, InputFile, split_into_portions
from snowmelt.load.sources.files import (
    FileGlobSource,
    SpooledStdinSource,
    find_by_prefix,
    find_name_problem,
    list_files,
    show_path,
)
from snowmelt.load.stack import LoadStack
from snowmelt.load.task import ComputedExpression, LoadStep, LoadTask, StackPlan
from snowmelt.load.udx import shared_progress_page
from snowmelt.load.udx.shared_progress_page import UserCodeLimits
from snowmelt.load.udx.worker_process import run_isolated
from snowmelt.schema.types import (
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED_TYPES,
    Column,
    LogicalType,
    TableSchema,
    quote_name,
    to_display_name,
)
from snowmelt.storage.overwrite_protection import file_identity

_DEFAULT_PARSER = "Delimited"
_COMPRESSION_BY_SUFFIX = {
    ".gz": InputCompression.GZIP,
    ".gzip": InputCompression.GZIP,
    ".bz2": InputCompression.BZIP,
    ".zst": InputCompression.ZSTD,
    ".zstd": InputCompression.ZSTD,
    ".lz4": InputCompression.LZ4,
    ".xz": InputCompression.XZ,
}
ListedInputs: TypeAlias = list[tuple[InputFile, InputCompression | None]]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The tasks of a load, and the inputs that it omits.

    Attributes:
        tasks: Tasks, the largest first.
        skipped_files: Files that are left out because an earlier load loaded them.
        changed_files: Paths of files that an earlier load loaded with another size or version tag.
        failed_inputs: Paths that could not be listed, with the reason. Only with ERROR TOLERANCE.
        duplicate_paths: Paths that refer to the same file as another path, with that path.
    """

    tasks: tuple[LoadTask, ...]
    skipped_files: tuple[InputFile, ...] = ()
    changed_files: tuple[str, ...] = ()
    failed_inputs: tuple[tuple[str, str], ...] = ()
    duplicate_paths: tuple[tuple[str, str], ...] = ()

    def without_loaded_files(
        self, loaded_files: Collection[tuple[str, int | None, str | None]]
    ) -> LoadPlan:
        """Return the plan without files loaded before, identified by path, size and version tag."""
        left, skipped = [], {}
        changed: dict[str, None] = {}
        loaded_paths = {path for path, _, _ in loaded_files}
        for task in self.tasks:
            file = task.portion.file
            if (file.path, file.size, file.tag) in loaded_files:
                skipped[file.path] = file
            else:
                left.append(task)
                if file.path in loaded_paths:
                    changed[file.path] = None
        return replace(
            self,
            tasks=tuple(replace(task, number=number) for number, task in enumerate(left)),
            skipped_files=(*self.skipped_files, *skipped.values()),
            changed_files=(*self.changed_files, *changed),
        )


def plan_load(  # noqa: PLR0913  what the caller knows and the statement does not say
    statement: CopyStatement,
    table: TableSchema,
    functions: LoadFunctions,
    *,
    parallelism: int,
    started_at: dt.datetime | None = None,
    min_portion_bytes: int = MIN_PORTION_BYTES,
    saved_offsets: Mapping[tuple[str, int], int] | None = None,
    limits: UserCodeLimits | None = None,
    listed_files: Sequence[InputFile] | None = None,
) -> LoadPlan:
    """Plan a load for `parallelism` concurrent tasks: list the inputs and check every step.

    Portions have at least `min_portion_bytes`, unless their file is smaller. `saved_offsets` has
    the end offsets of the stream's last load, by topic and partition. User code runs in a worker
    process with `limits`. `listed_files` are the already listed files of the statement's paths; if
    None, this function lists them.

    Raises:
        UserCodeFailed: If the worker process ends early, or exceeds a limit.
        StatementError: If a column is unknown, or a NOT NULL column receives no value.
        LoadRefused: If a source, filter, parser, parameter or expression is invalid.
        LoadFailed: If the inputs cannot be listed.
    """
    stacked = _plan_checked_stack(statement, table, functions, started_at, limits)
    plan = stacked.plan
    source = None if stacked.files is not None else functions.make_phase(plan.source)
    resume = getattr(source, "resume", None)
    if saved_offsets and resume is not None:
        resume(saved_offsets)
    if listed_files is None:
        listed, failed = _list_input_files(statement, stacked, source)
    else:
        listed, failed = _choose_compressions(statement, listed_files), ()
    listed, repeated = _drop_duplicate_files(listed)
    compressions = {file.path: compression for file, compression in listed}
    seekable = stacked.splittable and isinstance(source, FileGlobSource | SpooledStdinSource)

    numbers_rows = uses_row_numbers([each.sql for each in plan.computed])

    def is_splittable(file: InputFile) -> bool:
        if numbers_rows:
            return False
        remote = file.path.lower().startswith(("http://", "https://"))
        return seekable and not remote and compressions[file.path] is None

    portions = split_into_portions(
        [file for file, _ in listed],
        parallelism=parallelism,
        is_splittable=is_splittable,
        min_portion_bytes=min_portion_bytes,
    )
    return LoadPlan(
        tuple(
            LoadTask(number, portion, plan, compressions[portion.file.path])
            for number, portion in enumerate(portions)
        ),
        failed_inputs=failed,
        duplicate_paths=repeated,
    )


def check_load(statement: CopyStatement, table: TableSchema, functions: LoadFunctions) -> None:
    """Check the steps, options and columns of a load without listing its inputs.

    Raises:
        UserCodeFailed: If user code fails.
        StatementError: If a column is unknown, or a NOT NULL column receives no value.
        LoadRefused: If a filter, parser, parameter or expression is invalid.
    """
    _plan_checked_stack(statement, table, functions, None, None)


def _plan_checked_stack(
    statement: CopyStatement,
    table: TableSchema,
    functions: LoadFunctions,
    started_at: dt.datetime | None,
    limits: UserCodeLimits | None,
) -> _PlannedStack:
    given = (statement, table, functions, started_at)
    if any(map(functions.is_user_function, list_named_steps(statement))):
        return run_isolated(_plan_stack, *given, limits=limits or UserCodeLimits())
    return _plan_stack(*given)


def list_named_steps(statement: CopyStatement) -> tuple[LoadStep, ...]:
    """Return the source, filters and parser of a statement, without planned values."""
    inputs, parser = statement.inputs, statement.parser
    if isinstance(inputs, PhaseCall):
        source = LoadStep("source", inputs.name, inputs.parameters)
    elif isinstance(inputs, StandardInput):
        source = LoadStep("source", "Stdin")
    else:
        source = LoadStep("source", "File", {"file": ", ".join(each.path for each in inputs)})
    return (
        source,
        *(LoadStep("filter", call.name, call.parameters) for call in statement.filters),
        LoadStep("parser", _DEFAULT_PARSER)
        if parser is None
        else LoadStep("parser", parser.name, parser.parameters),
    )


@dataclass(frozen=True, slots=True)
class _PlannedStack:
    """The checked steps of a load. `files` has the inputs of a user-defined source, else None."""

    plan: StackPlan
    splittable: bool
    files: tuple[InputFile, ...] | None


def _plan_stack(
    statement: CopyStatement,
    table: TableSchema,
    functions: LoadFunctions,
    started_at: dt.datetime | None,
) -> _PlannedStack:
    target, computed = _resolve_columns(statement, table, started_at)
    source, *filters, parser = list_named_steps(statement)
    reject_limit = statement.compute_reject_limit() or statement.file_reject_max
    plan = StackPlan(
        source=functions.plan_step(source),
        filters=tuple(map(functions.plan_step, filters)),
        parser=functions.plan_step(_add_parsing_options(parser, statement, functions)),
        target=target,
        table=table,
        computed=computed,
        reject_limit=reject_limit,
        # If the first reject fails the load, the error of the expression is more exact.
        rejects_failed_expressions=statement.selection is not None and reject_limit != 1,
        started_at=started_at,
        partition_columns=statement.partition_columns,
    )
    stack = LoadStack(plan, functions)
    files = None
    if functions.is_user_function(plan.source):
        with shared_progress_page.running_step(str(plan.source)):
            files = tuple(_list_source_files(plan.source, stack.source))
    return _PlannedStack(plan, stack.splittable, files)


def _list_source_files(step: LoadStep, source: Source | RecordSource) -> Sequence[InputFile]:
    try:
        return source.files()
    except PhaseFailed as error:
        raise LoadFailed(where=str(step), reason=_format_error_without_period(error)) from error


def _add_parsing_options(
    step: LoadStep, statement: CopyStatement, functions: LoadFunctions
) -> LoadStep:
    """Return the parser with the statement's options as additional parameters."""
    if not statement.parsing:
        return step
    known = {each.name.lower() for each in functions.find_phase_definition(step).parameters}
    given = {name.lower() for name in step.parameters}
    for name in statement.parsing:
        written = name.replace("_", " ").upper()
        if name not in known:
            raise LoadRefused(
                what=written, reason=f"parser {step.name} does not support this option"
            )
        if name in given:
            raise LoadRefused(
                what=written, reason=f"it is also given as parameter {name} of {step.name}"
            )
    return replace(step, parameters={**step.parameters, **statement.parsing})


def _resolve_columns(
    statement: CopyStatement, table: TableSchema, started_at: dt.datetime | None
) -> tuple[ParseTarget, tuple[ComputedExpression, ...]]:
    """Return the parsed columns with their options, and the computed columns."""
    if statement.selection is not None:
        return _resolve_selection(statement, statement.selection, table, started_at)
    items = _add_file_columns(statement, table)
    computed = tuple(
        ComputedExpression(item.name, item.sql)
        for item in items or ()
        if isinstance(item, ComputedColumn)
    )
    following = max(column.ordinal for column in table.columns) + 1
    parsed: list[Column] = list(table.columns) if items is None else []
    for item in items or ():
        if isinstance(item, FillerColumn):
            if table.column(item.name) is not None:
                raise _make_statement_error(
                    item.position,
                    f"FILLER {to_display_name(item.name)} has the name of a column of the table. "
                    "Use another name",
                )
            parsed.append(replace(item.column, ordinal=following))
            following += 1
        else:
            column = table.column(item.name)
            if column is None:
                names = ", ".join(each.display_name for each in table.columns)
                raise _make_statement_error(
                    item.position,
                    f"Unknown column {to_display_name(item.name)}. Columns of the table: {names}. "
                    "To parse a column without storing it, use FILLER with a type",
                )
            if not isinstance(item, ComputedColumn):
                parsed.append(column)
    given_names = {each.name for each in items or table.columns}
    for column in table.columns:
        if not column.nullable and column.default is None and column.name not in given_names:
            raise _make_statement_error(
                statement.table.position,
                f"Column {column.display_name} is NOT NULL and receives no value. Add it to the "
                "column list",
            )
    options = dict(statement.column_options)
    for column in parsed:
        if column.kind is LogicalType.BINARY and statement.binary_format is not None:
            options.setdefault(column.name, ColumnOptions(format=statement.binary_format))
    for name in options:
        if all(column.name != name for column in parsed):
            raise _make_statement_error(
                statement.table.position,
                f"COLUMN OPTION names {to_display_name(name)}, which is not a parsed column",
            )
    for column in parsed:
        # Report an invalid FORMAT before the load reads anything.
        make_text_normalizer(column, options.get(column.name, ColumnOptions()).format)
    schema = table if items is None else TableSchema(table.version, tuple(parsed))
    return ParseTarget(schema, options, statement.enforce_length, started_at), computed


def _add_file_columns(
    statement: CopyStatement, table: TableSchema
) -> tuple[ColumnListItem, ...] | None:
    """Return the column list with the partition columns and those about the file."""
    place = statement.table.position
    more = (
        *statement.metadata,
        *(
            ComputedColumn(name, make_partition_expression(name), place)
            for name in statement.partition_columns
        ),
    )
    if not more:
        return statement.items
    names = {each.name for each in more}
    if statement.items is None:
        # All columns that are not computed are parsed.
        return (
            *more,
            *(
                ParsedColumn(column.name, ColumnOptions(), place)
                for column in table.columns
                if column.name not in names
            ),
        )
    for item in statement.items:
        if item.name in names:
            raise _make_statement_error(
                item.position,
                f"Partition column {to_display_name(item.name)} is also in the column list. Remove it there",
            )
    return (*statement.items, *more)


def _resolve_selection(
    statement: CopyStatement,
    selection: CopySelection,
    table: TableSchema,
    started_at: dt.datetime | None,
) -> tuple[ParseTarget, tuple[ComputedExpression, ...]]:
    """Return the fields that a SELECT reads, and its expressions by the columns that they fill."""
    names = [each.name for each in statement.items or table.columns]
    count = len(selection.expressions)
    if count > len(names) or (statement.items is not None and count < len(names)):
        raise _make_statement_error(
            selection.expressions[0][1], f"There are {count} expressions for {len(names)} columns"
        )
    place = statement.table.position
    fields = (
        _find_document_column(name, names, selection, table)
        or Column(name, LogicalType.TEXT, 1, length=MAX_TEXT_BYTES, byte_length=MAX_TEXT_BYTES)
        for name in selection.fields
    )
    items: tuple[ColumnListItem, ...] = (
        *(FillerColumn(column, ColumnOptions(), place) for column in fields),
        *(
            ComputedColumn(name, sql, at)
            for name, (sql, at) in zip(names, selection.expressions, strict=False)
        ),
    )
    return _resolve_columns(replace(statement, selection=None, items=items), table, started_at)


def _find_document_column(
    field: str, names: Sequence[str], selection: CopySelection, table: TableSchema
) -> Column | None:
    """Return the column to parse for a field that is stored whole in a column of documents.

    As text, the string "1" would become the number 1.

    Raises:
        StatementError: If other expressions need the field as text, or columns have other types.
    """
    quoted = quote_name(field)
    found: Column | None = None
    users = [(name, *each) for name, each in zip(names, selection.expressions, strict=False)]
    for name, sql, _ in users:
        column = table.column(name)
        if sql == quoted and column is not None and column.kind in SEMI_STRUCTURED_TYPES:
            found = replace(column, name=field, ordinal=1, default=None)
    if found is None or field.startswith("$"):
        return None
    for name, sql, at in users:
        column = table.column(name)
        if quoted in sql and (
            sql != quoted
            or column is None
            or replace(column, name=field, ordinal=1, default=None) != found
        ):
            raise _make_statement_error(
                at,
                f"A field that is stored in a column of type {found.sql_type} cannot be used in other "
                "expressions or types. Load it once",
            )
    return found


def _make_statement_error(position: SourcePosition, reason: str) -> StatementError:
    return StatementError(reason=reason, line=position.line, column=position.column)


def _list_input_files(
    statement: CopyStatement, planned_stack: _PlannedStack, source: Source | RecordSource | None
) -> tuple[ListedInputs, tuple[tuple[str, str], ...]]:
    """Return the distinct inputs, and the paths that could not be listed with the reason."""
    inputs = statement.inputs
    if not isinstance(inputs, tuple):
        files = planned_stack.files
        if files is None and source is not None:
            files = tuple(_list_source_files(planned_stack.plan.source, source))
        explicit = inputs.compression if isinstance(inputs, StandardInput) else None
        return [(file, _normalize_compression(explicit)) for file in files or ()], ()
    found: dict[str, tuple[InputFile, InputCompression | None]] = {}
    failed: list[tuple[str, str]] = []
    for each in inputs:
        try:
            listed = (
                find_by_prefix(each.path, each.pattern) if each.is_prefix else list_files(each.path)
            )
            for file in listed:
                if (problem := find_name_problem(file)) is not None:
                    if not statement.error_tolerance:
                        raise LoadFailed(where=show_path(file.path), reason=problem)
                    failed.append((show_path(file.path), problem))
                    continue
                found.setdefault(file.path, (file, _choose_compression(each, file, statement)))
        except PhaseFailed as error:
            # Remove the path, because errors of sources begin with it.
            reason = _format_error_without_period(error).removeprefix(f"{each.path}: ")
            if not statement.error_tolerance:
                raise LoadFailed(where=each.path, reason=reason) from error
            failed.append((each.path, reason))
    return list(found.values()), tuple(failed)


def _choose_compressions(statement: CopyStatement, files: Sequence[InputFile]) -> ListedInputs:
    """Return the files with their compression, which is the same for all paths of a statement."""
    first = statement.inputs[0] if isinstance(statement.inputs, tuple) else None
    if first is None:
        return [(file, None) for file in files]
    return [(file, _choose_compression(first, file, statement)) for file in files]


def _drop_duplicate_files(listed: ListedInputs) -> tuple[ListedInputs, tuple[tuple[str, str], ...]]:
    """Drop all but one path to each local file. Also return each dropped path with the kept one."""
    kept: dict[tuple[int, int] | str, tuple[InputFile, InputCompression | None]] = {}
    repeated: list[tuple[str, str]] = []
    for file, compression in listed:
        key = file_identity(file.path) or file.path
        first = kept.setdefault(key, (file, compression))[0]
        if first is file:
            continue
        # Loaded files are recorded by path. Prefer the file's path, because links may disappear.
        if Path(first.path).is_symlink() and not Path(file.path).is_symlink():
            kept[key] = (file, compression)
            repeated.append((first.path, file.path))
        else:
            repeated.append((file.path, first.path))
    return list(kept.values()), tuple(repeated)


def _choose_compression(
    input_path: InputPath, file: InputFile, statement: CopyStatement
) -> InputCompression | None:
    """Return the file's compression. The default follows from its suffix if there are no filters."""
    if input_path.compression is not None or statement.filters:
        return _normalize_compression(input_path.compression)
    name = file.path.partition("?")[0].lower()
    return next((each for end, each in _COMPRESSION_BY_SUFFIX.items() if name.endswith(end)), None)


def _normalize_compression(compression: InputCompression | None) -> InputCompression | None:
    return None if compression is InputCompression.UNCOMPRESSED else compression


def _format_error_without_period(error: PhaseFailed) -> str:
    return str(error).rstrip(".")
