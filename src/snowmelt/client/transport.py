"""Requests to the service: kept-alive connections, JSON, tokens, and trying again (§1.5, §2.8).

Every request of v1 may safely arrive twice, so a broken connection, a timeout and the HTTP
answers 408, 429 and 5xx are simply sent again, the same bytes, until patience ends.
"""

from __future__ import annotations

import http.client
import logging
import platform
import ssl
import threading
import uuid
from http import HTTPStatus
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from snowmelt import errors, tracing
from snowmelt.backoff import Backoff
from snowmelt.errors import (
    AuthenticationFailed,
    ConfigurationError,
    RequestRefused,
    ServiceUnavailable,
)
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.client.auth import Tokens
    from snowmelt.clock import Clock
    from snowmelt.errors import SnowmeltError

_log = logging.getLogger(__name__)

_IDLE_CONNECTIONS = 4
_BROKEN = (OSError, http.client.HTTPException)
_STALE = (http.client.RemoteDisconnected, ConnectionError)
_LONGEST_REASON = 500
# What proxies and load balancers answer while the service behind them is changed.
_ELSEWHERE = frozenset({403, 404, 405, 407, 421, 425})


class Answer(Protocol):
    """What every answer has."""

    status_code: int
    message: str


AnswerType = TypeVar("AnswerType", bound=Answer)


class _Reply(NamedTuple):
    status: int
    body: bytes


class Service(NamedTuple):
    """Where the service is."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @property
    def account(self) -> str:
        """The account in tokens: the first label of the host (specification of v1, §1.3)."""
        return self.host.split(".", 1)[0].upper()


def parse_url(url: str) -> Service:
    """Take apart `http://host:port`; a path before the API's own is allowed.

    Raises:
        ConfigurationError: Another scheme, no host, a query, or a port that is none.
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
    return Service(url.strip().rstrip("/"), secure, parts.hostname, port, path)


class Transport:
    """Requests of one client; thread-safe.

    `timeout_s` is that of each step of a connection;
    `trouble` is why the last attempt failed, None after a success; `on_trouble` is called with the
    first of several in a row; `stopping` ends all pauses.
    """

    def __init__(
        self,
        service: Service,
        tokens: Tokens | None,
        clock: Clock,
        *,
        timeout_s: float,
        ca_file: str | None = None,
    ) -> None:
        self.service = service
        self.stopping = threading.Event()
        self.trouble: ServiceUnavailable | None = None
        self.on_trouble: Callable[[SnowmeltError], None] | None = None
        self._tokens = tokens
        self._clock = clock
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._secure = trusting(ca_file) if service.secure else None
        version = metadata.version("snowmelt")
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json; charset=UTF-8",
            "User-Agent": f"snowmelt/{version} Python/{platform.python_version()}",
            "X-Snowmelt-Client": version,
        }

    def patience(self, seconds: float) -> Backoff:
        """Return a deadline for one or more requests."""
        return Backoff(seconds, self._clock)

    def ask(
        self, path: str, message: msgspec.Struct, kind: type[AnswerType], patience: Backoff
    ) -> AnswerType:
        """Send `message` until it is answered, and return an answer whose status is 0.

        Raises:
            ServiceUnavailable: No answer, only HTTP 408, 429, 5xx, or only codes 7 and 10, until
                patience ended; whether the request was carried out is not known.
            AuthenticationFailed: HTTP 401 for a fresh token, too.
            SnowmeltError: The service refused; the error that its code stands for, with `retried`
                among its fields.
        """
        body = msgspec.json.encode(message)
        retried = False
        while True:
            try:
                answer = self._answer(path, body, kind)
            except ServiceUnavailable as failure:
                self.pause(patience, failure)
                retried = True
                continue
            if answer.status_code == 0:
                self.trouble = None
                return answer
            refusal = error_of(answer.status_code, answer.message, self.service.url)
            refusal.fields["retried"] = retried
            if answer.status_code not in TRANSIENT:
                raise refusal
            self.pause(patience, self.unavailable(str(refusal)))

    def pause(self, patience: Backoff, failure: ServiceUnavailable) -> None:
        """Wait before the next attempt.

        Raises:
            ServiceUnavailable: `failure`, when patience has ended or the client stops.
        """
        if self.trouble is None and self.on_trouble is not None:
            self.on_trouble(failure)
        self.trouble = failure
        pause_s = patience.next_delay_s()
        if pause_s is None:
            said = str(failure.fields["reason"]).rstrip(".")
            reason = f"{said}; given up after {patience.timeout_s:g} s"
            raise self.unavailable(reason) from failure
        _log.debug("%s Trying again in %.2f s.", failure, pause_s)
        if self.stopping.wait(pause_s):
            raise failure

    def stop(self) -> None:
        """Let no request be tried again, and close idle connections."""
        self.stopping.set()
        self._forget_idle()

    def abandon(self) -> None:
        """Forget everything shared with the parent, in a forked child."""
        self._lock = threading.Lock()
        self._idle = []
        self.stopping = threading.Event()
        self.stopping.set()

    def _answer(self, path: str, body: bytes, kind: type[AnswerType]) -> AnswerType:
        reply = self._exchange(path, body)
        if reply.status == HTTPStatus.OK:
            try:
                return msgspec.json.decode(reply.body, type=kind)
            except msgspec.DecodeError as error:
                # Something between us answered, or the answer was cut: ask again.
                raise self.unavailable(f"its answer cannot be read ({error})") from error
        said = _words(reply)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            if self._tokens is None:
                raise AuthenticationFailed(
                    reason="the client has none; give it user and private_key"
                )
            # What the service says of it is the whole sentence already.
            raise AuthenticationFailed(_message(reply) or None, reason=said)
        if reply.status in {408, 429} or reply.status >= 500:
            raise self.unavailable(said)
        raise RequestRefused(
            url=self.service.url, reason=said, status=reply.status, elsewhere=_is_elsewhere(reply)
        )

    def _exchange(self, path: str, body: bytes) -> _Reply:
        if self._tokens is None:
            return self._sent(path, body, None)
        token = self._tokens.current()
        reply = self._sent(path, body, token)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            reply = self._sent(path, body, self._tokens.replace(token))
        return reply

    def _sent(self, path: str, body: bytes, token: str | None) -> _Reply:
        headers = self._headers | tracing.make_traceparent_header()
        if token is not None and self._tokens is not None:
            headers["Authorization"] = f"Bearer {token}"
            headers["X-Snowflake-Authorization-Token-Type"] = self._tokens.kind
        target = f"{self.service.path}{path}?requestId={uuid.uuid4()}"
        try:
            kept = self._kept_connection()
            if kept is not None:
                try:
                    return self._over(kept, target, body, headers)
                except _STALE:
                    # The service closes connections that idle; its others are as old.
                    self._forget_idle()
            return self._over(self._new_connection(), target, body, headers)
        except ssl.SSLCertVerificationError as error:
            # The same again would be refused again.
            raise ConfigurationError(
                setting="ca_file",
                reason=f"the certificate of {self.service.url} is not trusted "
                f"({error.verify_message}); name the file of its authority",
            ) from error
        except _BROKEN as error:
            raise self.unavailable(_why(error, self.service)) from error

    def _over(
        self,
        connection: http.client.HTTPConnection,
        target: str,
        body: bytes,
        headers: dict[str, str],
    ) -> _Reply:
        try:
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            reply = _Reply(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return reply

    def _new_connection(self) -> http.client.HTTPConnection:
        where, timeout_s = self.service, self.timeout_s
        if self._secure is not None:
            return http.client.HTTPSConnection(
                where.host, where.port, timeout=timeout_s, context=self._secure
            )
        return http.client.HTTPConnection(where.host, where.port, timeout=timeout_s)

    def _kept_connection(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_CONNECTIONS and not self.stopping.is_set():
                self._idle.append(connection)
                return
        connection.close()

    def _forget_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def unavailable(self, reason: str) -> ServiceUnavailable:
        """Return the error that says so; it is not raised."""
        return ServiceUnavailable(url=self.service.url, reason=reason)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Return what certificates are checked against: a file's, or the system's.

    Raises:
        ConfigurationError: The file holds none.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigurationError(
            setting="ca_file", reason=f"{ca_file} holds no certificates ({error})"
        ) from None


def _is_elsewhere(reply: _Reply) -> bool:
    """Tell whether somebody on the way answered that the service is not to be had here."""
    if not (reply.status in _ELSEWHERE or 300 <= reply.status < 400):
        return False
    try:
        document = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return True
    return not (isinstance(document, dict) and "status_code" in document)


def _words(reply: _Reply) -> str:
    """Return what a reply that is not 200 says, in one short line."""
    said = _message(reply)
    if said is None:
        said = " ".join(reply.body.decode("utf-8", "replace").split())
        if "<Error><Code>" in said:
            said = "an S3 endpoint answered; the streaming API has a port of its own, such as 8080"
    return f"HTTP {reply.status}: {said[:_LONGEST_REASON]}" if said else f"HTTP {reply.status}"


def _message(reply: _Reply) -> str | None:
    """Return the message of an answer of ours, "" where it has none; None if it is no JSON."""
    try:
        document = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return None
    return str(document.get("message") or "") if isinstance(document, dict) else ""


def _why(error: Exception, service: Service) -> str:
    """Return why there was no answer, with what would be right where HTTP met HTTPS."""
    said = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return f"{said}; what listens there speaks HTTP: write http://{service.host}:{service.port}"
    if isinstance(error, http.client.RemoteDisconnected) and not service.secure:
        return f"{said}; a service with a certificate is reached by https:// alone"
    return said


# --- What a status code of the service means to the caller (specification of v1, §2.7).

TRANSIENT = frozenset({int(ResponseCode.QUEUE_FULL), int(ResponseCode.TRY_AGAIN)})

_ERRORS: dict[int, type[errors.SnowmeltError]] = {
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

_REASONS: dict[int, str] = {
    ResponseCode.ROW_SEQUENCER_NOT_NEXT: "its rows arrived out of order",
    ResponseCode.SIBLING_REFUSED: "another channel of the same chunk was refused",
    ResponseCode.CHANNEL_GONE: "the channel does not exist any more",
    ResponseCode.CHANNEL_MISSING: "the channel does not exist, or this role may not use it",
    ResponseCode.TABLE_MISSING: "the table does not exist, or this role may not use it",
    ResponseCode.EP_COLUMN_MISSING: "the table has got other columns",
    ResponseCode.REOPEN: "the table has changed, and the channel must be opened again",
}


def error_of(code: int, message: str | None, url: str) -> errors.SnowmeltError:
    """Return the error for a top-level `status_code` that is not 0; the service's words win."""
    text = message or reason_of(code, None)
    kind = _ERRORS.get(code)
    if kind is None:
        return errors.RequestRefused(url=url, reason=f"{text} (code {code})", response_code=code)
    return kind(text, response_code=code)


def reason_of(code: int, message: str | None) -> str:
    """Return why the service refused a channel's rows, with the code."""
    text = message or _REASONS.get(code) or _word(code)
    return f"{text.rstrip('.')} (code {code})"


def _word(code: int) -> str:
    try:
        return ResponseCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "the service refused the rows"
