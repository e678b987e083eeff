"""One batch at a time to a service, as by hand: to try it, and to see what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from snowmelt.functions.refusals import BatchInvalid, BatchTooLarge, CallFailed, ReplyInvalid
from snowmelt.functions.wire import coding
from snowmelt.functions.wire import headers as names
from snowmelt.functions.wire.replies import MAX_REPLY_BYTES, Reply, ReplyReader
from snowmelt.functions.wire.requests import RequestWriter
from snowmelt.retry import Patience

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from snowmelt.clock import Clock
    from snowmelt.functions.signature import Signature

_OK, _ACCEPTED = 200, 202
_RETRIED = frozenset({408, 429, *range(500, 600)})
_SHOWN = 200  # characters of an error's body


@dataclass(slots=True)
class Asked:
    """What it took to get an answer."""

    status: int | None = None
    attempts: int = 0
    polls: int = 0
    started: float = 0.0
    texts: list[str] = field(default_factory=list)


class Asker:
    """Sends batches of one function and waits for each: retries, polls, checks."""

    def __init__(
        self,
        url: str,
        signature: Signature,
        clock: Clock,
        *,
        patience_s: float = 600.0,
        headers: Mapping[str, str] | None = None,
        compress: bool = False,
    ) -> None:
        """Prepare.

        Args:
            url: Of the function.
            signature: What the service expects.
            clock: Waits.
            patience_s: Seconds for one batch, with its retries and polls.
            headers: More of them, such as a key.
            compress: Send gzip.
        """
        self._url = url
        self._signature = signature
        self._clock = clock
        self._patience_s = patience_s
        self._headers = {"content-type": "application/json", "accept-encoding": "gzip, deflate"}
        self._headers |= {name.lower(): value for name, value in (headers or {}).items()}
        self._compress = compress
        self._writer = RequestWriter(signature.arguments)
        self._reader = ReplyReader(signature.returns, raw=True)
        self._client = httpx.Client(
            timeout=patience_s,
            follow_redirects=False,
            # Without TLS there is nothing to load certificates for, which takes a tenth of a second.
            verify=not url.startswith("http:"),
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, rows: int, columns: Sequence[Iterable[Any]], query_id: str, batch: int) -> Reply:
        """Return what the service says to a batch.

        Raises:
            CallFailed: It said something else, or nothing, until the patience was over.
        """
        batch_id = f"{query_id}:{batch}"
        sent = names.request_headers(self._signature, query_id, batch_id) | self._headers
        body = self._writer.body(rows, columns)
        asked = Asked(started=self._clock.monotonic())
        try:
            raw = self._answered(sent, body, asked)
            return self._reader.read(self._checked(raw), rows)
        except (ReplyInvalid, BatchInvalid, BatchTooLarge, httpx.HTTPError) as error:
            raise CallFailed(
                function=self._signature.name,
                batch=batch_id,
                reason=str(error).rstrip(".") or type(error).__name__,
                status=asked.status,
                attempts=asked.attempts,
                polls=asked.polls,
                seconds=self._clock.monotonic() - asked.started,
            ) from error

    def _answered(self, headers: dict[str, str], body: bytes, asked: Asked) -> httpx.Response:
        patience = Patience(self._patience_s, self._clock, first_s=0.2, longest_s=20.0)
        method = "POST"
        while True:
            reply = self._once(method, headers, body, asked)
            if reply is not None and reply.status_code == _OK:
                return reply
            if reply is not None and reply.status_code == _ACCEPTED:
                method = "GET"
            elif reply is not None and (reply.status_code not in _RETRIED or method == "GET"):
                raise ReplyInvalid(reason=_refusal(reply))
            pause_s = patience.next_pause_s()
            if pause_s is None:
                raise ReplyInvalid(reason="no answer in time")
            self._clock.sleep(_retry_after_s(reply) or pause_s)

    def _once(
        self, method: str, headers: dict[str, str], body: bytes, asked: Asked
    ) -> httpx.Response | None:
        if method == "GET":
            asked.polls += 1
            request = self._client.build_request(method, self._url, headers=headers)
        else:
            asked.attempts += 1
            if self._compress:
                headers = headers | {"content-encoding": "gzip"}
                body = coding.encoded(body, "gzip")
            request = self._client.build_request(method, self._url, headers=headers, content=body)
        try:
            reply = self._client.send(request, stream=True)
            try:
                # Raw: the checksum may be of the bytes before or after they are decompressed.
                raw = b"".join(reply.iter_raw())
            finally:
                reply.close()
        except httpx.TransportError:
            asked.status = None
            return None
        asked.status = reply.status_code
        reply.extensions["raw"] = raw
        return reply

    def _checked(self, reply: httpx.Response) -> bytes:
        raw: bytes = reply.extensions["raw"]
        plain = coding.decoded(
            raw, reply.headers.get("content-encoding"), limit=MAX_REPLY_BYTES, strict=True
        )
        digest = reply.headers.get("content-md5")
        if digest is not None and not coding.md5_matches(digest, raw, plain):
            raise ReplyInvalid(reason="the reply's Content-MD5 is not that of its body")
        return plain


def _refusal(reply: httpx.Response) -> str:
    raw: bytes = reply.extensions["raw"]
    try:
        raw = coding.decoded(raw, reply.headers.get("content-encoding"), limit=MAX_REPLY_BYTES)
    except (BatchInvalid, BatchTooLarge):
        raw = b""
    return f"the service refuses: {raw.decode(errors='replace')[:_SHOWN]}"


def _retry_after_s(reply: httpx.Response | None) -> float | None:
    said = "" if reply is None else reply.headers.get("retry-after", "")
    return float(said) if said.isdigit() else None
