"""Hosts an unmodified Lambda handler as the gateway in front of it would."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from snowmelt.clock import SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.functions.service.asgi import AsgiApp
from snowmelt.functions.service.cloud_handlers import MAX_REPLY_BYTES, Shape, event_of
from snowmelt.functions.service.messages import Request, Response, problem
from snowmelt.functions.wire import compression as coding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.clock import Clock

_LOG = logging.getLogger("snowmelt.functions.gateway")

MAX_REQUEST_BYTES = 10 * 1024 * 1024
TIMEOUT_S = 29.0  # as API Gateway's
_WORTH_COMPRESSING = 1024


class LambdaHost:
    """Turns requests into events for a handler, and its results into responses.

    What real gateways refuse and people copy all the same is taken, and told in the log: header
    values that are bytes, and bodies that are no text.
    """

    def __init__(
        self,
        handler: Callable[[dict[str, Any], object], Any],
        *,
        shape: Shape = Shape.REST,
        at_once: int = 1,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepare.

        Args:
            handler: `handler(event, context)`.
            shape: Whose events it expects.
            at_once: Calls at a time. An instance of Lambda does one, and handlers rely on it.
            timeout_s: Seconds after which the caller gets 504; the handler is not stopped.
        """
        self._handler = handler
        self._name = getattr(handler, "__name__", type(handler).__name__)
        self._clock = SystemClock()
        self._shape = shape
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="lambda")

    def asgi(self) -> AsgiApp:
        """Return the host for any ASGI server."""
        return AsgiApp(self.answer, limit=MAX_REQUEST_BYTES)

    async def answer(self, request: Request) -> Response:
        """Answer one request; never raises."""
        encoding = request.headers.get("content-encoding")
        try:
            body = coding.decoded(request.body, encoding, limit=MAX_REQUEST_BYTES)
        except SnowmeltError as error:
            answer = problem(error)
            return Response(answer.status, answer.body, {"content-type": "application/json"})
        # A gateway decompresses and leaves the header, which is what handlers must live with.
        plain = Request(request.method, request.path, request.headers, body, request.query)
        event = event_of(plain, self._shape)
        event["headers"] = EventHeaders(event["headers"])
        loop = asyncio.get_running_loop()
        context = LambdaContext(self._name, self._clock, self._timeout_s)
        calling = loop.run_in_executor(self._executor, self._handler, event, context)
        try:
            result = await asyncio.wait_for(calling, self._timeout_s)
        except TimeoutError:
            return _message(504, "Endpoint request timed out")
        except Exception:  # noqa: BLE001 - a handler may raise anything
            _LOG.exception("the handler failed")
            return _message(502, "Internal server error")
        return _compressed(response_of(result), request.headers)


def response_of(result: Any) -> Response:
    """Return the response that a handler's result means to a gateway."""
    if isinstance(result, str | list):
        # As HTTP APIs do: what is no object is the body.
        result = {"body": result if isinstance(result, str) else json.dumps(result)}
    if not isinstance(result, dict):
        _LOG.error("the handler returned %s, not an object", type(result).__name__)
        return _message(502, "Internal server error")
    if "statusCode" not in result and "body" not in result:
        # HTTP APIs take any other object as the body of a 200.
        result = {"body": json.dumps(result)}
    headers = {"content-type": "application/json"}
    for name, values in (result.get("multiValueHeaders") or {}).items():
        headers[name.lower()] = ",".join(_header(name, value) for value in values)
    for name, value in (result.get("headers") or {}).items():
        headers[name.lower()] = _header(name, value)
    try:
        status = int(result.get("statusCode", 200))
        body = _result_body(result)
    except (TypeError, ValueError, binascii.Error):
        _LOG.error("the handler's status or body cannot be read")
        return _message(502, "Internal server error")
    if len(body) > MAX_REPLY_BYTES:
        _LOG.error("the handler returned %d bytes, more than Lambda passes on", len(body))
        return _message(502, "Internal server error")
    return Response(status, body, headers)


def _header(name: str, value: object) -> str:
    if isinstance(value, bytes):
        _LOG.warning(
            "header %s is bytes: taken here as text, but API Gateway answers 502; add .decode()",
            name,
        )
        return value.decode("latin-1")
    return str(value)


def _result_body(result: Mapping[str, Any]) -> bytes:
    body = result.get("body")
    if body is None:
        return b""
    if result.get("isBase64Encoded"):
        return base64.b64decode(body, validate=True)
    if isinstance(body, str):
        return body.encode()
    _LOG.warning(
        "the body is %s: taken here, but API Gateway wants text; use json.dumps",
        type(body).__name__,
    )
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _compressed(response: Response, headers: Mapping[str, str]) -> Response:
    encoding = coding.accepted(headers.get("accept-encoding"))
    small = len(response.body) < _WORTH_COMPRESSING
    if encoding is None or small or "content-encoding" in response.headers:
        return response
    packed = coding.encoded(response.body, encoding)
    named = response.headers | {"content-encoding": encoding}
    return Response(response.status, packed, named)


def _message(status: int, text: str) -> Response:
    body = json.dumps({"message": text}).encode()
    return Response(status, body, {"content-type": "application/json"})


# --- What Lambda's runtime gives a handler beside the event, and headers as an event has them.

_HERE = "arn:aws:lambda:us-east-1:000000000000:function:"


class LambdaContext:
    """The second argument of a handler: attributes by the names that Lambda documents."""

    function_version = "$LATEST"
    memory_limit_in_mb = "128"
    log_stream_name = "local"
    identity = None
    client_context = None

    def __init__(self, name: str, clock: Clock, timeout_s: float) -> None:
        self.function_name = name
        self.invoked_function_arn = _HERE + name
        self.log_group_name = f"/aws/lambda/{name}"
        self.aws_request_id = str(uuid.uuid4())
        self._clock = clock
        self._until = clock.monotonic() + timeout_s

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the caller is told that it took too long."""
        return max(0, int((self._until - self._clock.monotonic()) * 1000))


class EventHeaders(dict[str, str]):
    """Headers of an event, found in whatever case they are asked for.

    Gateways differ in it: a REST API keeps what the caller wrote, the others write small letters,
    and handlers were written for one of them.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self._spelt = {name.lower(): name for name in headers}

    def __missing__(self, name: str) -> str:
        return dict.__getitem__(self, self._spelt[name.lower()])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._spelt

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return a header's value, `default` where there is none."""
        return super().get(self._spelt.get(name.lower(), name), default)
