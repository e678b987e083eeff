"""The background of a client: threads that encode and stage, and one that registers.

So flushes n+1 and n+2 are encoded while flush n is being registered; they are registered one
after the other, as they were taken, but for tables that take nothing now. All threads start with the first row and sleep without a
timeout when there is none.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING

from snowmelt.client.channel_state import Failure
from snowmelt.client.chunk_planner import plan_chunks
from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from typing import TypeAlias

    from snowmelt.client.channel_state import Entry
    from snowmelt.client.encoder import Encoder, StagedChunk
    from snowmelt.client.pending_rows import Backlog
    from snowmelt.client.registrar import Registrar
    from snowmelt.client.transport import Transport

    # Where the chunks of a flush will be once they are staged.
    _Staged: TypeAlias = queue.SimpleQueue[list[StagedChunk]]

_log = logging.getLogger(__name__)

# How long the interpreter's exit is held up for rows of clients that were never closed, in all.
_EXIT_S = 5.0
_JOIN_S = 10.0
# Flushes that are encoded before one is registered; while the service is away, rows gather in
# their buffers and not in ever more blobs.
_AHEAD = 8
# More would only help where the inserting thread leaves more processors idle; each takes the
# memory of a flush.
_ENCODERS = 2

_CLOSED = Failure("its client was closed")
_FORKED = Failure("this process was forked from the one that opened it; make a client of its own")


class Flusher:
    """The threads of one client."""

    def __init__(
        self, backlog: Backlog, encoder: Encoder, registrar: Registrar, transport: Transport
    ) -> None:
        self._backlog = backlog
        self._encoder = encoder
        self._registrar = registrar
        self._transport = transport
        # In the order of the flushes, each before it is encoded.
        self._flushes: queue.Queue[_Staged | None] = queue.Queue(_AHEAD)
        self._threads: tuple[threading.Thread, ...] = ()
        self._starting = threading.Lock()
        self._taking = threading.Lock()
        self._ended = False
        _running.add(self)

    def start(self) -> None:
        """Start the threads, once; cheap when they run."""
        if self._threads:
            return
        with self._starting:
            if self._threads:
                return
            work = {"register": self._register}
            work |= {f"encode-{number}": self._encode for number in range(_ENCODERS)}
            threads = tuple(
                threading.Thread(target=target, name=f"snowmelt-{name}", daemon=True)
                for name, target in work.items()
            )
            for thread in threads:
                thread.start()
            self._threads = threads

    def stop(self) -> None:
        """End the threads; what is not committed by now is given up."""
        _running.discard(self)
        self._backlog.stop(_CLOSED)
        self._transport.stop()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._encoder.close()

    def hurry(self) -> None:
        """Flush what is buffered now."""
        self._backlog.hurry()

    def exit(self, timeout_s: float) -> None:
        """At the interpreter's end: commit what was inserted if that is quick, else say so."""
        if self._backlog.uncommitted_bytes and self._backlog.drain(timeout_s):
            _log.error("The process ends with rows that are not committed; close the client first.")
        self._backlog.stop(_CLOSED)
        self._transport.stop()

    def orphan(self) -> None:
        """When neither client nor channels are left: end after the last commit."""
        self._backlog.orphan()
        if not self._threads:
            self._transport.stop()
            self._encoder.close()

    def abandon(self) -> None:
        """In a forked child: nothing of the parent's is flushed here, nothing is waited for."""
        self._transport.abandon()
        self._backlog.abandon(_FORKED)
        self._starting = threading.Lock()
        self._threads = ()

    def _encode(self) -> None:
        while (taken := self._taken()) is not None:
            entries, place = taken
            staged: list[StagedChunk] = []
            try:
                staged = self._encoder.stage_all(plan_chunks(entries))
            finally:
                place.put(staged)
            # Held no longer than needed: a flush may be hundreds of megabytes.
            del taken, entries, place, staged

    def _taken(self) -> tuple[list[Entry], _Staged] | None:
        """Wait for a flush, and give it its place among the others; None at the end."""
        with self._taking:
            entries = None if self._ended else self._backlog.take()
            if entries is None:
                if not self._ended:
                    self._ended = True
                    self._flushes.put(None)
                return None
            place: _Staged = queue.SimpleQueue()
            self._flushes.put(place)
            return entries, place

    def _register(self) -> None:
        while True:
            try:
                place = self._flushes.get(timeout=self._registrar.retry())
            except queue.Empty:
                continue
            if place is None:
                break
            self._registrar.register(place.get())
        while (pause_s := self._registrar.retry()) is not None:
            if self._transport.stopping.wait(pause_s):
                break
        self._transport.stop()
        self._encoder.close()


_running: weakref.WeakSet[Flusher] = weakref.WeakSet()


def _at_exit() -> None:
    clock = SystemClock()
    end_at = clock.monotonic() + _EXIT_S
    running = list(_running)
    for flusher in running:
        flusher.hurry()
    for flusher in running:
        flusher.exit(end_at - clock.monotonic())


def _after_fork() -> None:
    for flusher in list(_running):
        flusher.abandon()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
