"""Filters written as state machines, as the host runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.load.hosting.binding import DESTROY, PROCESS
from snowmelt.load.hosting.feed import Feed
from snowmelt.load.hosting.flow import Flow
from snowmelt.load.hosting.guest import Guest
from snowmelt.load.hosting.vertica.buffers import OutputBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from snowmelt.load.hosting.guest import Host
    from snowmelt.load.reader import Reader


class HostedFilter:
    """A filter with `setup`, `process` and `destroy`; the same object filters stream after stream.

    `process` may say INPUT_NEEDED with unread input in front, write without reading and the other
    way round. The rules are the SDK's; where they leave something open, a small input comes as a
    whole with the first call.
    """

    def __init__(self, host: Host, make: Callable[[], object]) -> None:
        self.guest = Guest(host, make)
        self.host = host

    @property
    def made(self) -> object:
        """The object of user code."""
        return self.guest.made

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        try:
            with self.guest.stream(DESTROY):
                yield from self._filtered(reader)
        finally:
            reader.close()

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self.guest.cancel()

    def _filtered(self, reader: Reader) -> Iterator[bytes]:
        limits, server = self.host.limits, self.host.server
        feed, output = Feed(reader, limits), OutputBuffer(limits.window_bytes)
        source = feed.buffer
        process = self.guest.function("process", PROCESS)
        flow = Flow(self.guest, feed, output)
        flow.begin()
        done = False
        while not done:
            read, written = source.consumed, output.written
            answer = process(server, source, feed.tell(), output)
            if data := output.take():
                yield data
            done = flow.after(
                answer.code, read=source.consumed > read, wrote=output.written > written
            )
        output.close()
