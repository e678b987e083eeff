"""Commands that run until they are told to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Let SIGTERM and the first Ctrl-C end what runs in good order; the second ends it at once."""
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    # Signals come to the main thread only, and only that may say what is to be done.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
