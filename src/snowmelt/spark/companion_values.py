"""Nanoseconds and offsets of values that UPDATE, MERGE and INSERT take from columns.

Spark's times have neither nanoseconds nor offsets. Companion columns of the table contain these
parts. A copied value keeps them only if the companions are copied too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from snowmelt.catalog.sql.cursor import is_at_end
from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, tokenize
from snowmelt.errors import StatementError, UserError
from snowmelt.schema.iceberg_table_form import native_fields
from snowmelt.schema.types import Column, TableSchema
from snowmelt.spark.sql.cursor import (
    NAME_KINDS,
    SparkCursor,
    quote_name_token,
    read_dotted_name,
)
from snowmelt.spark.tables.spark_column_mapping import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CompanionValues:
    """Finder of the companion values to set together with their columns."""

    def __init__(self, schema: TableSchema, readable: Mapping[str, Sequence[str]]) -> None:
        """Prepare the columns of a table.

        Args:
            schema: The table whose columns are set.
            readable: The columns of each relation that the values may read, by the alias in
                backticks.
        """
        self._schema = schema
        self._readable = {alias.lower(): map_companions(names) for alias, names in readable.items()}

    def find_values(self, values: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the companions to set together with these columns, as names and expressions.

        Raises:
            StatementError: If an expression would lose the nanoseconds or offset of a column in it.
        """
        found = []
        for name, text in values:
            column = self._schema.column(name)
            for field in native_fields(column)[1:] if column is not None else ():
                suffix = field.name.removeprefix(name)
                tokens = tokenize(text, SqlRules.SPARK)
                named = ((run, self._find_companion(run, suffix)) for run in _list_names(tokens))
                lossy = [(run, companion) for run, companion in named if companion is not None]
                if not lossy:
                    continue
                [(run, companion), *_] = lossy
                *qualifier, last = run
                if len(tokens) != 2 * len(run):
                    part = "its nanoseconds" if suffix == "$ns" else "its offset"
                    reason = (
                        f"The value of {column.display_name if column else name} is computed from "
                        f"{last.source_text}, which would lose {part}. Set the column to another column, or to text"
                    )
                    raise StatementError(f"{reason}.", reason=reason)
                parts = [*map(quote_name_token, qualifier), quote_identifier(companion)]
                found.append((field.name, ".".join(parts)))
        return found

    def _find_companion(self, run: Sequence[SqlToken], suffix: str) -> str | None:
        alias = quote_name_token(run[-2]).lower() if len(run) > 1 else ""
        known = self._readable.get(alias)
        relations = self._readable.values() if known is None else [known]
        found = [each.get((run[-1].text.lower(), suffix)) for each in relations]
        return next((each for each in found if each is not None), None)


def map_companions(names: Sequence[str]) -> dict[tuple[str, str], str]:
    """Map columns of a relation, in lower case, and suffixes of companions to the companions.

    Companions follow their column in the relation of a table. If column names differ only in case, both
    may end in an ordinal: `A_3` and `A$ns_3` (`list_visible_columns`). In other relations, the name of a
    companion is that of its column and the suffix.
    """
    found: dict[tuple[str, str], str] = {}
    claimed: set[str] = set()
    column = ""
    for name in names:
        base, suffix = _split_companion(name)
        if not suffix:
            column = name.lower()
        elif _ORDINALS.fullmatch(column, len(base)) and column.startswith(base.lower()):
            found[column, suffix] = name
            claimed.add(name.lower())
    for name in names:
        base, suffix = _split_companion(name)
        if suffix and name.lower() == (base + suffix).lower() not in claimed:
            found.setdefault((base.lower(), suffix), name)
    return found


def _split_companion(name: str) -> tuple[str, str]:
    """Return the name of a companion without suffix and ordinals, and the suffix, or empty strings."""
    match = _COMPANION_NAME.fullmatch(name)
    return (match["base"], match["suffix"].lower()) if match is not None else ("", "")


_COMPANION_NAME = re.compile(
    r"(?P<base>.*)(?P<suffix>\$(?:ns|tz))(?:_\d+)*", re.DOTALL | re.IGNORECASE
)
_ORDINALS = re.compile(r"(?:_\d+)*")


def add_companions(
    query: str, columns: Sequence[Column], find_frame: Callable[[str], DataFrame]
) -> tuple[DataFrame, list[str]] | None:
    """Add the companions of copied columns to the query of an INSERT.

    The companions of each item of the select list that is a single column follow all items, if its
    relation has them and the column of the table stores them. Returns the rows, and the column or
    companion of the table for each of their columns.

    Returns None if there is none, or if the query is not a SELECT of one item for each column, without
    DISTINCT, GROUP BY and set operators.

    Args:
        query: Text of the query.
        columns: Columns of the table, in the order of the values.
        find_frame: Returns the rows of a query. Raises a UserError if a column does not exist.
    """
    cursor = SparkCursor(query)
    if not cursor.accept("SELECT") or cursor.is_next("DISTINCT"):
        return None
    if cursor.peek().kind in NAME_KINDS and cursor.peek().unquoted not in ("FROM", "AS"):
        cursor.accept("ALL")
    items = [_read_item(cursor)]
    while cursor.accept(","):
        items.append(_read_item(cursor))
    if len(items) != len(columns) or not cursor.is_next("FROM"):
        return None
    rest = query[cursor.current.start_offset :]
    cursor.skip_until("GROUP", "HAVING", "UNION", "INTERSECT", "EXCEPT", "MINUS")
    if not is_at_end(cursor):
        return None
    copied = [
        (field.name, field.name.removeprefix(column.name), run)
        for item, column in zip(items, columns, strict=True)
        if (run := _read_column_item(item))
        for field in native_fields(column)[1:]
    ]
    companions: list[str] = []
    names = [column.name for column in columns]
    for qualifier in dict.fromkeys(_quote_qualifier(run) for _, _, run in copied):
        known = map_companions(_list_columns(qualifier, items, rest, find_frame))
        for name, suffix, run in copied:
            companion = known.get((run[-1].text.lower(), suffix))
            if _quote_qualifier(run) == qualifier and companion is not None:
                companions.append(qualifier + quote_identifier(companion))
                names.append(name)
    if not companions:
        return None
    # The companions come last, so that ORDER BY still finds its columns by position.
    return find_frame(f"SELECT {', '.join([*items, *companions])} {rest}"), names


def _list_columns(
    qualifier: str, items: Sequence[str], rest: str, find_frame: Callable[[str], DataFrame]
) -> list[str]:
    """Return the names of the columns that a qualifier such as "`s`." has, or of all columns."""
    try:
        every = find_frame(f"SELECT {', '.join(items)}, {qualifier}* {rest}").columns
    except UserError:  # For example, the qualifier is a column of OBJECTs.
        return []
    return every[len(items) :]


def _quote_qualifier(run: Sequence[SqlToken]) -> str:
    return "".join(f"{quote_name_token(part)}." for part in run[:-1])


def _read_item(cursor: SparkCursor) -> str:
    """Read an item of a select list. The FROM of `a IS DISTINCT FROM b` does not end it."""
    first = cursor.current
    cursor.skip_until(",", "FROM")
    while cursor.is_next("FROM") and cursor.previous.unquoted == "DISTINCT":
        cursor.advance()
        cursor.skip_until(",", "FROM")
    return cursor.source_between(first, cursor.previous)


def _read_column_item(item: str) -> list[SqlToken]:
    """Return the name of an item that is a column, with or without an alias, or an empty list."""
    tokens = tokenize(item, SqlRules.SPARK)
    run = read_dotted_name(tokens, 0)
    others = tokens[max(2 * len(run) - 1, 0) : -1]
    if others and others[0].unquoted == "AS":
        others = others[1:]
    if len(others) > 1 or any(each.kind not in NAME_KINDS for each in others):
        return []
    return run


def _list_names(tokens: Sequence[SqlToken]) -> Iterator[list[SqlToken]]:
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        if run:
            yield run
        index += max(2 * len(run) - 1, 1)
