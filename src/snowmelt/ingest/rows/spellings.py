"""Which column a field of a row means, where they differ in upper and lower case."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from snowmelt.schema.types import quoted_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from snowmelt.schema.types import TableSchema

    Row = Mapping[str, object]


def spelled(rows: Sequence[Row], schema: TableSchema) -> Sequence[Row]:
    """Return rows whose fields name columns in any letters, as MATCH_BY_COLUMN_NAME has it by default.

    By the rules of identifiers `city` is CITY, which is always tried first; here it is column
    "City" as well, in a table that has no other of this name. Of two fields the last counts.
    """
    names = spellings(schema)
    if not names:
        return rows
    return [_renamed(row, names) if isinstance(row, dict) else row for row in rows]


def spellings(schema: TableSchema) -> Mapping[str, str]:
    """Return by which names columns with small letters are meant by fields, by these in capitals."""
    uppers = Counter(column.name.upper() for column in schema.columns)
    return {
        column.name.upper(): quoted_name(column.name)
        for column in schema.columns
        if column.name.upper() != column.name and uppers[column.name.upper()] == 1
    }


def exact(rows: Sequence[Row]) -> Sequence[Row]:
    """Return rows whose fields name columns letter by letter, as with CASE_SENSITIVE."""
    return [
        {quoted_name(key): value for key, value in row.items()} if isinstance(row, dict) else row
        for row in rows
    ]


def _renamed(row: Row, names: Mapping[str, str]) -> Row:
    return {names.get(key.upper(), key): value for key, value in row.items()}
