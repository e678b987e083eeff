from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest

from snowmelt.config import Settings
from snowmelt.errors import AuthenticationFailed, ConfigurationError
from snowmelt.server.auth import Authenticator, Principal
from snowmelt.server.error_responses import (
    HostNotAllowed,
    ServerResponse,
    UnsupportedMediaType,
    json_response,
)
from snowmelt.server.middleware import (
    AuthenticatedRequest,
    PostRoute,
    RequestChecks,
    ServiceMiddleware,
    check_content_type,
    check_host,
)
from snowmelt.server.settings_validation import check_settings

if TYPE_CHECKING:
    from starlette.types import Message


class Doorman:
    """Knows tokens by heart; whoever it does not know it refuses."""

    def get_cached_principal(self, headers: Any) -> Principal | None:
        return {b"Bearer known": Principal("U")}.get(headers.get(b"authorization"))

    def authenticate_any(self, headers: Any) -> None:
        raise AuthenticationFailed(reason="unknown")


async def _echo(call: AuthenticatedRequest) -> ServerResponse:
    return json_response({"user": call.user, "body": call.body.decode()})


async def _fail(call: AuthenticatedRequest) -> ServerResponse:
    raise RuntimeError("on purpose")


async def _elsewhere(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


HEADERS = {
    b"host": b"127.0.0.1:8080",
    b"content-type": b"application/json; charset=UTF-8",
    b"authorization": b"Bearer known",
}


def ask(
    path: str = "/echo",
    *,
    method: str = "POST",
    parts: tuple[bytes, ...] = (b"{}",),
    headers: Any = None,
    **changed: Any,
) -> Any:
    """Send one request through a front and return (status, JSON)."""
    with ThreadPoolExecutor(1) as threads:
        checks = RequestChecks(cast("Authenticator", Doorman()), threads, 10, loopback_only=True)
        lanes = {"/echo": PostRoute(_echo), "/fail": PostRoute(_fail)}
        front = ServiceMiddleware(_elsewhere, post_routes=lanes, checks=checks)
        changes = {k.replace("_", "-").encode(): v for k, v in changed.items()}
        merged = {k: v for k, v in {**HEADERS, **changes}.items() if v is not None}
        scope = {"type": "http", "method": method, "path": path, "headers": [*merged.items()]}
        messages = [
            {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
            for number, part in enumerate(parts)
        ]
        if not parts:
            messages = [{"type": "http.disconnect"}]
        sent = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(front(scope, receive, send))
    if not sent:
        return None
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_both_slash_forms_reach_the_same_route() -> None:
    assert ask("/echo") == ask("/echo/") == (200, {"user": "U", "body": "{}"})


def test_a_body_in_pieces_is_put_together() -> None:
    assert ask(parts=(b"ab", b"", b"cd"))[1]["body"] == "abcd"


def test_other_paths_go_on_to_the_application() -> None:
    assert ask("/healthz", method="GET") == (299, {})


def test_a_body_over_the_limit_is_413_whether_announced_or_not() -> None:
    assert ask(content_length=b"11")[0] == 413
    assert ask(parts=(b"123456", b"78901"))[0] == 413


def test_a_client_that_goes_away_is_not_answered() -> None:
    assert ask(parts=()) is None


def test_only_post_is_taken() -> None:
    assert ask(method="GET")[0] == 405


def test_an_unknown_token_is_401_and_no_failure_escapes() -> None:
    assert ask(authorization=b"Bearer other")[0] == 401
    assert ask(authorization=None)[0] == 401
    status, body = ask("/fail")
    assert status == 500
    assert "on purpose" not in body["message"]


@pytest.mark.parametrize(
    "host", [b"127.0.0.1", b"127.0.0.1:80", b"localhost:1", b"[::1]:80", b"test.LOCALHOST"]
)
def test_loopback_names_pass(host: bytes) -> None:
    check_host(host)


@pytest.mark.parametrize(
    "host", [b"", b"evil.example", b"127.0.0.1.evil.example:80", b"10.0.0.1", b"localhost.evil"]
)
def test_names_that_a_web_page_may_have_rebound_are_refused(host: bytes) -> None:
    with pytest.raises(HostNotAllowed):
        check_host(host)
    assert ask(host=host)[0] == 403


def test_the_names_of_a_proxy_pass_where_they_are_set() -> None:
    hosts = Settings.load(public_hosts="Ingest.Example, other.example.").public_host_names
    for name in (b"ingest.example", b"INGEST.example:443", b"other.example"):
        check_host(name, hosts)
    with pytest.raises(HostNotAllowed, match="SNOWMELT_PUBLIC_HOSTS"):
        check_host(b"evil.example", hosts)
    with pytest.raises(ConfigurationError, match="public_hosts"):
        check_settings(Settings.load(public_hosts="ingest.example", dev=True))


@pytest.mark.parametrize("kind", [b"", b"text/plain", b"application/x-www-form-urlencoded"])
def test_what_a_form_could_send_is_refused(kind: bytes) -> None:
    with pytest.raises(UnsupportedMediaType):
        check_content_type(kind)
    assert ask(content_type=kind)[0] == 415


def test_the_body_of_a_stranger_is_not_read() -> None:
    # Without any message to receive, reading would end as for a client that has gone away.
    assert ask(authorization=b"Bearer other", parts=())[0] == 401
