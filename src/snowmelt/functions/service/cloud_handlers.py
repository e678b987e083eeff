"""Handlers for AWS Lambda, Azure Functions and Google Cloud. `LambdaHost` runs Lambda handlers here.

Lambda events have these formats: REST API, HTTP API (format 2.0, also used by function URLs) and
load balancer. `LambdaHost` runs an unmodified handler in place of Lambda and its gateway, with the
same events, context object and header access.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http
import json
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from importlib import import_module
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.service.asgi import AsgiApp
from snowmelt.functions.service.request_response_types import (
    ServiceRequest,
    ServiceResponse,
    error_to_response,
)
from snowmelt.functions.wire import compression

_Result = TypeVar("_Result")
RequestHandler: TypeAlias = "Callable[[ServiceRequest], Coroutine[Any, Any, ServiceResponse]]"


class _BackgroundLoop:
    """An event loop in its own thread, created at first use.

    Created late, because cloud platforms fork and freeze processes between import and first call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine to completion. Thread-safe."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="functions-loop", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def make_lambda_handler(
    handle_request: RequestHandler,
) -> Callable[[dict[str, Any], object], dict[str, Any]]:
    """Return a handler for AWS Lambda. `handle_request` is the service's method."""
    loop = _BackgroundLoop()

    def handler(event: dict[str, Any], context: object = None) -> dict[str, Any]:  # noqa: ARG001
        try:
            response = loop.run(handle_request(parse_event(event)))
        except SnowmeltError as error:
            response = _make_error_response(error)
        result = make_lambda_result(response, event)
        if len(json.dumps(result)) > MAX_LAMBDA_RESPONSE_BYTES:
            refused = _make_error_response(
                BatchTooLarge(what="reply to Lambda", limit=MAX_LAMBDA_RESPONSE_BYTES)
            )
            return make_lambda_result(refused, event)
        return result

    return handler


def make_azure_function(handle_request: RequestHandler) -> Callable[[Any], Any]:
    """Return `main(req)` for Azure Functions. `handle_request` is the service's method."""

    async def main(req: Any) -> Any:
        headers = {name.lower(): value for name, value in req.headers.items()}
        address = urlsplit(req.url)
        response = await handle_request(
            ServiceRequest(req.method.upper(), address.path, headers, req.get_body(), address.query)
        )
        # Import here: the package is installed only in projects for Azure.
        azure = import_module("azure.functions")
        return azure.HttpResponse(
            response.body, status_code=response.status, headers=response.headers
        )

    return main


def make_google_cloud_function(
    handle_request: RequestHandler,
) -> Callable[[Any], tuple[bytes, int, dict[str, str]]]:
    """Return an HTTP function for Google Cloud. `handle_request` is the service's method."""
    loop = _BackgroundLoop()

    def main(request: Any) -> tuple[bytes, int, dict[str, str]]:
        headers = {name.lower(): value for name, value in request.headers.items()}
        query = request.query_string.decode("latin-1")
        response = loop.run(
            handle_request(
                ServiceRequest(request.method, request.path, headers, request.get_data(), query)
            )
        )
        return response.body, response.status, response.headers

    return main


def _make_error_response(error: SnowmeltError) -> ServiceResponse:
    answer = error_to_response(error)
    return ServiceResponse(answer.status, answer.body, {"content-type": "application/json"})


MAX_LAMBDA_RESPONSE_BYTES = 6_291_556  # Lambda's limit for the JSON result of a handler.


class EventFormat(StrEnum):
    """Format of Lambda events, named after the gateway that sends them."""

    REST = "rest"
    HTTP = "http"
    ALB = "alb"
    URL = "url"


def parse_event(event: Mapping[str, Any]) -> ServiceRequest:
    """Convert an event to a request.

    Raises:
        BatchInvalid: If the event declares a base64 body and the body is not base64.
    """
    context = event.get("requestContext") or {}
    said = context.get("http") or {}
    method = said.get("method") or event.get("httpMethod") or "POST"
    path = event.get("rawPath") or said.get("path") or event.get("path") or "/"
    several = event.get("multiValueHeaders") or {}
    headers = {name.lower(): ",".join(values) for name, values in several.items()}
    headers |= {name.lower(): str(value) for name, value in (event.get("headers") or {}).items()}
    query = event.get("rawQueryString") or urlencode(event.get("queryStringParameters") or {})
    body = event.get("body")
    if body is None:
        body = b""
    elif event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise BatchInvalid(
                reason="its body is not base64, although the event declares it"
            ) from None
    elif not isinstance(body, bytes):
        # Gateways send text, but test events of the console may have an object as the body.
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    return ServiceRequest(method.upper(), unquote(path), headers, body, query)


def make_lambda_result(response: ServiceResponse, event: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a response to the result of a handler. A compressed body is encoded in base64."""
    packed = "content-encoding" in response.headers
    body = base64.b64encode(response.body) if packed else response.body
    result: dict[str, Any] = {
        "statusCode": response.status,
        "headers": response.headers,
        "body": body.decode(),
        "isBase64Encoded": packed,
    }
    context = event.get("requestContext") or {}
    if "elb" in context and "http" not in context:
        result["statusDescription"] = f"{response.status} {http.HTTPStatus(response.status).phrase}"
        if event.get("headers") is None and event.get("multiValueHeaders") is not None:
            named = result.pop("headers")
            result["multiValueHeaders"] = {name: [value] for name, value in named.items()}
    return result


def make_event(request: ServiceRequest, event_format: EventFormat) -> dict[str, Any]:
    """Convert a request with a decompressed body to the event that a gateway creates."""
    try:
        body, encoded = request.body.decode(), False
    except UnicodeDecodeError:
        body, encoded = base64.b64encode(request.body).decode(), True
    shared = {"headers": dict(request.headers), "body": body or None, "isBase64Encoded": encoded}
    parameters = {name: values[-1] for name, values in parse_qs(request.query).items()}
    if event_format in {EventFormat.HTTP, EventFormat.URL}:
        return shared | {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": request.path,
            "rawQueryString": request.query,
            "requestContext": {
                "http": {"method": request.method, "path": request.path, "protocol": "HTTP/1.1"},
                "stage": "$default",
            },
        }
    context: dict[str, Any] = {"httpMethod": request.method, "path": request.path, "stage": "local"}
    if event_format is EventFormat.ALB:
        context = {"elb": {"targetGroupArn": "local"}}
    event = shared | {
        "resource": request.path,
        "path": request.path,
        "httpMethod": request.method,
        "queryStringParameters": parameters or None,
        "requestContext": context,
    }
    if event_format is EventFormat.REST:
        event["multiValueHeaders"] = {name: [value] for name, value in request.headers.items()}
        event["multiValueQueryStringParameters"] = parse_qs(request.query) or None
        event["pathParameters"] = event["stageVariables"] = None
    return event


_LOG = logging.getLogger("snowmelt.functions.gateway")

MAX_REQUEST_BYTES = 10 * 1024 * 1024
DEFAULT_HANDLER_TIMEOUT_S = 29.0  # The timeout of API Gateway.
_MIN_COMPRESSED_BYTES = 1024


class LambdaHost:
    """Host that converts requests to events for a handler, and its results to responses.

    The host accepts common errors that real gateways reject, and logs a warning for each: header
    values that are bytes, and bodies that are not text.
    """

    def __init__(
        self,
        handler: Callable[[dict[str, Any], object], Any],
        *,
        event_format: EventFormat = EventFormat.REST,
        max_concurrency: int = 1,
        timeout_s: float = DEFAULT_HANDLER_TIMEOUT_S,
    ) -> None:
        """Create a host.

        Args:
            handler: The Lambda handler.
            event_format: Format of the events.
            max_concurrency: Maximum concurrent calls. A Lambda instance runs one call at a time, and
                handlers rely on it.
            timeout_s: Seconds after which the caller gets 504. The handler is not stopped.
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
        """Return the host as an ASGI application."""
        return AsgiApp(self.handle_request, max_body_bytes=MAX_REQUEST_BYTES)

    async def handle_request(self, request: ServiceRequest) -> ServiceResponse:
        """Return the response to one request. Never raises an error."""
        encoding = request.headers.get("content-encoding")
        try:
            body = compression.decompress(request.body, encoding, max_bytes=MAX_REQUEST_BYTES)
        except SnowmeltError as error:
            return _make_error_response(error)
        # Gateways decompress the body but keep the header Content-Encoding.
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
    """Convert the result of a handler to the response that a gateway creates."""
    if isinstance(result, str | list):
        # HTTP APIs send a result that is not an object as the body.
        result = {"body": result if isinstance(result, str) else json.dumps(result)}
    if not isinstance(result, dict):
        _LOG.error("the handler returned %s, not an object", type(result).__name__)
        return _make_message_response(502, "Internal server error")
    if "statusCode" not in result and "body" not in result:
        # HTTP APIs send an object without `statusCode` as the body of a 200 response.
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
                "the body is %s: accepted here, but API Gateway requires text. Use json.dumps",
                type(body).__name__,
            )
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        else:
            body = body.encode()
    except (TypeError, ValueError, binascii.Error):
        _LOG.error("the handler's status or body cannot be read")
        return _make_message_response(502, "Internal server error")
    if len(body) > MAX_LAMBDA_RESPONSE_BYTES:
        _LOG.error(
            "the handler returned %d bytes, but Lambda supports at most %d",
            *(len(body), MAX_LAMBDA_RESPONSE_BYTES),
        )
        return _make_message_response(502, "Internal server error")
    return ServiceResponse(status, body, headers)


def _decode_header_value(name: str, value: object) -> str:
    if isinstance(value, bytes):
        _LOG.warning(
            "header %s is bytes: accepted here as text, but API Gateway returns 502. Add .decode()",
            name,
        )
        return value.decode("latin-1")
    return str(value)


def _make_message_response(status: int, text: str) -> ServiceResponse:
    body = json.dumps({"message": text}).encode()
    return ServiceResponse(status, body, {"content-type": "application/json"})


_FUNCTION_ARN_PREFIX = "arn:aws:lambda:us-east-1:000000000000:function:"


class LambdaContext:
    """Context object of a handler's call, with the attributes that Lambda documents."""

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
        """Return the milliseconds until the caller gets a timeout."""
        return max(0, int((self._deadline - self._clock.monotonic()) * 1000))


class EventHeaders(dict[str, str]):
    """Headers of an event with case-insensitive lookup.

    A REST API keeps the caller's case of names, and other gateways send lower case. Handlers are
    often written for only one of them.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self._original_names = {name.lower(): name for name in headers}

    def __missing__(self, name: str) -> str:
        return dict.__getitem__(self, self._original_names[name.lower()])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._original_names

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return the value of a header, or `default` if it is missing."""
        return super().get(self._original_names.get(name.lower(), name), default)
