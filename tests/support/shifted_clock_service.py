"""`snowmelt serve` with a wrong system clock: python shifted_clock_service.py SECONDS."""

from __future__ import annotations

import datetime as dt
import signal
import sys

from snowmelt.clock import SystemClock
from snowmelt.config import Settings
from snowmelt.server.lifecycle import RunningService
from snowmelt.server.logs import configure_logging


class Shifted(SystemClock):
    def __init__(self, seconds: float) -> None:
        self._by = dt.timedelta(seconds=seconds)

    def now(self) -> dt.datetime:
        return super().now() + self._by


if __name__ == "__main__":
    settings = Settings.load()
    configure_logging(settings)
    running = RunningService(settings, clock=Shifted(float(sys.argv[1])))
    signal.signal(signal.SIGTERM, lambda *_: running.stop())
    running.run()
