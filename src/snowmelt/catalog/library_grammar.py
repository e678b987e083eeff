"""Statements about libraries of user code, and what is made of them; the grammar is Vertica's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.statements import (
    CreateFunction,
    CreateLibrary,
    DropLoadObject,
    SkippedFunction,
)

if TYPE_CHECKING:
    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Existing

LOAD_OBJECTS = ("LIBRARY", "FILTER", "PARSER", "SOURCE")


def read_create_load_object(
    cursor: Cursor, kind: str, existing: Existing
) -> CreateLibrary | CreateFunction:
    """Go past what follows CREATE LIBRARY, FILTER, PARSER or SOURCE.

    Raises:
        StatementError: It is not as it must be.
    """
    name = _name(cursor, kind)
    cursor.expect("AS")
    if kind == "LIBRARY":
        return _library(cursor, name, existing)
    _language(cursor)
    cursor.expect("NAME")
    at = cursor.token
    factory = cursor.string("the name of a factory class")
    if not factory.isidentifier():
        raise cursor.error("The name of a factory class is one word", at)
    cursor.expect("LIBRARY")
    library = _name(cursor, "LIBRARY")
    # Where user code runs is the same either way.
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.end(f"CREATE {kind}")
    return CreateFunction(kind.lower(), name, factory, library, existing)


def read_skipped_function(cursor: Cursor, kind: str, name: str) -> SkippedFunction:
    """Go past AS LANGUAGE … NAME … LIBRARY … behind CREATE FUNCTION with a name.

    Raises:
        StatementError: It is not as it must be.
    """
    cursor.expect("AS")
    if cursor.accept("LANGUAGE"):
        cursor.string("a language")
    cursor.expect("NAME")
    cursor.string("the name of a factory class")
    cursor.expect("LIBRARY")
    _name(cursor, "LIBRARY")
    cursor.accept("NOT")
    cursor.accept("FENCED")
    cursor.end("CREATE FUNCTION")
    return SkippedFunction(kind, name)


def read_drop_load_object(cursor: Cursor, kind: str) -> DropLoadObject:
    """Go past what follows DROP LIBRARY, FILTER, PARSER or SOURCE.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = _name(cursor, kind)
    if kind != "LIBRARY" and cursor.accept("("):
        cursor.expect(")")
    cascade = kind == "LIBRARY" and cursor.accept("CASCADE")
    cursor.end("DROP")
    return DropLoadObject(kind.lower(), name, if_exists, cascade)


def _library(cursor: Cursor, name: str, existing: Existing) -> CreateLibrary:
    path = cursor.string("the path of a file")
    depends: str | None = None
    if cursor.accept("DEPENDS"):
        depends = cursor.string("the path of files that it needs")
    _language(cursor)
    if depends is None and cursor.accept("DEPENDS"):
        depends = cursor.string("the path of files that it needs")
    cursor.end("CREATE LIBRARY")
    return CreateLibrary(name, path, depends, existing)


def _language(cursor: Cursor) -> None:
    if not cursor.accept("LANGUAGE"):
        return
    at = cursor.token
    language = cursor.string("a language")
    if language.lower() != "python":
        raise cursor.error(f"There is LANGUAGE 'Python' alone, not {language!r}", at)


def _name(cursor: Cursor, kind: str) -> str:
    name = cursor.name(f"a {kind.lower()}", 3)
    if len(name.parts) > 1 and name.parts[:-1] != ("PUBLIC",):
        raise cursor.error(
            f"A {kind.lower()} is in no schema: write its name alone, {name.parts[-1]}"
        )
    return name.parts[-1]
