"""Shared page in which a process with user code says what it runs and since when.

The parent reads it while the process runs, and after the process has ended in the middle of a call.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.config import Settings

_LABEL = struct.Struct("<dI")
_PAGE = 4096
_LONGEST = 1024
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
    def of(cls, settings: Settings) -> UserCodeLimits:
        """Return the limits that the settings say."""
        return cls(
            settings.user_code_memory_bytes,
            settings.user_code_output_bytes,
            settings.user_code_call_s,
        )

    def most_output(self, read: int) -> int:
        """Return how many bytes a filter may have emitted after `read` bytes of input."""
        return self.output_bytes + self.OUTPUT_PER_INPUT * read


@dataclass(frozen=True, slots=True)
class Running:
    """The step whose code runs, and the monotonic time since when."""

    label: str
    since: float


class ProgressPage:
    """One page of memory that parent and child share."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _PAGE)

    def enter(self, label: bytes) -> None:
        """Note that the code of a step runs from now on; an empty label: none does."""
        page = self._map
        page[_LABEL.size : _LABEL.size + len(label)] = label
        _LABEL.pack_into(page, 0, _clock.monotonic(), len(label))

    def running(self) -> Running | None:
        """Return the step whose code runs, None if none does."""
        since, length = _LABEL.unpack_from(self._map, 0)
        if not 0 < length <= _LONGEST:
            return None
        text = self._map[_LABEL.size : _LABEL.size + length]
        return Running(text.decode(errors="replace"), since)

    def close(self) -> None:
        """Release the memory."""
        self._map.close()


class _State:
    page: ProgressPage | None = None
    limits = UserCodeLimits()
    # A step may be read by another thread than the one that reads the steps behind it.
    labels: dict[int, bytes]
    lock = threading.Lock()


_State.labels = {}


def attach(page: ProgressPage) -> None:
    """Make this process one that runs user code for a parent."""
    _State.page = page


def use_limits(limits: UserCodeLimits) -> None:
    """Set the limits of the user code that this process runs next."""
    _State.limits = limits


def is_isolated() -> bool:
    """Return True in a process that runs user code for a parent."""
    return _State.page is not None


def is_ctrl_c(error: BaseException) -> bool:
    """Return True if an error may be the user's Ctrl-C, not what user code raised."""
    return isinstance(error, KeyboardInterrupt) and not is_isolated()


def limits() -> UserCodeLimits:
    """Return the limits of user code in this process."""
    return _State.limits


def label_of(name: str) -> bytes:
    """Return the label of a step for `enter`."""
    return name.encode()[:_LONGEST]


def enter(label: bytes) -> bytes:
    """Note which user code this thread runs now; return what it ran before.

    Args:
        label: What `label_of` returns; empty for code that is no user's.
    """
    if _State.page is None:
        return b""
    thread = threading.get_ident()
    with _State.lock:
        before = _State.labels.get(thread, b"")
        _State.labels[thread] = label
        _State.page.enter(label or next((each for each in _State.labels.values() if each), b""))
    return before


def leave_all() -> None:
    """Note that no user code runs."""
    with _State.lock:
        _State.labels.clear()
        if _State.page is not None:
            _State.page.enter(b"")


def current() -> str:
    """Return the step whose code runs, or "user code"."""
    running = None if _State.page is None else _State.page.running()
    return "user code" if running is None else running.label


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Note that the code of a step runs until the end of the block."""
    before = enter(label_of(name))
    try:
        yield
    finally:
        enter(before)
