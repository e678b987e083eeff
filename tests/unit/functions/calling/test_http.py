"""Requests go over kept connections, and every way in which a reply can end is told apart."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import itertools
import socket
import ssl
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raw_service import RawService, reply
from snowmelt.functions.calling import http
from snowmelt.functions.calling.connection import Bounds
from snowmelt.functions.calling.http import (
    HttpClient,
    Target,
    header_lines,
    new_event_loop,
    request_head,
)
from snowmelt.functions.refusals import (
    ConnectionGone,
    DeclarationInvalid,
    TimedOut,
    TlsRefused,
    TooLarge,
    TransportFailed,
)
from snowmelt.functions.urls import parse_url

OK = reply(body=b"hello")
CLOSE = RawService.CLOSE


@dataclass
class Traffic:
    bytes_out: int = 0
    bytes_in: int = 0


@dataclass
class At:
    url: str


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine function that takes a client, on either event loop."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else new_event_loop()

    async def with_client(work):
        client = HttpClient()
        try:
            return await work(client)
        finally:
            await client.close()

    trouble = []
    loop.set_exception_handler(lambda _, context: trouble.append(context))
    yield lambda work: loop.run_until_complete(asyncio.wait_for(with_client(work), 20))
    loop.close()
    assert not trouble


async def ask(client, service, body=b"{}", *, path="/f", ca_file=None, traffic=None, **bounds):
    target = Target.of(parse_url(service.url + path), ca_file)
    head = request_head("POST", target, header_lines({"x-test": "1"}), len(body))
    return await client.ask(target, head, body, Bounds(**bounds), traffic or Traffic())


def asking(service, **options):
    return lambda client: ask(client, service, **options)


def slowly(data, pause_s=0.001):
    async def say(writer):
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(pause_s)

    return say


def test_the_request_arrives_as_it_was_written(run):
    with RawService(OK) as service:
        run(asking(service, body=b"abc", path="/a/f?key=1"))
    request = service.requests[0]
    assert (request.first, request.body) == ("POST /a/f?key=1 HTTP/1.1", b"abc")
    assert request.headers == {
        "host": f"127.0.0.1:{service.port}",
        "x-test": "1",
        "content-length": "3",
    }


def test_one_connection_serves_requests_one_after_the_other(run):
    async def work(client):
        return [(await ask(client, service)).body for _ in range(5)]

    with RawService(OK) as service:
        assert run(work) == [b"hello"] * 5
    assert service.connections == 1


def test_as_many_connections_as_requests_in_flight_are_made_and_kept(run):
    async def work(client):
        for _ in range(2):
            replies = await asyncio.gather(*(ask(client, service) for _ in range(16)))
            assert {each.body for each in replies} == {b"hello"}

    async def later(writer):
        await asyncio.sleep(0.05)
        writer.write(OK)

    with RawService(later) as service:
        run(work)
    assert service.connections == 16


FORMS = {
    "length": OK,
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    "chunks with trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-test: no\r\n\r\n"
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nhello", CLOSE),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello", CLOSE),
    "connection: close": (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
    ),
    "100 before": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "103 before": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nx-test: no\r\n\r\n" + OK,
    "no reason": b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello",
    "line feeds": b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello",
    "empty header": b"HTTP/1.1 200 OK\r\nx-none:\r\ncontent-length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("drip", [False, True], ids=["at once", "byte by byte"])
def test_a_reply_is_read_in_whatever_form_it_comes(run, form, drip):
    parts = FORMS[form] if isinstance(FORMS[form], tuple) else (FORMS[form],)
    if drip:
        parts = tuple(slowly(part, 0) if isinstance(part, bytes) else part for part in parts)

    async def work(client):
        for _ in range(2):
            found = await ask(client, service)
            assert (found.status, found.body) == (200, b"hello")
            assert "x-test" not in found.headers

    with RawService(parts) as service:
        run(work)
        kept = form not in {"until the end", "HTTP/1.0", "connection: close"}
        assert service.connections == (1 if kept else 2)


def test_headers_are_in_lower_case_and_repeated_ones_joined(run):
    said = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n"
    with RawService(said) as service:
        found = run(asking(service))
    assert (found.headers["x-a"], found.body) == ("1, 2", b"")


BROKEN = {
    "garbage": (b"SSH-2.0-server\r\n\r\n", "not HTTP/1.1"),
    "length too long": ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", CLOSE), "middle"),
    "chunk too long": (
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhello", CLOSE),
        "middle of the reply",
    ),
    "no last chunk": (
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", CLOSE),
        "middle of the reply",
    ),
    "chunk of no size": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        "not HTTP/1.1",
    ),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "not HTTP/1.1",
    ),
    "negative length": (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "not HTTP/1.1"),
    "head without end": (b"HTTP/1.1 200 OK\r\n" + b"x-a: 1\r\n" * 10_000, "no end"),
    "notices without end": (b"HTTP/1.1 103 Hint\r\n\r\n" * 5_000, "no end"),
    "101": (
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "not HTTP/1.1",
    ),
    "nothing": (CLOSE, "closed without a reply"),
    "half a head": ((b"HTTP/1.1 200 OK\r\ncontent-", CLOSE), "middle of the reply"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_reply_fails_and_names_the_host_alone(run, case):
    said, reason = BROKEN[case]
    with RawService(said) as service, pytest.raises(TransportFailed, match=reason) as failed:
        run(asking(service, path="/secret?code=secret", reply_s=5))
    assert str(failed.value).startswith(f"127.0.0.1:{service.port}: ")
    assert "secret" not in str(failed.value)


GOOD = [b"".join(part for part in (form if isinstance(form, tuple) else (form,))
                 if part is not CLOSE) for form in FORMS.values()]  # fmt: skip


@st.composite
def damaged(draw):
    """Return a reply with bytes put in, taken out or repeated, in pieces."""
    said = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(said)))
        until = draw(st.integers(at, min(len(said), at + 12)))
        noise = draw(st.binary(max_size=4) | st.sampled_from([said[at:until] * 2, b"\r\n", b"0"]))
        said = said[:at] + noise + said[until:]
    cuts = sorted(draw(st.lists(st.integers(0, len(said)), max_size=3)))
    return [said[a:b] for a, b in itertools.pairwise([0, *cuts, len(said)])]


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(pieces=damaged())
def test_whatever_comes_is_a_reply_or_a_failure_and_nothing_else(run, pieces):
    async def work(client):
        try:
            found = await ask(client, service, reply_s=5)
        except (TransportFailed, TooLarge):
            return
        assert 200 <= found.status <= 999

    with RawService((*pieces, CLOSE)) as service:
        run(work)


def test_a_reset_in_the_middle_fails(run):
    async def reset(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel")
        await writer.drain()
        await asyncio.sleep(0.05)
        linger = b"\x01\0\0\0\0\0\0\0"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    with RawService(reset) as service, pytest.raises(ConnectionGone, match="middle of the reply"):
        run(asking(service))


def test_a_kept_connection_that_ends_without_a_word_is_replaced_at_once(run):
    async def work(client):
        await ask(client, service)
        return await ask(client, service)

    with RawService(OK, CLOSE, OK) as service:
        assert run(work).body == b"hello"
    assert (service.connections, len(service.requests)) == (2, 3)


def test_a_kept_connection_that_ends_within_a_reply_is_not(run):
    async def work(client):
        await ask(client, service)
        await ask(client, service)

    half = (b"HTTP/1.1 200 OK\r\n", CLOSE)
    with RawService(OK, half, OK) as service, pytest.raises(ConnectionGone):
        run(work)


def test_connections_that_ended_while_idle_are_not_used(run):
    async def work(client):
        await asyncio.gather(*(ask(client, service) for _ in range(4)))
        await asyncio.sleep(0.1)
        return await ask(client, service)

    async def then_end(writer):
        writer.write(OK)
        await asyncio.sleep(0.05)

    ends = (then_end, CLOSE)
    with RawService(ends, ends, ends, ends, OK) as service:
        assert run(work).body == b"hello"
    assert (service.connections, len(service.requests)) == (5, 5)


def test_connections_that_nobody_uses_are_closed_after_a_while(run, monkeypatch):
    async def work(client):
        await asyncio.gather(*(ask(client, service) for _ in range(3)))
        for _ in range(3):
            assert await asyncio.to_thread(service.ended.acquire, timeout=5)
        return (await ask(client, service)).body

    monkeypatch.setattr(http, "_KEEP_IDLE_S", 0.05)
    with RawService(OK) as service:
        assert run(work) == b"hello"


def test_what_comes_without_being_asked_for_ends_the_connection(run):
    async def twice(writer):
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(reply(body=b"other"))

    async def work(client):
        first = await ask(client, service)
        await asyncio.sleep(0.1)
        return first.body, (await ask(client, service)).body

    with RawService(twice, OK) as service:
        assert run(work) == (b"hello", b"hello")
        assert service.connections == 2


def test_two_replies_at_once_are_one_too_many(run):
    async def work(client):
        return [(await ask(client, service)).body for _ in range(2)]

    with RawService(OK + reply(body=b"other"), OK) as service:
        assert run(work) == [b"hello", b"hello"]
        assert service.connections == 2


@pytest.mark.parametrize(
    ("said", "bounds"),
    [
        (None, {"reply_s": 0.2}),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", None), {"idle_s": 0.2}),
        (slowly(reply(body=b"x" * 500), 0.01), {"idle_s": 2.0, "reply_s": 0.3}),
        (slowly(b"HTTP/1.1 103 Hint\r\n\r\n" * 100, 0.01), {"reply_s": 0.3}),
    ],
    ids=["silence", "silence in the middle", "drip", "notices"],
)
def test_a_reply_that_is_too_slow_times_out_and_its_connection_is_closed(run, said, bounds):
    async def work(client):
        with pytest.raises(TimedOut, match="Timeout was reached"):
            await ask(client, service, **bounds)
        assert await asyncio.to_thread(service.ended.acquire, timeout=5)

    with RawService(said) as service:
        run(work)


def test_a_slow_reply_that_goes_on_is_waited_for(run):
    with RawService(slowly(reply(body=b"x" * 50), 0.005)) as service:
        assert len(run(asking(service, idle_s=0.25, reply_s=10)).body) == 50


def test_a_host_that_takes_no_connection_times_out(run):
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        service = At(f"http://127.0.0.1:{full.getsockname()[1]}")
        with pytest.raises(TimedOut, match="while connecting"):
            run(asking(service, connect_s=0.2))
        for each in waiting:
            each.close()


def test_a_port_where_nobody_listens_is_told(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        service = At(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(TransportFailed, match="refused"):
            run(asking(service))


def test_a_host_that_has_no_address_is_told(run):
    service = At("http://nowhere.invalid")
    with pytest.raises(TransportFailed, match=r"^nowhere.invalid:80: "):
        run(asking(service))


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"64\r\n" + b"x" * 100 + b"\r\n",
        reply(body=b"x" * 1001),
    ],
    ids=["announced", "chunks", "sent"],
)
def test_a_reply_that_is_too_large_is_not_read_to_its_end(run, said):
    parts = (said,) * 20 if b"chunked" in said else (said,)
    parts = (said, *(said.partition(b"\r\n\r\n")[2] for _ in parts[1:]), None)
    with RawService(parts) as service, pytest.raises(TooLarge, match="larger than 1000 bytes"):
        run(asking(service, reply_bytes=1000))


def test_a_large_body_of_an_error_is_cut_off(run):
    said = (b"HTTP/1.1 500 Oh\r\ncontent-length: 99000000\r\n\r\n" + b"x" * 100_000, None)
    with RawService(said) as service:
        assert run(asking(service)).status == 500


def test_redirects_are_replies_like_others(run):
    with RawService(reply(302, location="http://127.0.0.1:1/elsewhere")) as service:
        found = run(asking(service))
    assert (found.status, len(service.requests)) == (302, 1)


class EarlyService(RawService):
    """Answers when it has read a request's head, and reads the rest into nothing."""

    async def converse(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answers[0])
        await writer.drain()
        while await reader.read(1 << 16):
            pass


def test_an_answer_before_the_whole_request_was_read_is_taken(run):
    with EarlyService(reply(413, body=b"too much")) as service:
        assert run(asking(service, body=b"x" * 30_000_000)).status == 413


def test_cancelling_closes_the_connection_of_the_request(run):
    async def work(client):
        asked = asyncio.create_task(ask(client, service))
        assert await asyncio.to_thread(service.asked.acquire, timeout=5)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await asyncio.to_thread(service.ended.acquire, timeout=5)
        return (await ask(client, service)).body

    with RawService(None, OK) as service:
        assert run(work) == b"hello"


def test_closing_ends_requests_that_are_under_way_and_lets_no_more_begin(run):
    async def work(client):
        asked = asyncio.create_task(ask(client, service))
        assert await asyncio.to_thread(service.asked.acquire, timeout=5)
        await client.close()
        with pytest.raises(TransportFailed):
            await asked
        with pytest.raises(TransportFailed, match="closed"):
            await ask(client, service)

    with RawService(None) as service:
        run(work)


def test_bytes_are_counted_in_failure_as_well(run):
    traffic = Traffic()
    with RawService((b"HTTP/1.1 200 OK\r\n", CLOSE)) as service:
        with pytest.raises(ConnectionGone):
            run(asking(service, traffic=traffic))
        sent = len(f"POST /f HTTP/1.1\r\nhost: 127.0.0.1:{service.port}\r\n") + len(
            b"x-test: 1\r\ncontent-length: 2\r\n\r\n{}"
        )
    assert (traffic.bytes_out, traffic.bytes_in) == (sent, 17)


def test_what_an_origin_can_decompress_is_remembered(run):
    async def work(client):
        await ask(client, service)
        return client.accepts

    with RawService(reply(accept_encoding="gzip")) as service:
        assert list(run(work).values()) == ["gzip"]


@pytest.mark.parametrize("value", ["a\r\nb: c", "é", "\x00"])
def test_a_header_cannot_smuggle_another(value):
    with pytest.raises(DeclarationInvalid, match="'x-a'") as refused:
        header_lines({"x-a": value})
    assert value not in str(refused.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return the paths of a key and of a certificate for 127.0.0.1 that vouches for itself."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    private = key.private_bytes(
        form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "certificate.pem").write_bytes(made.public_bytes(form))
    return folder / "key.pem", folder / "certificate.pem"


@pytest.fixture
def secure(certificate):
    key, public = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(public, key)
    with RawService(OK, tls=context) as service:
        yield service


def test_the_certificates_of_an_integration_are_trusted(run, secure, certificate):
    async def work(client):
        return [
            (await ask(client, secure, body=b"x" * 300_000, ca_file=str(certificate[1]))).body
            for _ in range(3)
        ]

    assert run(work) == [b"hello"] * 3
    assert secure.connections == 1


def test_a_certificate_that_nobody_vouches_for_is_refused_for_good(run, secure):
    with pytest.raises(TlsRefused, match="not trusted") as refused:
        run(asking(secure))
    assert not refused.value.retryable


class PlainService(RawService):
    async def converse(self, reader, writer):
        writer.write(self.answers[0])
        await reader.read()


def test_a_service_without_tls_is_told_from_one_that_is_away(run):
    with PlainService(reply(400)) as service, pytest.raises(TlsRefused, match="no TLS"):
        run(asking(At(service.url.replace("http:", "https:"))))


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_that_holds_no_certificate_is_told(run, secure, tmp_path, text):
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DeclarationInvalid, match=r"ca\.pem cannot be read"):
        run(asking(secure, ca_file=str(path)))
