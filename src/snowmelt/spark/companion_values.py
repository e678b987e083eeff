"""Nanoseconds and offsets of values that UPDATE and MERGE take from columns.

Spark's times have neither nanoseconds nor offsets. Companion columns of the table contain these
parts. A copied value keeps them only if the companions are copied too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, tokenize
from snowmelt.errors import StatementError
from snowmelt.schema.iceberg_table_form import native_fields
from snowmelt.schema.types import TableSchema
from snowmelt.spark.sql.cursor import quote_name_token, read_dotted_name
from snowmelt.spark.tables.spark_column_mapping import quote_identifier


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


def _list_names(tokens: Sequence[SqlToken]) -> Iterator[list[SqlToken]]:
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        if run:
            yield run
        index += max(2 * len(run) - 1, 1)
