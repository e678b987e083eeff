"""Parsed requests, paths and error responses of the row API.

Paths are split before they are percent-decoded. Errors have a code, and an HTTP status that
determines the official SDK's reaction (specification of streaming v2, §5.1).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import msgspec

from snowmelt.errors import (
    AuthenticationFailed,
    InternalError,
    RequestMalformed,
    SnowmeltError,
    TooManyChannels,
    UserError,
)
from snowmelt.ingest.rows.targets import PipePath, SdkClient
from snowmelt.server.error_responses import ServerResponse, json_response
from snowmelt.server.rows.scoped_tokens import ScopedTokenClaims
from snowmelt.wire.row_api import RowApiErrorBody

__all__ = [
    "error_response",
    "get_error_code",
    "json_response",
    "text_response",
]

_SDK_USER_AGENT = b"SnowpipeStreamingSDK/"
# The SDK sends this header of an append response again in the channel's next request.
SESSION_HEADER = b"x-snowflake-session"


class RowApiRequest:
    """One request. `path` is raw and without query. `user` is for the log.

    `claims` are the claims of a scoped token of this deployment, or None for other tokens.
    """

    __slots__ = ("body", "claims", "headers", "method", "path", "query", "user")

    def __init__(
        self, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes]
    ) -> None:
        self.method = method
        self.path = path
        self.query: Mapping[str, str] = parse_query(query)
        self.headers = headers
        self.body = b""
        self.user: str | None = None
        self.claims: ScopedTokenClaims | None = None

    def get_header(self, name: bytes) -> str:
        """Return a header, or an empty string if it is missing."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def sdk_client(self) -> SdkClient | None:
        """The official SDK client that sends the request, or None for other clients."""
        if not self.headers.get(b"user-agent", b"").startswith(_SDK_USER_AGENT):
            return None
        if self.claims is None:
            return SdkClient()
        issued = self.claims.issued_ms
        born = self.get_header(SESSION_HEADER)
        is_told = born.isascii() and born.isdigit() and len(born) < 16
        return SdkClient(self.claims.jti, issued, min(int(born), issued) if is_told else issued)

    def get_parameter(self, name: str) -> str | None:
        """Return a parameter, or None if it is missing or empty."""
        return self.query.get(name) or None

    @property
    def start_offset_token(self) -> str | None:
        """The offset token of the first row."""
        return self.get_parameter("startOffsetToken")

    @property
    def end_offset_token(self) -> str | None:
        """The offset token of the last row. Clients before version 1.0 send a single token."""
        return self.get_parameter("endOffsetToken") or self.get_parameter("offsetToken")

    @property
    def retry_count(self) -> int:
        """Number of earlier attempts, by the client's count."""
        return parse_count(self.query.get("retryCount", "0"))


def parse_count(text: str) -> int:
    """Parse a count that a client sends. Return 0 if it is invalid."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


PATH_PREFIX = "/v2/streaming/"
_PATH_LEVELS = ("databases", "schemas", "pipes")


@dataclass(frozen=True, slots=True)
class RowApiPath:
    """Parsed path: a pipe, optionally one of its channels, and an action.

    `verb` is empty if the method alone determines the action. `is_data_path` is True for paths under
    `data/`.
    """

    pipe: PipePath
    channel: str | None
    verb: str
    is_data_path: bool


@lru_cache(maxsize=20_000)
def parse_path(raw_path: str) -> RowApiPath | None:
    """Parse a path under `/v2/streaming/`. Return None if it is not a path of the row API."""
    parts = raw_path.removeprefix(PATH_PREFIX).split("/")
    is_data = parts[0] == "data"
    parts = parts[1:] if is_data else parts
    if len(parts) < 6 or tuple(parts[0:6:2]) != _PATH_LEVELS:
        return None
    # Only unencoded colons and slashes are separators. Names may contain encoded ones.
    pipe, colon, verb = parts[5].rpartition(":")
    if not colon:
        pipe, verb = parts[5], ""
    path = PipePath(unquote(parts[1]), unquote(parts[3]), unquote(pipe))
    rest = parts[6:]
    if not rest:
        return RowApiPath(path, None, verb, is_data) if verb else None
    if verb or rest[0] != "channels" or len(rest) not in {2, 3}:
        return None
    return RowApiPath(path, unquote(rest[1]), rest[2] if len(rest) == 3 else "", is_data)


def parse_query(query: bytes) -> Mapping[str, str]:
    """Return the parameters of a query. Of repeated names, the last one applies."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


_log = logging.getLogger("snowmelt.server")
_encoder = msgspec.json.Encoder()
# The SDK retries 408, 429 and 5xx, requests another token at 401 and 403, and abandons the channel
# at other 4xx. At 410, it ends the client (specification of streaming v2, §5.1).
_WIRE_CODES: dict[type[SnowmeltError], str] = {
    AuthenticationFailed: "ERR_NOT_AUTHENTICATED",
    RequestMalformed: "ERR_REQUEST_MALFORMED",
    TooManyChannels: "ERR_TOO_MANY_CHANNELS",
}


def text_response(text: str) -> ServerResponse:
    """Return a 200 response with plain text."""
    return ServerResponse(HTTPStatus.OK, text.encode(), content_type=b"text/plain; charset=utf-8")


def get_error_code(error: Exception) -> str:
    """Return the error code for clients."""
    if not isinstance(error, SnowmeltError):
        return InternalError.code.upper()
    wire = getattr(error, "wire", None) or _WIRE_CODES.get(type(error))
    return wire or error.code.upper()


def error_response(error: Exception, *, path: str, user: str | None) -> ServerResponse:
    """Convert an exception to a response, and log it."""
    if not isinstance(error, SnowmeltError):
        _log.error("%s failed for user %s", path, user, exc_info=error)
        # Unexpected error: the request may be valid, so let the client retry it.
        error = InternalError("The service failed on this request. Its log has the reason.")
    status = _choose_http_status(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning("%s answered %d to user %s: %s", path, status, user, error)
    else:
        _log.info("%s answered %d to user %s: %s", path, status, user, error)
    headers = ((b"www-authenticate", b"Bearer"),) if status == HTTPStatus.UNAUTHORIZED else ()
    return ServerResponse(
        status, _encoder.encode(RowApiErrorBody(get_error_code(error), str(error))), headers
    )


def _choose_http_status(error: SnowmeltError) -> int:
    if error.retryable and error.status != HTTPStatus.TOO_MANY_REQUESTS:
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, UserError) and error.status == HTTPStatus.FORBIDDEN:
        # Not 403, after which the SDK requests new tokens for hours.
        return HTTPStatus.NOT_FOUND
    return error.status
