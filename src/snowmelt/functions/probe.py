"""Service probe: sends single batches to a service and returns the responses, for tests."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from snowmelt.clock import Clock
from snowmelt.functions.caller.attempts import RetryingSender, make_call_failed
from snowmelt.functions.caller.http_client import HttpClient, new_event_loop
from snowmelt.functions.caller.http_request import TranslatedRequest
from snowmelt.functions.caller.plan import CallerOptions, CallPlan, CallRecord
from snowmelt.functions.definition import ApiIntegration, ExternalFunction, RequestCompression
from snowmelt.functions.errors import PayloadTooLarge, ResponseInvalid
from snowmelt.functions.signature import FunctionSignature
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire.messages import BatchResponse, RequestWriter, ResponseReader
from snowmelt.schema.types import LogicalType

# No limit, because the probe does not split batches: its caller decides their size.
_MAX_BATCH_BYTES = 256 * 1024 * 1024


class ServiceProbe:
    """Client that sends batches of one function and waits for each. Not thread-safe."""

    def __init__(
        self,
        url: str,
        signature: FunctionSignature,
        clock: Clock,
        *,
        timeout_s: float = 600.0,
        headers: Mapping[str, str] | None = None,
        compress: bool = False,
    ) -> None:
        """Create a probe; call `close` after use.

        Args:
            url: URL of the service.
            signature: Signature of the function.
            clock: Clock for timeouts and retries.
            timeout_s: Timeout of a batch in seconds, including its retries and polls.
            headers: Additional request headers.
            compress: Compress requests with gzip.

        Raises:
            UrlRefused: If the URL is invalid.
        """
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._writer = RequestWriter(signature.arguments)
        # Be as lenient as queries are, so that both accept the same responses.
        special = signature.returns.kind is LogicalType.REAL
        self._reader = ResponseReader(signature.returns, raw=True, lenient=special)
        plan = _make_call_plan(url, signature, timeout_s, compress=compress)
        self._function_name = signature.name
        self._loop = new_event_loop()
        self._client = HttpClient()
        self._sender = RetryingSender(plan, self._client, clock)

    def close(self) -> None:
        """Close the connection."""
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def send_batch(
        self, row_count: int, columns: Sequence[Iterable[Any]], query_id: str, ordinal: int
    ) -> BatchResponse:
        """Send a batch and return the response of the service.

        Raises:
            CallFailed: If the service returned an invalid response, or no response within the
                timeout.
        """
        batch_id = f"{query_id}:{ordinal}"
        body = self._writer.encode_body(row_count, columns)
        record = CallRecord(self._function_name, query_id, batch_id)
        outgoing = TranslatedRequest(batch_id, body, headers=self._headers)
        try:
            answer = self._loop.run_until_complete(self._sender.send_batch(outgoing, record))
            return self._reader.read(answer.removeprefix(BOM_UTF8), row_count)
        except (ResponseInvalid, PayloadTooLarge) as error:
            raise make_call_failed(record, str(error)) from error


def _make_call_plan(
    url: str, signature: FunctionSignature, timeout_s: float, *, compress: bool
) -> CallPlan:
    address = parse_url(url)
    here = ApiIntegration("here", "custom", (f"{address.scheme}://{address.authority}/",))
    function = ExternalFunction(
        signature=signature,
        url=url,
        integration=here.name,
        compression=RequestCompression.GZIP if compress else RequestCompression.AUTO,
        batch_timeout_s=timeout_s,
    )
    options = CallerOptions(
        debug_payload=True,
        max_batch_bytes=_MAX_BATCH_BYTES,
        poll_timeout_s=timeout_s,
        reply_timeout_s=timeout_s,
    )
    return CallPlan(function, here, "UTC", options=options)
