"""Who is asking: key-pair JWTs (specification of v1, §1.3) and OAuth tokens, RS256 only; access keys.

An access key, its id and secret with a point between, is what clients of the row API send as a
programmatic access token.
"""

from __future__ import annotations

import base64
import logging
import math
import re
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import jwt
from cryptography.hazmat.primitives.serialization import load_der_public_key

from snowmelt.catalog.security import access_control as access
from snowmelt.catalog.security import access_keys
from snowmelt.catalog.security.security_integrations import find_integration_by_issuer
from snowmelt.errors import AuthenticationFailed, NotFound, RoleNotGranted, ServiceBusy
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from jwt.types import Options

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import SecurityIntegration
    from snowmelt.catalog.security.access_control import UserRecord
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.clock import Clock

# --- OAuth tokens of authorisation servers elsewhere: JWTs, RS256 only, of issuers that are known.

_UNVERIFIED_OAUTH: Options = {"verify_signature": False, "verify_exp": False, "verify_iat": False}
# Times are looked at by the service's own clock.
_SIGNED: Options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
_ROLE = re.compile(r"session:role:(.+)\Z", re.IGNORECASE)
_ANY_ROLE = "session:role-any"
_KEYS_KEPT_S = 3600.0
# A key that is not among those fetched is looked for again, not for every invented one.
_KEYS_AGAIN_S = 30.0
_ANSWER_S = 5.0
_LONGEST_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class RoleScope:
    """The roles a token lets its bearer act as, the preferred one first; empty: any of the user's."""

    roles: tuple[str, ...]

    def role(self, asked: str | None, user: str) -> str | None:
        """Return the role for a request that asks for one, or for none.

        Raises:
            RoleNotGranted: It is not among the token's.
        """
        if not self.roles:
            return asked
        if asked and internal_name(asked) not in self.roles:
            raise RoleNotGranted(
                f"The token does not allow role {display_name(internal_name(asked))}; its scopes"
                f" name {', '.join(map(display_name, self.roles))}.",
                role=asked,
                user=display_name(user),
            )
        return asked or display_name(self.roles[0])


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a token speaks for, as what, and until when (seconds since 1970)."""

    user: str
    scope: RoleScope
    expires_at: float


class ExternalTokens:
    """Checks tokens against the security integrations of the catalog; thread-safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._keys = _FetchedKeys(clock)

    def verify(self, token: str) -> Bearer:
        """Return whom a token speaks for; its times are left to the caller, except that it ends.

        Raises:
            AuthenticationFailed: It does not hold.
            ServiceBusy: The issuer's keys cannot be fetched.
        """
        try:
            claims = jwt.decode(token, options=_UNVERIFIED_OAUTH)
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError as error:
            _refuse_oauth(f"it is no JWT ({error})")
        issuer = claims.get("iss")
        with self._database.reading() as connection:
            known = (
                find_integration_by_issuer(connection, issuer) if isinstance(issuer, str) else None
            )
        if known is None or not known.enabled:
            _refuse_oauth(
                f"its issuer {str(issuer)[:200]!r} is that of no enabled security integration"
            )
        if not _is_signed(token, known, self._keys_of(known, key_id)):
            _log.warning("a token of %r was refused: signature or audience", str(issuer)[:200])
            _refuse_oauth("its signature does not hold, or it is meant for another audience")
        user = self._user(known, claims)
        return Bearer(user.name, _scope(known, claims, user), claims["exp"])

    def _keys_of(self, known: SecurityIntegration, key_id: object) -> list[RSAPublicKey]:
        if known.keys_url is not None:
            return self._keys.of(known.keys_url, key_id)
        return [
            load_der_public_key(base64.b64decode(each))  # type: ignore[misc]
            for each in known.configured_keys
        ]

    def _user(self, known: SecurityIntegration, claims: Mapping[str, Any]) -> UserRecord:
        for claim in known.user_claims:
            value = claims.get(claim)
            if not isinstance(value, str) or not value:
                continue
            with self._database.reading() as connection:
                for name in (value.upper(), value):
                    try:
                        return access.find_user(connection, name)
                    except NotFound:
                        continue
        claims_named = " or ".join(known.user_claims)
        raise AuthenticationFailed(reason=f"its claim {claims_named} names no user")


class _FetchedKeys:
    """Keys of issuers by the address of their JWKS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._fetched: dict[str, tuple[float, dict[object, RSAPublicKey]]] = {}

    def of(self, url: str, key_id: object) -> list[RSAPublicKey]:
        """Return the key of that id, or all where a token names none."""
        with self._lock:
            now = self._clock.monotonic()
            asked_at, keys = self._fetched.get(url, (None, {}))
            is_enough = bool(keys) and (key_id is None or key_id in keys)
            kept_s = _KEYS_KEPT_S if is_enough else _KEYS_AGAIN_S
            if asked_at is None or now - asked_at >= kept_s:
                try:
                    keys = _fetch(url)
                except ServiceBusy as error:
                    # What is known goes on to count; and nobody waits again for half a minute.
                    _log.warning("%s: %r", error, error.__cause__)
                self._fetched[url] = (now, keys)
        if not keys:
            raise ServiceBusy(reason=f"the keys at {url} cannot be fetched")
        if key_id is None:
            return list(keys.values())
        return [keys[key_id]] if key_id in keys else []


def _fetch(url: str) -> dict[object, RSAPublicKey]:
    # Here, not above: few services need it.
    import httpx

    try:
        answer = httpx.get(url, timeout=_ANSWER_S).raise_for_status()
        listed = answer.json()["keys"] if len(answer.content) <= _LONGEST_ANSWER else []
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


def _is_signed(token: str, known: SecurityIntegration, keys: list[RSAPublicKey]) -> bool:
    for key in keys:
        try:
            jwt.decode(
                token,
                key,
                algorithms=["RS256"],
                audience=list(known.audiences),
                issuer=known.issuer,
                options=_SIGNED | {"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError:
            continue
        return True
    return False


def _scope(known: SecurityIntegration, claims: Mapping[str, Any], user: UserRecord) -> RoleScope:
    said = claims.get(known.scope_claim, "")
    words = said if isinstance(said, list) else re.split(r"[ ,]+", str(said))
    if known.any_role and _ANY_ROLE in (str(word).lower() for word in words):
        return RoleScope(())
    named = [internal_name(found[1]) for word in words if (found := _ROLE.match(str(word)))]
    roles = [role for role in named if role not in known.blocked_roles]
    if not roles:
        _refuse_oauth(
            f"its claim {known.scope_claim} has no scope session:role:<role> that may be used"
        )
    # What the user acts as without asking, if the token allows it.
    return RoleScope(tuple(sorted(roles, key=lambda role: role != user.default_role)))


def _refuse_oauth(reason: str) -> NoReturn:
    raise AuthenticationFailed(reason=reason)


_log = logging.getLogger("snowmelt.server")

MAX_LIFETIME_S = 3600
SKEW_S = 30
# A key that is withdrawn stops to count at most this much later.
RECHECK_S = 5.0
_MAX_TOKEN_CHARACTERS = 8192
_MAX_REMEMBERED = 10_000
_KEY_PAIR, _OAUTH, _ACCESS = b"KEYPAIR_JWT", b"OAUTH", b"PROGRAMMATIC_ACCESS_TOKEN"
# No token of this millennium was given so many seconds, or so few milliseconds.
_MILLISECONDS_FROM = 1e11
# Expiry is checked here, by the service's own clock.
_UNVERIFIED: Options = {"verify_signature": False, "verify_exp": False, "verify_iat": False}
_SIGNATURE_ONLY: Options = {"verify_exp": False, "verify_iat": False, "verify_signature": True}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks; what is no key-pair token bears a scope, and that of OAuth narrows the roles."""

    user: str
    scope: RoleScope | None = None


@dataclass(frozen=True, slots=True)
class _Verified:
    caller: Caller
    expires_at: float
    recheck_at: float


class Authenticator:
    """Verifies tokens against the registered keys and remembers them for a few seconds.

    With `anonymous_user` a request without a token is that user's.
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
        self._anonymous = None if anonymous_user is None else Caller(anonymous_user)
        self._external = ExternalTokens(database, clock)
        self._verified: dict[str, _Verified] = {}
        self._lock = threading.Lock()

    def remembered(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the user of a key-pair token verified a moment ago, else None; reads nothing."""
        caller = self.recalled(headers)
        return None if caller is None or caller.scope is not None else caller.user

    def recalled(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return whose token was verified a moment ago, else None; reads nothing."""
        token = headers.get(b"authorization")
        if token is None:
            return self._anonymous
        known = self._verified.get(token.decode("latin-1"))
        if known is None or self._clock.monotonic() >= known.recheck_at:
            return None
        if self._clock.now().timestamp() >= known.expires_at + SKEW_S:
            return None
        return known.caller

    def authenticate(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the user that a key-pair token speaks for; may read the catalog.

        Raises:
            AuthenticationFailed: No token, another kind of token, or one that does not hold.
        """
        caller = self.identify(headers)
        if caller.scope is not None:
            _refuse("only key-pair tokens are accepted here")
        return caller.user

    def identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return who a token of any kind speaks for; may read the catalog and ask its issuer.

        Raises:
            AuthenticationFailed: No token, or one that does not hold.
            ServiceBusy: The issuer's keys cannot be fetched.
        """
        caller = self.recalled(headers)
        if caller is not None:
            return caller
        text = headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, token = text.partition(" ")
        if not text:
            _refuse("a key-pair JWT is needed in the Authorization header")
        if scheme.lower() != "bearer":
            _refuse("the Authorization header must say Bearer")
        kind = headers.get(b"x-snowflake-authorization-token-type", _KEY_PAIR)
        verify = {
            _KEY_PAIR: self._verify,
            _OAUTH: self._verify_external,
            _ACCESS: self._verify_access,
        }.get(kind)
        if verify is None:
            _refuse("tokens are of type KEYPAIR_JWT, OAUTH or PROGRAMMATIC_ACCESS_TOKEN")
        if len(token) > _MAX_TOKEN_CHARACTERS:
            _refuse("it is too long")
        verified = verify(token.strip())
        self._remember(text, verified)
        return verified.caller

    def _verify_external(self, token: str) -> _Verified:
        bearer = self._external.verify(token)
        if bearer.expires_at + SKEW_S <= self._clock.now().timestamp():
            _refuse("it has expired")
        caller = Caller(bearer.user, bearer.scope)
        return _Verified(caller, bearer.expires_at, self._clock.monotonic() + RECHECK_S)

    def _verify_access(self, token: str) -> _Verified:
        key_id, _, secret = token.partition(".")
        with self._database.reading() as connection:
            key = access_keys.find_access_key(connection, self._keyring, key_id)
        if key is None or not secrets.compare_digest(key.secret.encode(), secret.encode()):
            raise _unknown(f"there is no access key {key_id[:80]!r} with this secret")
        caller = Caller(key.user, RoleScope(()))
        return _Verified(caller, math.inf, self._clock.monotonic() + RECHECK_S)

    def _verify(self, token: str) -> _Verified:
        try:
            claims = jwt.decode(token, options=_UNVERIFIED)
        except jwt.PyJWTError as error:
            _refuse(f"it is no JWT ({error})")
        issuer, subject = claims.get("iss"), claims.get("sub")
        if not isinstance(issuer, str) or not isinstance(subject, str):
            _refuse("claims iss and sub are needed")
        # The account is the first label of whatever host name the client was given.
        if not issuer.startswith(subject + "."):
            _refuse("iss must be sub and the key's fingerprint")
        name = subject.partition(".")[2]
        user = self._user(name)
        key = _key_of(user, issuer[len(subject) + 1 :])
        try:
            jwt.decode(token, key, algorithms=["RS256"], options=_SIGNATURE_ONLY)
        except jwt.PyJWTError as error:
            raise _unknown(f"the signature for user {name!r} does not hold ({error})") from None
        return _Verified(
            Caller(user.name), self._expiry(claims), self._clock.monotonic() + RECHECK_S
        )

    def _user(self, name: str) -> UserRecord:
        try:
            with self._database.reading() as connection:
                return access.find_user(connection, name)
        except NotFound:
            raise _unknown(f"there is no user {name!r}") from None

    def _expiry(self, claims: Mapping[str, object]) -> float:
        now = self._clock.now().timestamp()
        expires_at, issued_at = claims.get("exp"), claims.get("iat", now)
        for value in (expires_at, issued_at):
            if isinstance(value, bool) or not isinstance(value, int | float):
                _refuse("claims exp and iat are seconds since 1970")
            if not math.isfinite(value):
                _refuse("claims exp and iat are seconds since 1970")
        expires_at, issued_at = _seconds(expires_at), _seconds(issued_at)
        if expires_at + SKEW_S <= now:
            _refuse("it has expired")
        if issued_at > now + SKEW_S:
            _refuse("it was issued in the future; compare the clocks")
        if expires_at - min(now, max(issued_at, now - SKEW_S)) > MAX_LIFETIME_S + SKEW_S:
            _refuse("it is valid for more than an hour")
        return expires_at

    def _remember(self, text: str, verified: _Verified) -> None:
        with self._lock:
            if len(self._verified) >= _MAX_REMEMBERED:
                self._verified.clear()
            self._verified[text] = verified


def _seconds(instant: object) -> float:
    """Return an instant of a token in seconds; the SDK of the row API writes milliseconds."""
    number = float(str(instant))
    return number / 1000 if number > _MILLISECONDS_FROM else number


def _key_of(user: UserRecord, fingerprint: str) -> RSAPublicKey:
    """Return the public key of `user` that has this fingerprint."""
    for known, der in zip(user.fingerprints, user.public_keys, strict=True):
        if known == fingerprint:
            return load_der_public_key(base64.b64decode(der))  # type: ignore[return-value]
    raise _unknown(f"user {user.name!r} has no key with fingerprint {fingerprint[:80]!r}")


def _unknown(detail: str) -> AuthenticationFailed:
    """Log what is wrong; the text is the same for all, so that nobody learns who has an account."""
    _log.warning("a token was refused: %s", detail)
    reason = "user, key and signature do not go together; the service's log says more"
    return AuthenticationFailed(reason=reason)


def _refuse(reason: str) -> NoReturn:
    raise AuthenticationFailed(reason=reason)
