"""Shared memory page in which a worker process records the running step and its start time.

The parent reads it while the worker runs, and after the worker has ended in the middle of a call.
The limits of user code are defined here, too.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from snowmelt.clock import SystemClock
from snowmelt.config import Settings

_LABEL_HEADER = struct.Struct("<dI")
_PAGE_BYTES = 4096
_MAX_LABEL_BYTES = 1024
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class UserCodeLimits:
    """What user code may use.

    Attributes:
        memory_bytes: Memory of the process that runs it, in bytes.
        output_bytes: Most bytes that a filter emits for one file beyond 1,000 times its input.
        call_s: Longest time in user code without a return or a read, in seconds.
    """

    memory_bytes: int = 4 * 1024 * 1024 * 1024
    output_bytes: int = 1024 * 1024 * 1024
    call_s: float = 600.0

    OUTPUT_PER_INPUT: ClassVar = 1000

    @classmethod
    def from_settings(cls, settings: Settings) -> UserCodeLimits:
        """Return the limits that the settings say."""
        return cls(
            settings.user_code_memory_bytes,
            settings.user_code_output_bytes,
            settings.user_code_call_s,
        )

    def max_output_bytes(self, input_bytes: int) -> int:
        """Return how many bytes a filter may have emitted after `input_bytes` bytes of input."""
        return self.output_bytes + self.OUTPUT_PER_INPUT * input_bytes


@dataclass(frozen=True, slots=True)
class RunningStep:
    """The step whose code runs, and the monotonic time since when."""

    label: str
    started_at_s: float


class ProgressPage:
    """One page of memory that parent and child share."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _PAGE_BYTES)

    def write_step(self, label: bytes) -> None:
        """Note that the code of a step runs from now on; an empty label: none does."""
        page = self._map
        page[_LABEL_HEADER.size : _LABEL_HEADER.size + len(label)] = label
        _LABEL_HEADER.pack_into(page, 0, _clock.monotonic(), len(label))

    def read_step(self) -> RunningStep | None:
        """Return the step whose code runs, None if none does."""
        since, length = _LABEL_HEADER.unpack_from(self._map, 0)
        if not 0 < length <= _MAX_LABEL_BYTES:
            return None
        text = self._map[_LABEL_HEADER.size : _LABEL_HEADER.size + length]
        return RunningStep(text.decode(errors="replace"), since)

    def close(self) -> None:
        """Release the memory."""
        self._map.close()


class _WorkerState:
    page: ProgressPage | None = None
    limits = UserCodeLimits()
    # A step may be read by another thread than the one that reads the steps behind it.
    labels: dict[int, bytes]
    lock = threading.Lock()


_WorkerState.labels = {}


def attach_page(page: ProgressPage) -> None:
    """Make this process one that runs user code for a parent."""
    _WorkerState.page = page


def set_user_code_limits(limits: UserCodeLimits) -> None:
    """Set the limits of the user code that this process runs next."""
    _WorkerState.limits = limits


def is_isolated() -> bool:
    """Return True in a process that runs user code for a parent."""
    return _WorkerState.page is not None


def is_ctrl_c(error: BaseException) -> bool:
    """Return True if an error may be the user's Ctrl-C, not what user code raised."""
    return isinstance(error, KeyboardInterrupt) and not is_isolated()


def get_user_code_limits() -> UserCodeLimits:
    """Return the limits of user code in this process."""
    return _WorkerState.limits


def encode_label(name: str) -> bytes:
    """Return the label of a step for `enter_step`."""
    return name.encode()[:_MAX_LABEL_BYTES]


def enter_step(label: bytes) -> bytes:
    """Note which user code this thread runs now; return what it ran before.

    Args:
        label: What `encode_label` returns; empty for code that is no user's.
    """
    if _WorkerState.page is None:
        return b""
    thread = threading.get_ident()
    with _WorkerState.lock:
        before = _WorkerState.labels.get(thread, b"")
        _WorkerState.labels[thread] = label
        _WorkerState.page.write_step(
            label or next((each for each in _WorkerState.labels.values() if each), b"")
        )
    return before


def leave_all_steps() -> None:
    """Note that no user code runs."""
    with _WorkerState.lock:
        _WorkerState.labels.clear()
        if _WorkerState.page is not None:
            _WorkerState.page.write_step(b"")


def describe_running_step() -> str:
    """Return the step whose code runs, or "user code"."""
    running = None if _WorkerState.page is None else _WorkerState.page.read_step()
    return "user code" if running is None else running.label


@contextlib.contextmanager
def running_step(name: str) -> Iterator[None]:
    """Note that the code of a step runs until the end of the block."""
    before = enter_step(encode_label(name))
    try:
        yield
    finally:
        enter_step(before)
