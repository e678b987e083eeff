"""Filters that see where records end: the side channel, as state machines use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.load.hosting.binding import DESTROY, PROCESS_RECORDS
from snowmelt.load.hosting.feed import RecordFeed
from snowmelt.load.hosting.flow import Flow
from snowmelt.load.hosting.vertica.buffers import LengthBuffer, OutputBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from snowmelt.load.hosting.guest import Host
    from snowmelt.load.hosting.machine import HostedFilter
    from snowmelt.load.reader import Reader
    from snowmelt.load.records import Records


class HostedRecordFilter:
    """A filter with `useSideChannel` and `processWithMetadata`.

    What it writes are records with their lengths, unless it has `endsSideChannel`, which returns
    true: then it writes plain bytes.
    """

    def __init__(self, hosted: HostedFilter) -> None:
        self._hosted = hosted
        ends = getattr(hosted.made, "endsSideChannel", None)
        self.ends_records = callable(ends) and bool(ends())

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or wrote lengths whose sum is not
                the number of bytes that it wrote.
        """
        return (
            self._bytes(records)
            if self.ends_records
            else joined_records(self._hosted.host, self._filtered(records))
        )

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._hosted.cancel()

    def _bytes(self, records: Iterator[Records]) -> Iterator[bytes]:
        host = self._hosted.host
        for data, lengths in self._filtered(records):
            if len(lengths):
                raise host.failed("it wrote lengths of records, and its endsSideChannel() is true")
            yield data

    def _filtered(self, records: Iterator[Records]) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
        guest = self._hosted.guest
        host = guest.host
        with guest.stream(DESTROY):
            feed = RecordFeed(records, host.limits)
            output, output_lengths = OutputBuffer(host.limits.window_bytes), LengthBuffer()
            source, lengths = feed.buffer, feed.lengths
            process = guest.function("processWithMetadata", PROCESS_RECORDS)
            flow = Flow(guest, feed, output)
            flow.begin()
            done = False
            while not done:
                taken, written = feed.taken, output.written
                answer = process(
                    host.server, source, lengths, feed.tell(), output, output_lengths
                )  # fmt: skip
                wrote = output.written > written or output_lengths.offset > 0
                if wrote:
                    yield output.take(), output_lengths.take()
                done = flow.after(answer.code, read=feed.taken > taken, wrote=wrote)
            output.close()


class HostedEitherFilter(HostedRecordFilter):
    """One that has `process`, too: where there is no side channel, it filters bytes."""

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: As HostedFilter.
        """
        return self._hosted.run(reader)


def hosted_record_filter(hosted: HostedFilter) -> HostedRecordFilter:
    """Return a filter of records, which filters bytes, too, if user code can."""
    either = callable(getattr(hosted.made, "process", None))
    return HostedEitherFilter(hosted) if either else HostedRecordFilter(hosted)


def joined_records(
    host: Host, written: Iterator[tuple[bytes, NDArray[np.uint32]]]
) -> Iterator[Records]:
    """Yield records from bytes and lengths, of which either may come first.

    Raises:
        PhaseFailed: The sum of the lengths is not the number of bytes.
    """
    data, lengths = b"", np.zeros(0, dtype=np.uint32)
    total = 0
    for more, more_lengths in written:
        data += more
        total += len(more)
        lengths = np.concatenate([lengths, more_lengths])
        ends = np.cumsum(lengths, dtype=np.int64)
        whole = int(np.searchsorted(ends, len(data), side="right"))
        if whole:
            end = int(ends[whole - 1])
            yield _batch(data[:end], ends[:whole])
            data, lengths = data[end:], lengths[whole:]
    if len(lengths) or data:
        claimed = total - len(data) + int(lengths.sum())
        hint = "" if len(lengths) else "; endsSideChannel() would say that it writes no lengths"
        raise host.failed(f"it wrote {total} bytes in records of {claimed} bytes together{hint}")


def _batch(data: bytes, ends: NDArray[np.int64]) -> Records:
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
