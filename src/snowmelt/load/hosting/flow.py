"""What follows from a state: more input, room for output, waiting, the end, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.load.hosting.feed import InputRefused
from snowmelt.load.hosting.vertica.buffers import Undecodable
from snowmelt.load.states import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.load.hosting.feed import Window
    from snowmelt.load.hosting.guest import Guest
    from snowmelt.load.hosting.vertica.buffers import OutputBuffer

_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.05


class Flow:
    """Acts on the states that one stream's calls return."""

    def __init__(self, guest: Guest, feed: Window | None, output: OutputBuffer | None) -> None:
        self._host = guest.host
        self._guest = guest
        self._feed = feed
        self._output = output
        self._wait = _FIRST_WAIT
        self._idle_since: float | None = None

    def begin(self) -> None:
        """Fetch the first input."""
        if self._feed is not None:
            self._fetch(self._feed.begin)

    def after(self, code: StreamState, *, read: bool, wrote: bool) -> bool:
        """Do what a state asks for; tell whether the stream has ended.

        Raises:
            PhaseFailed: The state is not allowed here, or nothing will ever come of it.
        """
        if code is StreamState.DONE:
            return True
        if code is StreamState.KEEP_GOING:
            self._keep_going(progress=read or wrote)
            return False
        self._idle_since, self._wait = None, _FIRST_WAIT
        if code is StreamState.OUTPUT_NEEDED:
            self._room(progress=read or wrote)
        elif code is StreamState.INPUT_NEEDED and self._feed is not None:
            self._more(self._feed, read=read, wrote=wrote)
        else:
            raise self._host.failed(f"it returned {code.name}, which is not for it to return")
        return False

    def _more(self, feed: Window, *, read: bool, wrote: bool) -> None:
        if not feed.is_last:
            self._fetch(lambda: feed.more(moved=read))
        elif not (read or wrote):
            raise self._host.failed(
                f"it asked for input after the end of its input, "
                f"of which it has left {feed.buffer.remaining} bytes"
            )

    def _room(self, *, progress: bool) -> None:
        if self._output is not None and not self._output.renew(larger=not progress):
            raise self._host.failed(
                f"it asks for more room than {self._output.size} bytes, "
                f"and neither reads nor writes"
            )

    def _keep_going(self, *, progress: bool) -> None:
        clock, patience = self._host.clock, self._host.limits.patience_seconds
        if progress:
            self._idle_since, self._wait = None, _FIRST_WAIT
            return
        now = clock.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > patience:
            raise self._host.failed(
                f"it has returned KEEP_GOING for {patience:g} seconds without reading or writing"
            )
        if self._guest.cancelled:
            raise self._host.failed("it was cancelled")
        clock.sleep(self._wait)
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def _fetch(self, fetch: Callable[[], None]) -> None:
        try:
            fetch()
        except Undecodable as error:
            raise self._host.failed(str(error), offset=error.offset) from error
        except InputRefused as error:
            raise self._host.failed(str(error)) from error
