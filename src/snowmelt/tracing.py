"""OpenTelemetry spans of a row's path through client, service and migrator.

Spans are created only if the application or `opentelemetry-instrument` has loaded OpenTelemetry.
This module does not import it. If it is not loaded, a span costs one dictionary lookup.

All processes derive the trace ID from the blob's path, so they share a trace without exchanging its
ID.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_OTEL_TRACE_MODULE = "opentelemetry.trace"
_SAMPLED_FLAG = 1
TRACEPARENT_HEADER = "traceparent"


def is_enabled() -> bool:
    """Return True if OpenTelemetry is loaded in this process."""
    return _OTEL_TRACE_MODULE in sys.modules


@contextlib.contextmanager
def span(name: str, blob_path: str | None = None, **attributes: str | int) -> Iterator[None]:
    """Open a span for the duration of the block, in the trace of a blob or below the current span."""
    if not is_enabled():
        yield
        return
    context = None if blob_path is None else _make_blob_context(blob_path)
    if blob_path is not None:
        attributes["snowmelt.blob"] = blob_path
    with _get_tracer().start_as_current_span(name, context, attributes=attributes):
        yield


def record_blob_spans(
    name: str, blob_paths: Iterable[str], started_at_ns: int | None = None, **attributes: str | int
) -> None:
    """Add a span to the trace of each blob. It ends now, and begins at a given time or now."""
    if not is_enabled():
        return
    for path in sorted(set(blob_paths)):
        told = {**attributes, "snowmelt.blob": path}
        _get_tracer().start_span(
            name, _make_blob_context(path), attributes=told, start_time=started_at_ns
        ).end()


def make_traceparent_header() -> dict[str, str]:
    """Return the W3C header of the current span, or an empty string if there is no span."""
    if not is_enabled():
        return {}
    context = sys.modules[_OTEL_TRACE_MODULE].get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    flags = f"{int(context.trace_flags):02x}"
    return {TRACEPARENT_HEADER: f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"}


class DeferredSpan:
    """Span of a request to which another thread responds later. Does nothing without tracing."""

    def __init__(self, name: str, headers: Mapping[bytes, bytes]) -> None:
        """Begin a span below the span in the request's header. Without a header there is no span."""
        parent = headers.get(TRACEPARENT_HEADER.encode()) if is_enabled() else None
        context = None if parent is None else _parse_traceparent(parent)
        self._span: Any = None
        if context is not None:
            server = sys.modules[_OTEL_TRACE_MODULE].SpanKind.SERVER
            self._span = _get_tracer().start_span(name, context, kind=server)

    def end(self, *, is_visible: bool, **attributes: str | int) -> None:
        """End the span. `is_visible` records that the rows are visible to queries."""
        if self._span is not None:
            self._span.set_attributes(attributes)
            if is_visible:
                self._span.add_event("visible")
            self._span.end()


def _get_tracer() -> Any:
    return sys.modules[_OTEL_TRACE_MODULE].get_tracer("snowmelt")


def _make_blob_context(blob_path: str) -> Any:
    digest = hashlib.sha256(b"snowmelt trace\0" + blob_path.encode()).digest()
    return _make_span_context(
        int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    )


def _parse_traceparent(traceparent: bytes) -> Any | None:
    parts = traceparent.decode("latin-1").split("-")
    if [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    with contextlib.suppress(ValueError):
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
        return _make_span_context(trace_id, span_id, flags)
    return None


def _make_span_context(trace_id: int, span_id: int, flags: int = _SAMPLED_FLAG) -> Any:
    api = sys.modules[_OTEL_TRACE_MODULE]
    parent = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(flags))
    return api.set_span_in_context(api.NonRecordingSpan(parent))
