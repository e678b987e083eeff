"""Authenticate engines by access tokens, access keys, or other tokens of the service.

Engines exchange ID and secret of an access key for an access token of one hour (`POST
/iceberg/v1/oauth/tokens`, OAuth client credentials). A token becomes invalid within seconds after
its access key is removed. Key-pair JWTs, OAuth tokens of configured issuers and access keys are
also accepted as bearer tokens.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

import jwt

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security import encryption_keys
from snowmelt.catalog.security.access_control import resolve_effective_role
from snowmelt.catalog.security.encryption_keys import CatalogToken, KeyRing
from snowmelt.clock import Clock
from snowmelt.errors import AuthenticationFailed, UserError
from snowmelt.schema.types import to_internal_name
from snowmelt.server.auth import RECHECK_INTERVAL_S, Authenticator, RoleScope

TOKEN_LIFETIME_S = 3600
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
_ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105
_ROLE_PATTERN = re.compile(r"(?:PRINCIPAL_ROLE|session:role):(.+)\Z", re.IGNORECASE)
# Default scopes of engines. They select the user's default role.
_DEFAULT_SCOPES = frozenset({"", "ALL", "CATALOG", "PRINCIPAL_ROLE:ALL"})
_ACCESS_KEY_PATTERN = re.compile(r"SMAK[A-Z2-7]{16}\.\S+\Z")
_MAX_CACHED_TOKENS = 10_000
# PyIceberg sends this token if it has no credentials.
_ABSENT_TOKENS = frozenset({"Bearer None", "Bearer"})


class TokenRequestInvalid(UserError, code="token_request_invalid"):
    """Invalid token request: {reason}."""

    def __init__(self, oauth_error: str, reason: str) -> None:
        super().__init__(reason=reason)
        self.oauth_error = oauth_error


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """User and role of a request."""

    user: str
    role: str


class EngineAuthenticator:
    """Issues and verifies tokens of engines. Thread-safe. Methods block on the catalog."""

    def __init__(
        self, database: Database, keyring: KeyRing, authenticator: Authenticator, clock: Clock
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._authenticator = authenticator
        self._clock = clock
        self._known_until: dict[str, tuple[EngineIdentity, float]] = {}
        self._lock = threading.Lock()

    def authenticate(self, headers: Mapping[bytes, bytes]) -> EngineIdentity:
        """Return the user and role of a request.

        Raises:
            AuthenticationFailed: If there is no valid token.
            RoleNotGranted: If the role of the token is not granted to the user.
            ServiceBusy: If the keys of a token's issuer cannot be fetched.
        """
        text = headers.get(b"authorization", b"").decode("latin-1").strip()
        if not text or text in _ABSENT_TOKENS:
            return self._find_anonymous(headers)
        now = self._clock.monotonic()
        known = self._known_until.get(text)
        if known is not None and now < known[1]:
            return known[0]
        identity = self._verify(text, headers)
        with self._lock:
            if len(self._known_until) >= _MAX_CACHED_TOKENS:
                self._known_until.clear()
            self._known_until[text] = (identity, now + RECHECK_INTERVAL_S)
        return identity

    def issue_token(self, headers: Mapping[bytes, bytes], body: bytes) -> dict[str, object]:
        """Return the response to a token request.

        Raises:
            TokenRequestInvalid: If the request is malformed, or the access key is invalid.
        """
        form = _parse_form(body)
        grant = form.get("grant_type", "")
        role = _parse_scope(form.get("scope", ""))
        if grant == "client_credentials":
            key_id, secret = _find_credentials(headers, form)
            with self._database.reading() as connection:
                key = encryption_keys.find_access_key(connection, self._keyring, key_id)
            if key is None or not secrets.compare_digest(key.secret.encode(), secret.encode()):
                raise TokenRequestInvalid(
                    "invalid_client", "client ID and secret are not those of an access key"
                )
            user = key.user
        elif grant == _TOKEN_EXCHANGE:
            given = self._parse_valid_token(form.get("subject_token", ""))
            if given is None:
                raise TokenRequestInvalid("invalid_grant", "the subject token is invalid")
            if role not in {"", given.role}:
                # A holder of a token for one role must not get the other roles of the user.
                raise TokenRequestInvalid(
                    "invalid_scope",
                    "the subject token is for another role. Request a token for this role with the "
                    "access key",
                )
            key_id, user, role = given.access_key_id, given.user, given.role
        else:
            raise TokenRequestInvalid(
                "unsupported_grant_type",
                f"grant type {grant[:80]!r} is not supported. Use client_credentials",
            )
        with self._database.reading() as connection:
            try:
                resolve_effective_role(connection, user, role or None)
            except UserError as error:
                raise TokenRequestInvalid("invalid_scope", str(error)) from None
        expires_at = self._clock.now().timestamp() + TOKEN_LIFETIME_S
        token = CatalogToken(key_id, user, role, expires_at)
        return {
            "access_token": encryption_keys.CATALOG_TOKENS.seal(self._keyring, token),
            "token_type": "bearer",
            "expires_in": TOKEN_LIFETIME_S,
            "issued_token_type": _ACCESS_TOKEN_TYPE,
        }

    def _find_anonymous(self, headers: Mapping[bytes, bytes]) -> EngineIdentity:
        """Return the identity of a request without a token, which only the development mode accepts."""
        without_token = {name: value for name, value in headers.items() if name != b"authorization"}
        principal = self._authenticator.get_cached_principal(without_token)
        if principal is None:
            raise AuthenticationFailed(
                reason="a bearer token is required. Configure the engine with an access key "
                "(`snowmelt user access-key NAME`) as its credential"
            )
        return self._resolve(principal.user, None)

    def _verify(self, text: str, headers: Mapping[bytes, bytes]) -> EngineIdentity:
        scheme, _, token = text.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer":
            raise AuthenticationFailed(reason="the Authorization header must be a bearer token")
        own = self._parse_valid_token(token)
        if own is not None:
            return self._resolve(own.user, own.role or None)
        named = {**headers, b"authorization": f"Bearer {token}".encode("latin-1", "replace")}
        named[b"x-snowflake-authorization-token-type"] = _find_token_type(token)
        principal = self._authenticator.authenticate_any(named)
        scope = principal.scope or RoleScope(())
        return self._resolve(principal.user, scope.resolve_role(None, principal.user))

    def _resolve(self, user: str, role: str | None) -> EngineIdentity:
        with self._database.reading() as connection:
            named = None if role is None else to_internal_name(role)
            return EngineIdentity(user, resolve_effective_role(connection, user, named))

    def _parse_valid_token(self, text: str) -> CatalogToken | None:
        token = encryption_keys.CATALOG_TOKENS.parse(self._keyring, text)
        if token is None:
            return None
        if self._clock.now().timestamp() >= token.expires_at:
            raise AuthenticationFailed(reason="the access token has expired. Request a new one")
        with self._database.reading() as connection:
            key = encryption_keys.find_access_key(connection, self._keyring, token.access_key_id)
        if key is None or key.user != token.user:
            raise AuthenticationFailed(reason="the access key of this token was removed")
        return token


def _find_token_type(token: str) -> bytes:
    """Determine the type of a service token by its form."""
    if _ACCESS_KEY_PATTERN.match(token):
        return b"PROGRAMMATIC_ACCESS_TOKEN"
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        raise AuthenticationFailed(
            reason="the bearer token is neither an access token of this catalog nor a JWT"
        ) from None
    issuer, subject = str(claims.get("iss", "")), str(claims.get("sub", ""))
    return b"KEYPAIR_JWT" if issuer.startswith(f"{subject}.SHA256:") else b"OAUTH"


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise TokenRequestInvalid("invalid_request", "the body is not a form") from None
    return {name: values[-1] for name, values in fields.items()}


def _find_credentials(headers: Mapping[bytes, bytes], form: Mapping[str, str]) -> tuple[str, str]:
    """Return the client ID and secret in the form or in HTTP Basic authentication."""
    scheme, _, encoded = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if "client_secret" not in form and scheme.lower() == "basic":
        try:
            name, _, secret = base64.b64decode(encoded.strip()).decode().partition(":")
        except (binascii.Error, ValueError):
            raise TokenRequestInvalid("invalid_client", "the Basic header is invalid") from None
        return unquote(name), unquote(secret)
    return form.get("client_id", ""), form.get("client_secret", "")


def _parse_scope(text: str) -> str:
    """Return the internal name of the role in a scope, or an empty string for the default role."""
    for word in text.split():
        if word.upper() in _DEFAULT_SCOPES:
            continue
        found = _ROLE_PATTERN.match(word)
        if found is None:
            raise TokenRequestInvalid(
                "invalid_scope",
                f"scope {word[:80]!r} is unknown. Use PRINCIPAL_ROLE:<role>, or none",
            )
        return to_internal_name(found[1])
    return ""
