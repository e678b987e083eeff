"""Access keys of the S3 endpoint, and temporary credentials for one client's prefix of the stage.

Verifying a signature requires the secret itself, so it is stored sealed with the master key and
bound to the key ID. Temporary credentials are not stored: the session token carries user, prefix,
expiry and secret, sealed with the master key, so every service can verify their signatures.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import secrets
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.security.access_control import find_user
from snowmelt.errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from snowmelt.catalog.security.encryption_keys import KeyRing

_ACCESS_KEYS = model.access_keys
_USERS = model.users

# As long as AWS's, so that every tool takes them; the letters tell them from AWS's own.
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
    """An access key with its secret, which must not be printed by accident."""

    access_key_id: str
    user: str
    secret: str

    def __repr__(self) -> str:
        return f"AccessKey(access_key_id={self.access_key_id!r}, user={self.user!r})"


@dataclass(frozen=True, slots=True)
class AccessKeyRecord:
    """What may be shown of an access key."""

    access_key_id: str
    user: str
    created_at: dt.datetime


def create_access_key(
    connection: sa.Connection, keyring: KeyRing, user: str, *, now: dt.datetime
) -> AccessKey:
    """Give a user one more access key; the secret is returned here and can be shown never again.

    Raises:
        NotFound: There is no such user.
    """
    user_id = find_user(connection, user).user_id
    access_key_id, secret = _draw_id_and_secret(_ID_PREFIX)
    key = AccessKey(access_key_id, user, secret)
    connection.execute(
        sa.insert(_ACCESS_KEYS).values(
            access_key_id=key.access_key_id,
            user_id=user_id,
            sealed_secret=keyring.seal(key.secret.encode(), _secret_purpose(key.access_key_id)),
            created_at=now,
        )
    )
    return key


def find_access_key(
    connection: sa.Connection, keyring: KeyRing, access_key_id: str
) -> AccessKey | None:
    """Return an access key by its id, None when there is none.

    Raises:
        ConfigurationError: The master key is not the one of this catalog.
    """
    query = (
        sa.select(_ACCESS_KEYS.c.sealed_secret, _USERS.c.name)
        .join(_USERS, _ACCESS_KEYS.c.user_id == _USERS.c.user_id)
        .where(_ACCESS_KEYS.c.access_key_id == access_key_id)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    secret = keyring.unseal(row.sealed_secret, _secret_purpose(access_key_id))
    return AccessKey(access_key_id, row.name, secret.decode())


def list_access_keys(connection: sa.Connection, user: str | None = None) -> list[AccessKeyRecord]:
    """Return the access keys of a user, or of all, ordered by user and age."""
    query = (
        sa.select(_ACCESS_KEYS.c.access_key_id, _USERS.c.name, _ACCESS_KEYS.c.created_at)
        .join(_USERS, _ACCESS_KEYS.c.user_id == _USERS.c.user_id)
        .order_by(_USERS.c.name, _ACCESS_KEYS.c.created_at, _ACCESS_KEYS.c.access_key_id)
    )
    if user is not None:
        query = query.where(_USERS.c.name == user)
    return [AccessKeyRecord(*row) for row in connection.execute(query)]


def drop_access_key(connection: sa.Connection, user: str, access_key_id: str) -> None:
    """Take an access key away; running services take it for a few seconds more.

    Raises:
        NotFound: There is no such user, or the user has no such key.
    """
    user_id = find_user(connection, user).user_id
    own = sa.and_(_ACCESS_KEYS.c.access_key_id == access_key_id, _ACCESS_KEYS.c.user_id == user_id)
    if connection.execute(sa.delete(_ACCESS_KEYS).where(own)).rowcount == 0:
        raise NotFound(kind="Access key", name=access_key_id)


def _secret_purpose(access_key_id: str) -> str:
    return f"access key {access_key_id}"


# Short-lived credentials for one client's part of the stage.

_STAGE_PURPOSE = "stage credentials"
# As long as AWS's, so that every tool takes them; the letters tell them from lasting keys.
_STAGE_ID_PREFIX = "SMST"
_MAX_TOKEN_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class StageCredentials:
    """What a client signs its uploads with; secret and token are not printed.

    They are good until `expires_at` for blobs of `prefix`; with `any_prefix` for blobs of all
    prefixes of that user.
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


def issue_stage_credentials(
    keyring: KeyRing, user: str, prefix: str, *, any_prefix: bool, expires_at: dt.datetime
) -> StageCredentials:
    """Return new credentials."""
    access_key_id, secret = _draw_id_and_secret(_STAGE_ID_PREFIX)
    sealed = _StageTokenPayload(
        access_key_id, user, prefix, any_prefix, expires_at.timestamp(), secret
    )
    token = keyring.seal(msgspec.msgpack.encode(sealed), _STAGE_PURPOSE)
    return _to_stage_credentials(sealed, base64.urlsafe_b64encode(token).decode())


def parse_stage_token(keyring: KeyRing, token: str) -> StageCredentials | None:
    """Return the credentials that a token stands for, expired or not; None when it is not ours."""
    if len(token) > _MAX_TOKEN_CHARACTERS:
        return None
    try:
        opened = keyring.unseal(base64.urlsafe_b64decode(token.encode()), _STAGE_PURPOSE)
        sealed = msgspec.msgpack.decode(opened, type=_StageTokenPayload)
    except (ConfigurationError, ValueError, binascii.Error, msgspec.DecodeError):
        return None
    return _to_stage_credentials(sealed, token)


def _to_stage_credentials(payload: _StageTokenPayload, token: str) -> StageCredentials:
    return StageCredentials(
        payload.access_key_id,
        payload.user,
        payload.prefix,
        payload.any_prefix,
        dt.datetime.fromtimestamp(payload.expires_at, dt.UTC),
        payload.secret,
        token,
    )
