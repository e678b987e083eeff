"""Kinds of objects with their privileges, and record types that several packages share."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass
from typing import Literal

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from snowmelt.errors import InvalidPublicKey
from snowmelt.schema.types import TableName, TableSchema

ACCOUNTADMIN = "ACCOUNTADMIN"
PUBLIC = "PUBLIC"
BUILT_IN_ROLES = (ACCOUNTADMIN, PUBLIC)

ObjectKind = Literal[
    "DATABASE", "SCHEMA", "TABLE", "BUCKET", "FUNCTION", "TRANSLATOR", "INTEGRATION"
]

# This privilege shows names, counts and history of tables, but no rows. It is granted on a table, a
# schema, a database, or the account.
MONITOR = "MONITOR"
# Privileges on the account: to follow this installation, and to promote or fence a site.
REPLICATE = "REPLICATE"
FAILOVER = "FAILOVER"
# Privileges on a table to change its rows.
ROW_PRIVILEGES = ("INSERT", "UPDATE", "DELETE")
PRIVILEGES: dict[ObjectKind, tuple[str, ...]] = {
    "DATABASE": ("OWNERSHIP", "USAGE", "CREATE SCHEMA", MONITOR),
    "SCHEMA": ("OWNERSHIP", "USAGE", "CREATE TABLE", "CREATE FUNCTION", "CREATE PIPE", MONITOR),
    "TABLE": ("OWNERSHIP", *ROW_PRIVILEGES, "SELECT", "EVOLVE SCHEMA", MONITOR),
    "BUCKET": ("OWNERSHIP", "READ", "WRITE"),
    "FUNCTION": ("OWNERSHIP", "USAGE"),
    "TRANSLATOR": ("OWNERSHIP", "USAGE"),
    "INTEGRATION": ("OWNERSHIP", "USAGE"),
}

_MIN_KEY_BITS = 2048


def public_key_to_der(text: str) -> bytes:
    """Return the DER form of an RSA public key given as PEM, or as base64 of DER.

    Raises:
        InvalidPublicKey: If it cannot be read, is not RSA, or is too short.
    """
    try:
        if "-----BEGIN" in text:
            key = serialization.load_pem_public_key(text.encode())
        else:
            key = serialization.load_der_public_key(base64.b64decode("".join(text.split())))
    except ValueError as error:
        raise InvalidPublicKey(reason="it is neither PEM nor base64 of DER") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise InvalidPublicKey(reason="it is not an RSA key")
    if key.key_size < _MIN_KEY_BITS:
        raise InvalidPublicKey(reason=f"{key.key_size} bits are too few; use 2048 or more")
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


class SecurityIntegration(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization server whose tokens are accepted; `issuer` is the required value of claim `iss`.

    `public_keys` has the keys of slots 1 and 2 as base64 of DER, None if a slot is free. If it has
    no keys, `keys_url` returns them as JWKS. `any_role` allows the scope `session:role-any`.
    `server` is the kind of server; it has no effect.
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
        """The configured public keys."""
        return tuple(each for each in self.public_keys if each is not None)


# Default retention time of dropped objects in days, as in Snowflake.
DEFAULT_RETENTION_DAYS = 1


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One incarnation of a table; a table that is created again is a new incarnation.

    `incarnation` is unique for each created table, even if it reuses a name. `last_seq` is the
    commit sequence of the last registered chunk. `migrated_seq` is the sequence up to which chunks
    are in native files. `pointer` is the metadata file of the native table. `schema_evolution`
    allows rows to change the columns. A dropped table is kept until `kept_until`, which is
    `retention_days` after the drop. `retention_days` is set on the table, its schema or its
    database, and is 1 by default. `error_table_id` is the table of its rejected rows, which may
    have been deleted. `hides_fresh_rows` leaves rows out of Iceberg snapshots until they are in
    native files; `engine_properties` is a JSON object of properties that other engines have set.
    `freshness_s` is the longest expected time between two commits; None if none is expected.
    `folder_name` is the name in the path of the table's folder, which renames do not change.
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
    hides_fresh_rows: bool = False
    engine_properties: str | None = None
    freshness_s: int | None = None
    folder_name: TableName | None = None


@dataclass(frozen=True, slots=True)
class MetadataPointer:
    """State that a native commit replaces: the metadata file, and the last sequence in it."""

    location: str | None
    migrated_seq: int


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """A database; `owner` is a role. After DROP it is kept for `retention_days`."""

    database_id: int
    name: str
    owner: str
    created_at: dt.datetime
    retention_days: int = DEFAULT_RETENTION_DAYS
    comment: str | None = None
    dropped_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A schema; `owner` is a role. After DROP it is kept for `retention_days`."""

    schema_id: int
    database_id: int
    database: str
    name: str
    owner: str
    created_at: dt.datetime
    retention_days: int = DEFAULT_RETENTION_DAYS
    comment: str | None = None
    dropped_at: dt.datetime | None = None
