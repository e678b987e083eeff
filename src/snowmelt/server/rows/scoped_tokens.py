"""Scoped tokens: what `/oauth/token` gives for a key-pair JWT, good for an hour.

Nothing of them is stored. The third part is the digest of the others, sealed with the master
key, so every service of a deployment takes them; no other party needs to check one.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from snowmelt.clock import to_epoch_ms
from snowmelt.errors import AuthenticationFailed, ConfigurationError
from snowmelt.ingest.rows.targets import RowSender

if TYPE_CHECKING:
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.clock import Clock

LIFETIME_S = 3600
_PURPOSE = "row api token"
_MOST_CHARACTERS = 8192
_MOST_REMEMBERED = 10_000


class _Header(msgspec.Struct):
    typ: str = "JWT"
    # What the sealed digest comes next to; the official client asks for a name that it knows.
    alg: str = "HS256"


class Claims(msgspec.Struct):
    """What a token says: whose it is and in which role, its id, and when it was issued."""

    sub: str
    iat: int
    exp: int
    jti: str
    role: str | None = None
    # The moment of `iat`, which may have no fraction, in milliseconds.
    issued_ms: int = 0

    @property
    def sender(self) -> RowSender:
        """Who it speaks for."""
        return RowSender(self.sub, self.role)


class ScopedTokens:
    """Issues tokens and knows them again; thread-safe."""

    def __init__(self, keyring: KeyRing, clock: Clock) -> None:
        self._keyring = keyring
        self._clock = clock
        self._known: dict[str, Claims] = {}

    def issue(self, sender: RowSender) -> str:
        """Return a new token; no two are equal, or the official client would ask on and on."""
        issued_ms = to_epoch_ms(self._clock.now())
        now = issued_ms // 1000
        claims = Claims(
            sender.user, now, now + LIFETIME_S, secrets.token_hex(16), sender.role, issued_ms
        )
        signed = f"{_packed(_Header())}.{_packed(claims)}"
        return f"{signed}.{_text(self._keyring.seal(_digest(signed), _PURPOSE))}"

    def claims(self, token: str) -> Claims:
        """Return what a token says.

        Raises:
            AuthenticationFailed: It is none of ours, or has expired.
        """
        claims = self._known.get(token)
        if claims is None:
            claims = self._opened(token)
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[token] = claims
        if claims.exp <= self._clock.now().timestamp():
            raise AuthenticationFailed(reason="the token has expired; ask /oauth/token for another")
        return claims

    def recalled(self, token: bytes) -> Claims | None:
        """Return what a token that was seen before says, else None."""
        claims = self._known.get(token.decode("latin-1"))
        if claims is None or claims.exp <= self._clock.now().timestamp():
            return None
        return claims

    def _opened(self, token: str) -> Claims:
        foreign = AuthenticationFailed(reason="the token is none that /oauth/token gave here")
        if len(token) > _MOST_CHARACTERS:
            raise foreign
        signed, _, sealed = token.rpartition(".")
        try:
            digest = self._keyring.unseal(_bytes(sealed), _PURPOSE)
            claims = msgspec.json.decode(_bytes(signed.partition(".")[2]), type=Claims)
        except (ConfigurationError, ValueError, msgspec.DecodeError):
            raise foreign from None
        if not secrets.compare_digest(digest, _digest(signed)):
            raise foreign
        return claims


def _packed(message: msgspec.Struct) -> str:
    return _text(msgspec.json.encode(message))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _digest(signed: str) -> bytes:
    return hashlib.sha256(signed.encode()).digest()


class _Asked(msgspec.Struct):
    scp: object = None
    iss: object = None


def claimed_scope(payload: str) -> str:
    """Return claim `scp` of a token's middle part, which has been verified; empty without one."""
    scope = _asked(payload).scp
    return scope if isinstance(scope, str) else ""


def has_issuer(token: str) -> bool:
    """Tell whether a token says who gave it: those that are given here do not."""
    parts = token.strip().split(".")
    return len(parts) == 3 and _asked(parts[1]).iss is not None


def _asked(payload: str) -> _Asked:
    try:
        return msgspec.json.decode(_bytes(payload), type=_Asked)
    except (ValueError, msgspec.DecodeError):
        return _Asked()
