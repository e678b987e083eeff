"""Statement objects. Names are internal names; nothing is resolved yet.

Covers whole objects, ALTER TABLE changes, security integrations, and all other statements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.catalog.sql.pipe_ast import CreatePipe, DescribePipe, DropPipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.model.records import SecurityIntegration
    from snowmelt.catalog.sql.lexer import SourcePosition
    from snowmelt.catalog.sql.object_name_types import CreateMode, NameLevel, ObjectName
    from snowmelt.functions.definition import ApiIntegration, ExternalFunction, Translator
    from snowmelt.functions.signature import SqlType
    from snowmelt.schema.types import Column

# --- What is said of whole databases, schemas and tables, as data; see `statements`.


@dataclass(frozen=True, slots=True)
class Undrop:
    """UNDROP DATABASE, SCHEMA or TABLE."""

    level: NameLevel
    name: ObjectName


@dataclass(frozen=True, slots=True)
class AlterNamespace:
    """ALTER DATABASE or SCHEMA … SET or UNSET: properties and their new values."""

    level: NameLevel
    name: ObjectName
    properties: Mapping[str, object]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RenameNamespace:
    """ALTER DATABASE or SCHEMA … RENAME TO."""

    level: NameLevel
    name: ObjectName
    new_name: ObjectName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CommentOn:
    """COMMENT ON DATABASE, SCHEMA or TABLE … IS '…'."""

    level: NameLevel
    name: ObjectName
    comment: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """TRUNCATE TABLE."""

    name: ObjectName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateTableLike:
    """CREATE TABLE … LIKE: the columns of another, without its rows."""

    name: ObjectName
    source: ObjectName
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class GrantOnMany:
    """GRANT … ON ALL or FUTURE TABLES (or SCHEMAS) IN a schema or database, or REVOKE."""

    privileges: tuple[str, ...]
    level: NameLevel
    scope: NameLevel
    name: ObjectName
    role: str
    revoke: bool
    is_future: bool


@dataclass(frozen=True, slots=True)
class ShowFutureGrants:
    """SHOW FUTURE GRANTS IN a schema or database, or TO ROLE; exactly one is given."""

    scope: NameLevel | None
    name: ObjectName


# --- What ALTER TABLE says, as data: names are internal names, and each knows where it stands.


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column's name where a statement writes it."""

    name: str
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ADD COLUMN; the columns have no ordinals yet (0). `if_not_exists_names` are those IF NOT EXISTS."""

    columns: tuple[Column, ...]
    positions: tuple[SourcePosition, ...]
    if_not_exists_names: frozenset[str]


@dataclass(frozen=True, slots=True)
class DropColumns:
    """DROP COLUMN."""

    columns: tuple[ColumnName, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """RENAME COLUMN … TO …."""

    column: ColumnName
    new_name: ColumnName


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """What becomes of one column: its new type (name and ordinal mean nothing), or no NOT NULL."""

    column: ColumnName
    new_type: Column | None


@dataclass(frozen=True, slots=True)
class AlterColumns:
    """ALTER COLUMN, one or several."""

    changes: tuple[ColumnChange, ...]


@dataclass(frozen=True, slots=True)
class RenameTable:
    """RENAME TO, with the parts that were written: one or two leave the table where it is."""

    new_name_parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """CLUSTER BY; DROP CLUSTERING KEY has no columns."""

    columns: tuple[ColumnName, ...]


@dataclass(frozen=True, slots=True)
class SetProperties:
    """SET or UNSET: fields of `object_grammar` and their new values."""

    properties: Mapping[str, object]


TableChange: TypeAlias = (
    AddColumns | DropColumns | RenameColumn | AlterColumns | RenameTable | ClusterBy | SetProperties
)


# --- What statements about security integrations say, as data.


@dataclass(frozen=True, slots=True)
class CreateSecurityIntegration:
    """CREATE SECURITY INTEGRATION."""

    name: str
    integration: SecurityIntegration
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class DropSecurityIntegration:
    """DROP SECURITY INTEGRATION."""

    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class AlterSecurityIntegration:
    """ALTER SECURITY INTEGRATION … SET or UNSET: fields of the grammar and their new values."""

    name: str
    changes: Mapping[str, object]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DescribeSecurityIntegration:
    """DESCRIBE SECURITY INTEGRATION."""

    name: str


@dataclass(frozen=True, slots=True)
class DescribeAnyIntegration:
    """DESCRIBE INTEGRATION without its kind."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """CREATE DATABASE; `properties` are fields of `object_grammar` and their values."""

    name: str
    create_mode: CreateMode
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """CREATE SCHEMA; `properties` as of a database."""

    name: ObjectName
    create_mode: CreateMode
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE with its columns in ordinal order; `cluster_by` names some of them.

    With `copies_grants` the privileges on the table that it replaces go over to it.
    """

    name: ObjectName
    columns: tuple[Column, ...]
    cluster_by: tuple[str, ...]
    create_mode: CreateMode
    properties: Mapping[str, object] = field(default_factory=dict)
    copies_grants: bool = False


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE, one change."""

    name: ObjectName
    change: TableChange
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateUser:
    """CREATE USER; keys are base64 texts of a public key, with or without PEM lines."""

    name: str
    create_mode: CreateMode
    public_key: str | None
    second_public_key: str | None
    default_role: str | None


@dataclass(frozen=True, slots=True)
class CreateRole:
    """CREATE ROLE."""

    name: str
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class AlterUser:
    """ALTER USER … SET or UNSET: properties and their new values, None for UNSET."""

    name: str
    properties: tuple[tuple[str, str | None], ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateBucket:
    """CREATE BUCKET."""

    name: str
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class AlterBucket:
    """ALTER BUCKET … SET or UNSET SELECT_DIALECT; None for UNSET."""

    name: str
    select_dialect: str | None
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DropBucket:
    """DROP BUCKET, which must be empty."""

    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DropAccessKey:
    """ALTER USER … DROP ACCESS KEY."""

    user: str
    access_key_id: str


@dataclass(frozen=True, slots=True)
class DropObject:
    """DROP DATABASE, SCHEMA or TABLE; `restrict` refuses when something is still inside."""

    level: NameLevel
    name: ObjectName
    if_exists: bool
    restrict: bool


@dataclass(frozen=True, slots=True)
class DropPrincipal:
    """DROP USER or DROP ROLE; `kind` is that word."""

    kind: str
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DescribeObject:
    """DESCRIBE DATABASE, SCHEMA or TABLE."""

    level: NameLevel
    name: ObjectName


@dataclass(frozen=True, slots=True)
class ShowObjects:
    """SHOW of a kind (`CREATE_TABLE_STATEMENTS`, `CHANNELS` …), narrowed by pattern and scope.

    `like_pattern` is an SQL pattern without regard to case, `starts_with` a prefix with it.
    `level` is None where a bare name follows IN: its parts say what it is. `with_history` adds
    what is dropped and still kept; `terse` tells less about each.
    """

    kind: str
    like_pattern: str | None = None
    level: NameLevel | None = None
    scope: ObjectName | None = None
    starts_with: str | None = None
    limit: int | None = None
    with_history: bool = False
    terse: bool = False


@dataclass(frozen=True, slots=True)
class ShowGrants:
    """SHOW GRANTS TO ROLE r, TO USER u, OF ROLE r, ON TABLE t; or of the current role.

    `types` are those of a function's arguments.
    """

    relation: str | None = None
    kind: str | None = None
    name: ObjectName | None = None
    types: tuple[SqlType, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantRole:
    """GRANT ROLE … TO USER …, or REVOKE ROLE … FROM USER …."""

    role: str
    user: str
    revoke: bool


@dataclass(frozen=True, slots=True)
class GrantPrivileges:
    """GRANT … ON … TO ROLE …, or REVOKE … ON … FROM ROLE …; ALL is spelt out already."""

    privileges: tuple[str, ...]
    level: NameLevel
    name: ObjectName
    role: str
    revoke: bool


@dataclass(frozen=True, slots=True)
class GrantOnBucket:
    """GRANT … ON BUCKET … [PREFIX …] TO ROLE …, or REVOKE; without a prefix the whole bucket."""

    privileges: tuple[str, ...]
    bucket: str
    prefix: str | None
    role: str
    revoke: bool


@dataclass(frozen=True, slots=True)
class GrantOnAccount:
    """GRANT of a privilege ON ACCOUNT TO ROLE …, or REVOKE."""

    privilege: str
    role: str
    revoke: bool


@dataclass(frozen=True, slots=True)
class CreateLibrary:
    """CREATE LIBRARY: a file of user code, and the path of files that it needs."""

    name: str
    path: str
    depends: str | None
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class CreateLoadFunction:
    """CREATE FILTER, PARSER or SOURCE; `kind` is that word, lower-case."""

    kind: str
    name: str
    factory: str
    library: str
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class SkippedFunction:
    """CREATE FUNCTION of a library as Vertica has it, which is no part of a load.

    `kind` is how it is written, such as "Transform function".
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class DropLoadObject:
    """DROP LIBRARY, FILTER, PARSER or SOURCE; `kind` is that word, lower-case."""

    kind: str
    name: str
    if_exists: bool
    cascade: bool


@dataclass(frozen=True, slots=True)
class OverloadReference:
    """A function by name and types of its arguments: what DROP and GRANT write."""

    name: ObjectName
    types: tuple[SqlType, ...]


@dataclass(frozen=True, slots=True)
class CreateExternalFunction:
    """CREATE EXTERNAL FUNCTION.

    The translators of `function` are not set: their names may be short. `positions` tells where
    clauses stand that only the catalog can check.
    """

    name: ObjectName
    function: ExternalFunction
    request_translator: ObjectName | None
    response_translator: ObjectName | None
    create_mode: CreateMode
    positions: Mapping[str, SourcePosition]


@dataclass(frozen=True, slots=True)
class AlterFunction:
    """ALTER FUNCTION … SET or UNSET: fields of the definition and their new values.

    A translator's value is a name that may be short, or None.
    """

    function: OverloadReference
    changes: Mapping[str, object]
    if_exists: bool
    positions: Mapping[str, SourcePosition]


@dataclass(frozen=True, slots=True)
class RenameFunction:
    """ALTER FUNCTION … RENAME TO; `new_name_text` is the new name as it was written."""

    function: OverloadReference
    new_name: ObjectName
    new_name_text: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateTranslator:
    """CREATE FUNCTION from OBJECT to OBJECT; the full name is not known yet."""

    name: ObjectName
    translator: Translator
    comment: str | None
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class DropFunction:
    """DROP [EXTERNAL] FUNCTION; with the word it drops no translator."""

    function: OverloadReference
    external: bool
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DescribeFunction:
    """DESCRIBE FUNCTION."""

    function: OverloadReference


@dataclass(frozen=True, slots=True)
class CreateIntegration:
    """CREATE API INTEGRATION."""

    integration: ApiIntegration
    create_mode: CreateMode


@dataclass(frozen=True, slots=True)
class AlterIntegration:
    """ALTER INTEGRATION … SET or UNSET: fields of the definition and their new values."""

    name: str
    changes: Mapping[str, object]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DropIntegration:
    """DROP INTEGRATION, through which no function may call any more."""

    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class AlterOrDropAnyIntegration:
    """ALTER or DROP INTEGRATION without its kind: what it says of either, if it can be said of it."""

    name: str
    api: AlterIntegration | DropIntegration | None
    security: AlterSecurityIntegration | DropSecurityIntegration | None


@dataclass(frozen=True, slots=True)
class DescribeIntegration:
    """DESCRIBE INTEGRATION."""

    name: str


@dataclass(frozen=True, slots=True)
class GrantOnFunction:
    """GRANT … ON FUNCTION, or REVOKE."""

    privileges: tuple[str, ...]
    function: OverloadReference
    role: str
    revoke: bool


@dataclass(frozen=True, slots=True)
class GrantOnIntegration:
    """GRANT … ON INTEGRATION, or REVOKE."""

    privileges: tuple[str, ...]
    integration: str
    role: str
    revoke: bool


Statement: TypeAlias = (
    AlterNamespace
    | CommentOn
    | CreateTableLike
    | GrantOnMany
    | RenameNamespace
    | ShowFutureGrants
    | TruncateTable
    | Undrop
    | CreateDatabase
    | CreateSchema
    | CreateTable
    | AlterTable
    | CreateUser
    | CreateRole
    | AlterUser
    | CreateBucket
    | AlterBucket
    | DropBucket
    | CreatePipe
    | DropPipe
    | DescribePipe
    | DropAccessKey
    | DropObject
    | DropPrincipal
    | DescribeObject
    | ShowObjects
    | ShowGrants
    | GrantRole
    | GrantPrivileges
    | GrantOnBucket
    | GrantOnAccount
    | CreateLibrary
    | CreateLoadFunction
    | DropLoadObject
    | SkippedFunction
    | CreateExternalFunction
    | AlterFunction
    | RenameFunction
    | CreateTranslator
    | DropFunction
    | DescribeFunction
    | AlterSecurityIntegration
    | AlterOrDropAnyIntegration
    | CreateSecurityIntegration
    | DescribeAnyIntegration
    | DescribeSecurityIntegration
    | DropSecurityIntegration
    | CreateIntegration
    | AlterIntegration
    | DropIntegration
    | DescribeIntegration
    | GrantOnFunction
    | GrantOnIntegration
)
