"""Which records a ScanRange takes: those whose first byte lies in it, whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.select.refusals import SelectError

if TYPE_CHECKING:
    from snowmelt.select.request import ScanRange


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets in the object, bytes: records that begin in [first, stop); None is its end."""

    first: int = 0
    stop: int | None = None


WHOLE = Span()


def resolve(scan_range: ScanRange | None, size: int, *, compression: str = "NONE") -> Span:
    """Turn a ScanRange (both ends included; an end alone counts from the back) into offsets.

    Raises:
        SelectError: A range that is none or that begins behind the object's end; or an object
            whose records have no offsets: a compressed one, a pipe.
    """
    if scan_range is None:
        return WHOLE
    if compression != "NONE" or size < 0:
        raise SelectError(
            "UnsupportedScanRangeInput",
            "A ScanRange works on uncompressed objects only: its bytes are the records' bytes.",
        )
    start, end = scan_range.start, scan_range.end
    if start is None and end is None:
        return WHOLE
    if (start or 0) < 0 or (end or 0) < 0:
        raise _refused("Start and End may not be negative")
    if start is None:
        return Span(max(0, size - (end or 0)), None)
    if end is not None and end < start:
        raise _refused(f"End ({end}) lies before Start ({start})")
    if start >= size > 0:
        raise _refused(f"Start ({start}) lies behind the object's last byte ({size - 1})")
    return Span(start, None if end is None else end + 1)


def _refused(reason: str) -> SelectError:
    return SelectError("InvalidScanRange", f"The ScanRange is not valid: {reason}.")
