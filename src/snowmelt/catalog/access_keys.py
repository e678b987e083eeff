"""Access keys of users: what requests to the S3 endpoint are signed with.

A signature is checked by making it again, so the secret itself must be kept: sealed with the
master key, and bound to its id.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.access import user_by_name
from snowmelt.errors import NotFound

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.catalog.keys import KeyRing

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
