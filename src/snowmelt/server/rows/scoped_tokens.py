"""Scoped tokens, which `/oauth/token` issues for a key-pair JWT. They are valid for one hour.

Tokens are not stored. Their third segment is the digest of the other two, encrypted with the master
key. So every service of a deployment accepts them, and no other system needs to verify them.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field

import msgspec

from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import AuthenticationFailed, ConfigurationError
from snowmelt.ingest.rows.targets import RowSender

SCOPED_TOKEN_LIFETIME_S = 3600
_SEAL_PURPOSE = "row api token"
_MAX_TOKEN_CHARACTERS = 8192
_MAX_CACHED_TOKENS = 10_000


class ScopedTokenClaims(msgspec.Struct):
    """Claims of a token: user, role, ID and time of issue."""

    sub: str
    iat: int
    exp: int
    jti: str
    role: str | None = None
    # Time of issue in milliseconds, because `iat` is in whole seconds.
    issued_ms: int = 0

    @property
    def sender(self) -> RowSender:
        """The sender that the token authenticates."""
        return RowSender(self.sub, self.role)


@dataclass(eq=False, slots=True)
class ScopedTokenIssuer:
    """Issues and verifies scoped tokens. Thread-safe."""

    _keyring: KeyRing
    _clock: Clock
    _cached_claims: dict[str, ScopedTokenClaims] = field(default_factory=dict)

    def issue(self, sender: RowSender) -> str:
        """Issue a token. All tokens are distinct, else the official client requests tokens endlessly."""
        issued_ms = to_epoch_ms(self._clock.now())
        now = issued_ms // 1000
        claims = ScopedTokenClaims(
            sender.user,
            now,
            now + SCOPED_TOKEN_LIFETIME_S,
            secrets.token_hex(16),
            sender.role,
            issued_ms,
        )
        # The official client requires a known algorithm, although the third segment is an encrypted
        # digest.
        header = {"typ": "JWT", "alg": "HS256"}
        signed = ".".join(_base64url_encode(msgspec.json.encode(part)) for part in (header, claims))
        return f"{signed}.{_base64url_encode(self._keyring.seal(_compute_digest(signed), _SEAL_PURPOSE))}"

    def verify(self, token: str) -> ScopedTokenClaims:
        """Verify a token and return its claims.

        Raises:
            AuthenticationFailed: If this deployment did not issue the token, or it has expired.
        """
        claims = self._cached_claims.get(token)
        if claims is None:
            claims = self._unseal(token)
            if len(self._cached_claims) >= _MAX_CACHED_TOKENS:
                self._cached_claims.clear()
            self._cached_claims[token] = claims
        if claims.exp <= self._clock.now().timestamp():
            raise AuthenticationFailed(reason="the token has expired; ask /oauth/token for another")
        return claims

    def get_cached_claims(self, token: bytes) -> ScopedTokenClaims | None:
        """Return the claims of an already verified token that has not expired, or None."""
        claims = self._cached_claims.get(token.decode("latin-1"))
        if claims is None or claims.exp <= self._clock.now().timestamp():
            return None
        return claims

    def _unseal(self, token: str) -> ScopedTokenClaims:
        foreign = AuthenticationFailed(reason="the token is none that /oauth/token gave here")
        if len(token) > _MAX_TOKEN_CHARACTERS:
            raise foreign
        signed, _, sealed = token.rpartition(".")
        try:
            digest = self._keyring.unseal(_base64url_decode(sealed), _SEAL_PURPOSE)
            claims = msgspec.json.decode(
                _base64url_decode(signed.partition(".")[2]), type=ScopedTokenClaims
            )
        except (ConfigurationError, ValueError, msgspec.DecodeError):
            raise foreign from None
        if not secrets.compare_digest(digest, _compute_digest(signed)):
            raise foreign
        return claims


def _base64url_encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _base64url_decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _compute_digest(signed: str) -> bytes:
    return hashlib.sha256(signed.encode()).digest()


class _ForeignClaims(msgspec.Struct):
    scp: object = None
    iss: object = None


def read_scope_claim(payload: str) -> str:
    """Return the claim `scp` of a verified token's payload, or an empty string."""
    scope = _decode_foreign_claims(payload).scp
    return scope if isinstance(scope, str) else ""


def is_foreign_token(token: str) -> bool:
    """Return True if a token has an issuer, and is therefore not a scoped token."""
    parts = token.strip().split(".")
    return len(parts) == 3 and _decode_foreign_claims(parts[1]).iss is not None


def _decode_foreign_claims(payload: str) -> _ForeignClaims:
    try:
        return msgspec.json.decode(_base64url_decode(payload), type=_ForeignClaims)
    except (ValueError, msgspec.DecodeError):
        return _ForeignClaims()
