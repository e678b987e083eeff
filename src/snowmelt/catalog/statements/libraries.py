"""Statements on libraries of user code and their functions, in Vertica's grammar.

CREATE FILTER, PARSER and SOURCE verify that the library contains the factory. They do not run its
code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import cast

from snowmelt.catalog.objects import libraries
from snowmelt.catalog.objects.libraries import FunctionKind, LibraryRecord, LoadFunctionRecord
from snowmelt.catalog.sql.cursor import CreateMode, NameLevel, TokenCursor
from snowmelt.catalog.statements.function_grammar import parse_function_name
from snowmelt.catalog.statements.statement_context import (
    Listing,
    NothingDone,
    ShowObjects,
    ShowRow,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    creation_result,
    skip_if_exists,
)
from snowmelt.errors import NotFound, ObjectMissing, UserError
from snowmelt.schema.types import to_display_name
from snowmelt.storage.store_factory import open_store

# Functions whose calls may bind names of a module at run time.
_NAME_BINDING_CALLS = frozenset({"globals", "vars", "exec", "setattr", "locals"})
_MAX_LIBRARY_BYTES = 64 * 1024 * 1024


class CreateLibrary(Statement):
    """CREATE LIBRARY. `depends` is the path of the dependencies."""

    name: str
    path: str
    depends: str | None
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("CREATE LIBRARY")
        shown = to_display_name(self.name)
        known = {each.name for each in libraries.list_libraries(session.connection)}
        there = self.name in known
        skip_if_exists(f"Library {shown}", self.create_mode, exists=there)
        contents = _read_library_files(self)
        record = LibraryRecord(
            self.name, "Python", self.path, tuple(contents), session.role, session.now
        )
        libraries.create_library(
            session.connection, record, contents, replace=self.create_mode is CreateMode.OR_REPLACE
        )
        files = "1 file" if len(contents) == 1 else f"{len(contents)} files"
        return StatementResult(
            message=f"Library {shown} {'replaced' if there else 'created'}, {files}."
        )


class CreateLoadFunction(Statement):
    """CREATE FILTER, PARSER or SOURCE. `kind` is that word in lower case."""

    kind: str
    name: str
    factory: str
    library: str
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        kind = cast("FunctionKind", self.kind)
        session.require_administrator(f"CREATE {kind.upper()}")
        known = {each.name for each in libraries.list_load_functions(session.connection, kind)}
        there = self.name in known
        label = f"{kind.capitalize()} {to_display_name(self.name)}"
        skip_if_exists(label, self.create_mode, exists=there)
        _check_factory_exists(self, session)
        record = LoadFunctionRecord(
            kind, self.name, self.factory, self.library, session.role, session.now
        )
        libraries.create_load_function(
            session.connection, record, replace=self.create_mode is CreateMode.OR_REPLACE
        )
        return creation_result(label, replaced=there)


class DropLoadObject(Statement):
    """DROP LIBRARY, FILTER, PARSER or SOURCE. `kind` is that word in lower case."""

    kind: str
    name: str
    if_exists: bool
    cascade: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator(f"DROP {self.kind.upper()}")
        shown = f"{self.kind.capitalize()} {to_display_name(self.name)}"
        try:
            if self.kind == "library":
                libraries.drop_library(session.connection, self.name, cascade=self.cascade)
            else:
                kind = cast("FunctionKind", self.kind)
                libraries.drop_load_function(session.connection, kind, self.name)
        except NotFound:
            if not self.if_exists:
                raise
            raise NothingDone(f"{shown} does not exist; nothing was done.") from None
        return StatementResult(message=f"{shown} dropped.")


class SkippedFunction(Statement):
    """CREATE FUNCTION of Vertica for a kind of function that loads do not use. It has no effect.

    `kind` is the kind of function as written, such as "Transform function".
    """

    kind: str
    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        del session
        return StatementResult(
            message=f"{self.kind} {self.name} was skipped: loads run only filters, parsers and "
            "sources. For functions in queries, use CREATE EXTERNAL FUNCTION."
        )


def _check_factory_exists(statement: CreateLoadFunction, session: StatementSession) -> None:
    """Verify that a library contains a factory, without running its code.

    Raises:
        NotFound: If the library does not exist.
        UserError: If no file of the library binds the name, or a file is not valid Python.
    """
    files = libraries.read_library_files(session.connection, [statement.library])[statement.library]
    shown = to_display_name(statement.library)
    bound: dict[str, None] = {}
    for path, data in files.items():
        parts = PurePosixPath(path)
        is_top = len(parts.parts) == 1 or (len(parts.parts) == 2 and parts.name == "__init__.py")
        if parts.suffix != ".py" or not is_top:
            continue
        try:
            tree = ast.parse(data, path)
        except (SyntaxError, ValueError) as error:
            raise UserError(
                f"Cannot use library {shown}: {path} is not valid Python: {error}."
            ) from None
        found = _find_bound_names(tree.body)
        if found is None:
            return  # A star import, or names that are created at run time.
        bound.update(dict.fromkeys(found))
    if statement.factory.lower() not in {name.lower() for name in bound}:
        offered = ", ".join(name for name in bound if not name.startswith("_")) or "nothing"
        raise UserError(
            f"Cannot create {statement.kind} {to_display_name(statement.name)}: library {shown} has no "
            f"{statement.factory}; it has {offered}."
        )


def _find_bound_names(body: Sequence[ast.stmt]) -> list[str] | None:
    """Return the names that a module binds, or None if they are only known at run time."""
    names: list[str] = []
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Names inside functions and classes are not bound in the module.
            names.append(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [each.asname or each.name.partition(".")[0] for each in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _NAME_BINDING_CALLS:
            return None
        waiting = [*ast.iter_child_nodes(node), *waiting]
    return None if {"*", "__getattr__"} & set(names) else names


def _read_library_files(statement: CreateLibrary) -> dict[str, bytes]:
    """Read the files of a library: the named file, then the DEPENDS files by relative path."""
    folder, _, name = statement.path.rpartition("/")
    if "://" not in folder and not Path(statement.path).is_file():
        raise ObjectMissing(path=name, store=folder or ".")
    contents = {name: open_store(folder or ".").get(name)}
    size = len(contents[name])
    for path, data in _read_dependencies(statement.depends):
        size += len(data)
        if size > _MAX_LIBRARY_BYTES:
            raise UserError(
                f"The files of library {to_display_name(statement.name)} have more than "
                f"{_MAX_LIBRARY_BYTES:,} bytes. Include fewer files with DEPENDS."
            )
        contents.setdefault(path, data)
    return contents


def _read_dependencies(depends: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the files of DEPENDS: paths separated by `:`. `*` means all files of a folder."""
    for part in filter(None, (depends or "").split(":")):
        path = Path(part.removesuffix("/*"))
        if path.is_file():
            yield path.name, path.read_bytes()
        elif path.is_dir():
            store = open_store(str(path))
            for found in sorted(store.list(), key=lambda info: info.path):
                if "__pycache__" not in found.path:
                    yield found.path, store.get(found.path)
        else:
            raise UserError(f"DEPENDS {part}: file or folder not found.")


def _list_load_function_rows(
    kind: FunctionKind, _statement: ShowObjects, session: StatementSession
) -> Iterator[ShowRow]:
    for each in libraries.list_load_functions(session.connection, kind):
        yield each.created_at, each.name, each.factory, each.library, each.owner


def _parse_create(
    kind: str, cursor: TokenCursor, create_mode: CreateMode
) -> CreateLibrary | CreateLoadFunction:
    name = _parse_load_object_name(cursor, kind)
    cursor.expect("AS")
    if kind == "LIBRARY":
        path = cursor.parse_string("the path of a file")
        depends = _parse_depends(cursor)
        _parse_language(cursor)
        depends = _parse_depends(cursor) if depends is None else depends
        cursor.expect_end("CREATE LIBRARY")
        return CreateLibrary(name, path, depends, create_mode)
    _parse_language(cursor)
    cursor.expect("NAME")
    at = cursor.current
    factory = cursor.parse_string("the name of a factory class")
    if not factory.isidentifier():
        raise cursor.make_error(
            f"Expected the name of a function or class here, not {factory!r}", at
        )
    cursor.expect("LIBRARY")
    library = _parse_load_object_name(cursor, "LIBRARY")
    # The clause FENCED is accepted and ignored: user code always runs in the same process.
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.expect_end(f"CREATE {kind}")
    return CreateLoadFunction(kind.lower(), name, factory, library, create_mode)


def parse_skipped_function(cursor: TokenCursor, kind: str, name: str) -> SkippedFunction:
    """Parse AS LANGUAGE … NAME … LIBRARY … after CREATE FUNCTION and its name."""
    cursor.expect("AS")
    if cursor.accept("LANGUAGE"):
        cursor.parse_string("a language")
    cursor.expect("NAME")
    cursor.parse_string("the name of a factory class")
    cursor.expect("LIBRARY")
    _parse_load_object_name(cursor, "LIBRARY")
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.expect_end("CREATE FUNCTION")
    return SkippedFunction(kind, name)


def _parse_drop(kind: str, cursor: TokenCursor, if_exists: bool) -> DropLoadObject:
    name = _parse_load_object_name(cursor, kind)
    if kind != "LIBRARY" and cursor.accept("("):
        cursor.expect(")")
    cascade = kind == "LIBRARY" and cursor.accept("CASCADE")
    cursor.expect_end("DROP")
    return DropLoadObject(kind.lower(), name, if_exists, cascade)


def _parse_depends(cursor: TokenCursor) -> str | None:
    accepted = cursor.accept("DEPENDS")
    return cursor.parse_string("the path of files that it needs") if accepted else None


def _parse_language(cursor: TokenCursor) -> None:
    if not cursor.accept("LANGUAGE"):
        return
    at = cursor.current
    language = cursor.parse_string("a language")
    if language.lower() != "python":
        raise cursor.make_error(f"LANGUAGE {language!r} is not supported. Use 'Python'", at)


def _parse_load_object_name(cursor: TokenCursor, kind: str) -> str:
    name = cursor.parse_name(f"a {kind.lower()}", 3)
    if len(name.parts) > 1 and name.parts[:-1] != ("PUBLIC",):
        raise cursor.make_error(
            f"A {kind.lower()} does not belong to a schema. Write only its name, {name.parts[-1]}"
        )
    return name.parts[-1]


def _parse_create_skipped(
    kind: str, cursor: TokenCursor, _create_mode: CreateMode
) -> SkippedFunction:
    return parse_skipped_function(cursor, kind, parse_function_name(cursor)[1])


KINDS = tuple(
    StatementKind(kind, partial(_parse_create, kind), drop=partial(_parse_drop, kind))
    for kind in ("LIBRARY", "FILTER", "PARSER", "SOURCE")
)
# Kinds of Vertica functions that loads do not use. They are accepted so that Vertica's scripts run.
SKIPPED_KINDS = tuple(
    StatementKind(f"{kind.upper()} FUNCTION", partial(_parse_create_skipped, f"{kind} function"))
    for kind in ("Transform", "Analytic", "Aggregate")
)
LIBRARIES = Listing(
    "LIBRARIES",
    NameLevel.ACCOUNT,
    "created_on name language origin files owner",
    lambda _, session: (
        (each.created_at, each.name, each.language, each.origin, len(each.files), each.owner)
        for each in libraries.list_libraries(session.connection)
    ),
)
_LOAD_FUNCTION_KINDS: tuple[FunctionKind, ...] = ("filter", "parser", "source")
LOAD_FUNCTIONS = tuple(
    Listing(
        f"{kind.upper()}S",
        NameLevel.ACCOUNT,
        "created_on name factory library owner",
        partial(_list_load_function_rows, kind),
    )
    for kind in _LOAD_FUNCTION_KINDS
)
