"""SQL that differs between SQLite and PostgreSQL, and statements with array parameters.

Array statements take any number of values as one JSON parameter, so one prepared statement and plan
serves every number of values. For inserts and updates, SQLite is fastest with `executemany` of its
driver.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Self, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_RecordT = TypeVar("_RecordT")


def make_record(record_type: type[_RecordT], row: sa.Row[Any], **values: object) -> _RecordT:
    """Create a dataclass from the columns of a row, matched by name. `values` override columns.

    A field with neither a column nor a value gets its default.
    """
    found = {**row._mapping, **values}  # noqa: SLF001 - public, in spite of its name
    names: Any = record_type
    fields = names.__dataclass_fields__.keys()
    return record_type(**{name: found[name] for name in fields & found.keys()})


def replace_nul(text: str | None) -> str | None:
    """Replace NUL characters in displayed text, because PostgreSQL cannot store them."""
    return None if text is None else text.replace("\0", "\N{SYMBOL FOR NULL}")


def make_insert(
    database: sa.Connection | str, table: sa.TableClause
) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that supports ON CONFLICT, for the dialect of a connection."""
    dialect = database if isinstance(database, str) else database.dialect.name
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


_json_encoder = msgspec.json.Encoder()
_ROWS_PARAMETER = "the_rows"


def add_or_delete_row(
    connection: sa.Connection, table: sa.Table, row: dict[str, Any], *, delete: bool
) -> None:
    """Insert or delete a row whose columns are all part of the key. Idempotent."""
    connection.execute(
        sa.delete(table).filter_by(**row)
        if delete
        else make_insert(connection, table).values(row).on_conflict_do_nothing()
    )


class in_array(FunctionElement[bool]):  # noqa: N801 - reads as SQL where it is used
    """SQL condition: the column equals one of the texts in an `encode_array` parameter."""

    inherit_cache = True
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> Self:
        """Return the element unchanged: with SQLAlchemy's `= 1`, SQLite would ignore indexes."""
        del against
        return self


@compiles(in_array, "sqlite")
def _compile_in_array_sqlite(element: in_array, compiler: SQLCompiler, **options: Any) -> str:
    column, texts = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({texts}))"


@compiles(in_array, "postgresql")
def _compile_in_array_postgresql(element: in_array, compiler: SQLCompiler, **options: Any) -> str:
    column, texts = (compiler.process(each, **options) for each in element.clauses)
    # Use an array: for a subquery PostgreSQL would scan the whole table.
    return f"{column} = ANY (ARRAY(SELECT json_array_elements_text(({texts})::json)))"


def encode_array(values: Collection[object]) -> str:
    """Encode values, or rows of values, as one parameter."""
    return _json_encoder.encode(values).decode()


def make_rows_source(dialect: str, *columns: sa.ColumnClause[Any]) -> sa.FromClause:
    """Return a FROM clause with these columns whose rows come from one parameter (`encode_rows`)."""
    parameter = sa.bindparam(_ROWS_PARAMETER, type_=sa.Text)
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


def encode_rows(column_names: Sequence[str], rows: Collection[Sequence[object]]) -> dict[str, str]:
    """Encode rows as the parameter of a statement that uses `make_rows_source`."""
    return {
        _ROWS_PARAMETER: encode_array([dict(zip(column_names, row, strict=True)) for row in rows])
    }


def insert_rows(
    connection: sa.Connection,
    table: sa.Table,
    column_names: tuple[str, ...],
    rows: list[tuple[Any, ...]],
) -> None:
    """Insert rows of values in stored form: timestamps in microseconds, bytes unchanged."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_render_sqlite_insert(table, column_names), rows)
    else:
        connection.execute(
            _build_postgres_insert(table, column_names),
            encode_rows(
                column_names,
                [
                    [b64encode(each).decode() if isinstance(each, bytes) else each for each in row]
                    for row in rows
                ],
            ),
        )


def update_rows(
    connection: sa.Connection,
    table: sa.Table,
    column_names: tuple[str, ...],
    rows: list[tuple[Any, ...]],
) -> None:
    """Update columns of existing rows. The first of `column_names` is the key column."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            _render_sqlite_update(table, column_names), [(*row[1:], row[0]) for row in rows]
        )
    else:
        connection.execute(
            _build_postgres_update(table, column_names), encode_rows(column_names, rows)
        )


@lru_cache
def _render_sqlite_insert(table: sa.Table, column_names: tuple[str, ...]) -> str:
    # `sa.insert` would list the columns in table order, but the rows are in the order of
    # `column_names`.
    quoting = sqlite.dialect().identifier_preparer
    columns = ", ".join(quoting.format_column(table.c[name]) for name in column_names)
    parameters = ", ".join("?" * len(column_names))
    return f"INSERT INTO {quoting.format_table(table)} ({columns}) VALUES ({parameters})"


@lru_cache
def _render_sqlite_update(table: sa.Table, column_names: tuple[str, ...]) -> str:
    key, *others = column_names
    statement = (
        sa.update(table)
        .ordered_values(*((table.c[name], sa.bindparam(f"new_{name}")) for name in others))
        .where(table.c[key] == sa.bindparam("the_key"))
    )
    return str(statement.compile(dialect=sqlite.dialect()))


@lru_cache
def _build_postgres_insert(table: sa.Table, column_names: tuple[str, ...]) -> sa.Insert:
    given = _make_postgres_source(table, column_names)
    values = (
        sa.func.decode(given.c[name], sa.literal_column("'base64'"))
        if isinstance(table.c[name].type, sa.LargeBinary)
        else given.c[name]
        for name in column_names
    )
    return sa.insert(table).from_select(column_names, sa.select(*values))


@lru_cache
def _build_postgres_update(table: sa.Table, column_names: tuple[str, ...]) -> sa.Update:
    key, *others = column_names
    given = _make_postgres_source(table, column_names)
    return (
        sa.update(table)
        .values({name: given.c[name] for name in others})
        .where(table.c[key] == given.c[key])
    )


def _make_postgres_source(table: sa.Table, column_names: tuple[str, ...]) -> sa.FromClause:
    types = {name: table.c[name].type for name in column_names}
    return make_rows_source(
        "postgresql",
        *(
            sa.column(name, sa.Text() if isinstance(kind, sa.LargeBinary) else kind)
            for name, kind in types.items()
        ),
    )
