"""One request of the row API, taken apart."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING
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
from snowmelt.server.error_responses import Answer, json_answer
from snowmelt.wire.row_api import RowApiErrorBody

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.server.rows.scoped_tokens import Claims

__all__ = [
    "code_of",
    "json_answer",
    "text_answer",
    "trouble_answer",
]

_SDK = b"SnowpipeStreamingSDK/"
# What an answer to rows says in it, the SDK says in the next request of the channel.
STICKY = b"x-snowflake-session"


class Call:
    """One request: `path` without parameters, as it came; `user` is for the log.

    `claims` are what its token says, where it is one that was given here.
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
        self.claims: Claims | None = None

    def header(self, name: bytes) -> str:
        """Return a header, empty when it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def client(self) -> SdkClient | None:
        """The client of the official SDK that sends it, None for everybody else."""
        if not self.headers.get(b"user-agent", b"").startswith(_SDK):
            return None
        if self.claims is None:
            return SdkClient()
        issued = self.claims.issued_ms
        born = self.header(STICKY)
        is_told = born.isascii() and born.isdigit() and len(born) < 16
        return SdkClient(self.claims.jti, issued, min(int(born), issued) if is_told else issued)

    def optional(self, name: str) -> str | None:
        """Return a parameter; one that is empty is as good as absent."""
        return self.query.get(name) or None

    @property
    def start_token(self) -> str | None:
        """The offset token of the first row."""
        return self.optional("startOffsetToken")

    @property
    def end_token(self) -> str | None:
        """The offset token of the last row; clients before 1.0 send the one token."""
        return self.optional("endOffsetToken") or self.optional("offsetToken")

    @property
    def retries(self) -> int:
        """How often the client has sent it before."""
        return number_of(self.query.get("retryCount", "0"))


def number_of(text: str) -> int:
    """Return a number that a client tells, 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


# --- Paths of the row API, taken apart as they came, before anything is decoded.

PREFIX = "/v2/streaming/"
_LEVELS = ("databases", "schemas", "pipes")


@dataclass(frozen=True, slots=True)
class Address:
    """What a path names: a pipe, perhaps a channel of it, and what is asked of it.

    `verb` is empty where the method alone says it; `is_data` tells paths beneath `data/`.
    """

    pipe: PipePath
    channel: str | None
    verb: str
    is_data: bool


@lru_cache(maxsize=20_000)
def parse_address(raw_path: str) -> Address | None:
    """Return what a path beneath `/v2/streaming/` names; None when it is none of the row API's."""
    parts = raw_path.removeprefix(PREFIX).split("/")
    is_data = parts[0] == "data"
    parts = parts[1:] if is_data else parts
    if len(parts) < 6 or tuple(parts[0:6:2]) != _LEVELS:
        return None
    # Names may hold an encoded colon or slash; only what is not encoded separates.
    pipe, colon, verb = parts[5].rpartition(":")
    if not colon:
        pipe, verb = parts[5], ""
    path = PipePath(unquote(parts[1]), unquote(parts[3]), unquote(pipe))
    rest = parts[6:]
    if not rest:
        return Address(path, None, verb, is_data) if verb else None
    if verb or rest[0] != "channels" or len(rest) not in {2, 3}:
        return None
    return Address(path, unquote(rest[1]), rest[2] if len(rest) == 3 else "", is_data)


def parse_query(query: bytes) -> Mapping[str, str]:
    """Return the parameters of a request; one that is given twice counts as last given."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


# --- Errors as the row API tells them: an HTTP status that the official SDK reacts to, and a code.

_log = logging.getLogger("snowmelt.server")
_encoder = msgspec.json.Encoder()
# The SDK retries 408, 429 and 5xx, asks for another token at 401 and 403, and gives up the channel
# at other 4xx; 410 would end its client (specification of streaming v2, §5.1).
_WIRE_CODES: dict[type[SnowmeltError], str] = {
    AuthenticationFailed: "ERR_NOT_AUTHENTICATED",
    RequestMalformed: "ERR_REQUEST_MALFORMED",
    TooManyChannels: "ERR_TOO_MANY_CHANNELS",
}


def text_answer(text: str) -> Answer:
    """Return a 200 with bare text."""
    return Answer(HTTPStatus.OK, text.encode(), kind=b"text/plain; charset=utf-8")


def code_of(error: Exception) -> str:
    """Return the code that clients see."""
    if not isinstance(error, SnowmeltError):
        return InternalError.code.upper()
    wire = getattr(error, "wire", None) or _WIRE_CODES.get(type(error))
    return wire or error.code.upper()


def trouble_answer(error: Exception, *, path: str, user: str | None) -> Answer:
    """Turn whatever was raised into an answer, and log what an operator should see."""
    if not isinstance(error, SnowmeltError):
        _log.error("%s failed for user %s", path, user, exc_info=error)
        # Nothing is known to be wrong with the request: the same one again, then.
        error = InternalError("The service failed on this request; its log says why.")
    status = _status(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning("%s answered %d to user %s: %s", path, status, user, error)
    else:
        _log.info("%s answered %d to user %s: %s", path, status, user, error)
    headers = ((b"www-authenticate", b"Bearer"),) if status == HTTPStatus.UNAUTHORIZED else ()
    return Answer(status, _encoder.encode(RowApiErrorBody(code_of(error), str(error))), headers)


def _status(error: SnowmeltError) -> int:
    if error.retryable and error.status != HTTPStatus.TOO_MANY_REQUESTS:
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, UserError) and error.status == HTTPStatus.FORBIDDEN:
        # 403 makes the SDK ask for tokens for hours.
        return HTTPStatus.NOT_FOUND
    return error.status
