"""Host that runs an unmodified Lambda handler as the gateway in front of it would.

It calls the handler with the events, the context object and the header access that Lambda
provides.
"""

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
from snowmelt.functions.service.cloud_handlers import (
    MAX_LAMBDA_RESPONSE_BYTES,
    EventFormat,
    make_event,
)
from snowmelt.functions.service.request_response_types import (
    ServiceRequest,
    ServiceResponse,
    error_to_response,
)
from snowmelt.functions.wire import compression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.clock import Clock

_LOG = logging.getLogger("snowmelt.functions.gateway")

MAX_REQUEST_BYTES = 10 * 1024 * 1024
DEFAULT_HANDLER_TIMEOUT_S = 29.0  # as API Gateway's
_MIN_COMPRESSED_BYTES = 1024


class LambdaHost:
    """Turns requests into events for a handler, and its results into responses.

    What real gateways refuse and people copy all the same is taken, and told in the log: header
    values that are bytes, and bodies that are no text.
    """

    def __init__(
        self,
        handler: Callable[[dict[str, Any], object], Any],
        *,
        event_format: EventFormat = EventFormat.REST,
        max_concurrency: int = 1,
        timeout_s: float = DEFAULT_HANDLER_TIMEOUT_S,
    ) -> None:
        """Prepare.

        `max_concurrency`: Calls at a time. An instance of Lambda does one, and handlers rely on it.
        `timeout_s`: Seconds after which the caller gets 504; the handler is not stopped.
        """
        self._handler = handler
        self._name = getattr(handler, "__name__", type(handler).__name__)
        self._clock = SystemClock()
        self._event_format = event_format
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(
            max_workers=max_concurrency, thread_name_prefix="lambda"
        )

    def asgi(self) -> AsgiApp:
        """Return the host for any ASGI server."""
        return AsgiApp(self.handle_request, max_body_bytes=MAX_REQUEST_BYTES)

    async def handle_request(self, request: ServiceRequest) -> ServiceResponse:
        """Answer one request; never raises."""
        encoding = request.headers.get("content-encoding")
        try:
            body = compression.decompress(request.body, encoding, max_bytes=MAX_REQUEST_BYTES)
        except SnowmeltError as error:
            answer = error_to_response(error)
            return ServiceResponse(answer.status, answer.body, {"content-type": "application/json"})
        # A gateway decompresses and leaves the header, which is what handlers must live with.
        plain = ServiceRequest(request.method, request.path, request.headers, body, request.query)
        event = make_event(plain, self._event_format)
        event["headers"] = EventHeaders(event["headers"])
        loop = asyncio.get_running_loop()
        context = LambdaContext(self._name, self._clock, self._timeout_s)
        calling = loop.run_in_executor(self._executor, self._handler, event, context)
        try:
            result = await asyncio.wait_for(calling, self._timeout_s)
        except TimeoutError:
            return _make_message_response(504, "Endpoint request timed out")
        except Exception:  # noqa: BLE001 - a handler may raise anything
            _LOG.exception("the handler failed")
            return _make_message_response(502, "Internal server error")
        response = parse_lambda_result(result)
        encoding = compression.negotiate_encoding(request.headers.get("accept-encoding"))
        small = len(response.body) < _MIN_COMPRESSED_BYTES
        if encoding is None or small or "content-encoding" in response.headers:
            return response
        packed = compression.compress(response.body, encoding)
        named = response.headers | {"content-encoding": encoding}
        return ServiceResponse(response.status, packed, named)


def parse_lambda_result(result: Any) -> ServiceResponse:
    """Return the response that a handler's result means to a gateway."""
    if isinstance(result, str | list):
        # As HTTP APIs do: what is no object is the body.
        result = {"body": result if isinstance(result, str) else json.dumps(result)}
    if not isinstance(result, dict):
        _LOG.error("the handler returned %s, not an object", type(result).__name__)
        return _make_message_response(502, "Internal server error")
    if "statusCode" not in result and "body" not in result:
        # HTTP APIs take any other object as the body of a 200.
        result = {"body": json.dumps(result)}
    headers = {"content-type": "application/json"}
    for name, values in (result.get("multiValueHeaders") or {}).items():
        headers[name.lower()] = ",".join(_decode_header_value(name, value) for value in values)
    for name, value in (result.get("headers") or {}).items():
        headers[name.lower()] = _decode_header_value(name, value)
    try:
        status = int(result.get("statusCode", 200))
        body = result.get("body")
        if body is None:
            body = b""
        elif result.get("isBase64Encoded"):
            body = base64.b64decode(body, validate=True)
        elif not isinstance(body, str):
            _LOG.warning(
                "the body is %s: taken here, but API Gateway wants text; use json.dumps",
                type(body).__name__,
            )
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        else:
            body = body.encode()
    except (TypeError, ValueError, binascii.Error):
        _LOG.error("the handler's status or body cannot be read")
        return _make_message_response(502, "Internal server error")
    if len(body) > MAX_LAMBDA_RESPONSE_BYTES:
        _LOG.error("the handler returned %d bytes, more than Lambda passes on", len(body))
        return _make_message_response(502, "Internal server error")
    return ServiceResponse(status, body, headers)


def _decode_header_value(name: str, value: object) -> str:
    if isinstance(value, bytes):
        _LOG.warning(
            "header %s is bytes: taken here as text, but API Gateway answers 502; add .decode()",
            name,
        )
        return value.decode("latin-1")
    return str(value)


def _make_message_response(status: int, text: str) -> ServiceResponse:
    body = json.dumps({"message": text}).encode()
    return ServiceResponse(status, body, {"content-type": "application/json"})


_FUNCTION_ARN_PREFIX = "arn:aws:lambda:us-east-1:000000000000:function:"


class LambdaContext:
    """The second argument of a handler: attributes by the names that Lambda documents."""

    function_version = "$LATEST"
    memory_limit_in_mb = "128"
    log_stream_name = "local"
    identity = None
    client_context = None

    def __init__(self, name: str, clock: Clock, timeout_s: float) -> None:
        self.function_name = name
        self.invoked_function_arn = _FUNCTION_ARN_PREFIX + name
        self.log_group_name = f"/aws/lambda/{name}"
        self.aws_request_id = str(uuid.uuid4())
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the caller is told that it took too long."""
        return max(0, int((self._deadline - self._clock.monotonic()) * 1000))


class EventHeaders(dict[str, str]):
    """Headers of an event, found in whatever case they are asked for.

    Gateways differ in it: a REST API keeps what the caller wrote, the others write small letters,
    and handlers were written for one of them.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self._original_names = {name.lower(): name for name in headers}

    def __missing__(self, name: str) -> str:
        return dict.__getitem__(self, self._original_names[name.lower()])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._original_names

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return a header's value, `default` where there is none."""
        return super().get(self._original_names.get(name.lower(), name), default)
