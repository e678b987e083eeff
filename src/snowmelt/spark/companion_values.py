"""Nanoseconds and offsets of values that UPDATE, MERGE and INSERT take from columns.

Spark's times have neither nanoseconds nor offsets. Companion columns of the table contain these
parts. A copied value keeps them only if the companions are copied too.
"""

from __future__ import annotations

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
        self._readable = {
            alias.lower(): {name.lower() for name in names} for alias, names in readable.items()
        }

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
                lossy = [run for run in _list_names(tokens) if self._has_companion(run, suffix)]
                if not lossy:
                    continue
                *qualifier, last = lossy[0]
                if len(tokens) != 2 * len(lossy[0]):
                    part = "its nanoseconds" if suffix == "$ns" else "its offset"
                    reason = (
                        f"The value of {column.display_name if column else name} is computed from "
                        f"{last.source_text}, which would lose {part}. Set the column to another column, or to text"
                    )
                    raise StatementError(f"{reason}.", reason=reason)
                parts = [*map(quote_name_token, qualifier), quote_identifier(last.text + suffix)]
                found.append((field.name, ".".join(parts)))
        return found

    def _has_companion(self, run: Sequence[SqlToken], suffix: str) -> bool:
        name = (run[-1].text + suffix).lower()
        alias = quote_name_token(run[-2]).lower() if len(run) > 1 else ""
        known = self._readable.get(alias)
        return (
            name in known
            if known is not None
            else any(name in each for each in self._readable.values())
        )


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
    candidates = [
        (field.name, name)
        for item, column in zip(items, columns, strict=True)
        for field in native_fields(column)[1:]
        if (name := _find_companion(item, field.name.removeprefix(column.name))) is not None
    ]

    def build(chosen: Sequence[tuple[str, str]]) -> tuple[DataFrame, list[str]] | None:
        # The companions come last, so that ORDER BY still finds its columns by position.
        texts = [*items, *(text for _, text in chosen)]
        names = [*(column.name for column in columns), *(name for name, _ in chosen)]
        try:
            return find_frame(f"SELECT {', '.join(texts)} {rest}"), names
        except UserError:
            return None

    if not candidates:
        return None
    every = build(candidates)
    if every is not None:
        return every
    found = [each for each in candidates if build([each]) is not None]
    return build(found) if found else None


def _read_item(cursor: SparkCursor) -> str:
    """Read an item of a select list. The FROM of `a IS DISTINCT FROM b` does not end it."""
    first = cursor.current
    cursor.skip_until(",", "FROM")
    while cursor.is_next("FROM") and cursor.previous.unquoted == "DISTINCT":
        cursor.advance()
        cursor.skip_until(",", "FROM")
    return cursor.source_between(first, cursor.previous)


def _find_companion(item: str, suffix: str) -> str | None:
    """Return the name of the companion of an item that is a column, with or without an alias."""
    tokens = tokenize(item, SqlRules.SPARK)
    run = read_dotted_name(tokens, 0)
    others = tokens[max(2 * len(run) - 1, 0) : -1]
    if others and others[0].unquoted == "AS":
        others = others[1:]
    if not run or len(others) > 1 or any(each.kind not in NAME_KINDS for each in others):
        return None
    *qualifier, last = run
    return ".".join([*map(quote_name_token, qualifier), quote_identifier(last.text + suffix)])


def _list_names(tokens: Sequence[SqlToken]) -> Iterator[list[SqlToken]]:
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        if run:
            yield run
        index += max(2 * len(run) - 1, 1)
