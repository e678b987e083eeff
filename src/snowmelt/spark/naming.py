"""Names as callers write them, and what they mean to the catalog."""

from __future__ import annotations

from snowmelt.catalog.external_functions import FunctionName
from snowmelt.errors import NotFound, TableNotFound
from snowmelt.schema.types import TableName, internal_name
from snowmelt.spark.queries import name_of

_PARTS = 3


def table_name(text: str) -> TableName:
    """Return the table of a name in full.

    Raises:
        TableNotFound: It is no such name.
    """
    parts = name_of(text)
    if len(parts) != _PARTS:
        raise TableNotFound(
            f"Table {text} does not exist; tables of the lake are named in full: "
            "database.schema.table.",
            table=text,
        )
    return TableName(*parts)


def function_name(text: str) -> FunctionName:
    """Return the function of a name in full.

    Raises:
        NotFound: It is no such name.
    """
    parts = name_of(text)
    if len(parts) != _PARTS:
        raise NotFound(
            f"Function {text} does not exist; external functions are named in full: "
            "database.schema.function.",
            kind="Function",
            name=text,
        )
    return FunctionName(*parts)


def within(database: str | None, schema: str | None) -> tuple[str, ...]:
    """Return where names in short are, by internal names; nothing where no database is given."""
    if database is None:
        return ()
    return internal_name(database), internal_name("PUBLIC" if schema is None else schema)
