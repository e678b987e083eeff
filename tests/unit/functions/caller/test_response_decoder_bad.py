"""What a service may say wrongly, and what then becomes of the query: an error that names
everything but the payload, or NULL.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import tempfile

import pytest

from snowmelt.functions.caller.plan import BatchStatus
from snowmelt.functions.definition import FailureAction
from snowmelt.functions.errors import CallFailed
from snowmelt.functions.proxy.faults import parse_fault
from snowmelt.functions.proxy.relay import FaultProxy, LoopbackHttpServer
from snowmelt.functions.service import RemoteService
from snowmelt.functions.wire import compression
from support import function_calls
from support import functions_service as kit
from support.call_logs import InMemoryCallLog
from support.ports import free_port

SECRET = "payload-4711"
ROWS = [SECRET, "b", "c", "d"]


@pytest.fixture(autouse=True)
def own_files(tmp_path, monkeypatch):
    """Limits and failures that processes share are not shared between tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def service():
    svc = RemoteService("behind")

    @svc.function(blocking=False)
    def echo(text: str) -> str:
        return text

    @svc.function(blocking=False)
    def number(text: str) -> float:
        return float(len(text))

    with kit.hosted(svc.asgi()) as url:
        yield url


def failure(plan, rows=ROWS):
    """Return the error of a call, checked for what each one has to name and must not show."""
    ledger = InMemoryCallLog()
    with pytest.raises(CallFailed) as caught:
        function_calls.ask(
            plan, function_calls.rows(rows), ledger=ledger, clock=function_calls.clock()
        )
    text = str(caught.value)
    form = r"echo, batch query:1:0:0:\w+(/[01])*: .+ \(status (\d+|None), \d+ attempts, \d+ polls, \d+\.\d s, http://\S+\)\."
    assert re.fullmatch(form, text), text
    assert SECRET not in text
    assert ledger.records[-1].outcome is BatchStatus.FAILED
    assert SECRET not in ledger.records[-1].error
    return caught.value


def summary(error):
    return error.fields["status"], error.fields["attempts"], bool(error.fields["polls"])


WRONG = {
    "missing": "Function received the wrong number of rows: 3 for 4",
    "extra": "Function received the wrong number of rows: 5 for 4",
    "duplicate": "Row numbers out of order",
    "order": "Row numbers out of order",
    "text-numbers": "Row numbers out of order: index 0 has a row number that is not an integer",
    "three-elements": "index 0 contains 3 elements, but 2 elements are expected",
    "data-object": 'top-level JSON object must contain "data" JSON array element',
    "no-data": 'top-level JSON object must contain "data" JSON array element',
    "not-json": "Format of the returned value is not JSON",
    "trailing-comma": "Format of the returned value is not JSON",
    "empty": "Format of the returned value is not JSON",
    "html": "Format of the returned value is not JSON",
    "md5": "the Content-MD5 of the response does not match its body",
    "gzip-lie": "the body is not compressed as its header says",
}
REFUSED = ["204", "302", "400", "403", "404"]
PASSING = ["429", "500", "503"]


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_reply_ends_the_query_at_once(service, kind):
    with FaultProxy(service, [parse_fault(kind)]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert WRONG[kind] in error.fields["reason"]
        assert summary(error) == (200, 1, False)
        assert len(proxy.requests) == 1


@pytest.mark.parametrize("status", REFUSED)
def test_a_refusal_is_not_asked_again_and_a_redirect_not_followed(service, status):
    with FaultProxy(service, [parse_fault(status)]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert f"external function echo with remote service error: {status}" in str(error)
        assert summary(error) == (int(status), 1, False)


@pytest.mark.parametrize("status", PASSING)
def test_what_passes_is_asked_again_until_patience_ends(service, status):
    with FaultProxy(service, [parse_fault(status)]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert "no answer in time" in str(error)
        assert error.fields["status"] == int(status)
        assert error.fields["attempts"] == len(proxy.requests) > 10
        ids = {each.headers[kit.BATCH] for each in proxy.requests}
        assert ids == {error.fields["batch"]}


@pytest.mark.parametrize("status", PASSING)
def test_retries_have_an_end_that_the_function_says(service, status):
    with FaultProxy(service, [parse_fault(status)]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo", max_batch_retries=2))
        assert summary(error) == (int(status), 3, False)


@pytest.mark.parametrize("kind", [*PASSING, "drop", "lose", "reset", "truncate"])
def test_what_happens_once_costs_one_more_attempt(service, kind):
    ledger = InMemoryCallLog()
    with FaultProxy(service, [parse_fault(f"{kind}:each=1")]) as proxy:
        plan = function_calls.plan(f"{proxy.url}/echo")
        values = function_calls.ask(
            plan, function_calls.rows(ROWS), ledger=ledger, clock=function_calls.clock()
        )
    assert values == ROWS
    (record,) = ledger.records
    assert (record.outcome, record.status, record.attempts) == (BatchStatus.OK, 200, 2)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("drop", "closed without a reply"),
        ("lose", "closed without a reply"),
        ("truncate", "closed in the middle of the response"),
        ("reset", "in the middle of the response"),
    ],
)
def test_a_connection_that_always_breaks_is_an_error_of_its_own(service, kind, reason):
    with FaultProxy(service, [parse_fault(kind)]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo", max_batch_retries=1))
        assert "Remote service cannot be reached. Check the endpoint URL" in str(error)
        assert reason in str(error)
        assert summary(error) == (None, 2, False)


def test_nobody_listens():
    url = f"http://127.0.0.1:{free_port()}/echo"
    error = failure(function_calls.plan(url, max_batch_retries=1))
    assert "Remote service cannot be reached" in str(error)
    assert summary(error) == (None, 2, False)


@pytest.mark.parametrize("options", [{"idle_timeout_s": 0.05}, {"reply_timeout_s": 0.2}])
def test_a_reply_that_trickles_is_none(service, options):
    with FaultProxy(service, [parse_fault("drip:seconds=4")]) as proxy:
        error = failure(
            function_calls.plan(f"{proxy.url}/echo", options=options, max_batch_retries=0)
        )
        assert "Timeout was reached" in str(error)
        assert error.fields["status"] is None


def test_a_batch_that_is_worked_on_for_ever_is_polled_until_patience_ends(service):
    with FaultProxy(service, [parse_fault("202:on=any")]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert "the service still works on the batch" in str(error)
        assert summary(error) == (202, 1, True)
        assert {each.method for each in proxy.requests[1:]} == {"GET"}


def test_a_batch_that_the_service_forgot_is_sent_once_more(service):
    faults = [parse_fault("202:first=1"), parse_fault("404:on=GET")]
    with FaultProxy(service, faults) as proxy:
        plan = function_calls.plan(f"{proxy.url}/echo")
        assert (
            function_calls.ask(plan, function_calls.rows(ROWS), clock=function_calls.clock())
            == ROWS
        )
        assert [each.method for each in proxy.requests] == ["POST", "GET", "POST"]


def test_a_batch_that_is_always_forgotten_is_given_up(service):
    with FaultProxy(service, [parse_fault("202"), parse_fault("404:on=GET")]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert "remote service error: 404" in str(error)
        assert summary(error) == (404, 2, True)


def test_an_error_while_polling_is_the_end(service):
    with FaultProxy(service, [parse_fault("202"), parse_fault("500:on=GET")]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert "remote service error: 500" in str(error)
        assert summary(error) == (500, 1, True)


@pytest.mark.parametrize(("kind", "status"), [("413", 413), ("large", 200)])
def test_what_is_always_too_large_ends_with_the_row_that_is(service, kind, status):
    with FaultProxy(service, [parse_fault(kind)]) as proxy:
        error = failure(function_calls.plan(f"{proxy.url}/echo"))
        assert "row 0 alone is too large" in str(error)
        assert error.fields["status"] == status
        assert error.fields["batch"].endswith("/0/0")


@pytest.mark.parametrize("kind", ["html", "403", "missing", "413", "drop", "md5"])
def test_a_failed_batch_is_null_where_its_function_says_so(service, kind):
    ledger = InMemoryCallLog()
    with FaultProxy(service, [parse_fault(f"{kind}:first=1")]) as proxy:
        plan = function_calls.plan(
            f"{proxy.url}/echo",
            on_batch_failure=FailureAction.RETURN_NULL,
            max_batch_rows=1,
            max_batch_retries=0,
            max_in_flight=1,
        )
        values = function_calls.ask(
            plan, function_calls.rows(ROWS), ledger=ledger, clock=function_calls.clock()
        )
    assert values == [None, *ROWS[1:]]
    assert [each.outcome for each in ledger.records] == [BatchStatus.FAILED, *[BatchStatus.OK] * 3]


def test_a_refusal_is_shown_unless_a_setting_hides_it(service):
    with FaultProxy(service, [parse_fault("403")]) as proxy:
        for chars, shown in ((300, """ '{"message":"Forbidden"}'"""), (0, "")):
            plan = function_calls.plan(f"{proxy.url}/echo", options={"error_body_chars": chars})
            with pytest.raises(CallFailed, match=re.escape(f"error: 403{shown} (status 403")):
                function_calls.ask(plan, function_calls.rows(ROWS), clock=function_calls.clock())


def test_a_byte_order_mark_is_passed_over(service):
    with FaultProxy(service, [parse_fault("bom")]) as proxy:
        assert (
            function_calls.ask(function_calls.plan(f"{proxy.url}/echo"), function_calls.rows(ROWS))
            == ROWS
        )


def test_the_token_nan_is_a_float(service):
    with FaultProxy(service, [parse_fault("nan")]) as proxy:
        plan = function_calls.plan(f"{proxy.url}/number", name="number", returns="FLOAT")
        (value,) = function_calls.ask(plan, function_calls.rows(["a"]))
        assert value != value


def said(*pieces, close=True):
    """Return a server that answers each request with the same bytes, piece by piece."""

    async def answer(_request, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return not close

    return LoopbackHttpServer(answer)


GOOD = json.dumps({"data": [[at, value] for at, value in enumerate(ROWS)]}, indent=2).encode()
PACKED = gzip.compress(GOOD)


def message(body=GOOD, status="200 OK", **headers):
    headers = {"content-length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def chunked(body):
    middle = len(body) // 2
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:middle], body[middle:])
    )
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


GOOD_ENOUGH = {
    "pretty-printed, no type": [message()],
    "capitals in header names": [message().replace(b"content-length", b"CONTENT-LENGTH")],
    "chunks": [chunked(GOOD) + b"0\r\n\r\n"],
    "trailers": [chunked(GOOD) + b"0\r\nx-after: 1\r\n\r\n"],
    "no length, ends with the connection": [message(content_length="", connection="close")],
    "old protocol": [message(content_length="").replace(b"HTTP/1.1", b"HTTP/1.0")],
    "line feeds only": [message().replace(b"\r\n", b"\n")],
    "byte by byte": [bytes([each]) for each in message()],
    "gzip": [message(PACKED, content_encoding="gzip")],
    "checksum of the text": [
        message(PACKED, content_encoding="gzip", content_md5=compression.compute_content_md5(GOOD))
    ],
    "checksum of the compressed": [
        message(
            PACKED, content_encoding="gzip", content_md5=compression.compute_content_md5(PACKED)
        )
    ],
    "continue first": [b"HTTP/1.1 100 Continue\r\n\r\n", message()],
    "other keys beside data": [message(GOOD[:-1] + b', "errors": [], "took": 3}')],
    "blanks around": [message(b"\n  " + GOOD + b"\r\n\r\n ")],
}


@pytest.mark.parametrize("kind", GOOD_ENOUGH)
@pytest.mark.parametrize("close", [True, False])
def test_what_real_services_say_is_understood(kind, close):
    close = close or "connection" in kind or "old" in kind
    with said(*GOOD_ENOUGH[kind], close=close) as server:
        plan = function_calls.plan(f"{server.url}/echo", max_batch_retries=0)
        assert function_calls.ask(plan, function_calls.rows(ROWS)) == ROWS
        assert function_calls.ask(plan, function_calls.rows(ROWS)) == ROWS


BROKEN = {
    "chunks that break off": ([chunked(GOOD)], "closed in the middle of the response"),
    "half a chunk": ([chunked(GOOD)[:-10]], "closed in the middle of the response"),
    "a chunk without size": (
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
        "the response is not HTTP/1.1",
    ),
    "another protocol": ([b"SSH-2.0-OpenSSH_9.6\r\n"], "the response is not HTTP/1.1"),
    "a head without end": (
        [b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 70_000],
        "exceeds 65,536 bytes",
    ),
    "no head": ([b"HTTP/1.1 200 OK\r\n"], "closed in the middle of the response"),
    "a length that is none": (
        [b"HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n"],
        "the response is not HTTP/1.1",
    ),
    "nothing": ([], "closed without a reply"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_reply_is_an_error_of_transport(kind):
    pieces, reason = BROKEN[kind]
    with said(*pieces) as server:
        error = failure(function_calls.plan(f"{server.url}/echo", max_batch_retries=0))
        assert reason in str(error)
        assert "Remote service cannot be reached" in str(error)


LIES = {
    "a bomb": (
        [message(gzip.compress(b" " * 11_000_000), content_encoding="gzip")],
        "row 0 alone is too large",
    ),
    "compression that breaks off": (
        [message(PACKED[:-8], content_encoding="gzip")],
        "the compressed body is truncated",
    ),
    "a compression that nobody asked for": (
        [message(content_encoding="zstd")],
        "unknown content encoding 'zstd'",
    ),
    "a checksum in hexadecimal": (
        [message(content_md5="5d41402abc4b2a76b9719d911017c592")],
        "Content-MD5 of the response does not match",
    ),
    "the request once more": (
        [message(json.dumps({"data": [[0, SECRET, 1]] * 4}).encode())],
        "index 0 contains 3 elements",
    ),
    "a text without end": ([message(b'{"data": [[0, "' + SECRET.encode())], "is not JSON"),
    "a number as large as that": (
        [message(b'{"data": [[0, %s], [1, 1], [2, 1], [3, 1]]}' % (b"9" * 400))],
        "Row 0: the number does not fit into NUMBER(38,0)",
    ),
    "no number": (
        [message(json.dumps({"data": [[at, SECRET] for at in range(4)]}).encode())],
        "Row 0: a number was expected",
    ),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_reply_that_cannot_be_believed_ends_the_query(kind):
    pieces, reason = LIES[kind]
    returns = "NUMBER" if "number" in kind else "VARCHAR"
    with said(*pieces) as server:
        error = failure(function_calls.plan(f"{server.url}/echo", returns=returns))
        assert reason in str(error)
        assert error.fields["status"] == 200


def test_null_from_a_function_that_promises_none():
    body = json.dumps({"data": [[0, "a"], [1, None], [2, "c"], [3, "d"]]}).encode()
    with said(message(body)) as server:
        error = failure(function_calls.plan(f"{server.url}/echo", returns_null=False))
        assert "from a function that is NOT NULL" in str(error)


def test_mixed_types_in_a_column_of_text_are_their_json():
    body = json.dumps({"data": [[0, "a"], [1, 2], [2, True], [3, {"b": None}]]}).encode()
    with said(message(body)) as server:
        values = function_calls.ask(
            function_calls.plan(f"{server.url}/echo"), function_calls.rows(ROWS)
        )
    assert values == ["a", "2", "true", '{"b":null}']
