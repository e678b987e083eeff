"""SelectObjectContent without an SDK: signs requests with any body, and decodes events."""

from __future__ import annotations

import http.client
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.eventstream import EventStreamBuffer

if TYPE_CHECKING:
    from fixtures.s3 import S3Process


REGION = "us-east-1"
QUERY = "?select=&select-type=2"


def request_body(sql: str, source: str = "<CSV/>", target: str = "<CSV/>", more: str = "") -> bytes:
    """Return the XML of a request. `source` and `target` are the contents of the serializations."""
    return (
        '<SelectObjectContentRequest xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Expression>{escape(sql)}</Expression><ExpressionType>SQL</ExpressionType>"
        f"<InputSerialization>{source}</InputSerialization>"
        f"<OutputSerialization>{target}</OutputSerialization>{more}"
        "</SelectObjectContentRequest>"
    ).encode()


def signed(
    s3: Any, path: str, body: bytes, headers: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the headers of a POST that is signed by `admin`."""
    key = s3.keys["admin"]
    request = AWSRequest("POST", s3.url + path, headers=headers or {}, data=body)
    S3SigV4Auth(Credentials(key.access_key_id, key.secret), "s3", REGION).add_auth(request)
    return dict(request.headers.items())


@dataclass
class Outcome:
    """Response: a status with an error code, or all events."""

    status: int
    code: str = ""
    message: str = ""
    output: bytes = b""
    kinds: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return self.kinds[-1:] == ["End"]


def understood(status: int, content: bytes) -> Outcome:
    if status != 200:
        root = ET.fromstring(content)
        assert root.tag == "Error"
        return Outcome(status, root.findtext("Code") or "", root.findtext("Message") or "")
    found = Outcome(status)
    output: list[bytes] = []
    for event in events_of(content):
        if event.headers[":message-type"] == "error":
            found.kinds.append("error")
            found.code = event.headers[":error-code"]
            found.message = event.headers[":error-message"]
            continue
        kind = event.headers[":event-type"]
        found.kinds.append(kind)
        if kind == "Records":
            assert len(event.payload) <= 128 * 1024
            output.append(event.payload)
        elif kind == "Stats":
            counts = ET.fromstring(event.payload)
            found.counts = {each.tag: int(each.text or 0) for each in counts}
    assert found.kinds[-1] in {"End", "error"}, "it broke off"
    found.output = b"".join(output)
    return found


def events_of(content: bytes) -> Iterator[Any]:
    """Yield each frame, decoded by botocore, which verifies the checksums."""
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        buffer = EventStreamBuffer()
        buffer.add_data(content[at : at + size])
        (event,) = buffer
        yield event
        at += size


def ask(
    s3: S3Process, bucket: str, key: str, body: bytes, *, query: str = QUERY, **headers: str
) -> Outcome:
    """Send a request on a new connection."""
    with closing(http.client.HTTPConnection("127.0.0.1", s3.port, timeout=120)) as connection:
        return ask_on(connection, s3, bucket, key, body, query=query, **headers)


def ask_on(
    connection: http.client.HTTPConnection,
    s3: Any,
    bucket: str,
    key: str,
    body: bytes,
    *,
    query: str = QUERY,
    **headers: str,
) -> Outcome:
    """Send a request on a connection that stays open."""
    path = f"/{bucket}/{key}{query}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, body, signed(s3, path, body, named))
    answer = connection.getresponse()
    return understood(answer.status, answer.read())


def begin(
    s3: S3Process, bucket: str, key: str, body: bytes
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Send a request. Return the connection and the response, without reading its body."""
    connection = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=120)
    path = f"/{bucket}/{key}{QUERY}"
    connection.request("POST", path, body, signed(s3, path, body))
    return connection, connection.getresponse()


def memory_of(pid: int, name: str = "VmRSS") -> int:
    """Return the memory of a process, or with VmHWM its peak since `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def until(holds: Callable[[], bool], seconds: float = 200.0) -> bool:
    """Wait until a condition is true. Return False after a timeout."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        if holds():
            return True
        time.sleep(0.05)
    return bool(holds())
