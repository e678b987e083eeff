"""Batches as they leave: headers, compression, and how the request says who sends it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from snowmelt.functions.caller.auth import Authenticator, Secrets
from snowmelt.functions.caller.http_client import Target, header_lines, request_head
from snowmelt.functions.definition import Compression
from snowmelt.functions.errors import ReplyInvalid
from snowmelt.functions.urls import allowed_address
from snowmelt.functions.wire import compression as coding
from snowmelt.functions.wire import headers as names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.functions.caller.http_client import Origin
    from snowmelt.functions.caller.plan import CallPlan

_WORTH_COMPRESSING = 1024
_AWS_GATEWAY = re.compile(r"[^.]+\.execute-api\.[^.]+\.amazonaws\.com(\.cn)?")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch as it leaves; None is a POST without a body, which a request translator may want.

    `url_suffix` is what a translator puts behind the function's URL; GETs have it, too.
    """

    batch_id: str
    body: bytes | None
    url_suffix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Envelope:
    """A batch with its address, compressed once however often it is sent."""

    batch: Outgoing
    url: str
    target: Target
    _compressed: dict[str, bytes] = field(default_factory=dict)

    def body(self, encoding: str | None) -> bytes:
        """Return the body of a POST."""
        plain = self.batch.body or b""
        if encoding is None:
            return plain
        known = self._compressed.get(encoding)
        if known is None:
            known = self._compressed[encoding] = coding.encoded(plain, encoding)
        return known


class Dispatch:
    """Writes the requests of one function."""

    def __init__(self, plan: CallPlan, accepts: Mapping[Origin, str]) -> None:
        """Prepare; secrets are not looked up before a request needs them.

        Args:
            plan: What is called, and how.
            accepts: The Accept-Encoding that origins have shown in replies; it may grow.
        """
        self._plan = plan
        self._accepts = accepts
        self._authenticator = Authenticator(plan.integration, Secrets(plan.options.secrets_dir))
        self._plain: tuple[str, Target] | None = None
        self._lines: tuple[str, bytes] | None = None

    def envelope(self, batch: Outgoing) -> Envelope:
        """Return a batch with its address.

        Raises:
            UrlRefused: The integration does not let calls go there.
            ReplyInvalid: The integration lets no calls go anywhere.
        """
        if batch.url_suffix or self._plain is None:
            integration = self._plan.integration
            if not integration.enabled:
                raise ReplyInvalid(reason=f"API integration {integration.name} is not enabled")
            # With its suffix: a translator shall not lead elsewhere.
            address = allowed_address(self._plan.function.url + batch.url_suffix, integration)
            place = (str(address), Target.of(address, integration.ca_file))
            if batch.url_suffix:
                return Envelope(batch, *place)
            self._plain = place
        return Envelope(batch, *self._plain)

    async def written(self, envelope: Envelope, method: str, query_id: str) -> tuple[bytes, bytes]:
        """Return head and body of a request; a GET has the same headers and no body.

        Raises:
            SecretMissing: Who sends it cannot be said.
            DeclarationInvalid: A header cannot be sent.
        """
        batch, target = envelope.batch, envelope.target
        own = {names.BATCH_ID: batch.batch_id, **batch.headers}
        encoding = self._encoding(target.origin)
        if encoding is not None:
            own["accept-encoding"] = encoding
        body = b""
        length = None
        if method == "POST":
            if encoding is not None and self._compresses(batch.body):
                own["content-encoding"] = encoding
                body = envelope.body(encoding)
            else:
                body = envelope.body(None)
            length = len(body)
        if self._authenticator.is_needed:
            own |= await self._authenticator.headers(method, envelope.url, body)
        lines = self._lasting_lines(query_id) + header_lines(own)
        return request_head(method, target, lines, length), body

    def without_secrets(self, text: str) -> str:
        """Return a text of the service without what was sent to say who calls."""
        return self._authenticator.without_secrets(text)

    def _encoding(self, origin: Origin) -> str | None:
        match self._plan.function.compression:
            case Compression.NONE:
                return None
            case Compression.AUTO:
                if _AWS_GATEWAY.fullmatch(origin.host):
                    return "gzip"
                return coding.accepted(self._accepts.get(origin)) if self._accepts else None
            case said:
                return said.value.lower()

    def _compresses(self, body: bytes | None) -> bool:
        least = _WORTH_COMPRESSING if self._plan.function.compression is Compression.AUTO else 1
        return body is not None and len(body) >= least

    def _lasting_lines(self, query_id: str) -> bytes:
        """Return the headers that all batches of a query share, written once."""
        if self._lines is not None and self._lines[0] == query_id:
            return self._lines[1]
        plan = self._plan
        headers = {
            "user-agent": _user_agent(),
            "accept": "*/*",
            "content-type": "application/json",
            names.ROW_ERRORS: "1",
        } | names.request_headers(
            plan.function.signature,
            query_id,
            "",
            style=plan.options.style,
            custom=dict(plan.function.headers),
            context=plan.context,
        )
        del headers[names.BATCH_ID]
        if plan.traceparent is not None:
            headers["traceparent"] = plan.traceparent
        lines = header_lines(headers)
        self._lines = (query_id, lines)
        return lines


@cache
def _user_agent() -> str:
    return f"snowmelt/{metadata.version('snowmelt')}"
