"""Statements that change libraries of user code, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from snowmelt.catalog import libraries
from snowmelt.catalog.changing import change
from snowmelt.catalog.libraries import FunctionRecord, LibraryRecord
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.statements import CreateFunction, CreateLibrary, DropLoadObject
from snowmelt.errors import NotFound, ObjectMissing, UserError
from snowmelt.schema.types import display_name
from snowmelt.storage.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.catalog.libraries import FunctionKind
    from snowmelt.catalog.session import Session

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
