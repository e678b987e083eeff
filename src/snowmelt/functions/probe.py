"""One batch at a time to a service, as by hand: to try it, and to see what it says."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

from snowmelt.functions.caller.attempts import Attempts, Unlimited, call_failed
from snowmelt.functions.caller.call_log import CallRecord
from snowmelt.functions.caller.http_client import HttpClient, new_event_loop
from snowmelt.functions.caller.http_request import Outgoing
from snowmelt.functions.caller.plan import CallerOptions, CallPlan
from snowmelt.functions.definition import ApiIntegration, Compression, ExternalFunction
from snowmelt.functions.errors import ReplyInvalid, TooLarge
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire.messages import Reply, ReplyReader, RequestWriter
from snowmelt.schema.types import LogicalType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from snowmelt.clock import Clock
    from snowmelt.functions.signature import Signature

# Nothing is split here: how large a batch is, is for whoever asks.
_MAX_BYTES = 256 * 1024 * 1024


class Asker:
    """Sends batches of one function and waits for each; for one thread."""

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
        """Prepare; `close` ends it.

        Args:
            url: Of the function.
            signature: What the service expects.
            clock: Waits.
            patience_s: Seconds for one batch, with its retries and polls.
            headers: More of them, such as a key.
            compress: Send gzip.

        Raises:
            UrlRefused: It is not a URL.
        """
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._writer = RequestWriter(signature.arguments)
        # As lenient as the calls of queries, so that both say the same of a service.
        special = signature.returns.kind is LogicalType.REAL
        self._reader = ReplyReader(signature.returns, raw=True, lenient=special)
        plan = _plan(url, signature, patience_s, compress=compress)
        self._name = signature.name
        self._loop = new_event_loop()
        self._client = HttpClient()
        self._attempts = Attempts(plan, self._client, clock, Unlimited())

    def close(self) -> None:
        """Close the connection."""
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def ask(self, rows: int, columns: Sequence[Iterable[Any]], query_id: str, batch: int) -> Reply:
        """Return what the service says to a batch.

        Raises:
            CallFailed: It said something else, or nothing, until the patience was over.
        """
        batch_id = f"{query_id}:{batch}"
        body = self._writer.body(rows, columns)
        record = CallRecord(self._name, query_id, batch_id)
        outgoing = Outgoing(batch_id, body, headers=self._headers)
        try:
            answer = self._loop.run_until_complete(self._attempts.ask(outgoing, record))
            return self._reader.read(answer.removeprefix(BOM_UTF8), rows)
        except (ReplyInvalid, TooLarge) as error:
            raise call_failed(record, str(error)) from error


def _plan(url: str, signature: Signature, patience_s: float, *, compress: bool) -> CallPlan:
    address = parse_url(url)
    here = ApiIntegration("here", "custom", (f"{address.scheme}://{address.authority}/",))
    function = ExternalFunction(
        signature=signature,
        url=url,
        integration=here.name,
        compression=Compression.GZIP if compress else Compression.AUTO,
        batch_timeout_s=patience_s,
    )
    options = CallerOptions(
        debug_payload=True,
        max_batch_bytes=_MAX_BYTES,
        poll_timeout_s=patience_s,
        reply_timeout_s=patience_s,
    )
    return CallPlan(function, here, "UTC", options=options)
