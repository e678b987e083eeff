"""Authentication by key-pair JWT (specification of v1, §1.3), OAuth token or access key.

JWTs and OAuth tokens use RS256 only. OAuth tokens come from external authorization servers whose
issuers are security integrations. Clients of the row API send an access key as a programmatic
access token: its ID and secret, joined by a period.
"""

from __future__ import annotations

import base64
import logging
import math
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import jwt
from cryptography.hazmat.primitives.serialization import load_der_public_key

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import SecurityIntegration
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.security.access_control import UserRecord
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.security.oauth_integrations import find_integration_by_issuer
from snowmelt.clock import Clock
from snowmelt.errors import AuthenticationFailed, NotFound, RoleNotGranted, ServiceBusy
from snowmelt.schema.types import to_display_name, to_internal_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from jwt.types import Options


_UNVERIFIED_OPTIONS: Options = {"verify_signature": False, "verify_exp": False, "verify_iat": False}
# `OAuthVerifier`'s caller checks the times, with the clock of the service.
_OAUTH_SIGNATURE_OPTIONS: Options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
_ROLE_SCOPE_PATTERN = re.compile(r"session:role:(.+)\Z", re.IGNORECASE)
_ANY_ROLE_SCOPE = "session:role-any"
_JWKS_CACHE_TTL_S = 3600.0
# Minimum time between two fetches of keys because of an unknown key ID, which any client can
# invent.
_JWKS_REFETCH_INTERVAL_S = 30.0
_JWKS_TIMEOUT_S = 5.0
_MAX_JWKS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RoleScope:
    """Roles that a token allows, the preferred one first. If empty, all roles of the user."""

    roles: tuple[str, ...]

    def resolve_role(self, requested: str | None, user: str) -> str | None:
        """Return the role of a request, in SQL notation as `requested`, which may be None.

        Raises:
            RoleNotGranted: If the token does not allow the requested role.
        """
        if not self.roles:
            return requested
        if requested and to_internal_name(requested) not in self.roles:
            raise RoleNotGranted(
                f"The token does not allow role {to_display_name(to_internal_name(requested))}; its scopes"
                f" name {', '.join(map(to_display_name, self.roles))}.",
                role=requested,
                user=to_display_name(user),
            )
        return requested or to_display_name(self.roles[0])


class OAuthVerifier:
    """Verifies tokens against the security integrations of the catalog. Thread-safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._jwks_cache = _JwksCache(clock)

    def verify(self, token: str) -> tuple[Principal, float]:
        """Return the principal and the expiration of a token. The caller checks the times.

        Raises:
            AuthenticationFailed: If the token is invalid.
            ServiceBusy: If the keys of the issuer cannot be fetched.
        """
        try:
            claims = jwt.decode(token, options=_UNVERIFIED_OPTIONS)
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError as error:
            _reject_token(f"it is not a JWT ({error})")
        issuer = claims.get("iss")
        with self._database.reading() as connection:
            known = (
                find_integration_by_issuer(connection, issuer) if isinstance(issuer, str) else None
            )
        if known is None or not known.enabled:
            _reject_token(
                f"its issuer {str(issuer)[:200]!r} does not belong to an enabled security integration"
            )
        if not _has_valid_signature(token, known, self._get_signing_keys(known, key_id)):
            _log.warning("a token of %r was rejected: signature or audience", str(issuer)[:200])
            _reject_token("its signature is invalid, or it is for another audience")
        user = self._find_user(known, claims)
        return Principal(user.name, _build_role_scope(known, claims, user)), claims["exp"]

    def _get_signing_keys(
        self, integration: SecurityIntegration, key_id: object
    ) -> list[RSAPublicKey]:
        if integration.keys_url is not None:
            return self._jwks_cache.get_keys(integration.keys_url, key_id)
        return [
            load_der_public_key(base64.b64decode(each))  # type: ignore[misc]
            for each in integration.configured_keys
        ]

    def _find_user(self, integration: SecurityIntegration, claims: Mapping[str, Any]) -> UserRecord:
        for claim in integration.user_claims:
            value = claims.get(claim)
            if not isinstance(value, str) or not value:
                continue
            with self._database.reading() as connection:
                for name in (value.upper(), value):
                    try:
                        return access_control.find_user(connection, name)
                    except NotFound:
                        continue
        claims_named = " or ".join(integration.user_claims)
        raise AuthenticationFailed(reason=f"its claim {claims_named} is not the name of a user")


@dataclass(eq=False, slots=True)
class _JwksCache:
    """Cache of issuers' keys, by URL of their JWKS."""

    _clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _fetched: dict[str, tuple[float, dict[object, RSAPublicKey]]] = field(default_factory=dict)

    def get_keys(self, url: str, key_id: object) -> list[RSAPublicKey]:
        """Return the key with this ID, or all keys if the token has no key ID."""
        with self._lock:
            now = self._clock.monotonic()
            asked_at, keys = self._fetched.get(url, (None, {}))
            is_enough = bool(keys) and (key_id is None or key_id in keys)
            kept_s = _JWKS_CACHE_TTL_S if is_enough else _JWKS_REFETCH_INTERVAL_S
            if asked_at is None or now - asked_at >= kept_s:
                try:
                    keys = _fetch_jwks(url)
                except ServiceBusy as error:
                    # Keep the cached keys, and do not fetch again for 30 s.
                    _log.warning("%s: %r", error, error.__cause__)
                self._fetched[url] = (now, keys)
        if not keys:
            raise ServiceBusy(reason=f"the keys at {url} cannot be fetched")
        if key_id is None:
            return list(keys.values())
        return [keys[key_id]] if key_id in keys else []


def _fetch_jwks(url: str) -> dict[object, RSAPublicKey]:
    # Imported here because few services need it.
    import httpx

    try:
        answer = httpx.get(url, timeout=_JWKS_TIMEOUT_S).raise_for_status()
        listed = answer.json()["keys"] if len(answer.content) <= _MAX_JWKS_BYTES else []
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServiceBusy(reason=f"the keys at {url} cannot be fetched") from error
    keys: dict[object, RSAPublicKey] = {}
    for number, each in enumerate(listed):
        try:
            if each.get("kty") == "RSA" and each.get("use", "sig") == "sig":
                keys[each.get("kid", number)] = jwt.PyJWK(each, algorithm="RS256").key
        except (jwt.PyJWTError, AttributeError):
            continue
    return keys


def _has_valid_signature(
    token: str, integration: SecurityIntegration, keys: list[RSAPublicKey]
) -> bool:
    for key in keys:
        try:
            jwt.decode(
                token,
                key,
                algorithms=["RS256"],
                audience=list(integration.audiences),
                issuer=integration.issuer,
                options=_OAUTH_SIGNATURE_OPTIONS | {"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError:
            continue
        return True
    return False


def _build_role_scope(
    integration: SecurityIntegration, claims: Mapping[str, Any], user: UserRecord
) -> RoleScope:
    said = claims.get(integration.scope_claim, "")
    words = said if isinstance(said, list) else re.split(r"[ ,]+", str(said))
    if integration.any_role and _ANY_ROLE_SCOPE in (str(word).lower() for word in words):
        return RoleScope(())
    named = [
        to_internal_name(found[1])
        for word in words
        if (found := _ROLE_SCOPE_PATTERN.match(str(word)))
    ]
    roles = [role for role in named if role not in integration.blocked_roles]
    if not roles:
        _reject_token(
            f"its claim {integration.scope_claim} has no scope session:role:<role> that may be used"
        )
    # The default role of the user, if the token allows it.
    return RoleScope(tuple(sorted(roles, key=lambda role: role != user.default_role)))


_log = logging.getLogger("snowmelt.server")

MAX_TOKEN_LIFETIME_S = 3600
MAX_CLOCK_SKEW_S = 30
# Maximum time in seconds for which a removed key is still accepted.
RECHECK_INTERVAL_S = 5.0
_MAX_TOKEN_CHARACTERS = 8192
_MAX_CACHED_TOKENS = 10_000
# Timestamps of this millennium are below this number in seconds, and above it in milliseconds.
_MIN_MILLISECOND_TIMESTAMP = 1e11
_SIGNATURE_ONLY_OPTIONS: Options = {
    "verify_exp": False,
    "verify_iat": False,
    "verify_signature": True,
}


@dataclass(frozen=True, slots=True)
class Principal:
    """User of a request. Tokens other than key-pair JWTs have a scope. OAuth scopes restrict the roles."""

    user: str
    scope: RoleScope | None = None


@dataclass(frozen=True, slots=True)
class _VerifiedToken:
    principal: Principal
    expires_at: float
    recheck_at: float


class Authenticator:
    """Verifies tokens against the registered keys, and caches the result for 5 s.

    With `anonymous_user`, a request without a token is authenticated as that user, unless a web page sent
    it: pages of any origin can send requests to this machine, and browsers name the origin.
    """

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        clock: Clock,
        *,
        anonymous_user: str | None = None,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._anonymous = None if anonymous_user is None else Principal(anonymous_user)
        self._oauth_verifier = OAuthVerifier(database, clock)
        self._verified_tokens: dict[str, _VerifiedToken] = {}
        self._process_tokens: dict[str, _VerifiedToken] = {}
        self._lock = threading.Lock()

    def issue_process_token(self, user: str, role: str, lifetime_s: float) -> str:
        """Issue a token of kind OAUTH for a child process. Only this service accepts it."""
        token = secrets.token_urlsafe(32)
        now = self._clock.now().timestamp()
        issued = _VerifiedToken(Principal(user, RoleScope((role,))), now + lifetime_s, 0.0)
        with self._lock:
            self._process_tokens = {
                each: known
                for each, known in self._process_tokens.items()
                if known.expires_at > now
            } | {token: issued}
        return token

    def get_cached_principal(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Return the principal of a token that was verified within 5 s, or None. Does no I/O."""
        token = headers.get(b"authorization")
        if token is None:
            return None if b"origin" in headers else self._anonymous
        known = self._verified_tokens.get(token.decode("latin-1"))
        if known is None or self._clock.monotonic() >= known.recheck_at:
            return None
        if self._clock.now().timestamp() >= known.expires_at + MAX_CLOCK_SKEW_S:
            return None
        return known.principal

    def authenticate_any(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Return the principal of a token of any kind. May read the catalog and contact the issuer.

        Raises:
            AuthenticationFailed: If there is no token, or it is invalid.
            ServiceBusy: If the keys of the issuer cannot be fetched.
        """
        caller = self.get_cached_principal(headers)
        if caller is not None:
            return caller
        text = headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, token = text.partition(" ")
        if not text:
            if self._anonymous is not None:
                _reject_token("a web page sent the request, and pages need a token also with --dev")
            _reject_token(
                "the request has no token. Connect with a user and a private key (--user and "
                "--private-key, or --profile)"
            )
        if scheme.lower() != "bearer":
            _reject_token("the Authorization header must begin with Bearer")
        kind = headers.get(b"x-snowflake-authorization-token-type", b"KEYPAIR_JWT")
        verify = {
            b"KEYPAIR_JWT": self._verify_key_pair_token,
            b"OAUTH": self._verify_oauth_token,
            b"PROGRAMMATIC_ACCESS_TOKEN": self._verify_access_key_token,
        }.get(kind)
        if verify is None:
            _reject_token(
                "expected X-Snowflake-Authorization-Token-Type KEYPAIR_JWT, OAUTH or PROGRAMMATIC_ACCESS_TOKEN"
            )
        if len(token) > _MAX_TOKEN_CHARACTERS:
            _reject_token(f"it is longer than {_MAX_TOKEN_CHARACTERS:,} characters")
        principal, expires_at = verify(token.strip())
        recheck_at = self._clock.monotonic() + RECHECK_INTERVAL_S
        with self._lock:
            if len(self._verified_tokens) >= _MAX_CACHED_TOKENS:
                self._verified_tokens.clear()
            self._verified_tokens[text] = _VerifiedToken(principal, expires_at, recheck_at)
        return principal

    def _verify_oauth_token(self, token: str) -> tuple[Principal, float]:
        issued = self._process_tokens.get(token)
        if issued is not None:
            principal, expires_at = issued.principal, issued.expires_at
        else:
            principal, expires_at = self._oauth_verifier.verify(token)
        if expires_at + MAX_CLOCK_SKEW_S <= self._clock.now().timestamp():
            _reject_token("it has expired")
        return principal, expires_at

    def _verify_access_key_token(self, token: str) -> tuple[Principal, float]:
        key_id, _, secret = token.partition(".")
        with self._database.reading() as connection:
            key = encryption_keys.find_access_key(connection, self._keyring, key_id)
        if key is None or not secrets.compare_digest(key.secret.encode(), secret.encode()):
            raise _log_and_make_error(f"there is no access key {key_id[:80]!r} with this secret")
        return Principal(key.user, RoleScope(())), math.inf

    def _verify_key_pair_token(self, token: str) -> tuple[Principal, float]:
        try:
            claims = jwt.decode(token, options=_UNVERIFIED_OPTIONS)
        except jwt.PyJWTError as error:
            _reject_token(f"it is not a JWT ({error})")
        issuer, subject = claims.get("iss"), claims.get("sub")
        if not isinstance(issuer, str) or not isinstance(subject, str):
            _reject_token("claims iss and sub are needed")
        # Clients set the account to the first label of the host name that they connect to.
        if not issuer.startswith(subject + "."):
            _reject_token("iss must be sub and the key's fingerprint")
        name = subject.partition(".")[2]
        user = self._find_user(name)
        key = _find_public_key(user, issuer[len(subject) + 1 :])
        try:
            jwt.decode(token, key, algorithms=["RS256"], options=_SIGNATURE_ONLY_OPTIONS)
        except jwt.PyJWTError as error:
            raise _log_and_make_error(
                f"the signature for user {name!r} is invalid ({error})"
            ) from None
        return Principal(user.name), self._validate_expiry(claims)

    def _find_user(self, name: str) -> UserRecord:
        try:
            with self._database.reading() as connection:
                return access_control.find_user(connection, name)
        except NotFound:
            raise _log_and_make_error(f"there is no user {name!r}") from None

    def _validate_expiry(self, claims: Mapping[str, object]) -> float:
        now = self._clock.now().timestamp()
        expires_at, issued_at = claims.get("exp"), claims.get("iat", now)
        for value in (expires_at, issued_at):
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not math.isfinite(value)
            ):
                _reject_token("claims exp and iat are seconds since 1970")
        expires_at, issued_at = _jwt_time_to_seconds(expires_at), _jwt_time_to_seconds(issued_at)
        if expires_at + MAX_CLOCK_SKEW_S <= now:
            _reject_token("it has expired")
        if issued_at > now + MAX_CLOCK_SKEW_S:
            _reject_token(
                "it was issued in the future. Synchronize the clocks of client and service"
            )
        if (
            expires_at - min(now, max(issued_at, now - MAX_CLOCK_SKEW_S))
            > MAX_TOKEN_LIFETIME_S + MAX_CLOCK_SKEW_S
        ):
            _reject_token("it is valid for more than an hour")
        return expires_at


def _jwt_time_to_seconds(timestamp_s_or_ms: object) -> float:
    """Convert a timestamp in a token to seconds. The SDK of the row API sends milliseconds."""
    number = float(str(timestamp_s_or_ms))
    return number / 1000 if number > _MIN_MILLISECOND_TIMESTAMP else number


def _find_public_key(user: UserRecord, fingerprint: str) -> RSAPublicKey:
    """Return the public key of a user that has this fingerprint."""
    for known, der in zip(user.fingerprints, user.public_keys, strict=True):
        if known == fingerprint:
            return load_der_public_key(base64.b64decode(der))  # type: ignore[return-value]
    raise _log_and_make_error(
        f"user {user.name!r} has no key with fingerprint {fingerprint[:80]!r}"
    )


def _log_and_make_error(detail: str) -> AuthenticationFailed:
    """Log the reason. The returned error does not contain it, so that it does not reveal users."""
    _log.warning("a token was rejected: %s", detail)
    reason = "user, key or signature is invalid. The log of the service has the reason"
    return AuthenticationFailed(reason=reason)


def _reject_token(reason: str) -> NoReturn:
    raise AuthenticationFailed(reason=reason)
