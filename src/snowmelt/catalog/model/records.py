"""Kinds of objects with their privileges, and records that several packages share."""

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

PRIVILEGES: dict[ObjectKind, tuple[str, ...]] = {
    "DATABASE": ("OWNERSHIP", "USAGE", "CREATE SCHEMA"),
    "SCHEMA": ("OWNERSHIP", "USAGE", "CREATE TABLE", "CREATE FUNCTION", "CREATE PIPE"),
    "TABLE": ("OWNERSHIP", "INSERT", "SELECT", "EVOLVE SCHEMA"),
    "BUCKET": ("OWNERSHIP", "READ", "WRITE"),
    "FUNCTION": ("OWNERSHIP", "USAGE"),
    "TRANSLATOR": ("OWNERSHIP", "USAGE"),
    "INTEGRATION": ("OWNERSHIP", "USAGE"),
}

_MIN_KEY_BITS = 2048


def public_key_to_der(text: str) -> bytes:
    """Return the DER of an RSA key that is PEM or base64 of DER.

    Raises:
        InvalidPublicKey: It cannot be read, is not RSA or too short.
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
