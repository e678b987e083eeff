"""Finds the processes of a Spark application on this machine by their command lines.

Skips processes that end during the search.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def executors(spark: Any) -> list[int]:
    """Return the processes of the application's executors."""
    ours = spark.sparkContext.applicationId.encode()
    found = _processes(b"CoarseGrainedExecutorBackend")
    return [number for number, words in found.items() if ours in words]


def workers(spark: Any) -> list[int]:
    """Return the Python workers that the daemons of the executors forked."""
    parents = {}
    for number in _processes(b"snowmelt.spark.daemon"):
        status = _read(number, "stat").decode(errors="replace").rpartition(")")[2].split()
        if status:
            parents[number] = int(status[1])
    ours = executors(spark)
    daemons = {daemon for daemon, parent in parents.items() if parent in ours}
    return [worker for worker, parent in parents.items() if parent in daemons]


def _processes(word: bytes) -> dict[int, bytes]:
    numbers = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return {number: words for number in numbers if word in (words := _read(number, "cmdline"))}


def _read(number: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{number}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
