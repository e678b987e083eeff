"""A batch is asked for until there is an answer, and what is no answer is said."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gzip
import json
import re
import uuid
import zlib
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from snowmelt.clock import ManualClock, SystemClock
from snowmelt.errors import UserError
from snowmelt.functions.caller.attempts import RetryingSender
from snowmelt.functions.caller.http_client import HttpClient
from snowmelt.functions.caller.http_request import TranslatedRequest
from snowmelt.functions.caller.plan import CallerOptions, CallPlan, CallRecord
from snowmelt.functions.caller.rate_and_concurrency_limits import RateLimiter
from snowmelt.functions.definition import (
    ApiIntegration,
    AuthenticationMethod,
    ExternalFunction,
    RequestCompression,
)
from snowmelt.functions.errors import CallFailed, PayloadTooLarge
from snowmelt.functions.proxy import http1
from snowmelt.functions.proxy.faults import parse_fault
from snowmelt.functions.proxy.relay import FaultProxy
from snowmelt.functions.service import RemoteService, ServiceOptions
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.functions.wire import compression as coding
from support import functions_service as kit
from support.ports import free_port
from support.raw_service import RawService, reply

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
INT = parse_sql_type_text("INT")
CLOSE = RawService.CLOSE
BODY = b'{"data":[[0,1],[1,2]]}'
ANSWER = b'{"data":[[0,2],[1,4]]}'
WORKED: list[int] = []


@pytest.fixture(scope="module")
def service():
    svc = RemoteService("asked", options=ServiceOptions(content_md5=True))

    @svc.function(blocking=False)
    def double(n: int) -> int:
        WORKED.append(n)
        return n * 2

    @svc.function(mode="async")
    async def later(n: int) -> int:
        await asyncio.sleep(0.1)
        return n * 2

    with kit.hosted(svc.asgi()) as url:
        yield url


def plan(url, *, name="double", options=None, integration=None, **more):
    function = ExternalFunction(
        signature=FunctionSignature(name, (FunctionArgument("n", INT),), INT),
        url=url,
        integration="here",
        **{key: value for key, value in more.items() if key not in {"context", "traceparent"}},
    )
    allowed = re.match(r"https?://[^/]+/", url)[0]  # type: ignore[index]
    return CallPlan(
        function,
        integration or ApiIntegration("here", "custom", (allowed,)),
        "UTC",
        options=options or CallerOptions(retry_timeout_s=30, poll_timeout_s=30),
        **{key: value for key, value in more.items() if key in {"context", "traceparent"}},
    )


@dataclass
class Call:
    """What a batch came to."""

    clock: object
    record: CallRecord
    body: bytes = b""
    error: Exception | None = None


def call(asked, batch=None, *, clock=None, limits=None, client=None):
    """Ask for one batch; returns what it came to."""
    clock = clock or ManualClock(NOW)
    query = str(uuid.uuid4())
    batch = batch or TranslatedRequest(f"{query}:7", BODY)
    record = CallRecord(asked.function.signature.name, query, batch.batch_id)
    made = Call(clock, record)

    async def work():
        mine = client or HttpClient()
        attempts = RetryingSender(asked, mine, clock, limits)
        try:
            made.body = await attempts.send_batch(batch, record)
        except (CallFailed, PayloadTooLarge, UserError) as error:
            made.error = error
        finally:
            await mine.close()

    asyncio.run(work())
    return made


def through(service, *faults, name="double", clock=None, **options):
    """Ask through a proxy with faults; returns what it came to and the requests."""
    WORKED.clear()
    with FaultProxy(service, [parse_fault(text) for text in faults]) as proxy:
        made = call(plan(f"{proxy.url}/{name}", name=name, **options), clock=clock)
        return made, proxy.requests


def raw(*answers, batch=None, clock=None, limits=None, **options):
    """Ask a service that says `answers`; returns what it came to and the requests."""
    with RawService(*answers) as service:
        made = call(plan(f"{service.url}/f", **options), batch, clock=clock, limits=limits)
        return made, service.requests


@pytest.mark.parametrize("compression", RequestCompression)
def test_a_batch_is_answered(service, compression):
    made, requests = through(service, compression=compression)
    assert made.body == ANSWER
    assert len(requests) == 1
    said = None if compression in {"AUTO", "NONE"} else compression.lower()
    assert requests[0].headers.get("content-encoding") == said
    assert requests[0].headers.get("accept-encoding") == said


def test_the_record_says_what_it_took(service):
    made, _ = through(service, "429:first=1,retry-after=3")
    record = made.record
    assert (record.status, record.attempts, record.polls) == (200, 2, 0)
    assert record.ms_waiting == pytest.approx(3000)
    assert record.bytes_out > 2 * len(BODY)
    assert record.bytes_in > len(ANSWER)
    assert record.started_at == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "fault",
    ["429:first=2,retry-after=1", "503:first=2", "drop:first=2", "lose:first=2", "reset:first=2",
     "truncate:first=2"],
)  # fmt: skip
def test_what_passes_is_tried_again_with_the_same_id_and_worked_on_once(service, fault):
    made, requests = through(service, fault)
    assert (made.body, made.record.attempts, len(requests)) == (ANSWER, 3, 3)
    assert len({request.headers[kit.BATCH] for request in requests}) == 1
    assert WORKED == [1, 2]


def test_a_202_is_polled_with_the_same_headers_and_no_body(service):
    made, requests = through(
        service, name="later", clock=SystemClock(), compression=RequestCompression.GZIP
    )
    assert made.body == ANSWER
    post, get, *_ = requests
    assert (post.method, get.method, get.body) == ("POST", "GET", b"")
    lost = set(post.headers) - set(get.headers)
    assert lost == {"content-encoding", "content-length"}
    assert {name: post.headers[name] for name in get.headers} == get.headers
    assert (made.record.attempts, made.record.polls) == (1, len(requests) - 1)


def test_headers_are_those_of_the_format(service):
    _, (request,) = through(
        service,
        headers=(("volume-measure", "liters"),),
        context_headers=("CURRENT_USER",),
        context={"CURRENT_USER": "zoë"},
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    said = request.headers
    assert said["content-type"] == "application/json"
    assert re.fullmatch(r"snowmelt/[0-9.]+\S*", said["user-agent"])
    assert said["sf-external-function-name"] == "double"
    assert said["sf-external-function-signature"] == "(N NUMBER)"
    assert said["sf-external-function-format-version"] == "1.0"
    assert said[kit.BATCH] == said["sf-external-function-current-query-id"] + ":7"
    assert said["sf-custom-volume-measure"] == "liters"
    assert said["x-snowmelt-row-errors"] == "1"
    # Services pass on what is custom: nothing is there but what HEADERS says.
    assert [name for name in said if name.startswith("sf-custom-")] == ["sf-custom-volume-measure"]
    assert said["sf-context-current-user-base64"] == "em/Dqw=="
    assert said["traceparent"].startswith("00-0af")


def test_a_service_that_forgot_a_batch_gets_it_again_once():
    made, requests = raw(reply(202), reply(404), reply(202), reply(body=ANSWER))
    assert [request.method for request in requests] == ["POST", "GET", "POST", "GET"]
    assert (made.body, made.record.attempts, made.record.polls) == (ANSWER, 2, 2)
    made, _ = raw(reply(202), reply(404), reply(202), reply(404))
    assert "service error: 404 (status 404, 2 attempts, 2 polls" in str(made.error)


def test_a_date_says_how_long_to_wait():
    made, _ = raw(reply(503, retry_after="Thu, 01 Jan 2026 00:00:12 GMT"), reply(body=ANSWER))
    assert made.clock.monotonic() == 12.0


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ((reply(204),), "error: 204 (status 204, 1 attempts, 0 polls, 0.0 s, http://127.0.0.1:"),
        ((reply(302, location="/x"),), "error: 302 (status 302, 1 attempts"),
        ((reply(403, b"no\nway"),), "function double with remote service error: 403 'no way' ("),
        ((reply(202), reply(500, b"oh")), "error: 500 'oh' (status 500, 1 attempts, 1 polls"),
        ((reply(202),), "Error: Timeout was reached (the service still works on the batch)"),
        ((reply(503, b"no"),), "error: 503 'no'; no answer in time (status 503"),
        ((CLOSE,), "Remote service cannot be reached. Check the endpoint URL and try again (127."),
        ((b"secret\r\n\r\n",), "the response is not HTTP/1.1"),
        (
            (reply(200, b"secret", content_md5="bm90IGl0"),),
            "Content-MD5 of the response does not match",
        ),
        ((reply(200, b"secret", content_encoding="gzip"),), "not compressed as its header says"),
        ((reply(200, b"secret", content_encoding="br"),), "unknown content encoding 'br'"),
    ],
)
def test_what_is_no_answer_is_said_with_its_batch_and_without_payload(answers, reason):
    made, _ = raw(*answers)
    text = str(made.error)
    assert re.match("double, batch [-0-9a-f]{36}:7: ", text)
    assert reason in text
    assert "secret" not in text
    assert text.endswith("/f).")


@pytest.mark.parametrize(("chars", "shown"), [(300, 300), (40, 40), (0, 0)])
def test_an_error_shows_the_beginning_of_a_refusal_as_far_as_it_may(chars, shown):
    said = gzip.compress(b'{"message":"Forbidden"}' + b"x" * 500)
    options = CallerOptions(error_body_chars=chars)
    made, _ = raw(reply(403, said, content_encoding="gzip"), options=options)
    found = re.search("error: 403 '([^']*)…'", str(made.error))
    assert (len(found[1]) if found else 0) == shown
    assert not found or found[1].startswith('{"message":"Forbidden"}x')


def test_an_error_hides_the_url_of_a_secure_function_and_every_query():
    made, _ = raw(reply(403), secure=True)
    assert str(made.error).endswith("0.0 s).")
    with RawService(reply(403)) as service:
        made = call(plan(f"{service.url}/f?code=hidden"))
        assert f"{service.url}/f)." in str(made.error)
    assert "hidden" not in str(made.error)


@pytest.mark.parametrize(
    "clauses",
    [
        {"authentication": AuthenticationMethod.BEARER, "secret": "env:A_TEST_KEY"},
        {"authentication": AuthenticationMethod.BASIC, "user": "zoe", "secret": "env:A_TEST_KEY"},
        {"api_key": "env:A_TEST_KEY"},
        {"authentication": AuthenticationMethod.SIGV4, "user": "AKIAEXAMPLE", "secret": "env:A_TEST_KEY",
         "region": "eu-west-1"},
    ],
    ids=["bearer", "basic", "api key", "sigv4"],
)  # fmt: skip
def test_an_error_shows_no_secret_that_a_service_repeats(monkeypatch, clauses):
    monkeypatch.setenv("A_TEST_KEY", "s3cret-value")

    class Repeating(RawService):
        async def converse(self, reader, writer):
            async for request in http1.read_messages(reader, writer):
                self.requests.append(request)
                headers = {
                    **request.headers,
                    "note": "the key s3cret-value is unknown",
                    "token": "t0ken",
                }
                writer.write(reply(403, json.dumps(headers).encode()))
                await writer.drain()

    with Repeating() as service:
        integration = ApiIntegration("here", "custom", (service.url,), **clauses)
        options = CallerOptions(error_body_chars=10_000)
        text = str(call(plan(f"{service.url}/f", integration=integration, options=options)).error)
        (request,) = service.requests
    assert "sf-external-function-name" in text
    said = [request.headers.get(name, "-" * 99) for name in ("authorization", "x-api-key")]
    parts = [part for each in said for part in re.split(r"[\s,=]+", each) if len(part) > 30]
    for secret in ("s3cret-value", "t0ken", *said, *parts):
        assert secret not in text


def test_retries_end_with_their_number():
    made, requests = raw(reply(503), max_batch_retries=2)
    assert len(requests) == 3
    assert "after 2 retries (status 503, 3 attempts" in str(made.error)


def test_a_wait_for_a_service_that_is_missing_is_reported(caplog):
    url = f"http://127.0.0.1:{free_port()}/double"
    made = call(plan(url, options=CallerOptions()))
    assert "no answer in time" in str(made.error)
    assert made.record.ms_waiting <= 60_000
    first, *more = [record.getMessage() for record in caplog.records]
    assert first.startswith(f"double is waiting for its service {url}: Connection refused; attempt")
    assert len(more) == 1


def test_the_time_of_a_batch_bounds_a_reply_that_does_not_come():
    made, _requests = raw(None, batch_timeout_s=0.2, clock=SystemClock())
    assert "Timeout was reached" in str(made.error)
    assert made.record.ms_calling < 2000


def test_a_connection_that_ends_after_a_500_costs_nothing_more():
    made, _requests = raw((reply(500), CLOSE), reply(body=ANSWER))
    assert (made.body, made.record.attempts) == (ANSWER, 2)


def test_a_kept_connection_that_was_reset_is_no_attempt():
    made, requests = raw(reply(503), CLOSE, reply(body=ANSWER))
    assert (made.body, made.record.attempts, len(requests)) == (ANSWER, 2, 3)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (reply(413), 413),
        (reply(body=b"x" * 10_000_001), 200),
        ((b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000_001, None), 200),
        (reply(body=gzip.compress(b"x" * 10_000_001), content_encoding="gzip"), 200),
    ],
    ids=["413", "announced", "sent", "decompressed"],
)
def test_what_is_too_large_is_for_halves(said, status):
    made, requests = raw(said)
    assert isinstance(made.error, PayloadTooLarge)
    assert made.record.status == made.error.fields["status"] == status
    assert len(requests) == 1


def test_a_request_over_the_limit_never_leaves():
    made, requests = raw(reply(body=ANSWER), max_batch_bytes=len(BODY) - 1)
    assert isinstance(made.error, PayloadTooLarge)
    assert (requests, made.record.attempts) == ([], 0)


def test_a_large_page_about_an_error_is_an_error():
    page = (b"HTTP/1.1 500 Oh\r\ncontent-length: 11000000\r\n\r\n", b"x" * 11_000_000, None)
    made, _requests = raw(page, reply(body=ANSWER))
    assert made.body == ANSWER


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("gzip, identity", gzip.compress),
    ],
)
@pytest.mark.parametrize("of", ["raw", "plain"])
def test_checksums_are_of_the_bytes_before_or_after_compression(encoding, compress, of):
    body = compress(ANSWER)
    digest = coding.compute_content_md5(body if of == "raw" else ANSWER)
    made, _ = raw(reply(body=body, content_encoding=encoding, content_md5=digest))
    assert made.body == ANSWER


def test_requests_are_compressed_once_a_service_has_shown_that_it_can():
    client, clock = HttpClient(), ManualClock(NOW)
    large = b'{"data":[' + b"[0,1]," * 1000 + b"]}"

    async def work(url):
        attempts = RetryingSender(plan(url), client, clock)
        for body in (large, large, BODY):
            await attempts.send_batch(TranslatedRequest("b", body), CallRecord("double", "q", "b"))
        await client.close()

    with RawService(reply(body=ANSWER, accept_encoding="br, gzip")) as service:
        asyncio.run(work(f"{service.url}/f"))
    first, second, small = (request.headers.get("content-encoding") for request in service.requests)
    assert (first, second, small) == (None, "gzip", None)
    assert gzip.decompress(service.requests[1].body) == large


def test_calls_go_nowhere_but_to_what_the_integration_allows():
    with RawService(reply(body=ANSWER)) as service:
        integration = ApiIntegration("here", "custom", (f"{service.url}/allowed/",))
        asked = plan(f"{service.url}/allowed/f", integration=integration)
        assert call(asked).body == ANSWER
        assert call(asked, TranslatedRequest("b", BODY, url_suffix="/a?b=%20c")).body == ANSWER
        assert service.requests[-1].target == "/allowed/f/a?b=%20c"
        for url, suffix in ((f"{service.url}/f?code=secret", ""), (asked.function.url, "/../../x")):
            made = call(
                plan(url, integration=integration), TranslatedRequest("b", BODY, url_suffix=suffix)
            )
            assert "The URL " in str(made.error)
            assert "secret" not in str(made.error)
            assert made.record.attempts == 0
    assert len(service.requests) == 2


def test_an_integration_that_is_not_enabled_calls_nobody():
    off = ApiIntegration("here", "custom", ("http://127.0.0.1/",), enabled=False)
    made = call(plan("http://127.0.0.1/f", integration=off))
    assert "API integration here is not enabled" in str(made.error)


def test_a_secret_that_is_missing_is_named_by_its_reference(tmp_path):
    path = tmp_path / "key"
    with RawService(reply(body=ANSWER)) as service:
        integration = ApiIntegration("here", "custom", (service.url,), api_key=f"file:{path}")
        options = CallerOptions(secrets_dir=str(tmp_path))
        asked = plan(f"{service.url}/f", integration=integration, options=options)
        assert f"The secret file:{path} cannot be used" in str(call(asked).error)
        path.write_text("s3cret\n")
        assert call(asked).body == ANSWER
    assert [request.headers["x-api-key"] for request in service.requests] == ["s3cret"]


def test_a_secret_that_changes_is_another_one_from_the_next_attempt_on(tmp_path):
    path = tmp_path / "key"
    path.write_text("old")

    async def refuse(writer):
        path.write_text("newer")
        writer.write(reply(503))

    with RawService(refuse, reply(body=ANSWER)) as service:
        integration = ApiIntegration(
            "here",
            "azure_api_management",
            (service.url,),
            authentication=AuthenticationMethod.BEARER,
            secret=f"file:{path}",
        )
        options = CallerOptions(secrets_dir=str(tmp_path))
        asked = plan(f"{service.url}/f", integration=integration, options=options)
        assert call(asked).body == ANSWER
    said = [request.headers["authorization"] for request in service.requests]
    assert said == ["Bearer old", "Bearer newer"]


def test_a_translator_may_leave_out_the_body():
    _made, (request,) = raw(
        reply(body=ANSWER), batch=TranslatedRequest("b", None, headers={"x-a": "1"})
    )
    assert (request.method, request.body, request.headers["content-length"]) == ("POST", b"", "0")
    assert request.headers["x-a"] == "1"


@dataclass
class Limits:
    """Notes what it is told; a turn takes a minute to come."""

    clock: ManualClock
    told: list[Any] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def acquire(self, url):
        self.told.append(url.rpartition("/")[2])
        await self.acquire_next_request()
        try:
            yield self
        finally:
            self.told.append("left")

    async def acquire_next_request(self):
        self.clock.advance(60.0)
        self.told.append("turn")

    def record_success(self):
        self.told.append("answered")

    def record_throttled(self, retry_after_s=None):
        self.told.append(retry_after_s)


def test_each_request_has_its_turn_and_waiting_for_it_is_no_failure():
    limits = Limits(ManualClock(NOW))
    made, _ = raw(
        reply(429, retry_after="2"),
        reply(202),
        reply(503),
        clock=limits.clock,
        limits=limits,
        batch_timeout_s=5.0,
    )
    assert limits.told == ["f", "turn", 2.0, "turn", "turn", None, "left"]
    limits = Limits(ManualClock(NOW))
    made, _ = raw(
        *[reply(202)] * 3, reply(body=ANSWER), clock=limits.clock, limits=limits, batch_timeout_s=5
    )
    assert made.body == ANSWER
    assert limits.told == ["f", "turn", "turn", "turn", "turn", "answered", "left"]
    assert made.record.ms_waiting == pytest.approx(240_950)


@pytest.mark.parametrize("said", [None, reply(202)], ids=["in a request", "between requests"])
def test_a_batch_that_is_given_up_leaves_its_turn_and_its_connection(said):
    limits = Limits(ManualClock(NOW))

    async def work(url, raw):
        client = HttpClient()
        attempts = RetryingSender(plan(url), client, SystemClock(), cast("RateLimiter", limits))
        asked = asyncio.create_task(
            attempts.send_batch(TranslatedRequest("b", BODY), CallRecord("double", "q", "b"))
        )
        assert await asyncio.to_thread(raw.asked.acquire, timeout=60)
        await asyncio.sleep(0.05)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert limits.told[-1] == "left"
        await client.close()
        assert await asyncio.to_thread(raw.ended.acquire, timeout=60)

    with RawService(said) as service:
        asyncio.run(work(f"{service.url}/f", service))


def test_many_callers_through_a_bad_network_get_every_row_and_no_work_is_done_twice(service):
    WORKED.clear()
    faults = ["lose:every=3", "drop:every=4", "503:every=5", "truncate:every=7", "429:each=1"]
    query = str(uuid.uuid4())

    async def work(url):
        client = HttpClient()
        attempts = RetryingSender(plan(url), client, ManualClock(NOW))

        async def one(number):
            rows = [[at, number * 10 + at] for at in range(10)]
            body = f'{{"data":{rows}}}'.encode()
            batch = f"{query}:{number}"
            return await attempts.send_batch(
                TranslatedRequest(batch, body), CallRecord("double", query, batch)
            )

        answers = await asyncio.gather(*map(one, range(24)))
        await client.close()
        return answers

    with FaultProxy(service, [parse_fault(text) for text in faults]) as proxy:
        answers = asyncio.run(work(f"{proxy.url}/double"))
        assert len(proxy.requests) > 48
    values = [int(value) for answer in answers for value in re.findall(rb",(\d+)\]", answer)]
    assert values == [at * 2 for at in range(240)]
    assert sorted(WORKED) == list(range(240))
