"""Keys and secrets: master key, table keys, data keys of users, S3 access keys, and access tokens.

Each table has a key, stored encrypted with the master key. The data key of a user is derived from
it, so a user can decrypt only the user's own rows. Key IDs are never reused and belong to one
incarnation of a table. All services of a catalog need the same master key; `open_or_create_keyring`
rejects another one at startup.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import os
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.dialect import make_insert
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.security.access_control import find_user
from snowmelt.errors import ConfigurationError, NotFound
from snowmelt.storage.local_store import create_durable_file, make_durable_folder, open_folder

KEY_BYTES = 32
MASTER_KEY_FILE = "master.key"

_NONCE_BYTES = 12
# No incarnation begins with this prefix, so the keys of sealed secrets differ from table keys.
_SEALED_PREFIX = "sealed: "
_TABLES = model.tables
_TABLE_KEYS = model.table_keys
_DATA_KEYS = model.data_keys
_FIND_DATA_KEYS = (
    sa.select(
        _DATA_KEYS.c.key_id, _DATA_KEYS.c.user, _TABLES.c.incarnation, _TABLE_KEYS.c.wrapped_key
    )
    .select_from(
        _DATA_KEYS.join(_TABLES, _DATA_KEYS.c.table_id == _TABLES.c.table_id).join(
            _TABLE_KEYS, _DATA_KEYS.c.table_id == _TABLE_KEYS.c.table_id
        )
    )
    .where(_DATA_KEYS.c.key_id.in_(sa.bindparam("ids", expanding=True)))
)
# SQLite limits the number of parameters of one statement.
_KEYS_PER_QUERY = 10_000


@dataclass(frozen=True, slots=True)
class DataKey:
    """A 256-bit data key and its ID; `repr` hides the key."""

    key_id: int
    key: bytes

    def __repr__(self) -> str:
        return f"DataKey(key_id={self.key_id})"


def load_master_key(location: Path, *, create: bool = True) -> bytes:
    """Load the master key, or create it if it is missing. Safe with concurrent creation.

    Args:
        location: A folder, or a file with the key as bytes or base64. Only a key in a folder is
            created.
        create: Whether to create a missing key.

    Raises:
        ConfigurationError: If other users can read the folder or key, or the key is invalid or missing.
    """
    if location.is_file():
        return _read_master_key(location, forbidden_mode=0o037)
    path = location / MASTER_KEY_FILE
    if not path.exists():
        if not create:
            raise ConfigurationError(
                setting="keys_dir",
                reason=f"there is no {path}, and the catalog's master key already exists; copy it from"
                " where another service has it",
            )
        make_durable_folder(location, mode=0o700)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        # Open the folder before the write, so that its fsync reports failed writes.
        with open_folder(path.parent) as folder:
            try:
                create_durable_file(draft, secrets.token_bytes(KEY_BYTES))
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(draft)
            finally:
                draft.unlink(missing_ok=True)
                # Sync even if another process created the key, because this process uses it now.
                os.fsync(folder)
    _check_master_key_permissions(location, 0o077)
    return _read_master_key(path, forbidden_mode=0o077)


def _read_master_key(path: Path, *, forbidden_mode: int) -> bytes:
    _check_master_key_permissions(path, forbidden_mode)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        with contextlib.suppress(ValueError):
            key = base64.b64decode(key.strip(), validate=True)
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            setting="keys_dir",
            reason=f"{path} has {path.stat().st_size} bytes, expected {KEY_BYTES} bytes or their "
            "base64. Restore the file from a copy of the master key",
        )
    return key


def _check_master_key_permissions(path: Path, forbidden_mode: int) -> None:
    if path.stat().st_mode & forbidden_mode:
        raise ConfigurationError(
            setting="keys_dir", reason=f"other users can access {path}; run chmod 600 on it"
        )


def compute_master_key_check_value(master_key: bytes) -> str:
    """Compute a value that identifies a master key but reveals nothing about it."""
    return _derive_key(master_key, b"snowmelt master key check", 16).hex()


class KeyRing:
    """Derives the keys of tables from the master key."""

    def __init__(self, master_key: bytes) -> None:
        self._cipher = AESGCM(master_key)

    def get_or_create_data_key(
        self, connection: sa.Connection, table: TableRecord, user: str
    ) -> DataKey:
        """Return the key with which `user` writes to `table`. Create it at its first use.

        Requires a writing transaction.

        Raises:
            ConfigurationError: If the master key does not belong to the catalog.
        """
        scope = {"table_id": table.table_id, "user": user}
        known = sa.select(_DATA_KEYS.c.key_id).filter_by(**scope)
        key_id = connection.execute(known).scalar()
        if key_id is None:
            table_key = self.wrap(secrets.token_bytes(KEY_BYTES), table.incarnation)
            connection.execute(
                make_insert(connection, _TABLE_KEYS)
                .values(table_id=table.table_id, wrapped_key=table_key)
                .on_conflict_do_nothing()
            )
            connection.execute(
                make_insert(connection, _DATA_KEYS).values(scope).on_conflict_do_nothing()
            )
            key_id = connection.execute(known).scalar_one()
        return DataKey(key_id, self.find_data_keys(connection, [key_id])[key_id])

    def find_data_keys(
        self, connection: sa.Connection, key_ids: Collection[int]
    ) -> dict[int, bytes]:
        """Return the data keys with these IDs. Unknown IDs are omitted.

        Raises:
            ConfigurationError: If the master key does not belong to the catalog.
        """
        found: dict[int, bytes] = {}
        opened: dict[str, bytes] = {}
        ordered = sorted(set(key_ids))
        for start in range(0, len(ordered), _KEYS_PER_QUERY):
            some = {"ids": ordered[start : start + _KEYS_PER_QUERY]}
            for key_id, user, incarnation, wrapped in connection.execute(_FIND_DATA_KEYS, some):
                if incarnation not in opened:
                    opened[incarnation] = self.unwrap(wrapped, incarnation)
                info = b"\0".join((b"snowmelt data key", incarnation.encode(), user.encode()))
                found[key_id] = _derive_key(opened[incarnation], info, KEY_BYTES)
        return found

    def find_key_scope(self, connection: sa.Connection, key_id: int) -> tuple[int, str] | None:
        """Return the table ID and user of a key ID, or None if it does not exist."""
        query = sa.select(_DATA_KEYS.c.table_id, _DATA_KEYS.c.user).where(
            _DATA_KEYS.c.key_id == key_id
        )
        row = connection.execute(query).first()
        return None if row is None else (row.table_id, row.user)

    def wrap(self, key: bytes, associated_data: str) -> bytes:
        """Encrypt a key with the master key. For the key of a table, with the table's incarnation."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, associated_data.encode())

    def unwrap(self, wrapped: bytes, associated_data: str) -> bytes:
        """Decrypt a key that was encrypted with the same associated data.

        Raises:
            ConfigurationError: If the master key does not belong to the catalog.
        """
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, associated_data.encode())
        except InvalidTag as error:
            raise ConfigurationError(
                setting="keys_dir",
                reason="its master key does not decrypt the keys of this catalog. Copy the master key "
                "from a service of this catalog",
            ) from error

    def seal(self, secret: bytes, purpose: str) -> bytes:
        """Encrypt a secret with the master key. Decryption requires the same `purpose`."""
        return self.wrap(secret, _SEALED_PREFIX + purpose)

    def unseal(self, sealed: bytes, purpose: str) -> bytes:
        """Decrypt a secret that was encrypted for `purpose`.

        Raises:
            ConfigurationError: If the secret was encrypted with another master key or for another
                purpose.
        """
        return self.unwrap(sealed, _SEALED_PREFIX + purpose)


def generate_key_pair() -> tuple[bytes, bytes]:
    """Generate a private and a public key for a user, both as PEM."""
    return encode_key_pair(rsa.generate_private_key(public_exponent=65537, key_size=2048))


def encode_key_pair(key: rsa.RSAPrivateKey | X25519PrivateKey) -> tuple[bytes, bytes]:
    """Return the private key without a password, and its public key, both as PEM."""
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public


def _derive_key(key: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)


_MASTER_KEY_CHECK = model.deployment.c.master_key_check


def open_or_create_keyring(database: Database, location: Path) -> KeyRing:
    """Return the keyring of a catalog. Create the master key of a new catalog.

    Args:
        database: The catalog.
        location: Folder or file of the master key.

    Raises:
        ConfigurationError: If the catalog has another master key, or the key is missing or readable by
            other users.
    """
    with database.reading() as connection:
        check = connection.execute(sa.select(_MASTER_KEY_CHECK)).scalar_one()
        first = connection.execute(sa.select(_DATA_KEYS.c.key_id).limit(1)).scalar()
    key = load_master_key(location, create=check is None and first is None)
    keyring = KeyRing(key)
    if check is None:
        with database.reading() as connection:
            # Older versions stored no check value: verify the master key by decrypting a table key.
            keyring.find_data_keys(connection, [] if first is None else [first])
        with database.writing() as connection:
            connection.execute(
                sa.update(model.deployment)
                .where(_MASTER_KEY_CHECK.is_(None))
                .values(master_key_check=compute_master_key_check_value(key))
            )
            # Two services may initialize a catalog concurrently with different keys: the first one
            # to commit wins.
            check = connection.execute(sa.select(_MASTER_KEY_CHECK)).scalar_one()
    if check != compute_master_key_check_value(key):
        raise ConfigurationError(
            setting="keys_dir",
            reason=f"{location} has another master key than this catalog. All services of a catalog need "
            "the same master key",
        )
    return keyring


def is_catalog_master_key(database: Database, location: Path) -> bool:
    """Return True if a location has the catalog's master key, or the catalog has no master key yet.

    Raises:
        ConfigurationError: If there is no key, or other users can read it.
    """
    with database.reading() as connection:
        check = connection.execute(sa.select(_MASTER_KEY_CHECK)).scalar_one()
    return check is None or check == compute_master_key_check_value(
        load_master_key(location, create=False)
    )


# Access keys of the S3 endpoint. Verifying a signature requires the plain secret, so it is stored
# encrypted with the master key and bound to the key ID.

_ACCESS_KEYS = model.access_keys
_USERS = model.users

# As long as AWS's keys, so that tools accept them. The prefix distinguishes the kinds of keys.
_ID_PREFIX = "SMAK"
_ID_LENGTH = 20
_ID_ALPHABET = string.ascii_uppercase + "234567"
_SECRET_LENGTH = 40
_SECRET_ALPHABET = string.ascii_letters + string.digits


def _draw_id_and_secret(id_prefix: str) -> tuple[str, str]:
    letters = (secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH - len(id_prefix)))
    secret = (secrets.choice(_SECRET_ALPHABET) for _ in range(_SECRET_LENGTH))
    return id_prefix + "".join(letters), "".join(secret)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key with its secret, which `repr` hides."""

    access_key_id: str
    user: str
    secret: str

    def __repr__(self) -> str:
        return f"AccessKey(access_key_id={self.access_key_id!r}, user={self.user!r})"


@dataclass(frozen=True, slots=True)
class AccessKeyRecord:
    """The public fields of an access key."""

    access_key_id: str
    user: str
    created_at: dt.datetime


def create_access_key(
    connection: sa.Connection, keyring: KeyRing, user: str, *, now: dt.datetime
) -> AccessKey:
    """Create an access key of a user. The secret cannot be read again.

    Raises:
        NotFound: If the user does not exist.
    """
    user_id = find_user(connection, user).user_id
    access_key_id, secret = _draw_id_and_secret(_ID_PREFIX)
    key = AccessKey(access_key_id, user, secret)
    connection.execute(
        sa.insert(_ACCESS_KEYS).values(
            access_key_id=key.access_key_id,
            user_id=user_id,
            sealed_secret=keyring.seal(key.secret.encode(), secret_purpose(key.access_key_id)),
            created_at=now,
        )
    )
    return key


def find_access_key(
    connection: sa.Connection, keyring: KeyRing, access_key_id: str
) -> AccessKey | None:
    """Return an access key by its ID, or None if it does not exist.

    Raises:
        ConfigurationError: If the master key does not belong to the catalog.
    """
    query = (
        sa.select(_ACCESS_KEYS.c.sealed_secret, _USERS.c.name)
        .join(_USERS, _ACCESS_KEYS.c.user_id == _USERS.c.user_id)
        .where(_ACCESS_KEYS.c.access_key_id == access_key_id)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    secret = keyring.unseal(row.sealed_secret, secret_purpose(access_key_id))
    return AccessKey(access_key_id, row.name, secret.decode())


def list_access_keys(connection: sa.Connection, user: str | None = None) -> list[AccessKeyRecord]:
    """Return the access keys of one user or of all users, ordered by user and age."""
    query = (
        sa.select(_ACCESS_KEYS.c.access_key_id, _USERS.c.name, _ACCESS_KEYS.c.created_at)
        .join(_USERS, _ACCESS_KEYS.c.user_id == _USERS.c.user_id)
        .order_by(_USERS.c.name, _ACCESS_KEYS.c.created_at, _ACCESS_KEYS.c.access_key_id)
    )
    if user is not None:
        query = query.where(_USERS.c.name == user)
    return [AccessKeyRecord(*row) for row in connection.execute(query)]


def drop_access_key(connection: sa.Connection, user: str, access_key_id: str) -> None:
    """Drop an access key. Running services may accept the key for up to five seconds.

    Raises:
        NotFound: If the user does not exist or does not have this key.
    """
    user_id = find_user(connection, user).user_id
    own = sa.and_(_ACCESS_KEYS.c.access_key_id == access_key_id, _ACCESS_KEYS.c.user_id == user_id)
    if connection.execute(sa.delete(_ACCESS_KEYS).where(own)).rowcount == 0:
        raise NotFound(kind="Access key", name=access_key_id)


def secret_purpose(access_key_id: str) -> str:
    """Return the encryption purpose of an access key's secret."""
    return f"access key {access_key_id}"


_Payload = TypeVar("_Payload", bound=msgspec.Struct)
_MAX_TOKEN_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class TokenFormat(Generic[_Payload]):
    """Format of tokens that contain a payload of one type, encrypted with the master key."""

    payload_type: type[_Payload]
    purpose: str

    def seal(self, keyring: KeyRing, payload: _Payload) -> str:
        """Encrypt a payload as the text of a token."""
        sealed = keyring.seal(msgspec.msgpack.encode(payload), self.purpose)
        return base64.urlsafe_b64encode(sealed).decode()

    def parse(self, keyring: KeyRing, text: str) -> _Payload | None:
        """Decrypt a token, which may be expired. Return None if the text is invalid."""
        if len(text) > _MAX_TOKEN_CHARACTERS:
            return None
        try:
            opened = keyring.unseal(base64.urlsafe_b64decode(text.encode()), self.purpose)
            return msgspec.msgpack.decode(opened, type=self.payload_type)
        except (ConfigurationError, ValueError, binascii.Error, msgspec.DecodeError):
            return None


# Temporary credentials for one client's prefix of the stage. They are not stored: the session token
# contains user, prefix, expiration and secret, encrypted with the master key, so every service can
# verify it.

# As long as AWS's keys, so that tools accept them. The prefix distinguishes them from permanent
# keys.
_STAGE_ID_PREFIX = "SMST"


@dataclass(frozen=True, slots=True)
class StageCredentials:
    """Temporary credentials for uploads to the stage. `repr` hides secret and token.

    They are valid until `expires_at` for blobs of `prefix`, or of all prefixes of the user if
    `any_prefix` is true.
    """

    access_key_id: str
    user: str
    prefix: str
    any_prefix: bool
    expires_at: dt.datetime
    secret: str = field(repr=False)
    token: str = field(repr=False)


class _StageTokenPayload(msgspec.Struct, array_like=True):
    access_key_id: str
    user: str
    prefix: str
    any_prefix: bool
    expires_at: float
    secret: str


_STAGE_TOKENS = TokenFormat(_StageTokenPayload, "stage credentials")


def issue_stage_credentials(
    keyring: KeyRing, user: str, prefix: str, *, any_prefix: bool, expires_at: dt.datetime
) -> StageCredentials:
    """Issue temporary credentials for uploads."""
    access_key_id, secret = _draw_id_and_secret(_STAGE_ID_PREFIX)
    sealed = _StageTokenPayload(
        access_key_id, user, prefix, any_prefix, expires_at.timestamp(), secret
    )
    token = _STAGE_TOKENS.seal(keyring, sealed)
    return StageCredentials(**_to_credential_fields(sealed, token))


def parse_stage_token(keyring: KeyRing, token: str) -> StageCredentials | None:
    """Return the credentials in a session token, even if expired, or None if it is invalid."""
    payload = _STAGE_TOKENS.parse(keyring, token)
    return None if payload is None else StageCredentials(**_to_credential_fields(payload, token))


def _to_credential_fields(
    payload: _StageTokenPayload | _TableTokenPayload, token: str
) -> dict[str, Any]:
    expires_at = dt.datetime.fromtimestamp(payload.expires_at, dt.UTC)
    return msgspec.structs.asdict(payload) | {"expires_at": expires_at, "token": token}


# Temporary credentials for the files of one table, for engines that load it from the Iceberg REST catalog.

_TABLE_ID_PREFIX = "SMTB"


@dataclass(frozen=True, slots=True)
class TableCredentials:
    """Credentials for the files of a table, valid until `expires_at`. `repr` hides secret and token.

    They are valid while `user` has `role`, and `role` may select from the table. `folder` is the
    table's folder in the warehouse.
    """

    access_key_id: str
    user: str
    role: str
    table_id: int
    folder: str
    expires_at: dt.datetime
    secret: str = field(repr=False)
    token: str = field(repr=False)


class _TableTokenPayload(msgspec.Struct, array_like=True):
    access_key_id: str
    user: str
    role: str
    table_id: int
    folder: str
    expires_at: float
    secret: str


_TABLE_TOKENS = TokenFormat(_TableTokenPayload, "table credentials")


def issue_table_credentials(
    keyring: KeyRing, user: str, role: str, table_id: int, folder: str, *, expires_at: dt.datetime
) -> TableCredentials:
    """Issue temporary credentials for the files of a table."""
    access_key_id, secret = _draw_id_and_secret(_TABLE_ID_PREFIX)
    payload = _TableTokenPayload(
        access_key_id, user, role, table_id, folder, expires_at.timestamp(), secret
    )
    token = _TABLE_TOKENS.seal(keyring, payload)
    return TableCredentials(**_to_credential_fields(payload, token))


def parse_table_token(keyring: KeyRing, token: str) -> TableCredentials | None:
    """Return the credentials in a session token, even if expired, or None if it is invalid."""
    payload = _TABLE_TOKENS.parse(keyring, token)
    return None if payload is None else TableCredentials(**_to_credential_fields(payload, token))


# Access tokens of the Iceberg REST catalog. Engines get them in exchange for an access key.


class CatalogToken(msgspec.Struct, array_like=True, frozen=True):
    """An access token: the access key that it was issued for, and the role (empty: the default role).

    `expires_at` is in seconds since 1970.
    """

    access_key_id: str
    user: str
    role: str
    expires_at: float


CATALOG_TOKENS = TokenFormat(CatalogToken, "catalog token")


# Sessions of the console, and login codes.


class ConsoleToken(msgspec.Struct, array_like=True, frozen=True):
    """A session of the console. `credential` is the access key or key fingerprint that opened it.

    Timestamps are in seconds since 1970.
    """

    session_id: str
    user: str
    role: str
    credential: str
    began_at: float
    seen_at: float


# A session is sealed as the value of its cookie. A login code opens a session with the same user
# and credential.
CONSOLE_SESSIONS = TokenFormat(ConsoleToken, "console session")
CONSOLE_CODES = TokenFormat(ConsoleToken, "console code")
