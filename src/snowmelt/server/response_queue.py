"""Answers on their way from threads to the event loop."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_log = logging.getLogger("snowmelt.server")
_Answer = TypeVar("_Answer")


class Mailbox:
    """Carries answers from other threads to the event loop, a group per wake-up."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[Callable[[Any], None], object]] = deque()
        self._scheduled = False

    def slot(
        self, loop: asyncio.AbstractEventLoop, settle: Callable[[_Answer], None]
    ) -> Callable[[_Answer], None]:
        """Return what calls `settle` in the event loop when it is called from any thread."""

        def arrive(answer: _Answer) -> None:
            self._arrived.append((settle, answer))
            # At worst two threads wake the loop at once: the second delivery finds nothing.
            if not self._scheduled:
                self._scheduled = True
                loop.call_soon_threadsafe(self._deliver)

        return arrive

    def _deliver(self) -> None:
        # First this, then looking: whoever comes in between wakes the loop again.
        self._scheduled = False
        while self._arrived:
            settle, answer = self._arrived.popleft()
            try:
                settle(answer)
            except Exception:  # noqa: BLE001 - the others can be answered
                _log.exception("an answer could not be given")
