"""Background threads of a client: two encode and upload flushes, one registers them.

Flushes n+1 and n+2 are encoded while flush n is registered. Flushes are registered one at a time,
in the order in which their rows were removed from the buffers, except for tables that wait in a
retry queue. All threads start with the first row, and wait without a timeout while there are no
rows.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.client.blob_builder import BlobStager, StagedChunk, plan_chunks
from snowmelt.client.channel_state import ChannelFailure, ChunkEntry
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.transport import Transport
from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from snowmelt.client.registrar import RegistrationSender

    # Receives the chunks of a flush after their upload.
    _StagedFlush: TypeAlias = queue.SimpleQueue[list[StagedChunk]]

_log = logging.getLogger(__name__)

# Maximum delay of the interpreter's exit in seconds, for rows of clients that were not closed.
_EXIT_TIMEOUT_S = 5.0
_JOIN_TIMEOUT_S = 10.0
# Maximum number of flushes encoded ahead of registration. While the service is unreachable, further
# rows stay in their buffers.
_MAX_FLUSHES_AHEAD = 8
# Number of encoding threads. Each needs the memory of a flush. More threads only help if more
# processors are idle.
_ENCODER_THREADS = 2

_CLIENT_CLOSED_FAILURE = ChannelFailure("its client was closed")
_FORKED_FAILURE = ChannelFailure(
    "this process was forked after the client was created. Create another client"
)


class Flusher:
    """Runs the background threads of one client."""

    def __init__(
        self,
        pending_rows: FlushScheduler,
        encoder: BlobStager,
        registration_sender: RegistrationSender,
        transport: Transport,
    ) -> None:
        self._pending_rows = pending_rows
        self._encoder = encoder
        self._registration_sender = registration_sender
        self._transport = transport
        # Queue in the order of flushes. Each flush is added before it is encoded.
        self._flushes: queue.Queue[_StagedFlush | None] = queue.Queue(_MAX_FLUSHES_AHEAD)
        self._threads: tuple[threading.Thread, ...] = ()
        self._start_lock = threading.Lock()
        self._take_lock = threading.Lock()
        self._has_ended = False
        _running_flushers.add(self)

    def start(self) -> None:
        """Start the threads unless they are running. Fast if they are."""
        if self._threads:
            return
        with self._start_lock:
            if self._threads:
                return
            work = {"register": self._run_registration}
            work |= {f"encode-{number}": self._run_encoder for number in range(_ENCODER_THREADS)}
            threads = tuple(
                threading.Thread(target=target, name=f"snowmelt-{name}", daemon=True)
                for name, target in work.items()
            )
            for thread in threads:
                thread.start()
            self._threads = threads

    def stop(self) -> None:
        """Stop the threads. Uncommitted rows are dropped."""
        _running_flushers.discard(self)
        self._pending_rows.stop(_CLIENT_CLOSED_FAILURE)
        self._transport.stop()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
        self._encoder.close()

    def flush_now(self) -> None:
        """Flush the buffered rows."""
        self._pending_rows.flush_now()

    def flush_at_exit(self, timeout_s: float) -> None:
        """Commit the buffered rows at the end of the interpreter, or log that they are lost."""
        if self._pending_rows.uncommitted_bytes and self._pending_rows.drain(timeout_s):
            _log.error("The process ended with uncommitted rows. Close the client first.")
        self._pending_rows.stop(_CLIENT_CLOSED_FAILURE)
        self._transport.stop()

    def stop_when_drained(self) -> None:
        """Stop the threads after the last commit, because client and channels are unreferenced."""
        self._pending_rows.stop_when_drained()
        if not self._threads:
            self._transport.stop()
            self._encoder.close()

    def reset_after_fork(self) -> None:
        """Drop the parent's state in a forked child, without blocking."""
        self._transport.reset_after_fork()
        self._pending_rows.reset_after_fork(_FORKED_FAILURE)
        self._start_lock = threading.Lock()
        self._threads = ()

    def _run_encoder(self) -> None:
        while (taken := self._take_next_flush()) is not None:
            entries, place = taken
            staged: list[StagedChunk] = []
            try:
                staged = self._encoder.stage_chunks(plan_chunks(entries))
            finally:
                place.put(staged)
            # Release the flush, which may have hundreds of megabytes.
            del taken, entries, place, staged

    def _take_next_flush(self) -> tuple[list[ChunkEntry], _StagedFlush] | None:
        """Wait for a flush and reserve its position in the order. Return None at the end."""
        with self._take_lock:
            entries = None if self._has_ended else self._pending_rows.wait_for_due_flush()
            if entries is None:
                if not self._has_ended:
                    self._has_ended = True
                    self._flushes.put(None)
                return None
            place: _StagedFlush = queue.SimpleQueue()
            self._flushes.put(place)
            return entries, place

    def _run_registration(self) -> None:
        while True:
            try:
                place = self._flushes.get(timeout=self._registration_sender.retry_due_chunks())
            except queue.Empty:
                continue
            if place is None:
                break
            self._registration_sender.register_chunks(place.get())
        while (pause_s := self._registration_sender.retry_due_chunks()) is not None:
            if self._transport.stop_event.wait(pause_s):
                break
        self._transport.stop()
        self._encoder.close()


_running_flushers: weakref.WeakSet[Flusher] = weakref.WeakSet()


def _flush_all_at_exit() -> None:
    clock = SystemClock()
    end_at = clock.monotonic() + _EXIT_TIMEOUT_S
    running = list(_running_flushers)
    for flusher in running:
        flusher.flush_now()
    for flusher in running:
        flusher.flush_at_exit(end_at - clock.monotonic())


def _reset_all_after_fork() -> None:
    for flusher in list(_running_flushers):
        flusher.reset_after_fork()


atexit.register(_flush_all_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all_after_fork)
