"""Access to the console: rejects forged requests, foreign origins and expired sessions."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from fixtures.browser import access_key
from fixtures.service import KeyPair
from snowmelt.clock import ManualClock, SystemClock
from snowmelt.server.console.layout import SECTIONS
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow
PAGES = tuple(path for _, path, _ in SECTIONS)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now())


@pytest.fixture
def service(clock: ManualClock) -> Iterator[LocalService]:
    with LocalService(clock=clock, console="write") as running:
        yield running


@pytest.fixture
def visitor(service: LocalService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=120, trust_env=False) as client:
        yield client


def log_in(visitor: httpx.Client, key: tuple[str, str], **more: str) -> httpx.Response:
    fields = {"key": key[0], "secret": key[1], **more}
    origin = {"origin": str(visitor.base_url).rstrip("/")}
    return visitor.post("/console/login", data=fields, headers=origin)


def form_token(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert found is not None
    return found[1]


def test_without_a_session_nothing_is_told(service: LocalService, visitor: httpx.Client) -> None:
    service.create_table("secret.public.t", "id INT")
    for path in PAGES:
        answer = visitor.get(f"/console{path}")
        assert answer.status_code == 303, path
        assert urlsplit(answer.headers["location"]).path == "/console/login"
    for path in ("/console/api/v1/tables", "/console/live?page=/"):
        answer = visitor.get(path)
        assert (answer.status_code, answer.json()["error"]) == (401, "authentication_failed")
    assert visitor.get("/", headers={"accept": "text/html"}).headers["location"] == "/console/"
    assert visitor.get("/").status_code == 404


def test_a_wrong_secret_is_refused_and_a_right_one_opens_a_session_of_its_role(
    service: LocalService, visitor: httpx.Client
) -> None:
    key = access_key(service)
    refused = log_in(visitor, (key[0], "wrong"))
    assert refused.status_code == 401
    assert "there is no access key with this ID and secret" in refused.text
    assert log_in(visitor, key, role="nobody").status_code == 401
    answer = log_in(visitor, key)
    assert answer.headers["location"] == "/console/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie
    page = visitor.get("/console/")
    assert page.status_code == 200
    assert "EMBEDDED as " in page.text


def test_pages_forbid_what_is_not_theirs(service: LocalService, visitor: httpx.Client) -> None:
    log_in(visitor, access_key(service))
    page = visitor.get("/console/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    assert re.findall(r"<[^>]* (?:on[a-z]+|style)=|<script>|<style", page.text) == []
    [script] = re.findall(r'src="([^"]+)"', page.text)
    assert "immutable" in visitor.get(script).headers["cache-control"]


def test_requests_of_other_pages_are_refused(service: LocalService, visitor: httpx.Client) -> None:
    log_in(visitor, access_key(service))
    token = form_token(visitor.get("/console/"))
    origin = service.url
    attempts = [
        ({"csrf": token}, {"origin": "http://evil.example"}),
        ({"csrf": token}, {"origin": "null"}),
        ({"csrf": token}, {"sec-fetch-site": "cross-site", "origin": origin}),
        # For cookies, another port of this host is the same site.
        ({"csrf": token}, {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:3000"}),
        ({"csrf": token}, {}),
        ({"csrf": "0" * 64}, {"origin": origin}),
        ({"csrf": ""}, {"origin": origin}),
    ]
    for fields, headers in attempts:
        answer = visitor.post("/console/logout", data=fields, headers=headers)
        assert answer.status_code == 403, (fields, headers)
    as_text = {"origin": origin, "content-type": "text/plain"}
    assert visitor.post("/console/logout", content=b"csrf=x", headers=as_text).status_code == 415
    reading = visitor.get("/console/api/v1/tables", headers={"sec-fetch-site": "same-site"})
    assert reading.status_code == 403
    assert visitor.get("/console/").status_code == 200
    done = visitor.post("/console/logout", data={"csrf": token}, headers={"origin": origin})
    assert done.headers["location"] == "/console/login"


def test_a_name_that_was_rebound_to_this_machine_is_refused(visitor: httpx.Client) -> None:
    for path in ("/console/", "/console/api/v1/overview", "/console/live?page=/"):
        answer = visitor.get(path, headers={"host": "evil.example:8080"})
        assert (answer.status_code, answer.json()["error"]) == (403, "host_refused")


def test_sessions_end(service: LocalService, visitor: httpx.Client, clock: ManualClock) -> None:
    key = access_key(service)

    def is_in() -> bool:
        return visitor.get("/console/").status_code == 200

    log_in(visitor, key)
    # A session in use is extended, up to eight hours.
    for _ in range(10):
        clock.advance(2_700)
        assert is_in()
    clock.advance(2_700)
    assert not is_in()
    log_in(visitor, key)
    clock.advance(3_601)
    assert not is_in()
    log_in(visitor, key)
    kept = dict(visitor.cookies)
    token = form_token(visitor.get("/console/"))
    visitor.post("/console/logout", data={"csrf": token}, headers={"origin": service.url})
    visitor.cookies.update(kept)
    assert not is_in(), "a cookie that was kept opens nothing after the logout"
    visitor.cookies.clear()
    log_in(visitor, key)
    assert is_in()
    service.sql(f"ALTER USER embedded DROP ACCESS KEY '{key[0]}'")
    assert not is_in(), "the key that opened the session is gone"


def test_altered_cookies_open_nothing(service: LocalService, visitor: httpx.Client) -> None:
    log_in(visitor, access_key(service))
    [(name, value)] = visitor.cookies.items()
    for altered in (value[:-8] + "AAAAAAA=", value[::-1], "x" * 9_000, ""):
        visitor.cookies.clear()
        visitor.cookies.set(name, altered)
        assert visitor.get("/console/").status_code == 303


def test_the_command_opens_one_session(
    service: LocalService, visitor: httpx.Client, clock: ManualClock
) -> None:
    key_file = service.embedded.private_key_file
    command = [sys.executable, "-m", "snowmelt", "console", "--print", "--url", service.url]
    command += ["--user", "EMBEDDED", "--private-key", str(key_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    address = urlsplit(done.stdout.strip())
    assert address.path == "/console/login"
    origin = {"origin": service.url}
    fields = {"code": address.fragment.replace("%3D", "=")}
    first = visitor.post("/console/login", data=fields, headers=origin)
    assert first.headers["location"] == "/console/"
    again = visitor.post("/console/login", data=fields, headers=origin)
    assert again.status_code == 401
    assert "was used before" in again.text


def test_after_a_login_one_goes_nowhere_else(service: LocalService, visitor: httpx.Client) -> None:
    key = access_key(service)
    for target in ("//evil.example", "https://evil.example", "/\\evil.example", "/console\\@evil"):
        assert log_in(visitor, key, next=target).headers["location"] == "/console/"
    assert log_in(visitor, key, next="/console/tables?find=a").headers["location"] == (
        "/console/tables?find=a"
    )


def test_before_there_is_a_user_the_console_of_this_machine_is_open(
    service: LocalService, visitor: httpx.Client, key_pair: KeyPair
) -> None:
    service.sql("DROP USER embedded")
    page = visitor.get("/console/")
    assert page.status_code == 200
    assert "no login: this machine only" in page.text
    assert visitor.get("/console/channels").status_code == 200
    service.sql(f"CREATE USER first RSA_PUBLIC_KEY = '{key_pair.public_base64}'")
    assert visitor.get("/console/").status_code == 303, "sessions without a user have ended"
