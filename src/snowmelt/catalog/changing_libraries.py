"""Statements that change libraries of user code, and what is made of them."""

from __future__ import annotations

import ast
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from snowmelt.catalog import libraries
from snowmelt.catalog.changing import change
from snowmelt.catalog.libraries import FunctionRecord, LibraryRecord
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.statements import (
    CreateFunction,
    CreateLibrary,
    DropLoadObject,
    SkippedFunction,
)
from snowmelt.errors import NotFound, ObjectMissing, UserError
from snowmelt.schema.types import display_name
from snowmelt.storage.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.catalog.libraries import FunctionKind
    from snowmelt.catalog.session import Session

# Calls that may bind names of a module.
_MAKING = frozenset({"globals", "vars", "exec", "setattr", "locals"})
_MAX_BYTES = 64 * 1024 * 1024


@change.register(CreateLibrary)
def _create_library(statement: CreateLibrary, session: Session) -> Result:
    session.require_administrator("CREATE LIBRARY")
    shown = display_name(statement.name)
    known = {each.name for each in libraries.libraries_of(session.connection)}
    there = statement.name in known
    if there and statement.existing is Existing.KEEP:
        return Result(message=f"Library {shown} exists already; nothing was done.")
    contents = _read(statement)
    record = LibraryRecord(
        name=statement.name,
        language="Python",
        origin=statement.path,
        files=tuple(contents),
        owner=session.role,
        created_at=session.now,
    )
    libraries.create_library(
        session.connection, record, contents, replace=statement.existing is Existing.REPLACE
    )
    files = "1 file" if len(contents) == 1 else f"{len(contents)} files"
    return Result(message=f"Library {shown} {'replaced' if there else 'created'}, {files}.")


@change.register(CreateFunction)
def _create_function(statement: CreateFunction, session: Session) -> Result:
    kind = cast("FunctionKind", statement.kind)
    session.require_administrator(f"CREATE {kind.upper()}")
    known = {each.name for each in libraries.functions_of(session.connection, kind)}
    there = statement.name in known
    shown = f"{kind.capitalize()} {display_name(statement.name)}"
    if there and statement.existing is Existing.KEEP:
        return Result(message=f"{shown} exists already; nothing was done.")
    _check_factory(statement, session)
    record = FunctionRecord(
        kind=kind,
        name=statement.name,
        factory=statement.factory,
        library=statement.library,
        owner=session.role,
        created_at=session.now,
    )
    libraries.create_function(
        session.connection, record, replace=statement.existing is Existing.REPLACE
    )
    return Result(message=f"{shown} {'replaced' if there else 'created'}.")


@change.register(DropLoadObject)
def _drop(statement: DropLoadObject, session: Session) -> Result:
    session.require_administrator(f"DROP {statement.kind.upper()}")
    shown = f"{statement.kind.capitalize()} {display_name(statement.name)}"
    try:
        if statement.kind == "library":
            libraries.drop_library(session.connection, statement.name, cascade=statement.cascade)
        else:
            kind = cast("FunctionKind", statement.kind)
            libraries.drop_function(session.connection, kind, statement.name)
    except NotFound:
        if not statement.if_exists:
            raise
        return Result(message=f"{shown} does not exist; nothing was done.")
    return Result(message=f"{shown} dropped.")


@change.register(SkippedFunction)
def _skip(statement: SkippedFunction, session: Session) -> Result:  # noqa: ARG001 - as changes are
    return Result(
        message=f"{statement.kind} {statement.name} was skipped: of a library's functions a load "
        "runs filters, parsers and sources. A function for queries is an EXTERNAL FUNCTION."
    )


def _check_factory(statement: CreateFunction, session: Session) -> None:
    """Verify that a library has a factory, without running any of its code.

    Raises:
        NotFound: If there is no such library.
        UserError: If no file of it binds the name, or a file is no Python.
    """
    files = libraries.library_files(session.connection, [statement.library])[statement.library]
    shown = display_name(statement.library)
    bound: dict[str, None] = {}
    for path, data in files.items():
        parts = PurePosixPath(path)
        is_top = len(parts.parts) == 1 or (len(parts.parts) == 2 and parts.name == "__init__.py")
        if parts.suffix != ".py" or not is_top:
            continue
        try:
            tree = ast.parse(data, path)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"Cannot use library {shown}: {path} is no Python: {error}.") from None
        found = _bound(tree.body)
        if found is None:
            return  # a star import, or names that are made while it runs
        bound.update(dict.fromkeys(found))
    if statement.factory.lower() not in {name.lower() for name in bound}:
        offered = ", ".join(name for name in bound if not name.startswith("_")) or "nothing"
        raise UserError(
            f"Cannot create {statement.kind} {display_name(statement.name)}: library {shown} has no "
            f"{statement.factory}; it has {offered}."
        )


def _bound(body: Sequence[ast.stmt]) -> list[str] | None:
    """Return the names that a module binds; None if that is known only by running it."""
    names: list[str] = []
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # What is within binds nothing outside.
            names.append(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [each.asname or each.name.partition(".")[0] for each in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _MAKING:
            return None
        waiting = [*ast.iter_child_nodes(node), *waiting]
    return None if {"*", "__getattr__"} & set(names) else names


def _read(statement: CreateLibrary) -> dict[str, bytes]:
    """Read a library's files, the named one first; others by their path beneath DEPENDS."""
    folder, _, name = statement.path.rpartition("/")
    if "://" not in folder and not Path(statement.path).is_file():
        raise ObjectMissing(path=name, store=folder or ".")
    contents = {name: open_store(folder or ".").get(name)}
    size = len(contents[name])
    for path, data in _needed(statement.depends):
        size += len(data)
        if size > _MAX_BYTES:
            raise UserError(
                f"The files of library {display_name(statement.name)} have more than "
                f"{_MAX_BYTES:,} bytes."
            )
        contents.setdefault(path, data)
    return contents


def _needed(depends: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield what DEPENDS names: files and folders, with `:` between them, `*` for a folder's all."""
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
            raise UserError(f"DEPENDS {part}: there is no such file or folder.")
