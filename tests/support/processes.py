"""Processes of Linux, which may end while they are looked at."""

from __future__ import annotations

import contextlib
from pathlib import Path


def list_children(process_id: int) -> list[int]:
    """Return the child processes of all threads of a process."""
    found: set[int] = set()
    for file in Path(f"/proc/{process_id}/task").glob("*/children"):
        # A listed thread may have ended.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, file.read_text().split()))
    return sorted(found)


def read_command(process_id: int) -> bytes:
    """Return the command line of a process with NUL between its words; nothing if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    return b""
