"""HTTP requests of batches: URL, headers, compression and authentication."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from snowmelt.functions.caller.auth import RequestAuthenticator, SecretReader
from snowmelt.functions.caller.http_client import (
    HttpTarget,
    encode_headers,
    encode_request_head,
)
from snowmelt.functions.definition import RequestCompression
from snowmelt.functions.errors import ResponseInvalid
from snowmelt.functions.urls import resolve_allowed_url
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.functions.caller.http_client import HttpOrigin
    from snowmelt.functions.caller.plan import CallPlan

_MIN_COMPRESSED_BYTES = 1024
_AWS_GATEWAY_PATTERN = re.compile(r"[^.]+\.execute-api\.[^.]+\.amazonaws\.com(\.cn)?")


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A batch as it leaves; None is a POST without a body, which a request translator may want.

    `url_suffix` is what a translator puts behind the function's URL; GETs have it, too.
    """

    batch_id: str
    body: bytes | None
    url_suffix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class AddressedRequest:
    """A batch with its address, compressed once however often it is sent."""

    request: TranslatedRequest
    url: str
    target: HttpTarget
    _compressed_bodies: dict[str, bytes] = field(default_factory=dict)

    def encode_body(self, encoding: str | None) -> bytes:
        """Return the body of a POST."""
        plain = self.request.body or b""
        if encoding is None:
            return plain
        known = self._compressed_bodies.get(encoding)
        if known is None:
            known = self._compressed_bodies[encoding] = compression.compress(plain, encoding)
        return known


class RequestFactory:
    """Writes the requests of one function."""

    def __init__(self, plan: CallPlan, accepted_encodings: Mapping[HttpOrigin, str]) -> None:
        """Prepare; secrets are not looked up before a request needs them.

        `accepted_encodings`: The Accept-Encoding that origins have shown in replies; it may grow.
        """
        self._plan = plan
        self._accepted_encodings = accepted_encodings
        self._authenticator = RequestAuthenticator(
            plan.integration, SecretReader(plan.options.secrets_dir)
        )
        self._default_target: tuple[str, HttpTarget] | None = None
        self._shared_lines: tuple[str, bytes] | None = None

    def resolve_target(self, request: TranslatedRequest) -> AddressedRequest:
        """Return a batch with its address.

        Raises:
            UrlRefused: The integration does not let calls go there.
            ResponseInvalid: The integration lets no calls go anywhere.
        """
        if request.url_suffix or self._default_target is None:
            integration = self._plan.integration
            if not integration.enabled:
                raise ResponseInvalid(reason=f"API integration {integration.name} is not enabled")
            # With its suffix: a translator shall not lead elsewhere.
            address = resolve_allowed_url(self._plan.function.url + request.url_suffix, integration)
            place = (str(address), HttpTarget.from_url(address, integration.ca_file))
            if request.url_suffix:
                return AddressedRequest(request, *place)
            self._default_target = place
        return AddressedRequest(request, *self._default_target)

    async def encode_request(
        self, addressed_request: AddressedRequest, method: str, query_id: str
    ) -> tuple[bytes, bytes]:
        """Return head and body of a request; a GET has the same headers and no body.

        Raises:
            SecretMissing: Who sends it cannot be said.
            DeclarationInvalid: A header cannot be sent.
        """
        batch, target = addressed_request.request, addressed_request.target
        own = {names.BATCH_ID: batch.batch_id, **batch.headers}
        encoding = self._choose_encoding(target.origin)
        if encoding is not None:
            own["accept-encoding"] = encoding
        body = b""
        length = None
        if method == "POST":
            if encoding is not None and self._should_compress(batch.body):
                own["content-encoding"] = encoding
                body = addressed_request.encode_body(encoding)
            else:
                body = addressed_request.encode_body(None)
            length = len(body)
        if self._authenticator.is_needed:
            own |= await self._authenticator.make_headers(method, addressed_request.url, body)
        lines = self._get_shared_header_lines(query_id) + encode_headers(own)
        return encode_request_head(method, target, lines, length), body

    def redact_secrets(self, text: str) -> str:
        """Return a text of the service without what was sent to say who calls."""
        return self._authenticator.redact_secrets(text)

    def _choose_encoding(self, origin: HttpOrigin) -> str | None:
        match self._plan.function.compression:
            case RequestCompression.NONE:
                return None
            case RequestCompression.AUTO:
                if _AWS_GATEWAY_PATTERN.fullmatch(origin.host):
                    return "gzip"
                return (
                    compression.negotiate_encoding(self._accepted_encodings.get(origin))
                    if self._accepted_encodings
                    else None
                )
            case said:
                return said.value.lower()

    def _should_compress(self, body: bytes | None) -> bool:
        least = (
            _MIN_COMPRESSED_BYTES
            if self._plan.function.compression is RequestCompression.AUTO
            else 1
        )
        return body is not None and len(body) >= least

    def _get_shared_header_lines(self, query_id: str) -> bytes:
        """Return the headers that all batches of a query share, written once."""
        if self._shared_lines is not None and self._shared_lines[0] == query_id:
            return self._shared_lines[1]
        plan = self._plan
        headers = {
            "user-agent": _make_user_agent(),
            "accept": "*/*",
            "content-type": "application/json",
            names.ROW_ERRORS: "1",
        } | names.make_request_headers(
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
        lines = encode_headers(headers)
        self._shared_lines = (query_id, lines)
        return lines


@cache
def _make_user_agent() -> str:
    return f"snowmelt/{metadata.version('snowmelt')}"
