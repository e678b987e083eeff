"""Each way of saying who sends a request; signatures are those of botocore."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from snowmelt.functions.caller import http_request
from snowmelt.functions.caller.http_request import (
    RequestAuthenticator,
    parse_aws_service_and_region,
)
from snowmelt.functions.definition import ApiIntegration, AuthenticationMethod
from snowmelt.functions.errors import SecretMissing

URL = "https://abc.execute-api.eu-west-1.amazonaws.com/prod/f?a=1&b=%20c"
PLAIN: dict[str, Any] = {"provider": "custom", "allowed_prefixes": ()}


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("A_TEST_KEY", "s3cret")
    monkeypatch.setenv("ANOTHER_TEST_KEY", "k3y")


def headers(url=URL, method="POST", body=b"{}", **clauses):
    integration = ApiIntegration("i", **PLAIN | clauses)
    return asyncio.run(RequestAuthenticator(integration).make_headers(method, url, body))


def test_nobody_is_said_by_nothing():
    assert headers() == {}
    assert not RequestAuthenticator(ApiIntegration("i", **PLAIN)).is_needed


def test_basic_is_user_and_secret():
    said = headers(authentication=AuthenticationMethod.BASIC, user="zoë", secret="env:A_TEST_KEY")
    assert base64.b64decode(said["authorization"].removeprefix("Basic ")).decode() == "zoë:s3cret"


def test_bearer_is_the_secret():
    said = headers(authentication=AuthenticationMethod.BEARER, secret="env:A_TEST_KEY")
    assert said == {"authorization": "Bearer s3cret"}


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("aws_api_gateway", "x-api-key"),
        ("azure_api_management", "ocp-apim-subscription-key"),
        ("google_api_gateway", "x-api-key"),
        ("custom", "x-api-key"),
    ],
)
def test_the_key_goes_into_the_header_of_its_provider(provider, name):
    assert headers(provider=provider, api_key="env:A_TEST_KEY") == {name: "s3cret"}


def test_a_key_goes_beside_other_ways():
    said = headers(
        authentication=AuthenticationMethod.BEARER,
        secret="env:A_TEST_KEY",
        api_key="env:ANOTHER_TEST_KEY",
    )
    assert said == {"authorization": "Bearer s3cret", "x-api-key": "k3y"}


@pytest.mark.parametrize(
    "way", [AuthenticationMethod.BASIC, AuthenticationMethod.BEARER, AuthenticationMethod.SIGV4]
)
def test_an_integration_without_a_secret_is_told(way):
    with pytest.raises(SecretMissing, match="names none"):
        headers(authentication=way, user="u")


SIGNED = {
    "authentication": AuthenticationMethod.SIGV4,
    "user": "AKIATEST",
    "secret": "env:A_TEST_KEY",
}


def check(url, said, method="POST", body=b"{}"):
    """Compare a signature with that of botocore."""
    service, region = parse_aws_service_and_region(url, None)
    sent = {name: value for name, value in said.items() if name != "authorization"}
    request = AWSRequest(method, url, sent, body)
    request.context["timestamp"] = said["x-amz-date"]
    signer = SigV4Auth(Credentials("AKIATEST", "s3cret"), service, region)
    assert sent["x-amz-content-sha256"] == signer.payload(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert said["authorization"].endswith(f"Signature={signer.signature(text, request)}")
    assert f"Credential={signer.scope(request)}," in said["authorization"]


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "https://abc.execute-api.cn-north-1.amazonaws.com.cn/prod/f",
        "https://abc.lambda-url.us-east-1.on.aws/",
        "https://abc.execute-api.eu-west-1.amazonaws.com/a/b.c/~d?z=2&a=1",
    ],
)
@pytest.mark.parametrize(("method", "body"), [("POST", b"{}"), ("GET", b"")])
def test_signatures_hold(url, method, body):
    check(url, headers(url, method, body, **SIGNED), method, body)


@pytest.mark.parametrize("part", ["path", "body", "date", "host"])
def test_signatures_do_not_hold_for_anything_else(part):
    said = headers(**SIGNED)
    url, body = URL, b"{}"
    if part == "path":
        url = URL.replace("/f", "/g")
    elif part == "host":
        url = URL.replace("abc", "xyz")
    elif part == "date":
        said["x-amz-date"] = said["x-amz-date"][:-3] + "61Z"
    else:
        said["x-amz-content-sha256"] = hashlib.sha256(b"other").hexdigest()
        body = b"other"
    with pytest.raises(AssertionError):
        check(url, said, body=body)


def test_credentials_of_the_machine_do_where_the_integration_names_none(monkeypatch):
    http_request._find_default_credentials.cache_clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t0ken")
    said = headers(authentication=AuthenticationMethod.SIGV4)
    assert said["x-amz-security-token"] == "t0ken"
    assert "x-amz-security-token" in said["authorization"]
    check(URL, said)
    http_request._find_default_credentials.cache_clear()


@pytest.mark.parametrize(
    ("url", "region", "found"),
    [
        (URL, None, ("execute-api", "eu-west-1")),
        (URL, "us-east-2", ("execute-api", "us-east-2")),
        ("https://x.lambda-url.us-east-1.on.aws/f", None, ("lambda", "us-east-1")),
        ("https://api.example.com:8443/f", "eu-west-1", ("execute-api", "eu-west-1")),
        ("https://x.execute-api.eu-west-1.amazonaws.com.evil.com/", "r", ("execute-api", "r")),
    ],
)
def test_service_and_region_are_read_from_the_host(url, region, found):
    assert parse_aws_service_and_region(url, region) == found


def test_a_region_that_nothing_tells_is_asked_for():
    with pytest.raises(SecretMissing, match="requires a region"):
        headers("https://api.example.com/f", **SIGNED)


def test_without_botocore_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    http_request._find_default_credentials.cache_clear()
    with pytest.raises(SecretMissing, match=r"pip install 'snowmelt\[aws\]'"):
        headers(authentication=AuthenticationMethod.SIGV4)
    check(URL, headers(**SIGNED))
