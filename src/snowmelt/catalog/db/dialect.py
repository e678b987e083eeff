"""Where SQLite and PostgreSQL differ, or SQLAlchemy keeps apart what they spell alike."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Self

    from sqlalchemy.sql.compiler import SQLCompiler


def storable(text: str | None) -> str | None:
    """Return a text that is only told as every database keeps it: PostgreSQL takes no NUL."""
    return None if text is None else text.replace("\0", "\N{SYMBOL FOR NULL}")


def insert_for(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT, for this connection's database."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


# --- Many values in one parameter, so that a statement's text does not depend on how many.
#
# Registrations come in groups of any size. A statement with a parameter per value would be
# rendered, prepared and planned anew for each size; one that takes its values as JSON is built
# once. SQLite inserts and updates fastest row by row, through its driver's own `executemany`.

_encoder = msgspec.json.Encoder()
_ROWS = "the_rows"


class is_among(FunctionElement[bool]):  # noqa: N801 - reads as SQL where it is used
    """`is_among(column, parameter)`: the column is one of the texts in a `packed` parameter."""

    inherit_cache = True
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> Self:
        """Stay as it is: SQLAlchemy would add `= 1` for SQLite, which then uses no index."""
        del against
        return self


@compiles(is_among, "sqlite")
def _is_among_sqlite(element: is_among, compiler: SQLCompiler, **options: Any) -> str:
    column, texts = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({texts}))"


@compiles(is_among, "postgresql")
def _is_among_postgresql(element: is_among, compiler: SQLCompiler, **options: Any) -> str:
    column, texts = (compiler.process(each, **options) for each in element.clauses)
    # An array, not a subquery: that would be joined, by reading the whole table.
    return f"{column} = ANY (ARRAY(SELECT json_array_elements_text(({texts})::json)))"


def packed(values: Collection[object]) -> str:
    """Return values, or rows of values, as one parameter."""
    return _encoder.encode(values).decode()


def rows_of(dialect: str, *columns: sa.ColumnClause[Any]) -> sa.FromClause:
    """Return a source of rows with these columns; its parameter comes from `packed_rows`."""
    parameter = sa.bindparam(_ROWS, type_=sa.Text)
    if dialect == "postgresql":
        function = sa.func.json_to_recordset(sa.cast(parameter, sa.JSON))
        return function.table_valued(*columns).render_derived(name="given", with_types=True)
    each = sa.func.json_each(parameter).table_valued("value", name="given_json")
    fields = (
        sa.func.json_extract(each.c.value, sa.literal_column(f"'$.{column.name}'")).label(
            column.name
        )
        for column in columns
    )
    return sa.select(*fields).subquery("given")


def packed_rows(names: Sequence[str], rows: Collection[Sequence[object]]) -> dict[str, str]:
    """Return the parameters of a statement over `rows_of`."""
    return {_ROWS: packed([dict(zip(names, row, strict=True)) for row in rows])}


def insert_rows(
    connection: sa.Connection, table: sa.Table, names: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> None:
    """Insert rows of stored values: instants as microseconds, JSON bytes as they are."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_sqlite_insert(table, names), rows)
    else:
        connection.execute(_insert(table, names), packed_rows(names, _as_text(rows)))


def update_rows(
    connection: sa.Connection, table: sa.Table, names: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> None:
    """Set columns of rows that exist; the first of `names` is the key that finds them."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            _sqlite_update(table, names), [(*row[1:], row[0]) for row in rows]
        )
    else:
        connection.execute(_update(table, names), packed_rows(names, rows))


def _as_text(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [
        [value.decode() if isinstance(value, bytes) else value for value in row] for row in rows
    ]


@lru_cache
def _sqlite_insert(table: sa.Table, names: tuple[str, ...]) -> str:
    return str(sa.insert(table).compile(dialect=sqlite.dialect(), column_keys=list(names)))


@lru_cache
def _sqlite_update(table: sa.Table, names: tuple[str, ...]) -> str:
    key, *others = names
    statement = (
        sa.update(table)
        .ordered_values(*((table.c[name], sa.bindparam(f"new_{name}")) for name in others))
        .where(table.c[key] == sa.bindparam("the_key"))
    )
    return str(statement.compile(dialect=sqlite.dialect()))


@lru_cache
def _insert(table: sa.Table, names: tuple[str, ...]) -> sa.Insert:
    given = rows_of("postgresql", *(_given(table.c[name]) for name in names))
    values = (
        sa.func.convert_to(given.c[name], sa.literal_column("'UTF8'"))
        if isinstance(table.c[name].type, sa.LargeBinary)
        else given.c[name]
        for name in names
    )
    return sa.insert(table).from_select(names, sa.select(*values))


@lru_cache
def _update(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    key, *others = names
    given = rows_of("postgresql", *(_given(table.c[name]) for name in names))
    return (
        sa.update(table)
        .values({name: given.c[name] for name in others})
        .where(table.c[key] == given.c[key])
    )


def _given(column: sa.Column[Any]) -> sa.ColumnClause[Any]:
    kind = sa.Text() if isinstance(column.type, sa.LargeBinary) else column.type
    return sa.column(column.name, kind)
