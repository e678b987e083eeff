"""Calls into user code, on a thread of their own, so that no call can hold the host for ever."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_GRACE_SECONDS = 1.0
_SLICE_SECONDS = 0.5
_STOP: tuple[None, tuple[()]] = (None, ())
_WAKE = object()


class Blocked(Exception):
    """A call did not return for as long as the host waits."""


class Cancelled(Exception):
    """The load was cancelled."""


class Escaped(Exception):
    """User code raised what Python itself ends by: KeyboardInterrupt, SystemExit, GeneratorExit."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(str(raised))
        self.raised = raised


class Caller:
    """One thread that makes calls, one after the other; for the use of one other thread.

    A call that lasts longer than `patience` seconds, or that goes on after `wake`, is told to stop
    by `on_stop`, which may run while the call does; a second later it is left alone. Its
    thread does not hold up the process's end.
    """

    def __init__(self, patience: float, on_stop: Callable[[], object]) -> None:
        self._patience = patience
        self._on_stop = on_stop
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any] | None, tuple[Any, ...]]]
        self._calls = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._woken = False
        self._abandoned = False
        self.busy = False
        self._thread = threading.Thread(target=self._work, name="snowmelt-user-code", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and return what it returns, or raise what it raises.

        Raises:
            Blocked: It did not return in time.
            Cancelled: `wake` was called.
        """
        if self._woken:
            raise Cancelled
        self.busy = True
        self._calls.put((function, arguments))
        try:
            result, error = self._answer(self._patience)
        except queue.Empty:
            self.stop()
            raise Blocked from None
        if error is not None:
            raise error
        return result

    def stop(self) -> bool:
        """Ask a running call to stop; tell whether it did so in time."""
        if not self.busy or self._abandoned:
            return not self.busy
        # It is user code, too: it may block, and what it raises helps nobody.
        asking = threading.Thread(target=self._ask, name="snowmelt-cancel", daemon=True)
        asking.start()
        with contextlib.suppress(queue.Empty):
            while self._results.get(timeout=min(_GRACE_SECONDS, self._patience)) is _WAKE:
                pass
            self.busy = False
        self._abandoned = self.busy
        return not self.busy

    def wake(self) -> None:
        """Make the call that runs, or else the next one, end as cancelled; from any thread."""
        self._woken = True
        self._results.put(_WAKE)

    def close(self) -> None:
        """End the thread as soon as no call runs."""
        self._calls.put(_STOP)

    def _answer(self, patience: float) -> Any:
        left = patience
        while True:
            # In slices: a signal that comes just before the wait begins is seen only after it.
            wait = min(left, _SLICE_SECONDS)
            try:
                answer = self._results.get(timeout=wait)
            except queue.Empty:
                left -= wait
                if left <= 0:
                    raise
                continue
            if answer is _WAKE:
                self.stop()
                raise Cancelled
            self.busy = False
            return answer

    def _ask(self) -> None:
        with contextlib.suppress(Exception):
            self._on_stop()

    def _work(self) -> None:
        while True:
            function, arguments = self._calls.get()
            if function is None:
                return
            answer: tuple[Any, BaseException | None]
            try:
                answer = (function(*arguments), None)
            except Exception as error:  # noqa: BLE001 - it is raised where the call was made
                answer = (None, error)
            except BaseException as error:  # noqa: BLE001
                answer = (None, Escaped(error))
            # What a call was given must not stay alive until the next one.
            del function, arguments
            self._results.put(answer)
            del answer
