"""A service of external functions whose calls are counted, and functions in the catalog for it."""

from __future__ import annotations

import json
import threading
import uuid
import zlib
from dataclasses import dataclass, field

import pytest

from functions_service import BATCH, hosted
from snowmelt.clock import SystemClock
from snowmelt.functions.service import RemoteService


@dataclass
class Counted:
    """What came to the service: batch id and rows of each POST, and headers of the last one."""

    url: str = ""
    calls: list[tuple[str, str, list]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        with self.lock:
            self.calls.clear()
            self.headers.clear()

    @property
    def ids(self) -> list[str]:
        return [batch for _, batch, _ in self.calls]

    @property
    def rows(self) -> int:
        return sum(len(rows) for _, _, rows in self.calls)

    @property
    def values(self) -> list:
        """The arguments of all rows, those of one argument bare."""
        rows = [row[1:] for _, _, data in self.calls for row in data]
        return [row[0] if len(row) == 1 else row for row in rows]


def counting(app, counted: Counted):
    """Wrap an ASGI app; each POST is counted before it is answered."""

    async def wrapped(scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        plain = zlib.decompress(body, 47) if "content-encoding" in headers else body
        with counted.lock:
            counted.headers = headers
            counted.calls.append((scope["path"], headers[BATCH], json.loads(plain)["data"]))
        if scope["path"] == "/closed" and not OPEN.is_set():
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        sent = False

        async def again():
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await app(scope, again, send)

    return wrapped


# While it is not set, `closed` refuses whatever it gets, and remembers nothing of it.
OPEN = threading.Event()
ECHOED = (
    *("NUMBER", "NUMBER(38,10)", "NUMBER(5,0)", "FLOAT", "BOOLEAN", "VARCHAR", "BINARY", "DATE"),
    *("TIME", "TIME(3)", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"),
    *("VARIANT", "ARRAY", "OBJECT"),
)


def echo_of(kind: str) -> str:
    """Return the name of the function that gives back what it gets, of a SQL type."""
    return "echo_" + "".join(sign if sign.isalnum() else "_" for sign in kind).lower()


def service() -> RemoteService:
    """Return functions of the simplest kinds; `echo` gives back whatever it gets."""
    svc = RemoteService("counted")

    @svc.function
    def upper(text: str) -> str:
        return text.upper()

    @svc.function
    def place(city: str) -> dict:
        return {"city": city, "latitude": len(city) / 2, "longitude": -1.5}

    @svc.function
    def middle(a: float, b: float) -> float:
        return (a + b) / 2

    @svc.function
    def seven() -> int:
        return 7

    @svc.function(mode="batch")
    async def slow(text: list[str]) -> list[str]:
        await SystemClock().pause(0.3)
        return text

    @svc.function
    def token(text: str) -> str:
        return uuid.uuid4().hex

    @svc.function
    def closed(text: str) -> str:
        return text

    @svc.function
    def shaky(text: str) -> str:
        if text.startswith("bad"):
            raise ValueError("no such text")
        return text

    for kind in ECHOED:
        svc.function(lambda x: x, name=echo_of(kind), arguments=[kind], returns=kind)

    return svc


@pytest.fixture(scope="session")
def counted_service():
    """The service on a port, for the whole run."""
    counted = Counted()
    with hosted(counting(service().asgi(), counted)) as url:
        counted.url = url
        yield counted


@pytest.fixture
def counted(counted_service):
    counted_service.clear()
    return counted_service
