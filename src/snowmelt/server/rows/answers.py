"""Errors as the row API tells them: an HTTP status that the official SDK reacts to, and a code."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec

from snowmelt.errors import (
    AuthenticationFailed,
    InternalError,
    RequestMalformed,
    SnowmeltError,
    TooManyChannels,
    UserError,
)
from snowmelt.server.problems import Answer, json_answer
from snowmelt.wire.rows import Trouble

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
    return Answer(status, _encoder.encode(Trouble(code_of(error), str(error))), headers)


def _status(error: SnowmeltError) -> int:
    if error.retryable and error.status != HTTPStatus.TOO_MANY_REQUESTS:
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, UserError) and error.status == HTTPStatus.FORBIDDEN:
        # 403 makes the SDK ask for tokens for hours.
        return HTTPStatus.NOT_FOUND
    return error.status


__all__ = ["code_of", "json_answer", "text_answer", "trouble_answer"]
