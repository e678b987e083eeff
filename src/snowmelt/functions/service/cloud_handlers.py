"""Handlers for AWS Lambda, Azure Functions and Google Cloud, and Lambda event formats.

Lambda events come in these formats: REST API, HTTP API (format 2.0, also used by function URLs)
and load balancers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http
import json
import threading
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from snowmelt.errors import SnowmeltError
from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.service.request_response_types import (
    ServiceRequest,
    ServiceResponse,
    error_to_response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

_Result = TypeVar("_Result")
RequestHandler: TypeAlias = "Callable[[ServiceRequest], Coroutine[Any, Any, ServiceResponse]]"


class _BackgroundLoop:
    """An event loop in a thread of its own, made when it is first used.

    Clouds fork and freeze processes between import and the first call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine to its end, from any thread."""
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
    """Return a handler for AWS Lambda; `handle_request` is a service's."""
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
    """Return `main(req)` for Azure Functions; `handle_request` is a service's."""

    async def main(req: Any) -> Any:
        headers = {name.lower(): value for name, value in req.headers.items()}
        address = urlsplit(req.url)
        response = await handle_request(
            ServiceRequest(req.method.upper(), address.path, headers, req.get_body(), address.query)
        )
        # Only there on Azure, and in a project made for it.
        azure = import_module("azure.functions")
        return azure.HttpResponse(
            response.body, status_code=response.status, headers=response.headers
        )

    return main


def make_google_cloud_function(
    handle_request: RequestHandler,
) -> Callable[[Any], tuple[bytes, int, dict[str, str]]]:
    """Return an HTTP function for Google Cloud; `handle_request` is a service's."""
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


MAX_LAMBDA_RESPONSE_BYTES = 6_291_556  # what Lambda takes back from a handler, as JSON


class EventFormat(StrEnum):
    """Who calls the handler."""

    REST = "rest"
    HTTP = "http"
    ALB = "alb"
    URL = "url"


def parse_event(event: Mapping[str, Any]) -> ServiceRequest:
    """Return an event's request.

    Raises:
        BatchInvalid: Its body is not the base64 that it says it is.
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
            raise BatchInvalid(reason="its body is not base64, as the event says") from None
    elif not isinstance(body, bytes):
        # Consoles let people test with an object where a gateway sends text.
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    return ServiceRequest(method.upper(), unquote(path), headers, body, query)


def make_lambda_result(response: ServiceResponse, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a handler gives back for a response: compressed bodies in base64."""
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
    """Return the event that a gateway makes of a request whose body is decompressed."""
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
