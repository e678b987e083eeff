"""Spans of a row's way through client, service and migrator, for OpenTelemetry.

They are made where OpenTelemetry has been loaded in the process already, by the application or by
`opentelemetry-instrument`; nothing here loads it, and where it is not there a span costs a look-up.

All processes find the same trace without telling each other: its number is made of the blob's path.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_API = "opentelemetry.trace"
_SAMPLED = 1
HEADER = "traceparent"


def is_on() -> bool:
    """Tell whether somebody has loaded OpenTelemetry in this process."""
    return _API in sys.modules


@contextlib.contextmanager
def span(name: str, path: str | None = None, **attributes: str | int) -> Iterator[None]:
    """Make a span of what the block does: in the trace of a blob, or of the span under way."""
    if not is_on():
        yield
        return
    context = None if path is None else _of_path(path)
    if path is not None:
        attributes["snowmelt.blob"] = path
    with _tracer().start_as_current_span(name, context, attributes=attributes):
        yield


def mark(
    name: str, paths: Iterable[str], since_ns: int | None = None, **attributes: str | int
) -> None:
    """Add a span to the trace of each of these blobs that ends now and began at an instant, or now."""
    if not is_on():
        return
    for path in sorted(set(paths)):
        told = {**attributes, "snowmelt.blob": path}
        _tracer().start_span(name, _of_path(path), attributes=told, start_time=since_ns).end()


def header() -> dict[str, str]:
    """Return the W3C header that a request carries on the span under way, if there is one."""
    if not is_on():
        return {}
    context = sys.modules[_API].get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    flags = f"{int(context.trace_flags):02x}"
    return {HEADER: f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"}


class Answering:
    """The span of a request that is answered later, from another thread; nothing where it is off."""

    def __init__(self, name: str, headers: Mapping[bytes, bytes]) -> None:
        """Begin, as part of what the request's header names; without one nothing is begun."""
        parent = headers.get(HEADER.encode()) if is_on() else None
        context = None if parent is None else _of_header(parent)
        self._span: Any = None
        if context is not None:
            server = sys.modules[_API].SpanKind.SERVER
            self._span = _tracer().start_span(name, context, kind=server)

    def end(self, *, is_visible: bool, **attributes: str | int) -> None:
        """End; `is_visible` says that queries see the rows from now on."""
        if self._span is not None:
            self._span.set_attributes(attributes)
            if is_visible:
                self._span.add_event("visible")
            self._span.end()


def _tracer() -> Any:
    return sys.modules[_API].get_tracer("snowmelt")


def _of_path(path: str) -> Any:
    digest = hashlib.sha256(b"snowmelt trace\0" + path.encode()).digest()
    return _context(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big"))


def _of_header(header: bytes) -> Any | None:
    parts = header.decode("latin-1").split("-")
    lengths = [len(part) for part in parts[:4]]
    if lengths != [2, 32, 16, 2]:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    return _context(trace_id, span_id, flags)


def _context(trace_id: int, span_id: int, flags: int = _SAMPLED) -> Any:
    api = sys.modules[_API]
    parent = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(flags))
    return api.set_span_in_context(api.NonRecordingSpan(parent))
