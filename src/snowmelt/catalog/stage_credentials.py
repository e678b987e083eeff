"""Short-lived credentials for one client's part of the stage.

Nothing of them is stored: the session token carries user, prefix, end and secret, sealed with the
master key, so every service of the deployment can check a signature made with them.
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

from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    from snowmelt.catalog.keys import KeyRing

_PURPOSE = "stage credentials"
# As long as AWS's, so that every tool takes them; the letters tell them from lasting keys.
_ID_PREFIX = "SMST"
_ID_LENGTH = 20
_ID_LETTERS = string.ascii_uppercase + "234567"
_SECRET_LENGTH = 40
_SECRET_LETTERS = string.ascii_letters + string.digits
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
    letters = (secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH - len(_ID_PREFIX)))
    sealed = _Sealed(
        _ID_PREFIX + "".join(letters),
        user,
        prefix,
        any_prefix,
        expires_at.timestamp(),
        "".join(secrets.choice(_SECRET_LETTERS) for _ in range(_SECRET_LENGTH)),
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
