"""Service probe: sends single batches to a service and returns its responses, for tests."""

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

# Nothing is split here: how large a batch is, is for whoever asks.
_MAX_BATCH_BYTES = 256 * 1024 * 1024


class ServiceProbe:
    """Sends batches of one function and waits for each; for one thread."""

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
        """Prepare; `close` ends it.

        `timeout_s`: Seconds for one batch, with its retries and polls.

        Raises:
            UrlRefused: It is not a URL.
        """
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._writer = RequestWriter(signature.arguments)
        # As lenient as the calls of queries, so that both say the same of a service.
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
        """Return what the service says to a batch.

        Raises:
            CallFailed: It said something else, or nothing, until the patience was over.
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
