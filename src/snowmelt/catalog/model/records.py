"""Records of databases, schemas, tables and security integrations, as the catalog returns them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import msgspec

from snowmelt.schema.types import TableName, TableSchema


class SecurityIntegration(msgspec.Struct, frozen=True, kw_only=True):
    """An authorisation server whose tokens are taken; `issuer` is what their claim `iss` must be.

    `public_keys` are base64 of DER by their place, the first or the second, None where one is free;
    where there are none, `keys_url` has them as JWKS. `any_role` says whether the scope
    `session:role-any` is taken, `server` what kind of server it is, which nothing depends on.
    """

    issuer: str
    audiences: tuple[str, ...]
    enabled: bool = True
    keys_url: str | None = None
    public_keys: tuple[str | None, ...] = ()
    user_claims: tuple[str, ...] = ("sub",)
    scope_claim: str = "scp"
    any_role: bool = False
    blocked_roles: tuple[str, ...] = ("ACCOUNTADMIN",)
    server: str = "CUSTOM"
    comment: str | None = None

    @property
    def configured_keys(self) -> tuple[str, ...]:
        """The public keys that there are."""
        return tuple(each for each in self.public_keys if each is not None)


# Of what is dropped, where nobody has said how long; as Snowflake's.
DEFAULT_RETENTION_DAYS = 1


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One incarnation of a table.

    `incarnation` is new each time a table is created, also under an old name. `last_seq` is the
    commit sequence of the last registered chunk, `migrated_seq` the one up to which chunks are
    in native files as far as the catalog knows, `pointer` the metadata file of the native table,
    `schema_evolution` whether its columns may follow its rows. Once it is dropped it is kept until
    `kept_until`, which is `retention_days` later: its own, or those of schema, database, or 1.
    `error_table_id` is the table that its refused rows go to, which may be gone.
    """

    table_id: int
    incarnation: str
    name: TableName
    schema: TableSchema
    cluster_by: tuple[str, ...]
    owner: str
    last_seq: int
    migrated_seq: int
    pointer: str | None
    created_at: dt.datetime
    dropped_at: dt.datetime | None
    database_id: int
    schema_id: int
    schema_evolution: bool = False
    retention_days: int = DEFAULT_RETENTION_DAYS
    kept_until: dt.datetime | None = None
    comment: str | None = None
    error_table_id: int | None = None


@dataclass(frozen=True, slots=True)
class MetadataPointer:
    """What one native commit replaces: the metadata file and the sequence contained in it."""

    location: str | None
    migrated_seq: int


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """A database; `owner` is a role. Once dropped it is kept for `retention_days`."""

    database_id: int
    name: str
    owner: str
    created_at: dt.datetime
    retention_days: int = DEFAULT_RETENTION_DAYS
    comment: str | None = None
    dropped_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A schema; `owner` is a role. Once dropped it is kept for `retention_days`."""

    schema_id: int
    database_id: int
    database: str
    name: str
    owner: str
    created_at: dt.datetime
    retention_days: int = DEFAULT_RETENTION_DAYS
    comment: str | None = None
    dropped_at: dt.datetime | None = None
