"""The thread in which this process makes its calls: one event loop, and the connections it keeps."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading

from snowmelt.functions.calling.http import HttpClient, new_event_loop

_STOP_S = 2.0


class Background:
    """An event loop in a thread of its own, until the process ends; never holds that up."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.client = HttpClient()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="snowmelt-calls", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def is_current(self) -> bool:
        """Tell whether the caller is in the loop's own thread, which cannot wait for the loop."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def _stop(self) -> None:
        # A fork inherits what is to be done at exit, but not the thread.
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        try:
            ending.result(_STOP_S)
        except TimeoutError:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_S)


# By process: Spark forks its workers, and a loop does not survive that.
_backgrounds: dict[int, Background] = {}
_starting: dict[int, threading.Lock] = {}


def background() -> Background:
    """Return this process's thread for calls, started by the first who asks."""
    process = os.getpid()
    found = _backgrounds.get(process)
    if found is None:
        with _starting.setdefault(process, threading.Lock()):
            found = _backgrounds.get(process) or Background()
            _backgrounds[process] = found
    return found
