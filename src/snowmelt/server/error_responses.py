"""Convert errors to HTTP responses: status codes and JSON bodies.

Also defines the errors of requests that are rejected before parsing.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec

from snowmelt.errors import InternalError, SnowmeltError, UserError

_log = logging.getLogger("snowmelt.server")
_encoder = msgspec.json.Encoder()
# Errors that are sent with their HTTP status. All other errors are sent with status 200 and a
# `status_code`, because official clients read only that (specification of v1, §2).
_HTTP_STATUS_ERRORS = {
    "request_malformed",
    "request_too_large",
    "host_refused",
    "content_type_refused",
    "route_not_found",
    "method_refused",
    "authentication_failed",
}
_HEADERS_BY_STATUS: dict[int, tuple[tuple[bytes, bytes], ...]] = {
    HTTPStatus.SERVICE_UNAVAILABLE: ((b"retry-after", b"1"),),
    HTTPStatus.UNAUTHORIZED: ((b"www-authenticate", b"Bearer"),),
}


class ServerResponse(msgspec.Struct, frozen=True):
    """HTTP response: status, body, additional headers and content type."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"

    def make_start_message(self) -> dict[str, object]:
        """Return the ASGI message that starts the response."""
        return {
            "type": "http.response.start",
            "status": self.status,
            "headers": self.all_headers(),
        }

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """Return all headers, including content type and length."""
        length = b"%d" % len(self.body)
        return [(b"content-type", self.content_type), (b"content-length", length), *self.headers]


class ErrorBody(msgspec.Struct):
    """Body of an error response. `error` is the stable code in `errors`.

    It must not have a key `code`, because the official client closes itself if the value is "59".
    """

    status_code: int
    message: str
    error: str


def json_response(message: object) -> ServerResponse:
    """Return a response with status 200 and `message` as JSON."""
    return ServerResponse(HTTPStatus.OK, _encoder.encode(message))


def error_response(error: Exception, *, path: str, user: str | None) -> ServerResponse:
    """Convert an exception to a response, and log it for operators."""
    about: dict[str, object] = {"path": path, "user": user}
    if isinstance(error, SnowmeltError):
        about["error"] = error.code
        about |= {name: error.fields[name] for name in ("table", "channel") if name in error.fields}
    else:
        _log.error("%s failed for user %s", path, user, exc_info=error, extra=about)
        error = InternalError("The service failed on this request; its log says why.")
    known = error
    response_code = getattr(known, "wire_code", known.response_code)
    body = _encoder.encode(ErrorBody(response_code, str(known), known.code))
    if isinstance(known, UserError) and known.code not in _HTTP_STATUS_ERRORS:
        _log.info("%s refused for user %s: %s", path, user, known, extra=about)
        return ServerResponse(HTTPStatus.OK, body)
    # Clients of v1 retry a 503 for two minutes (specification §2.8).
    status = HTTPStatus.SERVICE_UNAVAILABLE if known.retryable else known.status
    about["status"] = int(status)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning("%s answered %d to user %s: %s", path, status, user, known, extra=about)
    elif known.code in _HTTP_STATUS_ERRORS:
        _log.warning("%s answered %d: %s", path, status, known, extra=about)
    elif not known.retryable:
        status = HTTPStatus.OK
    return ServerResponse(status, body, _HEADERS_BY_STATUS.get(status, ()))


class RequestTooLarge(UserError, status=413):
    """The request's body is larger than {limit} bytes."""


class HostNotAllowed(UserError, code="host_refused", status=403):
    """Host {host} is not allowed: the service listens on loopback. If a proxy forwards this name, add it to SNOWMELT_PUBLIC_HOSTS."""


class UnsupportedMediaType(UserError, code="content_type_refused", status=415):
    """The body must be sent as application/json, not as {content_type}."""


class RouteNotFound(UserError, status=404):
    """There is nothing at {path}."""


class MethodNotAllowed(UserError, code="method_refused", status=405):
    """{path} takes {allowed}, not {method}."""
