"""Context of one statement: transaction, role, default names, privilege checks; and its result.

Name lookups hide objects on which the role has no privilege: they raise the NotFound errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.model.privilege_kinds import ACCOUNTADMIN, PRIVILEGES, PUBLIC, ObjectKind
from snowmelt.catalog.objects.api_integrations import find_api_integration
from snowmelt.catalog.objects.external_functions import (
    FunctionName,
    find_overload,
    find_translator,
)
from snowmelt.catalog.objects.namespaces import DEFAULT_SCHEMA, find_database, find_schema
from snowmelt.catalog.objects.s3_buckets import bucket_privileges, find_bucket
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import (
    has_privilege,
    require_namespace_privilege,
    require_table_privilege,
)
from snowmelt.catalog.sql.object_name_types import NameLevel, display_schema
from snowmelt.errors import NotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import LogicalType as ColumnKind
from snowmelt.schema.types import TableName, to_display_name

if TYPE_CHECKING:
    import datetime as dt

    import sqlalchemy as sa

    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord
    from snowmelt.catalog.objects.api_integrations import ApiIntegrationRecord
    from snowmelt.catalog.objects.external_functions import ExternalFunctionRecord, TranslatorRecord
    from snowmelt.catalog.objects.s3_buckets import BucketRecord
    from snowmelt.catalog.sql.ast import OverloadReference
    from snowmelt.catalog.sql.object_name_types import ObjectName


@dataclass(frozen=True, slots=True)
class StatementSession:
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

    def resolve_database_name(self, name: ObjectName) -> str:
        """Return the name of a database; it has one part always."""
        return name.parts[0]

    def resolve_schema_name(self, name: ObjectName) -> tuple[str, str]:
        """Return database and schema.

        Raises:
            StatementError: If the database is neither written nor known.
        """
        if len(name.parts) == 2:
            return name.parts[0], name.parts[1]
        if self.database is None:
            raise _incomplete_name_error(
                name, "a schema", "two", f"demo.{_display_object_name(name)}"
            )
        return self.database, name.parts[0]

    def resolve_table_name(self, name: ObjectName) -> TableName:
        """Return the full name of a table.

        Raises:
            StatementError: If database or schema are neither written nor known.
        """
        return TableName(*self._resolve_full_name(name, "a table"))

    def resolve_function_name(self, name: ObjectName) -> FunctionName:
        """Return the full name of a function.

        Raises:
            StatementError: If database or schema are neither written nor known.
        """
        return FunctionName(*self._resolve_full_name(name, "a function"))

    def _resolve_full_name(self, name: ObjectName, label: str) -> tuple[str, str, str]:
        match name.parts, self.database:
            case (database, schema, inner), _:
                return database, schema, inner
            case (schema, inner), str() as database:
                return database, schema, inner
            case (inner,), str() as database:
                return database, self.schema or DEFAULT_SCHEMA, inner
        missing = "demo." if len(name.parts) == 2 else "demo.public."
        raise _incomplete_name_error(name, label, "three", missing + _display_object_name(name))

    def find_database(self, name: str) -> DatabaseRecord:
        """Return a database that the role may know of.

        Raises:
            DatabaseNotFound: If there is none.
        """
        record = find_database(self.connection, name)
        require_namespace_privilege(
            self.connection,
            self.role,
            *PRIVILEGES["DATABASE"],
            database_id=record.database_id,
            name=to_display_name(name),
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
        require_namespace_privilege(
            self.connection,
            self.role,
            *PRIVILEGES["SCHEMA"],
            database_id=record.database_id,
            schema_id=record.schema_id,
            name=display_schema(database, name),
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
        require_table_privilege(self.connection, self.role, record, *PRIVILEGES["TABLE"])
        return record

    def find_function(self, overload: OverloadReference) -> ExternalFunctionRecord:
        """Return an external function that the role may know of.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            NotFound: If there is no such function.
        """
        name = self.resolve_function_name(overload.name)
        self.find_schema(name.database, name.schema)
        record = find_overload(self.connection, name, overload.types)
        if not has_privilege(self.connection, self.role, *record.securable, "USAGE"):
            raise NotFound(kind="Function", name=record.display_signature)
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
        if not has_privilege(self.connection, self.role, *record.securable, "USAGE"):
            raise NotFound(kind="Translator", name=str(name))
        return record

    def find_function_or_translator(
        self, overload: OverloadReference
    ) -> ExternalFunctionRecord | TranslatorRecord:
        """Return what a function's name and types mean, if the role may know of it.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            NotFound: If there is nothing of that name.
        """
        if [each.kind for each in overload.types] == [ColumnKind.OBJECT]:
            try:
                return self.find_translator(self.resolve_function_name(overload.name))
            except NotFound:
                pass
        return self.find_function(overload)

    def find_api_integration(self, name: str) -> ApiIntegrationRecord:
        """Return an API integration that the role may use.

        Raises:
            NotFound: If there is none.
        """
        record = find_api_integration(self.connection, name)
        if not has_privilege(
            self.connection, self.role, "INTEGRATION", record.integration_id, "USAGE"
        ):
            raise NotFound(kind="API integration", name=to_display_name(name))
        return record

    def find_object(self, level: NameLevel, name: ObjectName) -> tuple[int, str]:
        """Return id and shown name of a database, schema or table that the role may know of.

        Raises:
            DatabaseNotFound: If there is no such database.
            SchemaNotFound: If there is no such schema.
            TableNotFound: If there is no such table.
        """
        if level is NameLevel.DATABASE:
            database = self.find_database(self.resolve_database_name(name))
            return database.database_id, to_display_name(database.name)
        if level is NameLevel.SCHEMA:
            schema = self.find_schema(*self.resolve_schema_name(name))
            return schema.schema_id, display_schema(schema.database, schema.name)
        table = self.find_table(self.resolve_table_name(name))
        return table.table_id, str(table.name)

    def find_bucket(self, name: str) -> BucketRecord:
        """Return a bucket in which the role may do anything at all.

        Raises:
            NotFound: If there is none.
        """
        bucket = find_bucket(self.connection, name)
        if bucket_privileges(self.connection, {self.role, PUBLIC}, bucket).is_empty:
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

    def require_privilege(
        self, kind: ObjectKind, object_id: int, privilege: str, object_name: object
    ) -> None:
        """Let pass a role that owns an object or has the privilege on it.

        Raises:
            PrivilegeMissing: If it has neither.
        """
        if not has_privilege(self.connection, self.role, kind, object_id, privilege):
            raise PrivilegeMissing(
                role=to_display_name(self.role),
                privilege=privilege,
                object=f"{kind.lower()} {object_name}",
            )


def _display_object_name(name: ObjectName) -> str:
    return ".".join(to_display_name(part) for part in name.parts)


def _incomplete_name_error(
    name: ObjectName, label: str, part_count: str, example: str
) -> StatementError:
    return StatementError(
        reason=f"Write the name of {label} with {part_count} parts, such as {example}",
        line=name.position.line,
        column=name.position.column,
    )


# --- What a statement answers.


@dataclass(frozen=True, slots=True)
class StatementResult:
    """A table of rows (SHOW, DESCRIBE), or a message and no columns (everything else)."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    message: str = ""
