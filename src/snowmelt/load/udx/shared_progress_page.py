"""Shared memory page with the running step of a worker process and its start time.

The parent reads the page while the worker runs, and after the worker died during a call. This
module also defines the limits of user code.
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
    """Limits of user code.

    Attributes:
        memory_bytes: Maximum memory of its process.
        output_bytes: Maximum output of a filter per file, in addition to 1,000 times its input.
        call_s: Maximum time in user code, in seconds, until it returns or reads input.
    """

    memory_bytes: int = 4 * 1024 * 1024 * 1024
    output_bytes: int = 1024 * 1024 * 1024
    call_s: float = 600.0

    OUTPUT_PER_INPUT: ClassVar = 1000

    @classmethod
    def from_settings(cls, settings: Settings) -> UserCodeLimits:
        """Return the limits of the settings `user_code_*`."""
        return cls(
            settings.user_code_memory_bytes,
            settings.user_code_output_bytes,
            settings.user_code_call_s,
        )

    def max_output_bytes(self, input_bytes: int) -> int:
        """Return the maximum output of a filter after `input_bytes` bytes of input."""
        return self.output_bytes + self.OUTPUT_PER_INPUT * input_bytes


@dataclass(frozen=True, slots=True)
class RunningStep:
    """The running step, and the monotonic time of its start."""

    label: str
    started_at_s: float


class ProgressPage:
    """One page of memory that parent and child share."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _PAGE_BYTES)

    def write_step(self, label: bytes) -> None:
        """Record the running step and its start time. An empty label means no step."""
        page = self._map
        page[_LABEL_HEADER.size : _LABEL_HEADER.size + len(label)] = label
        _LABEL_HEADER.pack_into(page, 0, _clock.monotonic(), len(label))

    def read_step(self) -> RunningStep | None:
        """Return the running step, or None."""
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
    # Labels by thread ID, because a `Prefetcher` runs earlier steps on another thread.
    labels: ClassVar[dict[int, bytes]] = {}
    lock = threading.Lock()


def attach_page(page: ProgressPage) -> None:
    """Mark this process as a worker that runs user code."""
    _WorkerState.page = page


def set_user_code_limits(limits: UserCodeLimits) -> None:
    """Set the limits of user code in this process."""
    _WorkerState.limits = limits


def is_isolated() -> bool:
    """Return True in a worker process."""
    return _WorkerState.page is not None


def is_ctrl_c(error: BaseException) -> bool:
    """Return True if the error may be Ctrl-C: a KeyboardInterrupt outside a worker process."""
    return isinstance(error, KeyboardInterrupt) and not is_isolated()


def get_user_code_limits() -> UserCodeLimits:
    """Return the limits of user code in this process."""
    return _WorkerState.limits


def encode_label(name: str) -> bytes:
    """Return the label of a step for `enter_step`."""
    return name.encode()[:_MAX_LABEL_BYTES]


def enter_step(label: bytes) -> bytes:
    """Record the user code that this thread runs. Return the previous label.

    Args:
        label: Result of `encode_label`, or empty for code of the host.
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
    """Record that no user code runs."""
    with _WorkerState.lock:
        _WorkerState.labels.clear()
        if _WorkerState.page is not None:
            _WorkerState.page.write_step(b"")


def describe_running_step() -> str:
    """Return the label of the running step, or "user code"."""
    running = None if _WorkerState.page is None else _WorkerState.page.read_step()
    return "user code" if running is None else running.label


@contextlib.contextmanager
def running_step(name: str) -> Iterator[None]:
    """Record that a step's code runs until the end of the block."""
    before = enter_step(encode_label(name))
    try:
        yield
    finally:
        enter_step(before)
