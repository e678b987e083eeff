"""Worker process that makes calls under limits, and prints the start and end of each call.

Run as `limited_caller.py FOLDER CLAUSE LIMIT CALLS SECONDS`. SECONDS is the duration of a call.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

from snowmelt.clock import SystemClock
from snowmelt.functions.caller.rate_and_concurrency_limits import RateLimiter
from support.call_plans import URL, plan


@dataclass(frozen=True)
class Call:
    """One call of a process. Times are machine-wide monotonic seconds."""

    process: int
    began: float
    ended: float


def start(
    folder: Path, clause: str, limit: float, *, calls: int, seconds: float
) -> subprocess.Popen[str]:
    """Start a worker process."""
    words = map(str, (sys.executable, __file__, folder, clause, limit, calls, seconds))
    return subprocess.Popen([*words], stdout=subprocess.PIPE, text=True)


def calls_of(*processes: subprocess.Popen[str]) -> list[Call]:
    """Wait for processes. Return their calls, ordered by start."""
    found = []
    for process in processes:
        text, _ = process.communicate(timeout=200)
        for line in text.splitlines():
            began, ended = map(float, line.split())
            found.append(Call(process.pid, began, ended))
    return sorted(found, key=lambda call: call.began)


def most_together(calls: list[Call]) -> int:
    """Return the maximum number of concurrent calls."""
    events = sorted([(call.began, 1) for call in calls] + [(call.ended, -1) for call in calls])
    now = most = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


async def _call(limits: RateLimiter, seconds: float) -> None:
    async with limits.acquire(URL):
        began = time.monotonic()
        await asyncio.sleep(seconds)
        print(began, time.monotonic(), flush=True)


async def _calls(folder: str, clause: str, limit: str, calls: str, seconds: str) -> None:
    limits = RateLimiter(
        plan(**cast("dict[str, Any]", {clause: int(limit)})), SystemClock(), folder=Path(folder)
    )
    await asyncio.gather(*(_call(limits, float(seconds)) for _ in range(int(calls))))


if __name__ == "__main__":
    asyncio.run(_calls(*sys.argv[1:]))
