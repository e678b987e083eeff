"""From a COPY and the columns of its table to the tasks of a load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.errors import LoadFailed, LoadRefused, PhaseFailed, StatementError
from snowmelt.load.column_converter import reader_of
from snowmelt.load.copy_ast import Call, Compression, Expression, Filler, StandardInput
from snowmelt.load.phases import Target
from snowmelt.load.portion import SMALLEST_PORTION, cut
from snowmelt.load.sources.files import FileSource, list_files
from snowmelt.load.sources.stdin import StdinSource
from snowmelt.load.stack import Stack
from snowmelt.load.task import Computed, LoadTask, StackPlan, Step
from snowmelt.load.udx import worker_progress
from snowmelt.load.udx.worker_process import run_isolated
from snowmelt.load.udx.worker_progress import UserCodeLimits
from snowmelt.schema.types import TableSchema, display_name
from snowmelt.storage.output_paths import file_identity

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Collection, Mapping, Sequence

    from snowmelt.catalog.sql.lexer import SourcePosition
    from snowmelt.load.copy_ast import CopyStatement, InputPath, Item
    from snowmelt.load.function_registry import Functions
    from snowmelt.load.phases import RecordSource, Source
    from snowmelt.load.portion import InputFile
    from snowmelt.load.task import StepKind
    from snowmelt.schema.types import Column

_DEFAULT_PARSER = "Delimited"
_ENDINGS = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".bz2": Compression.BZIP,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
    ".lz4": Compression.LZ4,
    ".xz": Compression.XZ,
}
Listed: TypeAlias = list[tuple["InputFile", Compression | None]]
# Words of options whose names differ from the parameters that they set.
_OPTION_WORDS = {"skip_bytes": "SKIP BYTES", "trailing_nullcols": "TRAILING NULLCOLS"}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The tasks of a load, the longest first, and the files that are left out as loaded before.

    `failed` are inputs that could not be listed, each with the reason; there are some with
    ERROR TOLERANCE alone. `repeated` are paths that are left out because they lead to the same
    file as another one, which stands behind each.
    """

    tasks: tuple[LoadTask, ...]
    skipped: tuple[InputFile, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    repeated: tuple[tuple[str, str], ...] = ()

    def without(self, loaded: Collection[tuple[str, int | None, str | None]]) -> LoadPlan:
        """Leave out files that were loaded before, known by path, size and tag."""

        def is_loaded(file: InputFile) -> bool:
            return (file.path, file.size, file.tag) in loaded

        left = [task for task in self.tasks if not is_loaded(task.portion.file)]
        skipped = {
            task.portion.file.path: task.portion.file
            for task in self.tasks
            if is_loaded(task.portion.file)
        }
        tasks = tuple(replace(task, number=number) for number, task in enumerate(left))
        return replace(self, tasks=tasks, skipped=(*self.skipped, *skipped.values()))


def plan_load(  # noqa: PLR0913 - what is loaded where, for how many tasks, from where on
    statement: CopyStatement,
    table: TableSchema,
    functions: Functions,
    *,
    tasks: int,
    started_at: dt.datetime | None = None,
    smallest: int = SMALLEST_PORTION,
    saved: Mapping[tuple[str, int], int] | None = None,
    limits: UserCodeLimits | None = None,
) -> LoadPlan:
    """Plan a load for `tasks` that run at a time; lists the inputs, and checks every step.

    No portion is smaller than `smallest` bytes unless its file is. `saved` is where the last
    load of the stream ended, by topic and partition. Code of users runs in a process of its own,
    with `limits`.

    Raises:
        UserCodeFailed: If that process ends, or exceeds a limit.
        StatementError: A column is unknown, or would be loaded without being given a value.
        LoadRefused: A source, filter, parser, parameter or expression is refused.
        LoadFailed: The inputs cannot be listed.
    """
    given = (statement, table, functions, started_at)
    if any(map(functions.is_of_user, named_steps(statement))):
        stacked = run_isolated(_stacked, *given, limits=limits or UserCodeLimits())
    else:
        stacked = _stacked(*given)
    plan = stacked.plan
    source = None if stacked.files is not None else functions.source(plan.source)
    resume = getattr(source, "resume", None)
    if saved and resume is not None:
        resume(saved)
    listed, failed = _listed(statement, stacked, source)
    listed, repeated = _each_once(listed)
    compressions = {file.path: compression for file, compression in listed}
    portions = cut(
        [file for file, _ in listed],
        tasks=tasks,
        splittable=_splittable(stacked, source, compressions),
        smallest=smallest,
    )
    return LoadPlan(
        tuple(
            LoadTask(number, portion, plan, compressions[portion.file.path])
            for number, portion in enumerate(portions)
        ),
        failed=failed,
        repeated=repeated,
    )


def named_steps(statement: CopyStatement) -> tuple[Step, ...]:
    """Return the source, filters and parser that a statement names, without their planning."""
    parser = statement.parser
    return (
        _source_step(statement),
        *(_step("filter", call) for call in statement.filters),
        Step("parser", _DEFAULT_PARSER) if parser is None else _step("parser", parser),
    )


@dataclass(frozen=True, slots=True)
class _Stacked:
    """The steps of a load, made once to check them; `files` are those of a source of a user."""

    plan: StackPlan
    splittable: bool
    files: tuple[InputFile, ...] | None


def _stacked(
    statement: CopyStatement,
    table: TableSchema,
    functions: Functions,
    started_at: dt.datetime | None,
) -> _Stacked:
    plan = _stack_plan(statement, table, functions, started_at)
    stack = Stack(plan, functions)
    files = None
    if functions.is_of_user(plan.source):
        with worker_progress.running(str(plan.source)):
            files = tuple(_files(plan.source, stack.source))
    return _Stacked(plan, stack.splittable, files)


def _files(step: Step, source: Source | RecordSource) -> Sequence[InputFile]:
    try:
        return source.files()
    except PhaseFailed as error:
        raise LoadFailed(where=str(step), reason=_reason(error)) from error


def _stack_plan(
    statement: CopyStatement,
    table: TableSchema,
    functions: Functions,
    started_at: dt.datetime | None,
) -> StackPlan:
    target, computed = _columns(statement, table)
    return StackPlan(
        source=functions.planned(_source_step(statement)),
        filters=tuple(functions.planned(_step("filter", call)) for call in statement.filters),
        parser=functions.planned(_parser_step(statement, functions)),
        target=target,
        table=table,
        computed=computed,
        reject_limit=statement.limit_of_rejects(),
        started_at=started_at,
    )


def _step(kind: StepKind, call: Call) -> Step:
    return Step(kind, call.name, call.parameters)


def _source_step(statement: CopyStatement) -> Step:
    inputs = statement.inputs
    if isinstance(inputs, Call):
        return _step("source", inputs)
    if isinstance(inputs, StandardInput):
        return Step("source", "Stdin")
    return Step("source", "File", {"file": ", ".join(each.path for each in inputs)})


def _parser_step(statement: CopyStatement, functions: Functions) -> Step:
    """Give the options of the statement to the parser, which must know them."""
    call = statement.parser
    step = Step("parser", _DEFAULT_PARSER) if call is None else _step("parser", call)
    if not statement.parsing:
        return step
    known = {each.name.lower() for each in functions.definition(step).parameters}
    given = {name.lower() for name in step.parameters}
    for name in statement.parsing:
        written = _OPTION_WORDS.get(name, name.replace("_", " ").upper())
        if name not in known:
            raise LoadRefused(what=written, reason=f"parser {step.name} has no such option")
        if name in given:
            raise LoadRefused(
                what=written, reason=f"it is given as parameter {name} of {step.name}, too"
            )
    return replace(step, parameters={**step.parameters, **statement.parsing})


def _columns(statement: CopyStatement, table: TableSchema) -> tuple[Target, tuple[Computed, ...]]:
    """Return the parsed columns, with their options, and those that are computed."""
    items = statement.items
    computed = tuple(
        Computed(item.name, item.sql) for item in items or () if isinstance(item, Expression)
    )
    following = max(column.ordinal for column in table.columns) + 1
    parsed: list[Column] = list(table.columns) if items is None else []
    for item in items or ():
        if isinstance(item, Filler):
            _check_filler(item, table)
            parsed.append(replace(item.column, ordinal=following))
            following += 1
        else:
            column = _known(item, table)
            if not isinstance(item, Expression):
                parsed.append(column)
    _check_filled(statement, table, {*(each.name for each in (items or table.columns))})
    options = dict(statement.column_options)
    for name in options:
        if all(column.name != name for column in parsed):
            raise _at(
                statement.table.position,
                f"COLUMN OPTION is for {display_name(name)}, not parsed here",
            )
    for column in parsed:
        # What is wrong with a format is said before anything is read.
        reader_of(column, options[column.name].format if column.name in options else None)
    schema = table if items is None else TableSchema(table.version, tuple(parsed))
    return Target(schema, options, statement.enforce_length), computed


def _known(item: Item, table: TableSchema) -> Column:
    column = table.column(item.name)
    if column is None:
        names = ", ".join(each.display_name for each in table.columns)
        raise _at(
            item.place,
            f"The table has no column {display_name(item.name)}; it has {names}. What is parsed "
            "and not stored is written with FILLER and a type",
        )
    return column


def _check_filler(item: Filler, table: TableSchema) -> None:
    if table.column(item.name) is not None:
        raise _at(
            item.place,
            f"{display_name(item.name)} is a column of the table; a FILLER has a name of its own",
        )


def _check_filled(statement: CopyStatement, table: TableSchema, given: set[str]) -> None:
    for column in table.columns:
        if not column.nullable and column.name not in given:
            raise _at(
                statement.table.position,
                f"Column {column.display_name} is NOT NULL and gets no value: name it in the "
                "column list",
            )


def _at(place: SourcePosition, reason: str) -> StatementError:
    return StatementError(reason=reason, line=place.line, column=place.column)


def _listed(
    statement: CopyStatement, stacked: _Stacked, source: Source | RecordSource | None
) -> tuple[Listed, tuple[tuple[str, str], ...]]:
    """Return the inputs, each once, and the paths that lead to none with the reason."""
    inputs = statement.inputs
    if not isinstance(inputs, tuple):
        files = stacked.files
        if files is None and source is not None:
            files = tuple(_files(stacked.plan.source, source))
        explicit = inputs.compression if isinstance(inputs, StandardInput) else None
        return [(file, _undone(explicit)) for file in files or ()], ()
    found: dict[str, tuple[InputFile, Compression | None]] = {}
    failed: list[tuple[str, str]] = []
    for each in inputs:
        try:
            for file in list_files(each.path):
                found.setdefault(file.path, (file, _compression(each, file, statement)))
        except PhaseFailed as error:
            # A source's own error begins with the path, too.
            reason = _reason(error).removeprefix(f"{each.path}: ")
            if not statement.error_tolerance:
                raise LoadFailed(where=each.path, reason=reason) from error
            failed.append((each.path, reason))
    return list(found.values()), tuple(failed)


def _each_once(listed: Listed) -> tuple[Listed, tuple[tuple[str, str], ...]]:
    """Leave out what is another path to a file of this machine, and say to which."""
    kept: dict[tuple[int, int] | str, tuple[InputFile, Compression | None]] = {}
    repeated: list[tuple[str, str]] = []
    for file, compression in listed:
        key = file_identity(file.path) or file.path
        first = kept.setdefault(key, (file, compression))[0]
        if first is file:
            continue
        # What was loaded is remembered by path: that of the file itself outlives links to it.
        if Path(first.path).is_symlink() and not Path(file.path).is_symlink():
            kept[key] = (file, compression)
            repeated.append((first.path, file.path))
        else:
            repeated.append((file.path, first.path))
    return list(kept.values()), tuple(repeated)


def _compression(given: InputPath, file: InputFile, statement: CopyStatement) -> Compression | None:
    """Return what is to be undone; a name's ending counts where nothing else says anything."""
    if given.compression is not None or statement.filters:
        return _undone(given.compression)
    name = file.path.partition("?")[0].lower()
    return next((each for end, each in _ENDINGS.items() if name.endswith(end)), None)


def _undone(compression: Compression | None) -> Compression | None:
    return None if compression is Compression.UNCOMPRESSED else compression


def _reason(error: PhaseFailed) -> str:
    return str(error).rstrip(".")


def _splittable(
    stacked: _Stacked,
    source: Source | RecordSource | None,
    compressions: Mapping[str, Compression | None],
) -> Callable[[InputFile], bool]:
    """Return whether a file can be read from its middle on, and parsed from there."""
    seekable = stacked.splittable and isinstance(source, FileSource | StdinSource)

    def splittable(file: InputFile) -> bool:
        remote = file.path.lower().startswith(("http://", "https://"))
        return seekable and not remote and compressions[file.path] is None

    return splittable
