"""A service answers the events of each cloud, and hosts handlers that know nothing of it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
from typing import Any

import pytest
from azure import functions

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.service import RemoteService
from snowmelt.functions.service.cloud_handlers import EventFormat, LambdaHost, make_event
from snowmelt.functions.service.request_response_types import ServiceRequest
from support import functions_service as kit

# The two samples of the published format, word for word but for the rows.
READS_A_HEADER = """
def handler(event, context):

    request_headers = event["headers"]
    signature = request_headers["sf-external-function-signature"]
    return {"statusCode": 200, "body": '{"data": [[0, "%s"]]}' % signature}
"""
RETURNS_BYTES_IN_A_HEADER = """
import json
import hashlib
import base64

def handler(event, context):

    # The return value should contain an array of arrays (one inner array
    # per input row for a scalar function).
    array_of_rows_to_return = [ ]

    for row_number, n in json.loads(event["body"])["data"]:
        array_of_rows_to_return.append([row_number, n * 2])

    json_compatible_string_to_return = json.dumps({"data" : array_of_rows_to_return})

    # Calculate MD5 checksum for the response
    md5digest = hashlib.md5(json_compatible_string_to_return.encode('utf-8')).digest()
    response_headers = {
        'Content-MD5' : base64.b64encode(md5digest)
    }

    # Return the HTTP status code, the processed data, and the headers
    # (including the Content-MD5 header).
    return {
        'statusCode': 200,
        'body': json_compatible_string_to_return,
        'headers': response_headers
    }
"""


def handler_of(source):
    names: dict[str, Any] = {}
    exec(source, names)
    return names["handler"]


@pytest.fixture
def svc():
    service = RemoteService("cloud")

    @service.function
    def double(n: int) -> int:
        return n * 2

    @service.function
    def repeat(n: int) -> str:
        return "x" * n

    return service


BODY = b'{"data":[[0,4],[1,5]]}'


@pytest.mark.parametrize("shape", list(EventFormat))
@pytest.mark.parametrize("packed", [False, True])
def test_a_lambda_handler_takes_events_of_every_shape(svc, shape, packed):
    headers = {"Content-Encoding": "gzip"} if packed else {}
    body = gzip.compress(BODY) if packed else BODY
    event = make_event(ServiceRequest("POST", "/prod/double", headers, body), shape)
    assert event["isBase64Encoded"] == packed
    result = svc.lambda_handler()(event, None)
    assert result["statusCode"] == 200
    assert json.loads(result["body"]) == {"data": [[0, 8], [1, 10]]}
    assert ("statusDescription" in result) == (shape is EventFormat.ALB)


def test_a_compressed_reply_of_lambda_is_base64(svc):
    request = ServiceRequest("POST", "/repeat", {"Accept-Encoding": "gzip"}, b'{"data":[[0,5000]]}')
    result = svc.lambda_handler()(make_event(request, EventFormat.REST), None)
    assert result["isBase64Encoded"]
    assert b"x" * 5000 in gzip.decompress(base64.b64decode(result["body"]))


def test_a_reply_larger_than_lambda_passes_on_is_413(svc):
    request = ServiceRequest("POST", "/repeat", {}, b'{"data":[[0,6500000]]}')
    assert svc.lambda_handler()(make_event(request, EventFormat.HTTP), None)["statusCode"] == 413


def test_a_load_balancer_with_headers_of_several_values_is_answered_alike(svc):
    event = make_event(ServiceRequest("POST", "/double", {}, BODY), EventFormat.ALB)
    del event["headers"]
    event["multiValueHeaders"] = {"X": ["1", "2"]}
    result = svc.lambda_handler()(event, None)
    assert result["multiValueHeaders"]["content-type"] == ["application/json"]


def test_a_body_that_is_not_the_base64_it_says_is_refused(svc):
    event = make_event(ServiceRequest("POST", "/double", {}, BODY), EventFormat.REST) | {
        "isBase64Encoded": True
    }
    assert svc.lambda_handler()(event, None)["statusCode"] == 400


def test_lambda_refuses_functions_that_answer_later():
    service = RemoteService("later", deadline="25s")

    @service.function
    def slow(n: int) -> int: ...  # type: ignore[empty-body]

    with pytest.raises(DeclarationInvalid, match="slow may respond with 202"):
        service.lambda_handler()


def test_google_hands_over_a_request_like_flasks(svc):
    class FlaskRequest:
        method, path, query_string = "POST", "/double", b""

        def __init__(self):
            self.headers = {"Content-Type": "application/json"}

        def get_data(self):
            return BODY

    body, status, headers = svc.cloud_function()(FlaskRequest())
    assert (status, json.loads(body)) == (200, {"data": [[0, 8], [1, 10]]})
    assert headers["content-type"] == "application/json"


def test_azure_hands_over_its_own_request(svc):
    request = functions.HttpRequest("POST", "https://x.example/api/double?code=1", body=BODY)
    response = asyncio.run(svc.azure_function()(request))
    assert (response.status_code, json.loads(response.get_body())) == (
        200,
        {"data": [[0, 8], [1, 10]]},
    )


@pytest.mark.parametrize("shape", list(EventFormat))
def test_the_published_handler_that_reads_a_header_is_hosted(shape):
    app = LambdaHost(handler_of(READS_A_HEADER), event_format=shape).asgi()
    with kit.hosted(app) as url, kit.client(url) as client:
        headers = {"sf-external-function-signature": "(N NUMBER)"}
        reply = client.post("/f", headers=headers, content=b'{"data":[[0,1]]}')
    assert reply.json() == {"data": [[0, "(N NUMBER)"]]}


def test_the_published_handler_with_bytes_in_a_header_is_taken_with_a_warning(caplog):
    host = LambdaHost(handler_of(RETURNS_BYTES_IN_A_HEADER))
    request = ServiceRequest("POST", "/f", {"content-encoding": "gzip"}, gzip.compress(BODY))
    with caplog.at_level(logging.WARNING, "snowmelt.functions.gateway"):
        response = asyncio.run(host.handle_request(request))
    assert json.loads(response.body) == {"data": [[0, 8], [1, 10]]}
    from snowmelt.functions.wire.compression import compute_content_md5

    assert response.headers["content-md5"] == compute_content_md5(response.body)
    assert "API Gateway returns 502" in caplog.text


@pytest.mark.parametrize("shape", list(EventFormat))
def test_a_hosted_handler_has_a_context_and_finds_headers_in_any_case(shape):
    def handler(event, context):
        headers = event["headers"]
        assert headers["Content-Type"] == headers["content-type"] == headers.get("CONTENT-TYPE")
        assert "Content-type" in headers
        assert headers.get("X-Other") is None
        assert dict(headers) == json.loads(json.dumps(headers))
        assert 0 < context.get_remaining_time_in_millis() <= 29_000
        assert context.invoked_function_arn.endswith(context.function_name)
        return [context.function_name, context.aws_request_id]

    host = LambdaHost(handler, event_format=shape)
    request = ServiceRequest("POST", "/f", {"content-type": "application/json"}, BODY)
    first, second = (json.loads(asyncio.run(host.handle_request(request)).body) for _ in range(2))
    assert first[0] == "handler"
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("result", "status", "body"),
    [
        ({"body": '{"data":[]}'}, 200, b'{"data":[]}'),
        ({"data": []}, 200, b'{"data": []}'),
        ('{"data":[]}', 200, b'{"data":[]}'),
        ({"statusCode": "202"}, 202, b""),
        ({"statusCode": 200, "body": {"data": []}}, 200, b'{"data": []}'),
        ({"statusCode": 200, "body": "e30=", "isBase64Encoded": True}, 200, b"{}"),
        (None, 502, b'{"message": "Internal server error"}'),
        ({"statusCode": "x"}, 502, b'{"message": "Internal server error"}'),
    ],
)
def test_what_handlers_return_means_what_a_gateway_makes_of_it(result, status, body):
    response = asyncio.run(
        LambdaHost(lambda event, context: result).handle_request(ServiceRequest("POST", "/", {}))
    )
    assert (response.status, response.body) == (status, body)


def test_a_handler_that_raises_is_502_and_one_that_takes_long_504():
    import threading

    over = threading.Event()
    failing = LambdaHost(lambda event, context: 1 / 0)
    assert asyncio.run(failing.handle_request(ServiceRequest("POST", "/", {}))).status == 502
    slow = LambdaHost(lambda event, context: over.wait(5), timeout_s=0.05)
    assert asyncio.run(slow.handle_request(ServiceRequest("POST", "/", {}))).status == 504
    over.set()
