"""OAuth tokens of authorisation servers elsewhere: JWTs, RS256 only, of issuers that are known."""

from __future__ import annotations

import base64
import logging
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import jwt
from cryptography.hazmat.primitives.serialization import load_der_public_key

from snowmelt.catalog import access
from snowmelt.catalog.security_integrations import integration_of_issuer
from snowmelt.errors import AuthenticationFailed, NotFound, RoleNotGranted, ServiceBusy
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from jwt.types import Options

    from snowmelt.catalog.access import UserRecord
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.security_integrations import SecurityIntegration
    from snowmelt.clock import Clock

_log = logging.getLogger("snowmelt.server")

_UNVERIFIED: Options = {"verify_signature": False, "verify_exp": False, "verify_iat": False}
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
            claims = jwt.decode(token, options=_UNVERIFIED)
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError as error:
            _refuse(f"it is no JWT ({error})")
        issuer = claims.get("iss")
        with self._database.reading() as connection:
            known = integration_of_issuer(connection, issuer) if isinstance(issuer, str) else None
        if known is None or not known.enabled:
            _refuse(f"its issuer {str(issuer)[:200]!r} is that of no enabled security integration")
        if not _is_signed(token, known, self._keys_of(known, key_id)):
            _log.warning("a token of %r was refused: signature or audience", str(issuer)[:200])
            _refuse("its signature does not hold, or it is meant for another audience")
        user = self._user(known, claims)
        return Bearer(user.name, _scope(known, claims, user), claims["exp"])

    def _keys_of(self, known: SecurityIntegration, key_id: object) -> list[RSAPublicKey]:
        if known.keys_url is not None:
            return self._keys.of(known.keys_url, key_id)
        return [
            load_der_public_key(base64.b64decode(each))  # type: ignore[misc]
            for each in known.keys
        ]

    def _user(self, known: SecurityIntegration, claims: Mapping[str, Any]) -> UserRecord:
        for claim in known.user_claims:
            value = claims.get(claim)
            if not isinstance(value, str) or not value:
                continue
            with self._database.reading() as connection:
                for name in (value.upper(), value):
                    try:
                        return access.user_by_name(connection, name)
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
        _refuse(f"its claim {known.scope_claim} has no scope session:role:<role> that may be used")
    # What the user acts as without asking, if the token allows it.
    return RoleScope(tuple(sorted(roles, key=lambda role: role != user.default_role)))


def _refuse(reason: str) -> NoReturn:
    raise AuthenticationFailed(reason=reason)
