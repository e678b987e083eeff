"""Queue of responses from worker threads to the event loop."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_log = logging.getLogger("snowmelt.server")
_Response = TypeVar("_Response")


class ResponseQueue:
    """Carries answers from other threads to the event loop, a group per wake-up."""

    def __init__(self) -> None:
        self._responses: deque[tuple[Callable[[Any], None], object]] = deque()
        self._scheduled = False

    def make_callback(
        self, loop: asyncio.AbstractEventLoop, on_response: Callable[[_Response], None]
    ) -> Callable[[_Response], None]:
        """Return what calls `on_response` in the event loop when it is called from any thread."""

        def arrive(response: _Response) -> None:
            self._responses.append((on_response, response))
            # At worst two threads wake the loop at once: the second delivery finds nothing.
            if not self._scheduled:
                self._scheduled = True
                loop.call_soon_threadsafe(self._deliver)

        return arrive

    def _deliver(self) -> None:
        # First this, then looking: whoever comes in between wakes the loop again.
        self._scheduled = False
        while self._responses:
            on_response, response = self._responses.popleft()
            try:
                on_response(response)
            except Exception:  # noqa: BLE001 - the others can be answered
                _log.exception("an answer could not be given")
