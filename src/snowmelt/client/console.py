"""Client of the console's JSON API, for commands. Sends one request at a time."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from snowmelt.client.connection import ServiceConnection
from snowmelt.errors import AuthenticationFailed, ServiceUnavailable, StatementFailed

_API_PATH = "/console/api/v1"
_TIMEOUT_S = 30.0


class ConsoleClient(ServiceConnection):
    """Reads the JSON API of a service's console as one user."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        private_key: str | bytes | Path | None = None,
        role: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """Create a client. Sends no request.

        Args:
            url: URL of the service, such as `http://127.0.0.1:8080`.
            user: User whose public key is stored in the service.
            private_key: RSA key as PEM text, base64 PKCS#8, or the path of a file.
            role: Role to act as. None: the user's default role.
            ca_file: File with certificates to trust. None: the certificates of the system.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        self.has_key = private_key is not None
        self._role = role
        super().__init__(
            url,
            user=user,
            private_key=private_key,
            oauth=None,
            ca_file=ca_file,
            timeout_s=_TIMEOUT_S,
        )

    def fetch(self, path: str, **query: str) -> dict[str, Any]:
        """Return the document at a path of the console's JSON API.

        Raises:
            AuthenticationFailed: If the service rejects the key.
            ServiceUnavailable: If the service cannot be reached, or has no console.
            StatementFailed: If the console rejects the request, with the reason.
        """
        given = query | ({} if self._role is None else {"role": self._role})
        status, body = self._transport.post_once(f"{_API_PATH}{path}", msgspec.json.encode(given))
        try:
            document = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            document = {}
        if status == HTTPStatus.OK:
            return document
        message = str(document.get("message", ""))
        if status == HTTPStatus.UNAUTHORIZED:
            raise AuthenticationFailed(message or None, reason=f"HTTP {status}")
        if status == HTTPStatus.NOT_FOUND and document.get("error") == "route_not_found":
            raise ServiceUnavailable(
                url=self.url, reason="it has no console (setting console, or an older version)"
            )
        raise StatementFailed(reason=message or f"HTTP {status}", code="http_error")
