"""Token providers: OAuth tokens and key-pair JWTs (specification of v1, §1.3, §1.4).

OAuth tokens come from the application, or from an authorization server with a refresh token.
Key-pair tokens are JWTs (RS256) that are signed with the private key of the user.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urlsplit

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from snowmelt.backoff import growing_delays_s
from snowmelt.clock import Clock
from snowmelt.errors import AuthenticationFailed, ConfigurationError, ServiceUnavailable

if TYPE_CHECKING:
    import ssl


_log = logging.getLogger(__name__)

# Token lifetimes are the same as in the official client.
_RENEWAL_LIFETIME_FRACTION = 0.8
_MAX_RETRIES, _INITIAL_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 3, 1.0, 4.0
_RESPONSE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class OAuth:
    """Credentials to get tokens with a refresh token. `repr` hides both secrets.

    `token_endpoint` is the URL of the authorization server. None: `/oauth/token-request` at the URL
    of the service.
    """

    client_id: str
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)
    token_endpoint: str | None = None


class _TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float
    refresh_token: str | None = None


class CallbackTokenProvider:
    """Provides tokens from a callback of the application. Thread-safe if the callback is."""

    kind = "OAUTH"

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._token = token

    def get_token(self) -> str:
        """Return the token that the callback returns."""
        return self._token if isinstance(self._token, str) else self._token()

    def replace_token(self, rejected_token: str) -> str:
        """Call the callback again, and return its token."""
        del rejected_token
        return self.get_token()


class _RenewingTokenProvider(ABC):
    """Keeps a token, and renews it when it is old or rejected. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = clock.monotonic()

    def get_token(self) -> str:
        """Return the current token. Renew it first if it is old.

        Raises:
            AuthenticationFailed: If the authorization server rejects the request.
            ServiceUnavailable: If the authorization server does not respond.
        """
        with self._lock:
            if self._clock.monotonic() >= self._renew_at:
                self._renew_token()
            return self._token

    def replace_token(self, rejected_token: str) -> str:
        """Return a new token, unless another thread has replaced `rejected_token`."""
        with self._lock:
            if self._token == rejected_token:
                self._renew_token()
            return self._token

    @abstractmethod
    def _renew_token(self) -> None:
        """Set `_token` and `_renew_at`."""


class RefreshTokenProvider(_RenewingTokenProvider):
    """Provides tokens of an authorization server, renewed after 80 % of their lifetime. Thread-safe."""

    kind = "OAUTH"

    def __init__(
        self, oauth: OAuth, endpoint: str, clock: Clock, *, ssl_context: ssl.SSLContext
    ) -> None:
        """Prepare requests to `endpoint`.

        Raises:
            ConfigurationError: If the endpoint is not an http:// or https:// URL.
        """
        self._oauth = oauth
        self._endpoint = urlsplit(endpoint)
        if self._endpoint.scheme not in {"http", "https"} or not self._endpoint.hostname:
            raise ConfigurationError(
                setting="token_endpoint", reason=f"{endpoint!r} is not an http:// or https:// URL"
            )
        super().__init__(clock)
        self._ssl_context = ssl_context
        self._refresh_token = oauth.refresh_token

    def _renew_token(self) -> None:
        answer = self._request_token_with_retries()
        self._token = answer.access_token
        self._refresh_token = answer.refresh_token or self._refresh_token
        self._renew_at = self._clock.monotonic() + answer.expires_in * _RENEWAL_LIFETIME_FRACTION

    def _request_token_with_retries(self) -> _TokenResponse:
        delays_s = growing_delays_s(_INITIAL_RETRY_DELAY_S, _MAX_RETRY_DELAY_S, jitter=0.0)
        for pause_s in islice(delays_s, _MAX_RETRIES):
            try:
                return self._request_token()
            except (OSError, http.client.HTTPException, ServiceUnavailable) as error:
                _log.debug("no token from %s: %s", self._endpoint.netloc, error)
                self._clock.sleep(pause_s)
        try:
            return self._request_token()
        except (OSError, http.client.HTTPException) as error:
            raise self._make_unavailable_error(str(error) or type(error).__name__) from error

    def _request_token(self) -> _TokenResponse:
        where = self._endpoint
        form = {"grant_type": "refresh_token", "refresh_token": self._refresh_token}
        credentials = f"{self._oauth.client_id}:{self._oauth.client_secret}".encode()
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(credentials).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        connection = self._make_connection()
        try:
            path = (where.path or "/") + (f"?{where.query}" if where.query else "")
            connection.request("POST", path, urlencode(form), headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status in {408, 429} or response.status >= 500:
            raise self._make_unavailable_error(f"HTTP {response.status}")
        if response.status != http.HTTPStatus.OK:
            reason = f"{where.netloc} returned no token (HTTP {response.status})"
            raise AuthenticationFailed(reason=reason)
        try:
            return msgspec.json.decode(body, type=_TokenResponse)
        except msgspec.DecodeError:
            # Do not log the response, which may contain secrets.
            reason = f"the response of {where.netloc} has no access_token and expires_in"
            raise AuthenticationFailed(reason=reason) from None

    def _make_connection(self) -> http.client.HTTPConnection:
        host, port = self._endpoint.hostname or "", self._endpoint.port
        if self._endpoint.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=_RESPONSE_TIMEOUT_S, context=self._ssl_context
            )
        return http.client.HTTPConnection(host, port, timeout=_RESPONSE_TIMEOUT_S)

    def _make_unavailable_error(self, reason: str) -> ServiceUnavailable:
        return ServiceUnavailable(
            url=self._endpoint.netloc, reason=f"it returned no token: {reason}"
        )


_JWT_LIFETIME_S = 59 * 60
_JWT_RENEWAL_AGE_S = 54 * 60
# Length of a 512-bit key in base64. Shorter texts cannot be keys, so errors may show them.
_MIN_KEY_CHARACTERS = 400
# Digests of validated keys, because validation takes longer than the rest of a client's start.
_validated_key_digests: set[bytes] = set()


class TokenProvider(Protocol):
    """Interface of providers of the `Authorization` header. `kind` is the token type."""

    kind: str

    def get_token(self) -> str:
        """Return a valid token."""

    def replace_token(self, rejected_token: str) -> str:
        """Return another token after the service has rejected this one."""


class KeyPairTokenProvider(_RenewingTokenProvider):
    """Provides JWTs of one user, renewed after 54 minutes. Thread-safe."""

    kind = "KEYPAIR_JWT"

    def __init__(self, account: str, user: str, key: RSAPrivateKey, clock: Clock) -> None:
        self._subject = f"{account.upper()}.{user.upper()}"
        self._issuer = f"{self._subject}.{compute_key_fingerprint(key)}"
        self._key = key
        super().__init__(clock)

    def _renew_token(self) -> None:
        issued_at = int(self._clock.now().timestamp())
        claims = {
            "iss": self._issuer,
            "sub": self._subject,
            "iat": issued_at,
            "exp": issued_at + _JWT_LIFETIME_S,
        }
        # The header must be exactly {"alg": "RS256"}. None removes "typ", which pyjwt adds.
        self._token = jwt.encode(claims, self._key, algorithm="RS256", headers={"typ": None})
        self._renew_at = self._clock.monotonic() + _JWT_RENEWAL_AGE_S


def compute_key_fingerprint(key: RSAPrivateKey) -> str:
    """Return the fingerprint of the public key: `SHA256:` and the base64 SHA-256 of its DER form."""
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode()


def load_private_key(source: str | bytes | Path) -> RSAPrivateKey:
    """Load the RSA key in a PEM text, a base64 PKCS#8 text, or a file with either.

    A text is a path if it names an existing file.

    Raises:
        ConfigurationError: If the file does not exist, contains no RSA key, or the key has a
            passphrase.
    """
    data, what = _read_private_key_text(source)
    digest = hashlib.sha256(data).digest()
    known = digest in _validated_key_digests
    try:
        if b"-----BEGIN" in data:
            key = serialization.load_pem_private_key(
                data, password=None, unsafe_skip_rsa_key_validation=known
            )
        else:
            der = base64.b64decode(b"".join(data.split()), validate=True)
            key = serialization.load_der_private_key(
                der, password=None, unsafe_skip_rsa_key_validation=known
            )
    except TypeError as error:
        reason = f"{what} has a passphrase. Remove it (`openssl pkcs8 -topk8 -nocrypt`)"
        raise ConfigurationError(setting="private_key", reason=reason) from error
    except (ValueError, UnsupportedAlgorithm, binascii.Error) as error:
        reason = f"{what} is neither a key in PEM or base64 PKCS#8 form nor the path of one"
        if b"PUBLIC KEY-----" in data:
            reason = f"{what} is a public key; the client needs the private key"
        raise ConfigurationError(setting="private_key", reason=reason) from error
    if not isinstance(key, RSAPrivateKey):
        raise ConfigurationError(setting="private_key", reason="it is not an RSA key")
    _validated_key_digests.add(digest)
    return key


def _read_private_key_text(source: str | bytes | Path) -> tuple[bytes, str]:
    """Return the text of the key, and a description of its source for errors."""
    if isinstance(source, bytes):
        return source, "it"
    if isinstance(source, str) and ("\n" in source or "-----BEGIN" in source):
        return source.encode(), "it"
    try:
        return Path(source).read_bytes(), f"file {source}"
    except OSError as error:
        if isinstance(source, Path):
            reason = f"{source} cannot be read: {error.strerror}"
            raise ConfigurationError(setting="private_key", reason=reason) from error
        return source.encode(), _describe_key_source(source)
    except ValueError:  # The text contains NUL, so it is not a path.
        return str(source).encode(), "it"


def _describe_key_source(text: str) -> str:
    """Return a text that is too short for a key, and therefore safe to show, or else "it"."""
    return repr(text) if len(text) < _MIN_KEY_CHARACTERS else "it"
