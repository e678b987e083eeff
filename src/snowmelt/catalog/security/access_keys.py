"""Access keys of users: what requests to the S3 endpoint are signed with.

A signature is checked by making it again, so the secret itself must be kept: sealed with the
master key, and bound to its id.
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
from snowmelt.catalog.security.access_control import user_by_name
from snowmelt.errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from snowmelt.catalog.security.encryption_keys import KeyRing

_A = model.access_keys
_U = model.users

# As long as AWS's, so that every tool takes them; the letters tell them from AWS's own.
_ID_PREFIX = "SMAK"
_ID_LENGTH = 20
_ID_LETTERS = string.ascii_uppercase + "234567"
_SECRET_LENGTH = 40
_SECRET_LETTERS = string.ascii_letters + string.digits


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
    user_id = user_by_name(connection, user).user_id
    letters = (secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH - len(_ID_PREFIX)))
    key = AccessKey(
        _ID_PREFIX + "".join(letters),
        user,
        "".join(secrets.choice(_SECRET_LETTERS) for _ in range(_SECRET_LENGTH)),
    )
    connection.execute(
        sa.insert(_A).values(
            access_key_id=key.access_key_id,
            user_id=user_id,
            sealed_secret=keyring.seal(key.secret.encode(), _purpose(key.access_key_id)),
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
        sa.select(_A.c.sealed_secret, _U.c.name)
        .join(_U, _A.c.user_id == _U.c.user_id)
        .where(_A.c.access_key_id == access_key_id)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    secret = keyring.unseal(row.sealed_secret, _purpose(access_key_id))
    return AccessKey(access_key_id, row.name, secret.decode())


def access_keys_of(connection: sa.Connection, user: str | None = None) -> list[AccessKeyRecord]:
    """Return the access keys of a user, or of all, ordered by user and age."""
    query = (
        sa.select(_A.c.access_key_id, _U.c.name, _A.c.created_at)
        .join(_U, _A.c.user_id == _U.c.user_id)
        .order_by(_U.c.name, _A.c.created_at, _A.c.access_key_id)
    )
    if user is not None:
        query = query.where(_U.c.name == user)
    return [AccessKeyRecord(*row) for row in connection.execute(query)]


def drop_access_key(connection: sa.Connection, user: str, access_key_id: str) -> None:
    """Take an access key away; running services take it for a few seconds more.

    Raises:
        NotFound: There is no such user, or the user has no such key.
    """
    user_id = user_by_name(connection, user).user_id
    own = sa.and_(_A.c.access_key_id == access_key_id, _A.c.user_id == user_id)
    if connection.execute(sa.delete(_A).where(own)).rowcount == 0:
        raise NotFound(kind="Access key", name=access_key_id)


def _purpose(access_key_id: str) -> str:
    return f"access key {access_key_id}"


# --- Short-lived credentials for one client's part of the stage.
#
# Nothing of them is stored: the session token carries user, prefix, end and secret, sealed with the
# master key, so every service of the deployment can check a signature made with them.

_PURPOSE = "stage credentials"
# As long as AWS's, so that every tool takes them; the letters tell them from lasting keys.
_ID_PREFIX_STAGE_CREDENTIALS = "SMST"
_ID_LETTERS_STAGE_CREDENTIALS = string.ascii_uppercase + "234567"
_SECRET_LETTERS_STAGE_CREDENTIALS = string.ascii_letters + string.digits
_MOST_TOKEN_CHARACTERS = 4096


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


class _Sealed(msgspec.Struct, array_like=True):
    access_key_id: str
    user: str
    prefix: str
    any_prefix: bool
    expires_at: float
    secret: str


def issue(
    keyring: KeyRing, user: str, prefix: str, *, any_prefix: bool, expires_at: dt.datetime
) -> StageCredentials:
    """Return new credentials."""
    letters = (
        secrets.choice(_ID_LETTERS_STAGE_CREDENTIALS)
        for _ in range(_ID_LENGTH - len(_ID_PREFIX_STAGE_CREDENTIALS))
    )
    sealed = _Sealed(
        _ID_PREFIX_STAGE_CREDENTIALS + "".join(letters),
        user,
        prefix,
        any_prefix,
        expires_at.timestamp(),
        "".join(secrets.choice(_SECRET_LETTERS_STAGE_CREDENTIALS) for _ in range(_SECRET_LENGTH)),
    )
    token = keyring.seal(msgspec.msgpack.encode(sealed), _PURPOSE)
    return _credentials(sealed, base64.urlsafe_b64encode(token).decode())


def of_token(keyring: KeyRing, token: str) -> StageCredentials | None:
    """Return the credentials that a token stands for, expired or not; None when it is not ours."""
    if len(token) > _MOST_TOKEN_CHARACTERS:
        return None
    try:
        opened = keyring.unseal(base64.urlsafe_b64decode(token.encode()), _PURPOSE)
        sealed = msgspec.msgpack.decode(opened, type=_Sealed)
    except (ConfigurationError, ValueError, binascii.Error, msgspec.DecodeError):
        return None
    return _credentials(sealed, token)


def _credentials(sealed: _Sealed, token: str) -> StageCredentials:
    return StageCredentials(
        sealed.access_key_id,
        sealed.user,
        sealed.prefix,
        sealed.any_prefix,
        dt.datetime.fromtimestamp(sealed.expires_at, dt.UTC),
        sealed.secret,
        token,
    )
