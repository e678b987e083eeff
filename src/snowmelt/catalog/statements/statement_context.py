"""Base class, session and result of statements, kinds of objects, and SHOW.

Name lookups hide objects on which the role has no privilege: they raise the NotFound errors.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, TypeAlias, dataclass_transform

import sqlalchemy as sa

from snowmelt.catalog.model.records import (
    ACCOUNTADMIN,
    PRIVILEGES,
    PUBLIC,
    DatabaseRecord,
    ObjectKind,
    SchemaRecord,
    TableRecord,
)
from snowmelt.catalog.objects.external_functions import (
    ApiIntegrationRecord,
    ExternalFunctionRecord,
    FunctionName,
    TranslatorRecord,
    find_api_integration,
    find_overload,
    find_translator,
)
from snowmelt.catalog.objects.name_suggestions import suggesting_names
from snowmelt.catalog.objects.namespaces import (
    DEFAULT_SCHEMA,
    find_database,
    find_schema,
    lock_database,
)
from snowmelt.catalog.objects.s3_buckets import BucketRecord, bucket_privileges, find_bucket
from snowmelt.catalog.objects.tables import (
    find_namespace_ids,
    find_table,
    lock_table_by_name,
)
from snowmelt.catalog.security.access_control import (
    has_account_privilege,
    has_privilege,
    require_namespace_privilege,
    require_table_privilege,
)
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.sql.cursor import (
    CreateMode,
    NameLevel,
    ObjectName,
    TokenCursor,
    display_schema,
)
from snowmelt.catalog.sql.lexer import SourcePosition
from snowmelt.errors import (
    DatabaseNotFound,
    NotFound,
    PipeNotFound,
    PrivilegeMissing,
    SchemaNotFound,
    StatementError,
    TableNotFound,
)
from snowmelt.functions.signature import SqlType
from snowmelt.schema.notebook_tables import render_notebook_table
from snowmelt.schema.types import LogicalType as ColumnKind
from snowmelt.schema.types import TableName, to_display_name


@dataclass(frozen=True, slots=True)
class StatementSession:
    """Context of one statement: transaction, user, role, and default namespace.

    `user` is None if the catalog was opened directly. `database` and `schema` are internal names
    and complete short names. If only the database is set, the schema is PUBLIC. `resolve_…` raise
    StatementError if a name has no database or schema and the session has no default. `find_…`
    raise DatabaseNotFound, SchemaNotFound, TableNotFound or NotFound if the object does not exist
    or the role has no privilege on it. `check_file_copy` validates the COPY of a pipe that loads
    files. `is_role_fixed` is True if the token of the request does not allow all roles of the user.
    """

    connection: sa.Connection
    user: str | None
    role: str
    database: str | None
    schema: str | None
    now: dt.datetime
    keyring: KeyRing | None = None
    check_file_copy: FileCopyCheck | None = None
    is_role_fixed: bool = False

    def resolve_database_name(self, name: ObjectName) -> str:
        """Return the internal name of a database."""
        return name.parts[0]

    def resolve_schema_name(self, name: ObjectName) -> tuple[str, str]:
        """Return the names of the database and the schema."""
        if len(name.parts) == 2:
            return name.parts[0], name.parts[1]
        if self.database is None:
            raise _incomplete_name_error(name, "a schema", "two", "demo.")
        return self.database, name.parts[0]

    def resolve_table_name(self, name: ObjectName) -> TableName:
        """Return the full name of a table."""
        return TableName(*self._resolve_full_name(name, "a table"))

    def resolve_function_name(self, name: ObjectName) -> FunctionName:
        """Return the full name of a function."""
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
        raise _incomplete_name_error(name, label, "three", missing)

    def find_database(self, name: str) -> DatabaseRecord:
        """Return a database on which the role has a privilege."""
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
        """Return a schema on which the role has a privilege."""
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

    def can_use_schema(self, schema: SchemaRecord) -> bool:
        """Return True if the role has USAGE on a schema and its database."""
        return has_privilege(
            self.connection, self.role, "DATABASE", schema.database_id, "USAGE"
        ) and has_privilege(self.connection, self.role, "SCHEMA", schema.schema_id, "USAGE")

    def find_table(self, name: TableName) -> TableRecord:
        """Return a table on which the role has a privilege."""
        with suggesting_names(self.connection, self.role, name):
            self.find_schema(name.database, name.schema)
            record = find_table(self.connection, name)
            require_table_privilege(self.connection, self.role, record, *PRIVILEGES["TABLE"])
        return record

    def find_function(self, overload: OverloadReference) -> ExternalFunctionRecord:
        """Return an external function on which the role has a privilege."""
        name = self.resolve_function_name(overload.name)
        with suggesting_names(self.connection, self.role, name):
            self._require_schema_usage(name)
            record = find_overload(self.connection, name, overload.types)
            self._require_usage("Function", record.display_signature, *record.securable)
        return record

    def find_translator(self, name: FunctionName) -> TranslatorRecord:
        """Return a translator that the role may use."""
        self._require_schema_usage(name)
        record = find_translator(self.connection, name)
        self._require_usage("Translator", str(name), *record.securable)
        return record

    def find_function_or_translator(
        self, overload: OverloadReference
    ) -> ExternalFunctionRecord | TranslatorRecord:
        """Return the function with this name and argument types on which the role has a privilege."""
        if [each.kind for each in overload.types] == [ColumnKind.OBJECT]:
            with suppress(NotFound):
                return self.find_translator(self.resolve_function_name(overload.name))
        return self.find_function(overload)

    def find_api_integration(self, name: str) -> ApiIntegrationRecord:
        """Return an API integration that the role may use."""
        record = find_api_integration(self.connection, name)
        shown = to_display_name(name)
        self._require_usage("API integration", shown, "INTEGRATION", record.integration_id)
        return record

    def _require_schema_usage(self, name: FunctionName) -> None:
        schema = self.find_schema(name.database, name.schema)
        if not self.can_use_schema(schema):
            raise SchemaNotFound(schema=display_schema(name.database, name.schema))

    def _require_usage(self, label: str, shown: str, kind: ObjectKind, object_id: int) -> None:
        if not has_privilege(self.connection, self.role, kind, object_id, "USAGE"):
            raise NotFound(kind=label, name=shown)

    def find_object(self, level: NameLevel, name: ObjectName) -> tuple[int, str]:
        """Return the ID and display name of a database, schema or table on which the role has a privilege."""
        if level is NameLevel.DATABASE:
            database = self.find_database(self.resolve_database_name(name))
            return database.database_id, to_display_name(database.name)
        if level is NameLevel.SCHEMA:
            schema = self.find_schema(*self.resolve_schema_name(name))
            return schema.schema_id, display_schema(schema.database, schema.name)
        table = self.find_table(self.resolve_table_name(name))
        return table.table_id, str(table.name)

    def find_owned_object(self, level: NameLevel, name: ObjectName) -> tuple[int, str]:
        """Return the ID and display name of a database, schema or table that the role owns.

        Raises:
            PrivilegeMissing: If another role owns it.
        """
        object_id, shown = self.find_object(level, name)
        self.require_ownership(level.object_kind, object_id, shown)
        return object_id, shown

    def lock_owned_object(self, level: NameLevel, name: ObjectName) -> tuple[int, str]:
        """Lock a database, schema or table that the role owns. Return its ID and display name.

        Raises:
            PrivilegeMissing: If another role owns it.
        """
        # Names the missing object, and checks privileges before the lock.
        self.find_owned_object(level, name)
        if level is NameLevel.DATABASE:
            lock_database(self.connection, self.resolve_database_name(name))
        elif level is NameLevel.SCHEMA:
            find_namespace_ids(self.connection, *self.resolve_schema_name(name), lock=True)
        else:
            lock_table_by_name(self.connection, self.resolve_table_name(name))
        # Another transaction may have replaced the object before the lock.
        return self.find_owned_object(level, name)

    def find_bucket(self, name: str) -> BucketRecord:
        """Return a bucket on which the role has a privilege."""
        bucket = find_bucket(self.connection, name)
        if bucket_privileges(self.connection, {self.role, PUBLIC}, bucket).is_empty:
            raise NotFound(kind="Bucket", name=name)
        return bucket

    @property
    def is_administrator(self) -> bool:
        """True if the role is ACCOUNTADMIN."""
        return self.role == ACCOUNTADMIN

    def require_administrator(self, privilege: str) -> None:
        """Raise PrivilegeMissing unless the role is ACCOUNTADMIN."""
        if not self.is_administrator:
            # Administrative privileges cannot be granted.
            only = "the account, which only ACCOUNTADMIN has"
            raise PrivilegeMissing(role=self.role, privilege=privilege, object=only)

    def require_account_privilege(self, privilege: str) -> None:
        """Raise PrivilegeMissing unless the role has a privilege on the account."""
        if not has_account_privilege(self.connection, {self.role, PUBLIC}, privilege):
            raise PrivilegeMissing(
                role=to_display_name(self.role), privilege=privilege, object="the account"
            )

    def require_in_schema(self, name: TableName | FunctionName, privilege: str) -> SchemaRecord:
        """Lock and return the schema of a name. Check that the role has a privilege on it.

        Because of the lock, no other transaction creates, replaces or renames an object to a name in the
        schema.

        Raises:
            PrivilegeMissing: If the role does not have the privilege.
            DatabaseNotFound: If the database does not exist.
            SchemaNotFound: If the schema does not exist.
        """
        self.find_schema(name.database, name.schema)
        find_namespace_ids(self.connection, name.database, name.schema, lock=True)
        schema = self.find_schema(name.database, name.schema)
        shown = display_schema(name.database, name.schema)
        self.require_privilege("SCHEMA", schema.schema_id, shown, privilege)
        return schema

    def require_ownership(self, kind: ObjectKind, object_id: int, object_name: object) -> None:
        """Raise PrivilegeMissing unless the role owns an object."""
        self.require_privilege(kind, object_id, object_name, "OWNERSHIP")

    def require_privilege(
        self, kind: ObjectKind, object_id: int, object_name: object, *privileges: str
    ) -> None:
        """Raise PrivilegeMissing unless the role owns an object or has one of the privileges on it."""
        if not has_privilege(self.connection, self.role, kind, object_id, *privileges):
            raise PrivilegeMissing(
                role=to_display_name(self.role),
                privilege=" or ".join(privileges),
                object=f"{kind.lower()} {object_name}",
            )


def _incomplete_name_error(
    name: ObjectName, label: str, part_count: str, missing_parts: str
) -> StatementError:
    example = missing_parts + ".".join(to_display_name(part) for part in name.parts)
    return make_statement_error(
        f"Write the name of {label} with {part_count} parts, such as {example}", name.position
    )


@dataclass(frozen=True, slots=True)
class StatementResult:
    """Result of a statement: rows with columns (SHOW, DESCRIBE), or a message without columns."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    message: str = ""

    def _repr_html_(self) -> str:
        """Return the rows as a table, for notebooks."""
        columns, rows = self.columns or ("status",), self.rows
        if not self.columns:
            rows = ((self.message,),)
        return render_notebook_table(columns, rows, f"Rows: {len(rows):,}")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class StatementPart:
    """Base class of statements and their parts. Subclasses are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        """Turn a subclass into a frozen dataclass."""
        dataclass(frozen=True)(cls)


class Statement(StatementPart, ABC):
    """A parsed statement. Names are internal names; they are not resolved yet."""

    # True if the statement runs in a read-only transaction.
    reads_only: ClassVar[bool] = False
    # True if the statement changes only facts of this site, which are not replicated.
    is_site_local: ClassVar[bool] = False
    # True if the statement needs `StatementSession.keyring`.
    needs_keyring: ClassVar[bool] = False

    @abstractmethod
    def execute(self, session: StatementSession) -> StatementResult:
        """Execute the statement in the transaction of the session.

        Raises:
            StatementError: If the statement does not fit the existing objects.
            PrivilegeMissing: If the role lacks a privilege.
            UserError: If an object is missing, or exists already.
            NothingDone: If IF EXISTS or IF NOT EXISTS applies.
        """


# Validates a COPY of files for the pipe of this name, and returns its table. It is passed as a
# function because the parser of such COPY statements is in a package above the catalog.
FileCopyCheck: TypeAlias = Callable[[StatementSession, str, TableName], TableRecord]


@dataclass(frozen=True, slots=True)
class OverloadReference:
    """A function identified by its name and argument types, as in DROP and GRANT."""

    name: ObjectName
    types: tuple[SqlType, ...]


class NothingDone(Exception):
    """Raised to end a statement that has nothing to change. Its text is the message of the statement."""


_MISSING_OBJECT_ERRORS = (
    NotFound,
    DatabaseNotFound,
    SchemaNotFound,
    TableNotFound,
    PipeNotFound,
)


@contextmanager
def skipping_missing(if_exists: bool) -> Iterator[None]:
    """Turn a NotFound error of the block into NothingDone if `if_exists` is true.

    Raises:
        NothingDone: If the object does not exist and IF EXISTS was written.
    """
    try:
        yield
    except _MISSING_OBJECT_ERRORS as error:
        if not if_exists:
            raise
        raise NothingDone(f"{error} Nothing was done.") from None


def skip_if_exists(label: str, create_mode: CreateMode, *, exists: bool) -> None:
    """Raise NothingDone if the object exists and CREATE has IF NOT EXISTS."""
    if exists and create_mode is CreateMode.IF_NOT_EXISTS:
        raise NothingDone(f"{label} already exists; nothing was done.")


def skip_if_missing(label: str, if_exists: bool, *, exists: bool) -> None:
    """Raise NothingDone if the object does not exist and DROP or ALTER has IF EXISTS."""
    if if_exists and not exists:
        raise NothingDone(f"{label} does not exist; nothing was done.")


def creation_result(label: str, *, replaced: bool) -> StatementResult:
    """Return the message of a CREATE."""
    return StatementResult(message=f"{label} {'replaced' if replaced else 'created'}.")


def make_statement_error(reason: str, position: SourcePosition) -> StatementError:
    """Create an error with a position in the statement."""
    return StatementError(reason=reason, line=position.line, column=position.column)


@dataclass(frozen=True, slots=True)
class StatementKind:
    """A kind of object: its words in statements, and the parsers of its statements.

    The parser of CREATE receives the mode of the statement. The parsers of ALTER and DROP receive
    True if IF EXISTS was written.
    """

    words: str
    create: Callable[[TokenCursor, CreateMode], Statement] | None = None
    alter: Callable[[TokenCursor, bool], Statement] | None = None
    drop: Callable[[TokenCursor, bool], Statement] | None = None
    describe: Callable[[TokenCursor], Statement] | None = None
    is_replaceable: bool = True


# SHOW lists the objects on which the role has a privilege.

ShowRow: TypeAlias = tuple[object, ...]

_TERSE_COLUMNS = ("created_on", "name", "kind", "database_name", "schema_name")
# As in Snowflake, schemas have no kind. The kind of other objects is the singular of the listing.
_TERSE_KINDS = {"DATABASES": "STANDARD", "SCHEMAS": None, "LIBRARIES": "LIBRARY"}


@dataclass(frozen=True, slots=True)
class Listing:
    """Definition of SHOW for one kind: words, deepest level of the IN clause, columns and rows.

    `columns` has the column names, separated by spaces. If `has_history` is true, SHOW … HISTORY
    also lists dropped objects that are still retained.
    """

    words: str
    max_level: NameLevel
    columns: str = field(repr=False)
    list_rows: Callable[[ShowObjects, StatementSession], Iterable[ShowRow]] = field(repr=False)
    has_history: bool = False


class ShowObjects(Statement):
    """SHOW of a kind, filtered by pattern and scope.

    `like_pattern` is a case-insensitive SQL pattern, `starts_with` a case-sensitive prefix. `level`
    is the level of the IN clause. It is None if IN has a name without a keyword: the number of
    parts then determines the level. `with_history` adds dropped objects that are still retained.
    `terse` reduces the columns.
    """

    reads_only = True

    listing: Listing
    like_pattern: str | None = None
    level: NameLevel | None = None
    scope: ObjectName | None = None
    starts_with: str | None = None
    limit: int | None = None
    with_history: bool = False
    terse: bool = False

    def execute(self, session: StatementSession) -> StatementResult:
        columns = tuple(self.listing.columns.split())
        if self.with_history:
            columns = (*columns, "dropped_on")
        pattern, at = _compile_like_pattern(self.like_pattern), columns.index("name")
        found = (
            row
            for row in self.listing.list_rows(self, session)
            if pattern.fullmatch(name := str(row[at])) and name.startswith(self.starts_with or "")
        )
        rows = tuple(islice(found, self.limit))
        if self.terse:
            # TERSE columns that a kind does not have are NULL.
            words = self.listing.words
            kind = {"kind": _TERSE_KINDS.get(words, words.removesuffix("S"))}
            shown = [dict(zip(columns, row, strict=True)) | kind for row in rows]
            columns = (*_TERSE_COLUMNS, "dropped_on") if self.with_history else _TERSE_COLUMNS
            rows = tuple(tuple(map(row.get, columns)) for row in shown)
        return StatementResult(columns, rows)

    def resolve_scope(
        self, session: StatementSession, bare_level: NameLevel | None = None
    ) -> tuple[str | None, str | None, str | None]:
        """Return the existing database, schema and table of the IN clause. Each is None if not given.

        A name without a keyword has the level `bare_level`, or else the level that matches its
        number of parts.
        """
        name = self.scope
        if name is None:
            return None, None, None
        level = self.level or bare_level or list(NameLevel)[len(name.parts)]
        if level is NameLevel.DATABASE:
            return session.find_database(session.resolve_database_name(name)).name, None, None
        if level is NameLevel.SCHEMA:
            schema = session.find_schema(*session.resolve_schema_name(name))
            return schema.database, schema.name, None
        table = session.find_table(session.resolve_table_name(name)).name
        return table.database, table.schema, table.table


def _compile_like_pattern(like_pattern: str | None) -> re.Pattern[str]:
    r"""Compile a LIKE pattern with `%`, `_` and `\` into a case-insensitive regular expression.

    Each segment between two `%` matches only at its first position. With backtracking, a pattern
    with several `%` could run for hours and block the whole service.
    """
    parts: list[str] = [""]
    letters = iter("%" if like_pattern is None else like_pattern)
    for letter in letters:
        if letter == "%":
            parts.append("")
        elif letter == "\\":
            parts[-1] += re.escape(next(letters, letter))
        else:
            parts[-1] += "." if letter == "_" else re.escape(letter)
    first, *rest = parts
    middle = "".join(f"(?>.*?{part})" for part in rest[:-1])
    expression = first + middle + "".join(f".*{part}" for part in rest[-1:])
    return re.compile(expression, re.IGNORECASE | re.DOTALL)


def parse_show_objects(cursor: TokenCursor, listing: Listing, *, terse: bool) -> ShowObjects:
    """Parse the text of SHOW after the words of its listing."""
    with_history = listing.has_history and cursor.accept("HISTORY")
    like = cursor.parse_string("a pattern") if cursor.accept("LIKE") else None
    level, scope = (
        _parse_scope(cursor, listing.max_level)
        if cursor.accept("IN")
        else (NameLevel.ACCOUNT, None)
    )
    prefix = cursor.parse_string("a prefix") if cursor.accept("STARTS", "WITH") else None
    limit = cursor.parse_integer("the limit", 1, 10_000) if cursor.accept("LIMIT") else None
    cursor.expect_end(f"SHOW {listing.words}")
    return ShowObjects(listing, like, level, scope, prefix, limit, with_history, terse)


def _parse_scope(
    cursor: TokenCursor, max_level: NameLevel
) -> tuple[NameLevel | None, ObjectName | None]:
    levels = [level for level in NameLevel if level.part_count <= max_level.part_count]
    word = cursor.accept_one_of(*levels)
    if word is None:
        if max_level is NameLevel.ACCOUNT:
            cursor.expect("ACCOUNT")
        return None, cursor.parse_name("a place to look in", max_level.part_count)
    level = NameLevel(word.text)
    if level is NameLevel.ACCOUNT:
        return level, None
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)
