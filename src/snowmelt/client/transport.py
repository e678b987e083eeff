"""Send HTTP requests to the service, with connection reuse, tokens and retries.

All requests of v1 are idempotent. After a broken connection, a timeout or an HTTP status of 408,
429 or 5xx, the same bytes are sent again until the backoff's deadline. A status code of the service
other than 0 becomes an error. (Specification of v1, §1.5, §2.7, §2.8.)
"""

from __future__ import annotations

import http.client
import logging
import platform
import ssl
import threading
import uuid
from collections.abc import Callable
from http import HTTPStatus
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from snowmelt import errors, tracing
from snowmelt.backoff import Backoff
from snowmelt.clock import Clock
from snowmelt.errors import (
    AuthenticationFailed,
    ConfigurationError,
    RequestRefused,
    ServiceUnavailable,
    SnowmeltError,
)
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from snowmelt.client.auth import TokenProvider

_log = logging.getLogger(__name__)

_MAX_IDLE_CONNECTIONS = 4
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)
_STALE_CONNECTION_ERRORS = (http.client.RemoteDisconnected, ConnectionError)
_MAX_REASON_CHARACTERS = 500
# Statuses that proxies and load balancers return while the service behind them is replaced.
_INTERMEDIARY_STATUSES = frozenset({403, 404, 405, 407, 421, 425})


class ApiResponse(Protocol):
    """Fields that all responses have."""

    status_code: int
    message: str


ResponseT = TypeVar("ResponseT", bound=ApiResponse)


class _HttpResponse(NamedTuple):
    status: int
    body: bytes


class ServiceAddress(NamedTuple):
    """Parsed URL of a service."""

    url: str
    uses_tls: bool
    host: str
    port: int
    base_path: str

    @property
    def account(self) -> str:
        """Account in tokens: the first label of the host (specification of v1, §1.3)."""
        return self.host.split(".", 1)[0].upper()


def parse_service_url(url: str) -> ServiceAddress:
    """Parse `http://host:port`, with an optional base path.

    Raises:
        ConfigurationError: If scheme, host or port are invalid, or there is a query.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(setting="url", reason=f"{url!r}: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
        reason = f"{url!r} is not of the form http://host:port or https://host"
        raise ConfigurationError(setting="url", reason=reason)
    secure = parts.scheme == "https"
    if port is None:
        port = 443 if secure else 80
    path = parts.path.rstrip("/")
    return ServiceAddress(url.strip().rstrip("/"), secure, parts.hostname, port, path)


class Transport:
    """Sends the requests of one client. Thread-safe.

    Attributes:
        timeout_s: Timeout of each connection step in seconds.
        last_error: Reason why the last attempt failed, or None after a success.
        on_trouble: Function that is called with the first of several consecutive errors.
        stop_event: Event that ends all waits for retries.
    """

    def __init__(
        self,
        address: ServiceAddress,
        token_provider: TokenProvider | None,
        clock: Clock,
        *,
        timeout_s: float,
        ca_file: str | None = None,
    ) -> None:
        self.address = address
        self.stop_event = threading.Event()
        self.last_error: ServiceUnavailable | None = None
        self.on_trouble: Callable[[SnowmeltError], None] | None = None
        self._token_provider = token_provider
        self._clock = clock
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle_connections: list[http.client.HTTPConnection] = []
        self._ssl_context = make_ssl_context(ca_file) if address.uses_tls else None
        version = metadata.version("snowmelt")
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json; charset=UTF-8",
            "User-Agent": f"snowmelt/{version} Python/{platform.python_version()}",
            "X-Snowmelt-Client": version,
        }

    def make_backoff(self, timeout_s: float) -> Backoff:
        """Create a backoff for one or more requests."""
        return Backoff(timeout_s, self._clock)

    def send_request(
        self, path: str, request: msgspec.Struct, response_type: type[ResponseT], backoff: Backoff
    ) -> ResponseT:
        """Send a request, with retries, and return a response with status 0.

        Raises:
            ServiceUnavailable: If the backoff ends without a definite response: no response, HTTP
                408, 429 or 5xx, or codes 7 and 10. The request may have been executed.
            AuthenticationFailed: If the service also responds with HTTP 401 to a new token.
            SnowmeltError: If the service rejects the request. The class depends on the code. The
                field `retried` is True if the request was sent more than once.
        """
        body = msgspec.json.encode(request)
        retried = False
        while True:
            try:
                answer = self._send_once(path, body, response_type)
            except ServiceUnavailable as failure:
                self.wait_before_retry(backoff, failure)
                retried = True
                continue
            if answer.status_code == 0:
                self.last_error = None
                return answer
            refusal = error_for_status(answer.status_code, answer.message, self.address.url)
            refusal.fields["retried"] = retried
            if answer.status_code not in TRANSIENT_CODES:
                raise refusal
            self.wait_before_retry(backoff, self.make_unavailable_error(str(refusal)))

    def post_once(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request that must not arrive twice. Return the HTTP status and body of the response.

        Raises:
            ServiceUnavailable: If there was no response. Its cause is the error of the connection.
        """
        # Use a new connection: on a reused one, a lost response cannot be distinguished from a
        # stale connection.
        self._close_pooled_connections()
        reply = self._post_with_token(path, body)
        return reply.status, reply.body

    def wait_before_retry(self, backoff: Backoff, failure: ServiceUnavailable) -> None:
        """Wait before the next attempt.

        Raises:
            ServiceUnavailable: If the backoff has ended or the client stops; raises `failure`.
        """
        if self.last_error is None and self.on_trouble is not None:
            self.on_trouble(failure)
        self.last_error = failure
        pause_s = backoff.next_delay_s()
        if pause_s is None:
            said = str(failure.fields["reason"]).rstrip(".")
            reason = f"{said}; given up after {backoff.timeout_s:g} s"
            raise self.make_unavailable_error(reason) from failure
        _log.debug("%s Retrying in %.2f s.", failure, pause_s)
        if self.stop_event.wait(pause_s):
            raise failure

    def stop(self) -> None:
        """Stop retries and close idle connections."""
        self.stop_event.set()
        self._close_pooled_connections()

    def reset_after_fork(self) -> None:
        """Drop state that is shared with the parent process."""
        self._lock = threading.Lock()
        self._idle_connections = []
        self.stop_event = threading.Event()
        self.stop_event.set()

    def _send_once(self, path: str, body: bytes, response_type: type[ResponseT]) -> ResponseT:
        content = self.post_idempotent(path, body)
        try:
            return msgspec.json.decode(content, type=response_type)
        except msgspec.DecodeError as error:
            # A proxy has responded, or the response is truncated: retry.
            raise self.make_unavailable_error(f"its response cannot be parsed ({error})") from error

    def post_idempotent(self, path: str, body: bytes) -> bytes:
        """Send an idempotent request once, and return the body of the response.

        Raises:
            ServiceUnavailable: If there is no response, or HTTP 408, 429 or 5xx.
            AuthenticationFailed: If the service also responds with HTTP 401 to a new token.
            RequestRefused: If the service rejects the request.
        """
        reply = self._post_with_token(path, body)
        if reply.status == HTTPStatus.OK:
            return reply.body
        said = _describe_response(reply)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            if self._token_provider is None:
                raise AuthenticationFailed(
                    reason="the client has no credentials. Set user and private_key"
                )
            # The message of the service is a complete sentence.
            raise AuthenticationFailed(find_response_message(reply.body) or None, reason=said)
        if reply.status in {408, 429} or reply.status >= 500:
            raise self.make_unavailable_error(said)
        raise RequestRefused(
            url=self.address.url,
            reason=said,
            status=reply.status,
            elsewhere=_is_from_intermediary(reply),
        )

    def _post_with_token(self, path: str, body: bytes) -> _HttpResponse:
        if self._token_provider is None:
            return self._post(path, body, None)
        token = self._token_provider.get_token()
        reply = self._post(path, body, token)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            reply = self._post(path, body, self._token_provider.replace_token(token))
        return reply

    def _post(self, path: str, body: bytes, token: str | None) -> _HttpResponse:
        headers = self._headers | tracing.make_traceparent_header()
        if token is not None and self._token_provider is not None:
            headers["Authorization"] = f"Bearer {token}"
            headers["X-Snowflake-Authorization-Token-Type"] = self._token_provider.kind
        target = f"{self.address.base_path}{path}?requestId={uuid.uuid4()}"
        try:
            kept = self._take_idle_connection()
            if kept is not None:
                try:
                    return self._post_on_connection(kept, target, body, headers)
                except _STALE_CONNECTION_ERRORS:
                    # The service has closed the idle connection. Close the other idle ones, too,
                    # which are as old.
                    self._close_pooled_connections()
            return self._post_on_connection(self._open_connection(), target, body, headers)
        except ssl.SSLCertVerificationError as error:
            # A retry would fail the same way.
            raise ConfigurationError(
                setting="ca_file",
                reason=f"the certificate of {self.address.url} is not trusted "
                f"({error.verify_message}); set ca_file (--ca-file) to its certificate authority",
            ) from error
        except _CONNECTION_ERRORS as error:
            raise self.make_unavailable_error(
                _describe_connection_error(error, self.address)
            ) from error

    def _post_on_connection(
        self,
        connection: http.client.HTTPConnection,
        request_target: str,
        body: bytes,
        headers: dict[str, str],
    ) -> _HttpResponse:
        try:
            connection.request("POST", request_target, body, headers)
            response = connection.getresponse()
            reply = _HttpResponse(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._return_connection(connection)
        return reply

    def _open_connection(self) -> http.client.HTTPConnection:
        where, timeout_s = self.address, self.timeout_s
        if self._ssl_context is not None:
            return http.client.HTTPSConnection(
                where.host, where.port, timeout=timeout_s, context=self._ssl_context
            )
        return http.client.HTTPConnection(where.host, where.port, timeout=timeout_s)

    def _take_idle_connection(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle_connections.pop() if self._idle_connections else None

    def _return_connection(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle_connections) < _MAX_IDLE_CONNECTIONS and not self.stop_event.is_set():
                self._idle_connections.append(connection)
                return
        connection.close()

    def _close_pooled_connections(self) -> None:
        with self._lock:
            idle, self._idle_connections = self._idle_connections, []
        for connection in idle:
            connection.close()

    def make_unavailable_error(self, reason: str) -> ServiceUnavailable:
        """Create a ServiceUnavailable error with this reason."""
        return ServiceUnavailable(url=self.address.url, reason=reason)


def make_ssl_context(ca_file: str | None) -> ssl.SSLContext:
    """Create a TLS context that trusts the certificates in a file, or of the system if it is None.

    Raises:
        ConfigurationError: If the file contains no certificates.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigurationError(
            setting="ca_file", reason=f"{ca_file} holds no certificates ({error})"
        ) from None


def _is_from_intermediary(response: _HttpResponse) -> bool:
    """Return True if a proxy responded instead of the service."""
    if not (response.status in _INTERMEDIARY_STATUSES or 300 <= response.status < 400):
        return False
    try:
        document = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return True
    return not (isinstance(document, dict) and "status_code" in document)


def _describe_response(response: _HttpResponse) -> str:
    """Return the text of a response with a status other than 200, as one short line."""
    said = find_response_message(response.body)
    if said is None:
        said = " ".join(response.body.decode("utf-8", "replace").split())
        if "<Error><Code>" in said:
            said = "the server is an S3 endpoint. The streaming API has another port, such as 8080"
    return (
        f"HTTP {response.status}: {said[:_MAX_REASON_CHARACTERS]}"
        if said
        else f"HTTP {response.status}"
    )


def find_response_message(body: bytes) -> str | None:
    """Return the message of a JSON response, "" if it has none, or None if it is not JSON."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return str(document.get("message") or "") if isinstance(document, dict) else ""


def _describe_connection_error(error: Exception, address: ServiceAddress) -> str:
    """Return why there was no response, with a hint if HTTP and HTTPS were confused."""
    said = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return f"{said}; the server uses HTTP. Use http://{address.host}:{address.port}"
    if isinstance(error, http.client.RemoteDisconnected) and not address.uses_tls:
        return f"{said}; the service requires https://"
    return said


# --- Errors for status codes of the service (specification of v1, §2.7).

TRANSIENT_CODES = frozenset({int(ResponseCode.QUEUE_FULL), int(ResponseCode.TRY_AGAIN)})

_ERROR_CLASSES: dict[int, type[errors.SnowmeltError]] = {
    ResponseCode.TABLE_MISSING: errors.TableNotFound,
    ResponseCode.TOO_MANY_CHANNELS: errors.TooManyChannels,
    ResponseCode.UNSUPPORTED_COLUMN: errors.Unsupported,
    ResponseCode.DATABASE_MISSING: errors.DatabaseNotFound,
    ResponseCode.SCHEMA_MISSING: errors.SchemaNotFound,
    ResponseCode.CHANNEL_GONE: errors.ChannelNotFound,
    ResponseCode.STALE_CLIENT_SEQUENCER: errors.ChannelFenced,
    ResponseCode.CHANNEL_MISSING: errors.ChannelNotFound,
    ResponseCode.REOPEN: errors.ChannelInvalid,
    ResponseCode.ROLE_MISSING: errors.RoleNotGranted,
}

_REASON_TEXTS: dict[int, str] = {
    ResponseCode.ROW_SEQUENCER_NOT_NEXT: "its rows arrived out of order",
    ResponseCode.SIBLING_REFUSED: "another channel of the same chunk was rejected",
    ResponseCode.CHANNEL_GONE: "the channel no longer exists",
    ResponseCode.CHANNEL_MISSING: "the channel does not exist, or this role may not use it",
    ResponseCode.TABLE_MISSING: "the table does not exist, or this role may not use it",
    ResponseCode.EP_COLUMN_MISSING: "the columns of the table have changed",
    ResponseCode.REOPEN: "the table has changed. Reopen the channel",
}


def error_for_status(code: int, message: str | None, url: str) -> errors.SnowmeltError:
    """Create the error for a `status_code` other than 0, with the message of the service if it has one."""
    text = message or describe_status(code, None)
    kind = _ERROR_CLASSES.get(code)
    if kind is None:
        return errors.RequestRefused(url=url, reason=f"{text} (code {code})", response_code=code)
    return kind(text, response_code=code)


def describe_status(code: int, message: str | None) -> str:
    """Return the reason why the service rejected the rows of a channel, including the code."""
    text = message or _REASON_TEXTS.get(code) or _describe_code(code)
    return f"{text.rstrip('.')} (code {code})"


def _describe_code(code: int) -> str:
    try:
        return ResponseCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "the service rejected the rows"
