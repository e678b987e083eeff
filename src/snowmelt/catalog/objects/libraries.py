"""Libraries of user code, and the filters, parsers and sources created from them.

The code of a library runs in every process that loads tables, so only ACCOUNTADMIN may create one.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.schema.types import to_display_name

FunctionKind: TypeAlias = Literal["filter", "parser", "source"]

_LIBRARIES = model.libraries
_LOAD_FUNCTIONS = model.load_functions


@dataclass(frozen=True, slots=True)
class LibraryRecord:
    """A library with the paths of its files. The first is the file that CREATE LIBRARY named."""

    name: str
    language: str
    origin: str
    files: tuple[str, ...]
    owner: str
    created_at: dt.datetime


@dataclass(frozen=True, slots=True)
class LoadFunctionRecord:
    """A filter, parser or source, implemented by a factory class of a library."""

    kind: FunctionKind
    name: str
    factory: str
    library: str
    owner: str
    created_at: dt.datetime


def create_library(
    connection: sa.Connection,
    record: LibraryRecord,
    contents: Mapping[str, bytes],
    *,
    replace: bool,
) -> None:
    """Create a library of these files. If it replaces a library, the functions of that library stay.

    Raises:
        AlreadyExists: If it exists and `replace` is false.
    """
    files = {name: base64.b85encode(data).decode() for name, data in contents.items()}
    values = asdict(record) | {"files": json.dumps(files)}
    if record.name not in {each.name for each in list_libraries(connection)}:
        connection.execute(sa.insert(_LIBRARIES).values(values))
    elif replace:
        connection.execute(
            sa.update(_LIBRARIES).where(_LIBRARIES.c.name == record.name).values(values)
        )
    else:
        raise AlreadyExists(kind="Library", name=to_display_name(record.name))


def drop_library(connection: sa.Connection, name: str, *, cascade: bool) -> None:
    """Drop a library; `cascade` also drops its functions.

    Raises:
        NotFound: If it does not exist.
        UserError: If it has functions.
    """
    # The lock prevents the creation of functions of the library.
    connection.execute(
        sa.select(_LIBRARIES.c.name).where(_LIBRARIES.c.name == name).with_for_update()
    )
    made = [each for each in list_load_functions(connection) if each.library == name]
    if made and not cascade:
        shown = ", ".join(f"{each.kind} {to_display_name(each.name)}" for each in made)
        raise UserError(
            f"Cannot drop library {to_display_name(name)}: it is used by {shown}. Drop these first, or add "
            "CASCADE."
        )
    connection.execute(sa.delete(_LOAD_FUNCTIONS).where(_LOAD_FUNCTIONS.c.library == name))
    if not connection.execute(sa.delete(_LIBRARIES).where(_LIBRARIES.c.name == name)).rowcount:
        raise NotFound(kind="Library", name=to_display_name(name))


def create_load_function(
    connection: sa.Connection, record: LoadFunctionRecord, *, replace: bool
) -> None:
    """Create a filter, parser or source of a library.

    Raises:
        AlreadyExists: If it exists and `replace` is false.
        NotFound: If the library does not exist.
    """
    if record.library not in {each.name for each in list_libraries(connection)}:
        raise NotFound(kind="Library", name=to_display_name(record.library))
    if record.name in {each.name for each in list_load_functions(connection, record.kind)}:
        if not replace:
            raise AlreadyExists(kind=record.kind.capitalize(), name=to_display_name(record.name))
        drop_load_function(connection, record.kind, record.name)
    connection.execute(sa.insert(_LOAD_FUNCTIONS).values(asdict(record)))


def drop_load_function(connection: sa.Connection, kind: FunctionKind, name: str) -> None:
    """Drop a filter, parser or source.

    Raises:
        NotFound: If it does not exist.
    """
    gone = connection.execute(
        sa.delete(_LOAD_FUNCTIONS).where(
            _LOAD_FUNCTIONS.c.kind == kind, _LOAD_FUNCTIONS.c.name == name
        )
    )
    if not gone.rowcount:
        raise NotFound(kind=kind.capitalize(), name=to_display_name(name))


def list_libraries(connection: sa.Connection) -> list[LibraryRecord]:
    """Return all libraries, ordered by name."""
    rows = connection.execute(sa.select(_LIBRARIES).order_by(_LIBRARIES.c.name))
    return [make_record(LibraryRecord, row, files=tuple(json.loads(row.files))) for row in rows]


def list_load_functions(
    connection: sa.Connection, kind: FunctionKind | None = None
) -> list[LoadFunctionRecord]:
    """Return all filters, parsers and sources, optionally of one kind, ordered by name."""
    query = sa.select(_LOAD_FUNCTIONS).order_by(_LOAD_FUNCTIONS.c.kind, _LOAD_FUNCTIONS.c.name)
    if kind is not None:
        query = query.where(_LOAD_FUNCTIONS.c.kind == kind)
    return [make_record(LoadFunctionRecord, row) for row in connection.execute(query)]


def read_library_files(
    connection: sa.Connection, names: Sequence[str]
) -> dict[str, dict[str, bytes]]:
    """Return the files of libraries by name, the main file first.

    Raises:
        NotFound: If a library does not exist.
    """
    found = {}
    for name in dict.fromkeys(names):
        text = connection.execute(
            sa.select(_LIBRARIES.c.files).where(_LIBRARIES.c.name == name)
        ).scalar()
        if text is None:
            raise NotFound(kind="Library", name=to_display_name(name))
        found[name] = {file: base64.b85decode(data) for file, data in json.loads(text).items()}
    return found
