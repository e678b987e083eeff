"""OAuth tokens: given by the application, or renewed with a refresh token (specification of v1, §1.4)."""

from __future__ import annotations

import base64
import http.client
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import msgspec

from snowmelt.errors import AuthenticationFailed, ConfigurationError, ServiceUnavailable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from snowmelt.clock import Clock

_log = logging.getLogger(__name__)

# As the official client does it.
_RENEWED_AFTER = 0.8
_PAUSES_S = (1.0, 2.0, 4.0)
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class OAuth:
    """How to get tokens with a refresh token; secret and refresh token are not printed.

    `token_endpoint` is where: by default `/oauth/token-request` at the service's address.
    """

    client_id: str
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)
    token_endpoint: str | None = None


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float
    refresh_token: str | None = None


class GivenTokens:
    """Tokens that the application knows how to get; thread-safe if that is."""

    kind = "OAUTH"

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._token = token

    def current(self) -> str:
        """Return what the application says."""
        return self._token if isinstance(self._token, str) else self._token()

    def replace(self, refused: str) -> str:
        """Ask the application again."""
        del refused
        return self.current()


class RefreshedTokens:
    """Tokens of an authorisation server, renewed when 80 % of their time is over; thread-safe."""

    kind = "OAUTH"

    def __init__(self, how: OAuth, endpoint: str, clock: Clock, *, trust: ssl.SSLContext) -> None:
        """Prepare to ask `endpoint`, whose certificate must be one of `trust`.

        Raises:
            ConfigurationError: The endpoint is no http:// or https:// URL.
        """
        self._how = how
        self._endpoint = urlsplit(endpoint)
        if self._endpoint.scheme not in {"http", "https"} or not self._endpoint.hostname:
            raise ConfigurationError(
                setting="token_endpoint", reason=f"{endpoint!r} is no http:// or https:// URL"
            )
        self._clock = clock
        self._trust = trust
        self._refresh_token = how.refresh_token
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = clock.monotonic()

    def current(self) -> str:
        """Return the present token, a new one when it is old.

        Raises:
            AuthenticationFailed: The authorisation server refuses.
            ServiceUnavailable: It does not answer.
        """
        with self._lock:
            if self._clock.monotonic() >= self._renew_at:
                self._renew()
            return self._token

    def replace(self, refused: str) -> str:
        """Return a new token, unless another thread has replaced `refused` already."""
        with self._lock:
            if self._token == refused:
                self._renew()
            return self._token

    def _renew(self) -> None:
        answer = self._answer()
        self._token = answer.access_token
        self._refresh_token = answer.refresh_token or self._refresh_token
        self._renew_at = self._clock.monotonic() + answer.expires_in * _RENEWED_AFTER

    def _answer(self) -> _Answer:
        for pause_s in _PAUSES_S:
            try:
                return self._asked()
            except (OSError, http.client.HTTPException, ServiceUnavailable) as error:
                _log.debug("no token from %s: %s", self._endpoint.netloc, error)
                self._clock.sleep(pause_s)
        try:
            return self._asked()
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(str(error) or type(error).__name__) from error

    def _asked(self) -> _Answer:
        where = self._endpoint
        form = {"grant_type": "refresh_token", "refresh_token": self._refresh_token}
        credentials = f"{self._how.client_id}:{self._how.client_secret}".encode()
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(credentials).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        connection = self._connection()
        try:
            path = (where.path or "/") + (f"?{where.query}" if where.query else "")
            connection.request("POST", path, urlencode(form), headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status in {408, 429} or response.status >= 500:
            raise self._unavailable(f"HTTP {response.status}")
        if response.status != http.HTTPStatus.OK:
            reason = f"{where.netloc} gave no token (HTTP {response.status})"
            raise AuthenticationFailed(reason=reason)
        try:
            return msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError:
            # What the answer holds may be secret.
            reason = f"the answer of {where.netloc} has no access_token and expires_in"
            raise AuthenticationFailed(reason=reason) from None

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._endpoint.hostname or "", self._endpoint.port
        if self._endpoint.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=_ANSWER_S, context=self._trust)
        return http.client.HTTPConnection(host, port, timeout=_ANSWER_S)

    def _unavailable(self, reason: str) -> ServiceUnavailable:
        return ServiceUnavailable(url=self._endpoint.netloc, reason=f"it gives no token: {reason}")
