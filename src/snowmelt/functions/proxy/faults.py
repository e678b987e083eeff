"""Named faults between a caller and a service, and selection of the requests to which they apply."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from snowmelt.errors import UserError
from snowmelt.functions.errors import BatchInvalid
from snowmelt.functions.proxy.http1 import MAX_BODY_BYTES, HttpMessage
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names
from snowmelt.json import exact

_HTML_BODY = b"<html><body>Sign in, please.</body></html>"
_MADE_UP_BODY = b'{"message":"made up by the proxy"}'
_LARGE_BODY_BYTES = 11_000_000

# Responses that the proxy sends instead of forwarding the request.
SYNTHETIC_RESPONSES: dict[str, HttpMessage] = {
    "202": HttpMessage("HTTP/1.1 202 Accepted", {"content-type": "text/plain"}, b"working on it"),
    "204": HttpMessage("HTTP/1.1 204 No Content"),
    "302": HttpMessage("HTTP/1.1 302 Found", {"location": "http://192.0.2.1/elsewhere"}),
    **{
        start[:3]: HttpMessage(f"HTTP/1.1 {start}", {}, _MADE_UP_BODY)
        for start in (
            "400 Bad Request",
            "403 Forbidden",
            "404 Not Found",
            "413 Content Too Large",
            "429 Too Many Requests",
            "500 Internal Server Error",
            "503 Service Unavailable",
        )
    },
    "html": HttpMessage("HTTP/1.1 200 OK", {"content-type": "text/html"}, _HTML_BODY),
}
SYNTHETIC_RESPONSES["403"] = HttpMessage("HTTP/1.1 403 Forbidden", {}, b'{"message":"Forbidden"}')
# Connection faults, before the request is forwarded or during the response.
CONNECTION_FAULTS = {
    "drop": "close the connection before the request reaches the service",
    "lose": "close the connection instead of forwarding the response",
    "reset": "reset the connection in the middle of the response",
    "truncate": "end the response before its Content-Length",
    "delay": "wait `seconds` before forwarding the request",
    "drip": "slow the response down to `seconds`",
}


_ROW_FAULTS: dict[str, Callable[[list[Any]], Any]] = {
    "order": lambda rows: [*rows[1::-1], *rows[2:]],
    "missing": lambda rows: rows[:-1],
    "extra": lambda rows: [*rows, [len(rows), None]],
    "duplicate": lambda rows: [*rows[:1], *rows[:1], *rows[2:]],
    "text-numbers": lambda rows: [[str(row[0]), *row[1:]] for row in rows],
    "three-elements": lambda rows: [[*row, None] for row in rows],
    "data-object": lambda rows: {str(at): row for at, row in enumerate(rows)},
}
_BODY_FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "no-data": lambda _: b'{"result":[]}',
    "not-json": lambda body: body[: len(body) // 2],
    "trailing-comma": lambda body: body[:-1] + b",}",
    "bom": lambda body: b"\xef\xbb\xbf" + body,
    "nan": lambda _: b'{"data":[[0,NaN]]}',
    "large": lambda body: body + b" " * max(_LARGE_BODY_BYTES - len(body), 0),
    "empty": lambda _: b"",
}
_HEADER_FAULTS: dict[str, dict[str, str]] = {
    "md5": {"content-md5": compression.compute_content_md5(b"something else")},
    "gzip-lie": {"content-encoding": "gzip"},
}
FAULT_KINDS = (
    *SYNTHETIC_RESPONSES,
    *CONNECTION_FAULTS,
    *_ROW_FAULTS,
    *_BODY_FAULTS,
    *_HEADER_FAULTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrigger:
    """Condition on the requests to which a fault applies. All fields that are set must match.

    `on` is a method or `any`. `first` selects the first N requests, `after` those after the first N,
    `every` each Nth request, and `each` the first N attempts of each batch.
    """

    on: str = "POST"
    first: int | None = None
    after: int | None = None
    every: int | None = None
    each: int | None = None


@dataclass(slots=True)
class Fault:
    """One fault, with counters of the requests that it was offered. Thread-safe."""

    kind: str
    trigger: FaultTrigger = field(default_factory=FaultTrigger)
    seconds: float = 1.0
    retry_after: str | None = None
    applied_count: int = 0
    _request_count: int = 0
    _attempts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise UserError(f"Unknown fault {self.kind}. Valid faults: {', '.join(FAULT_KINDS)}.")

    def should_apply(self, request: HttpMessage) -> bool:
        """Count a request and return True if the fault applies to it."""
        if self.trigger.on not in {"any", request.method}:
            return False
        with self._lock:
            self._request_count += 1
            batch = request.headers.get(names.BATCH_ID, "")
            self._attempts[batch] += 1
            number, trigger = self._request_count, self.trigger
            strikes = (
                (trigger.first is None or number <= trigger.first)
                and (trigger.after is None or number > trigger.after)
                and (trigger.every is None or number % trigger.every == 0)
                and (trigger.each is None or self._attempts[batch] <= trigger.each)
            )
            self.applied_count += strikes
            return strikes

    def get_synthetic_response(self) -> HttpMessage | None:
        """Return the response that replaces the service's, or None for other kinds of faults."""
        answer = SYNTHETIC_RESPONSES.get(self.kind)
        if answer is None or self.retry_after is None:
            return answer
        return replace(answer, headers={**answer.headers, "retry-after": self.retry_after})

    def apply_to_response(self, response: HttpMessage) -> HttpMessage:
        """Return a response with this fault applied to its headers and body."""
        if self.kind not in {**_HEADER_FAULTS, **_BODY_FAULTS, **_ROW_FAULTS}:
            return response
        response = _decompress_response(response)
        if self.kind in _HEADER_FAULTS:
            return replace(response, headers={**response.headers, **_HEADER_FAULTS[self.kind]})
        if self.kind in _BODY_FAULTS:
            return replace(response, body=_BODY_FAULTS[self.kind](response.body))
        try:
            top = exact.parse_json(response.body, lenient=True)
        except exact.JsonSyntaxError:
            return response
        rows = top.get("data") if isinstance(top, dict) else None
        if not isinstance(rows, list):
            return response
        return replace(response, body=exact.serialize_json({"data": _ROW_FAULTS[self.kind](rows)}))


def _decompress_response(response: HttpMessage) -> HttpMessage:
    """Return a decompressed response without its checksum."""
    headers = dict(response.headers)
    encoding = headers.pop("content-encoding", None)
    headers.pop("content-md5", None)
    try:
        body = compression.decompress(response.body, encoding, max_bytes=MAX_BODY_BYTES)
    except BatchInvalid:
        return response
    return HttpMessage(response.start_line, headers, body)


_SETTING_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("first", "after", "every", "each"), int),
    "seconds": float,
    "retry-after": str,
    "on": lambda value: value if value == "any" else value.upper(),
}


def parse_fault(text: str) -> Fault:
    """Parse a fault such as `503:first=2` or `delay:seconds=0.5,every=3`.

    Raises:
        UserError: If the text does not have this form.
    """
    kind, _, settings = text.partition(":")
    found: dict[str, Any] = {}
    for piece in filter(None, settings.split(",")):
        name, _, value = piece.partition("=")
        convert = _SETTING_PARSERS.get(name.strip())
        try:
            settled = None if convert is None else convert(value)
        except ValueError:
            settled = None
        if settled is None:
            raise UserError(
                f"Invalid fault setting {piece!r}. Valid settings: first=2, after=2, every=3, each=1, "
                "on=GET, seconds=0.5, retry-after=3."
            )
        found[name.strip().replace("-", "_")] = settled
    others = {name: found.pop(name) for name in ("seconds", "retry_after") if name in found}
    return Fault(kind.strip(), FaultTrigger(**found), **others)
