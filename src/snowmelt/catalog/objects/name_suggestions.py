"""Suggestions for misspelled names of tables and functions, among the objects that a role can see."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from typing import NoReturn

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import PRIVILEGES, ObjectKind
from snowmelt.catalog.objects.external_functions import FunctionName
from snowmelt.catalog.objects.tables import select_in_schemas
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.errors import DatabaseNotFound, NotFound, SchemaNotFound, TableNotFound
from snowmelt.schema.types import TableName, to_display_name

_MAX_CANDIDATES = 5


@contextlib.contextmanager
def suggesting_names(
    connection: sa.Connection, role: str | None, name: TableName | FunctionName
) -> Iterator[None]:
    """Add the most similar visible name to an error of the block that `name` does not exist.

    A `role` of None adds nothing.
    """
    try:
        yield
    except (TableNotFound, DatabaseNotFound, SchemaNotFound, NotFound) as error:
        similar = None if role is None else _find_similar_name(connection, role, name)
        if similar is None:
            raise
        raise type(error)(f"{error} Did you mean {similar}?", **error.fields) from None


def raise_function_not_found(connection: sa.Connection, role: str, name: FunctionName) -> NoReturn:
    """Raise NotFound for a function, with the most similar visible name."""
    with suggesting_names(connection, role, name):
        raise NotFound(
            f"Function {name} does not exist, or this role may not use it.",
            kind="Function",
            name=str(name),
        )


def _find_similar_name(
    connection: sa.Connection, role: str, name: TableName | FunctionName
) -> str | None:
    """Return a similar name of the same schema, or the same name of another schema, or None."""
    kind: ObjectKind
    if isinstance(name, TableName):
        kind, objects, inner = "TABLE", model.tables, name.table
    else:
        kind, objects, inner = "FUNCTION", model.external_functions, name.function
    near = connection.execute(select_in_schemas(objects, name.database, name.schema, None)).all()
    words = {row.name for row in near} - {inner}
    similar = difflib.get_close_matches(inner, words, n=_MAX_CANDIDATES)
    rows = [row for each in similar for row in near if row.name == each]
    elsewhere = connection.execute(select_in_schemas(objects, None, None, inner))
    rows += [
        row
        for row in elsewhere.fetchmany(_MAX_CANDIDATES)
        if (row.database, row.schema) != (name.database, name.schema)
    ]
    for row in rows:
        if (
            has_privilege(connection, role, kind, row[0], *PRIVILEGES[kind])
            and has_privilege(connection, role, "SCHEMA", row.schema_id, "USAGE")
            and has_privilege(connection, role, "DATABASE", row.database_id, "USAGE")
        ):
            return ".".join(map(to_display_name, (row.database, row.schema, row.name)))
    return None
