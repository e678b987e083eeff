"""Encryption keys: master key file, wrapped key per table, derived key per table and user.

A user who may insert into a table gets only the key for the user's own rows. Key IDs are never
reused, and belong to one incarnation of a table. All services of a catalog need the same master
key; `open_or_create_keyring` rejects another one at startup.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.dialect import make_insert
from snowmelt.catalog.model.records import TableRecord
from snowmelt.errors import ConfigurationError
from snowmelt.storage.local_store import create_durable_file, make_durable_folder, open_folder

KEY_BYTES = 32
MASTER_KEY_FILE = "master.key"

_NONCE_BYTES = 12
# No incarnation begins so: a sealed secret and a table's key cannot stand for each other.
_SEALED_PREFIX = "sealed: "
_TABLES = model.tables
_TABLE_KEYS = model.table_keys
_DATA_KEYS = model.data_keys
# Below the least number of parameters that SQLite takes in one statement.
_KEYS_PER_QUERY = 10_000


@dataclass(frozen=True, slots=True)
class DataKey:
    """A 256-bit data key and its id; the key must not be printed."""

    key_id: int
    key: bytes

    def __repr__(self) -> str:
        return f"DataKey(key_id={self.key_id})"


def load_master_key(location: Path, *, create: bool = True) -> bytes:
    """Return the master key, made when it is missing, whoever else tries at once.

    `location` is its folder; or its file, which may hold the bytes or their base64, and which is
    never made here. `create` says whether a missing one is made.

    Raises:
        ConfigurationError: Others may read folder or key, it is no key, or it is missing.
    """
    if location.is_file():
        return _read_master_key(location, forbidden_mode=0o037)
    path = location / MASTER_KEY_FILE
    if not path.exists():
        if not create:
            raise ConfigurationError(
                setting="keys_dir",
                reason=f"there is no {path}, and the catalog's master key exists already; copy it from"
                " where another service has it",
            )
        make_durable_folder(location, mode=0o700)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        # Open before it is written to, so that its fsync tells of every write that failed.
        with open_folder(path.parent) as folder:
            try:
                create_durable_file(draft, secrets.token_bytes(KEY_BYTES))
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(draft)
            finally:
                draft.unlink(missing_ok=True)
                # Also for the key of another process: it is used from here on.
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
            reason=f"{path} has {path.stat().st_size} bytes, a key has {KEY_BYTES}",
        )
    return key


def _check_master_key_permissions(path: Path, forbidden_mode: int) -> None:
    if path.stat().st_mode & forbidden_mode:
        raise ConfigurationError(
            setting="keys_dir", reason=f"others may read {path}; take that right away (chmod)"
        )


def compute_master_key_check_value(master_key: bytes) -> str:
    """Return what tells a master key from others and is of no use for anything else."""
    return _derive_key(master_key, b"snowmelt master key check", 16).hex()


class KeyRing:
    """Hands out the keys of tables to whoever has the master key."""

    def __init__(self, master_key: bytes) -> None:
        self._cipher = AESGCM(master_key)

    def get_or_create_data_key(
        self, connection: sa.Connection, table: TableRecord, user: str
    ) -> DataKey:
        """Return the key with which `user` writes to `table`, made at its first use.

        Needs a writing transaction.

        Raises:
            ConfigurationError: The master key is not the one of this catalog.
        """
        scope = {"table_id": table.table_id, "user": user}
        known = sa.select(_DATA_KEYS.c.key_id).filter_by(**scope)
        key_id = connection.execute(known).scalar()
        if key_id is None:
            table_key = self._wrap(secrets.token_bytes(KEY_BYTES), table.incarnation)
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
        """Return the data keys of these ids; ids that do not exist are left out.

        Raises:
            ConfigurationError: The master key is not the one of this catalog.
        """
        found: dict[int, bytes] = {}
        opened: dict[str, bytes] = {}
        ordered = sorted(set(key_ids))
        query = sa.select(
            _DATA_KEYS.c.key_id, _DATA_KEYS.c.user, _TABLES.c.incarnation, _TABLE_KEYS.c.wrapped_key
        ).select_from(
            _DATA_KEYS.join(_TABLES, _DATA_KEYS.c.table_id == _TABLES.c.table_id).join(
                _TABLE_KEYS, _DATA_KEYS.c.table_id == _TABLE_KEYS.c.table_id
            )
        )
        for start in range(0, len(ordered), _KEYS_PER_QUERY):
            some = query.where(_DATA_KEYS.c.key_id.in_(ordered[start : start + _KEYS_PER_QUERY]))
            for key_id, user, incarnation, wrapped in connection.execute(some):
                if incarnation not in opened:
                    opened[incarnation] = self._unwrap(wrapped, incarnation)
                info = b"\0".join((b"snowmelt data key", incarnation.encode(), user.encode()))
                found[key_id] = _derive_key(opened[incarnation], info, KEY_BYTES)
        return found

    def find_key_scope(self, connection: sa.Connection, key_id: int) -> tuple[int, str] | None:
        """Return the table id and the user of a key id, None when there is none."""
        query = sa.select(_DATA_KEYS.c.table_id, _DATA_KEYS.c.user).where(
            _DATA_KEYS.c.key_id == key_id
        )
        row = connection.execute(query).first()
        return None if row is None else (row.table_id, row.user)

    def seal(self, secret: bytes, purpose: str) -> bytes:
        """Encrypt a secret under the master key; only the same `purpose` opens it again."""
        return self._wrap(secret, _SEALED_PREFIX + purpose)

    def unseal(self, sealed: bytes, purpose: str) -> bytes:
        """Return what was sealed for `purpose`.

        Raises:
            ConfigurationError: The master key is not the one it was sealed with.
        """
        return self._unwrap(sealed, _SEALED_PREFIX + purpose)

    def _wrap(self, key: bytes, associated_data: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, associated_data.encode())

    def _unwrap(self, wrapped: bytes, associated_data: str) -> bytes:
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, associated_data.encode())
        except InvalidTag as error:
            raise ConfigurationError(
                setting="keys_dir", reason="its master key does not open the keys of this catalog"
            ) from error


def _derive_key(key: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)


_MASTER_KEY_CHECK = model.deployment.c.master_key_check


def open_or_create_keyring(database: Database, location: Path) -> KeyRing:
    """Return the keys of a catalog; a new catalog's master key is made.

    `location` is the folder of the master key, or its file.

    Raises:
        ConfigurationError: The catalog has another master key, or it is not there, or others may
            read it.
    """
    with database.reading() as connection:
        check = connection.execute(sa.select(_MASTER_KEY_CHECK)).scalar_one()
        first = connection.execute(sa.select(_DATA_KEYS.c.key_id).limit(1)).scalar()
    key = load_master_key(location, create=check is None and first is None)
    keyring = KeyRing(key)
    if check is None:
        with database.reading() as connection:
            # A catalog older than the check: its own keys tell.
            keyring.find_data_keys(connection, [] if first is None else [first])
        with database.writing() as connection:
            connection.execute(
                sa.update(model.deployment)
                .where(_MASTER_KEY_CHECK.is_(None))
                .values(master_key_check=compute_master_key_check_value(key))
            )
            # Of two services that begin a catalog at once with a key each, one is right.
            check = connection.execute(sa.select(_MASTER_KEY_CHECK)).scalar_one()
    if check != compute_master_key_check_value(key):
        raise ConfigurationError(
            setting="keys_dir",
            reason=f"{location} holds another master key than the one of this catalog; all services of "
            "a catalog need the same",
        )
    return keyring


def is_catalog_master_key(database: Database, location: Path) -> bool:
    """Tell whether a place holds the catalog's master key, or the catalog has none yet.

    Raises:
        ConfigurationError: There is no key, or others may read it.
    """
    with database.reading() as connection:
        check = connection.execute(sa.select(_MASTER_KEY_CHECK)).scalar_one()
    return check is None or check == compute_master_key_check_value(
        load_master_key(location, create=False)
    )
