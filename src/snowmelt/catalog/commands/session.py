"""Who runs a statement, when, and what a name that was not written out means to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.model.privileges import ACCOUNTADMIN, PRIVILEGES, PUBLIC, Kind
from snowmelt.catalog.objects.external_functions import (
    FunctionName,
    find_translator,
    named_overload,
)
from snowmelt.catalog.objects.integrations import find_integration
from snowmelt.catalog.objects.namespaces import DEFAULT_SCHEMA, find_database, find_schema
from snowmelt.catalog.objects.s3_buckets import find_bucket, reach
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import has, require_namespace, require_table
from snowmelt.catalog.sql.identifiers import Level, schema_shown
from snowmelt.errors import NotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import LogicalType as ColumnKind
from snowmelt.schema.types import TableName, display_name

if TYPE_CHECKING:
    import datetime as dt

    import sqlalchemy as sa

    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord
    from snowmelt.catalog.objects.external_functions import FunctionRecord, TranslatorRecord
    from snowmelt.catalog.objects.integrations import IntegrationRecord
    from snowmelt.catalog.objects.s3_buckets import BucketRecord
    from snowmelt.catalog.sql.ast import Overload
    from snowmelt.catalog.sql.identifiers import Name


@dataclass(frozen=True, slots=True)
class Session:
    """One statement's surroundings: its transaction, its role, and defaults for short names.

    `user` is None for whoever opened the catalog itself. `database` and `schema` are internal
    names; with a database alone the schema is PUBLIC.
    """

    connection: sa.Connection
    user: str | None
    role: str
    database: str | None
    schema: str | None
    now: dt.datetime

    def database_name(self, name: Name) -> str:
        """Return the name of a database; it has one part always."""
        return name.parts[0]

    def schema_name(self, name: Name) -> tuple[str, str]:
        """Return database and schema.

        Raises:
            StatementError: If the database is neither written nor known.
        """
        if len(name.parts) == 2:
            return name.parts[0], name.parts[1]
        if self.database is None:
            raise _too_short(name, "a schema", "two", f"demo.{_shown(name)}")
        return self.database, name.parts[0]

    def table_name(self, name: Name) -> TableName:
        """Return the full name of a table.

        Raises:
            StatementError: If database or schema are neither written nor known.
        """
        return TableName(*self._full(name, "a table"))

    def function_name(self, name: Name) -> FunctionName:
        """Return the full name of a function.

        Raises:
            StatementError: If database or schema are neither written nor known.
        """
        return FunctionName(*self._full(name, "a function"))

    def _full(self, name: Name, what: str) -> tuple[str, str, str]:
        match name.parts, self.database:
            case (database, schema, inner), _:
                return database, schema, inner
            case (schema, inner), str() as database:
                return database, schema, inner
            case (inner,), str() as database:
                return database, self.schema or DEFAULT_SCHEMA, inner
        missing = "demo." if len(name.parts) == 2 else "demo.public."
        raise _too_short(name, what, "three", missing + _shown(name))

    def find_database(self, name: str) -> DatabaseRecord:
        """Return a database that the role may know of.

        Raises:
            DatabaseNotFound: If there is none.
        """
        record = find_database(self.connection, name)
        require_namespace(
            self.connection,
            self.role,
            *PRIVILEGES["DATABASE"],
            database_id=record.database_id,
            name=display_name(name),
        )
        return record

    def find_schema(self, database: str, name: str) -> SchemaRecord:
        """Return a schema that the role may know of.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
        """
        self.find_database(database)
        record = find_schema(self.connection, database, name)
        require_namespace(
            self.connection,
            self.role,
            *PRIVILEGES["SCHEMA"],
            database_id=record.database_id,
            schema_id=record.schema_id,
            name=schema_shown(database, name),
        )
        return record

    def find_table(self, name: TableName) -> TableRecord:
        """Return a table that the role may know of.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            TableNotFound: If there is no such table.
        """
        self.find_schema(name.database, name.schema)
        record = find_table(self.connection, name)
        require_table(self.connection, self.role, record, *PRIVILEGES["TABLE"])
        return record

    def find_function(self, overload: Overload) -> FunctionRecord:
        """Return an external function that the role may know of.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            NotFound: If there is no such function.
        """
        name = self.function_name(overload.name)
        self.find_schema(name.database, name.schema)
        record = named_overload(self.connection, name, overload.types)
        if not has(self.connection, self.role, *record.securable, "USAGE"):
            raise NotFound(kind="Function", name=record.shown)
        return record

    def find_translator(self, name: FunctionName) -> TranslatorRecord:
        """Return a translator that the role may use.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            NotFound: If there is no such translator.
        """
        self.find_schema(name.database, name.schema)
        record = find_translator(self.connection, name)
        if not has(self.connection, self.role, *record.securable, "USAGE"):
            raise NotFound(kind="Translator", name=str(name))
        return record

    def find_function_or_translator(self, overload: Overload) -> FunctionRecord | TranslatorRecord:
        """Return what a function's name and types mean, if the role may know of it.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            NotFound: If there is nothing of that name.
        """
        if [each.kind for each in overload.types] == [ColumnKind.OBJECT]:
            try:
                return self.find_translator(self.function_name(overload.name))
            except NotFound:
                pass
        return self.find_function(overload)

    def find_integration(self, name: str) -> IntegrationRecord:
        """Return an API integration that the role may use.

        Raises:
            NotFound: If there is none.
        """
        record = find_integration(self.connection, name)
        if not has(self.connection, self.role, "INTEGRATION", record.integration_id, "USAGE"):
            raise NotFound(kind="API integration", name=display_name(name))
        return record

    def find_object(self, level: Level, name: Name) -> tuple[int, str]:
        """Return id and shown name of a database, schema or table that the role may know of.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            TableNotFound: If there is no such table.
        """
        if level is Level.DATABASE:
            database = self.find_database(self.database_name(name))
            return database.database_id, display_name(database.name)
        if level is Level.SCHEMA:
            schema = self.find_schema(*self.schema_name(name))
            return schema.schema_id, schema_shown(schema.database, schema.name)
        table = self.find_table(self.table_name(name))
        return table.table_id, str(table.name)

    def find_bucket(self, name: str) -> BucketRecord:
        """Return a bucket in which the role may do anything at all.

        Raises:
            NotFound: If there is none.
        """
        bucket = find_bucket(self.connection, name)
        if reach(self.connection, {self.role, PUBLIC}, bucket).is_empty:
            raise NotFound(kind="Bucket", name=name)
        return bucket

    @property
    def is_administrator(self) -> bool:
        """Whether the role may do everything."""
        return self.role == ACCOUNTADMIN

    def require_administrator(self, privilege: str) -> None:
        """Let pass ACCOUNTADMIN alone.

        Raises:
            PrivilegeMissing: If the role is another.
        """
        if not self.is_administrator:
            raise PrivilegeMissing(role=self.role, privilege=privilege, object="the account")

    def require(self, kind: Kind, object_id: int, privilege: str, shown: object) -> None:
        """Let pass a role that owns an object or has the privilege on it.

        Raises:
            PrivilegeMissing: If it has neither.
        """
        if not has(self.connection, self.role, kind, object_id, privilege):
            raise PrivilegeMissing(
                role=display_name(self.role),
                privilege=privilege,
                object=f"{kind.lower()} {shown}",
            )


def _shown(name: Name) -> str:
    return ".".join(display_name(part) for part in name.parts)


def _too_short(name: Name, what: str, parts: str, example: str) -> StatementError:
    return StatementError(
        reason=f"Write the name of {what} with {parts} parts, such as {example}",
        line=name.place.line,
        column=name.place.column,
    )


# --- What a statement answers.


@dataclass(frozen=True, slots=True)
class Result:
    """A table of rows (SHOW, DESCRIBE), or a message and no columns (everything else)."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    message: str = ""
