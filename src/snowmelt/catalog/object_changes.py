"""What is said of whole databases, schemas and tables, as data; see `statements`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.naming import Existing, Level, Name


@dataclass(frozen=True, slots=True)
class Undrop:
    """UNDROP DATABASE, SCHEMA or TABLE."""

    level: Level
    name: Name


@dataclass(frozen=True, slots=True)
class AlterNamespace:
    """ALTER DATABASE or SCHEMA … SET or UNSET: properties and their new values."""

    level: Level
    name: Name
    properties: Mapping[str, object]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RenameNamespace:
    """ALTER DATABASE or SCHEMA … RENAME TO."""

    level: Level
    name: Name
    new_name: Name
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CommentOn:
    """COMMENT ON DATABASE, SCHEMA or TABLE … IS '…'."""

    level: Level
    name: Name
    comment: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """TRUNCATE TABLE."""

    name: Name
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateTableLike:
    """CREATE TABLE … LIKE: the columns of another, without its rows."""

    name: Name
    source: Name
    existing: Existing


@dataclass(frozen=True, slots=True)
class GrantOnMany:
    """GRANT … ON ALL or FUTURE TABLES (or SCHEMAS) IN a schema or database, or REVOKE."""

    privileges: tuple[str, ...]
    level: Level
    scope: Level
    name: Name
    role: str
    revoke: bool
    is_future: bool


@dataclass(frozen=True, slots=True)
class ShowFutureGrants:
    """SHOW FUTURE GRANTS IN a schema or database, or TO ROLE; exactly one is given."""

    scope: Level | None
    name: Name
