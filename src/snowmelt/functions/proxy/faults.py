"""Faults by name: what can go wrong between a caller and a service, and when it shall."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from snowmelt.errors import UserError
from snowmelt.functions.errors import BatchInvalid
from snowmelt.functions.proxy.http1 import MAX_BODY_BYTES, Message
from snowmelt.functions.wire import compression, exact_json
from snowmelt.functions.wire import headers as names

if TYPE_CHECKING:
    from collections.abc import Callable

_HTML = b"<html><body>Sign in, please.</body></html>"
_LARGE = 11_000_000

# Answers that are made up; the service never sees the request.
MADE_UP: dict[str, Message] = {
    "202": Message("HTTP/1.1 202 Accepted", {"content-type": "text/plain"}, b"working on it"),
    "204": Message("HTTP/1.1 204 No Content"),
    "302": Message("HTTP/1.1 302 Found", {"location": "http://192.0.2.1/elsewhere"}),
    "400": Message("HTTP/1.1 400 Bad Request", {}, b'{"message":"made up by the proxy"}'),
    "403": Message("HTTP/1.1 403 Forbidden", {}, b'{"message":"Forbidden"}'),
    "404": Message("HTTP/1.1 404 Not Found", {}, b'{"message":"made up by the proxy"}'),
    "413": Message("HTTP/1.1 413 Content Too Large", {}, b'{"message":"made up by the proxy"}'),
    "429": Message("HTTP/1.1 429 Too Many Requests", {}, b'{"message":"made up by the proxy"}'),
    "500": Message("HTTP/1.1 500 Internal Server Error", {}, b'{"message":"made up by the proxy"}'),
    "503": Message("HTTP/1.1 503 Service Unavailable", {}, b'{"message":"made up by the proxy"}'),
    "html": Message("HTTP/1.1 200 OK", {"content-type": "text/html"}, _HTML),
}
# What happens to the connection: before the service sees the request, or with its reply.
CONNECTION = {
    "drop": "close the connection; the service never sees the request",
    "lose": "close the connection instead of passing on the reply",
    "reset": "reset the connection in the middle of the reply",
    "truncate": "end the reply early, behind a longer Content-Length",
    "delay": "wait `seconds` before the request is passed on",
    "drip": "pass on the reply so slowly that it takes `seconds`",
}


def _swap(rows: list[Any]) -> list[Any]:
    return [*rows[1::-1], *rows[2:]]


_ROWS: dict[str, Callable[[list[Any]], Any]] = {
    "order": _swap,
    "missing": lambda rows: rows[:-1],
    "extra": lambda rows: [*rows, [len(rows), None]],
    "duplicate": lambda rows: [*rows[:1], *rows[:1], *rows[2:]],
    "text-numbers": lambda rows: [[str(row[0]), *row[1:]] for row in rows],
    "three-elements": lambda rows: [[*row, None] for row in rows],
    "data-object": lambda rows: {str(at): row for at, row in enumerate(rows)},
}
_BODIES: dict[str, Callable[[bytes], bytes]] = {
    "no-data": lambda _: b'{"result":[]}',
    "not-json": lambda body: body[: len(body) // 2],
    "trailing-comma": lambda body: body[:-1] + b",}",
    "bom": lambda body: b"\xef\xbb\xbf" + body,
    "nan": lambda _: b'{"data":[[0,NaN]]}',
    "large": lambda body: body + b" " * max(_LARGE - len(body), 0),
    "empty": lambda _: b"",
}
_HEADERS: dict[str, dict[str, str]] = {
    "md5": {"content-md5": compression.md5(b"something else")},
    "gzip-lie": {"content-encoding": "gzip"},
}
KINDS = (*MADE_UP, *CONNECTION, *_ROWS, *_BODIES, *_HEADERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Which requests a fault is for; all that are set must hold.

    `on` is a method or `any`; `first` the first so many requests, `after` those behind so many,
    `every` each so-manieth, `each` the first so many attempts at each batch.
    """

    on: str = "POST"
    first: int | None = None
    after: int | None = None
    every: int | None = None
    each: int | None = None

    def holds(self, request: int, attempt: int) -> bool:
        """Tell whether it is for a request, counted from 1, and attempt, counted from 1."""
        return (
            (self.first is None or request <= self.first)
            and (self.after is None or request > self.after)
            and (self.every is None or request % self.every == 0)
            and (self.each is None or attempt <= self.each)
        )


@dataclass(slots=True)
class Fault:
    """One kind of fault; counts the requests it looked at. For any number of threads."""

    kind: str
    when: When = field(default_factory=When)
    seconds: float = 1.0
    retry_after: str | None = None
    happened: int = 0
    _seen: int = 0
    _attempts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"There is no fault {self.kind}; there are {', '.join(KINDS)}.")

    def strikes(self, request: Message) -> bool:
        """Count a request, and tell whether the fault happens to it."""
        if self.when.on not in {"any", request.method}:
            return False
        with self._lock:
            self._seen += 1
            batch = request.headers.get(names.BATCH_ID, "")
            self._attempts[batch] += 1
            strikes = self.when.holds(self._seen, self._attempts[batch])
            self.happened += strikes
            return strikes

    def made_up(self) -> Message | None:
        """Return the answer that is given instead of the service's, if it is that kind."""
        answer = MADE_UP.get(self.kind)
        if answer is None or self.retry_after is None:
            return answer
        return replace(answer, headers={**answer.headers, "retry-after": self.retry_after})

    def applied(self, reply: Message) -> Message:
        """Return a reply with what this fault does to headers and body."""
        if self.kind in _HEADERS:
            return replace(_plain(reply), headers={**_plain(reply).headers, **_HEADERS[self.kind]})
        if self.kind in _BODIES:
            plain = _plain(reply)
            return replace(plain, body=_BODIES[self.kind](plain.body))
        if self.kind in _ROWS:
            return self._with_rows(_plain(reply))
        return reply

    def _with_rows(self, reply: Message) -> Message:
        try:
            top = exact_json.parse(reply.body, lenient=True)
        except exact_json.NotJson:
            return reply
        rows = top.get("data") if isinstance(top, dict) else None
        if not isinstance(rows, list):
            return reply
        return replace(reply, body=exact_json.write({"data": _ROWS[self.kind](rows)}))


def _plain(reply: Message) -> Message:
    """Return a reply decompressed, without its checksum."""
    headers = dict(reply.headers)
    encoding = headers.pop("content-encoding", None)
    headers.pop("content-md5", None)
    try:
        body = compression.decoded(reply.body, encoding, limit=MAX_BODY_BYTES)
    except BatchInvalid:
        return reply
    return Message(reply.first, headers, body)


_SETTINGS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("first", "after", "every", "each"), int),
    "seconds": float,
    "retry-after": str,
    "on": lambda value: value if value == "any" else value.upper(),
}


def parse_fault(text: str) -> Fault:
    """Return the fault that a text such as `503:first=2` or `delay:seconds=0.5,every=3` means.

    Raises:
        UserError: It is not of that form.
    """
    kind, _, settings = text.partition(":")
    numbers: dict[str, int] = {}
    others: dict[str, Any] = {}
    for piece in filter(None, settings.split(",")):
        name, _, value = piece.partition("=")
        convert = _SETTINGS.get(name.strip())
        try:
            settled = None if convert is None else convert(value)
        except ValueError:
            settled = None
        if settled is None:
            raise UserError(
                f"{piece} says nothing about a fault; first=2, after=2, every=3, each=1, on=GET, "
                "seconds=0.5 and retry-after=3 do."
            )
        kept = numbers if convert is int else others
        kept[name.strip().replace("-", "_")] = settled
    when = When(on=others.pop("on", "POST"), **numbers)
    return Fault(kind.strip(), when, **others)
