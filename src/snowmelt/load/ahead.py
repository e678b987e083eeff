"""Pieces made by a thread of their own before they are asked for: inflating beside parsing.

Only for steps that work without the interpreter's lock; others would but take turns.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST = 2
# A source that waits for the network hears of its end by the load's cancel.
_PATIENCE_S = 5.0


class Ahead:
    """What an iterable yields, a few pieces early; to be iterated once."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._ready: deque[bytes] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="snowmelt-ahead", daemon=True)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; what their making raised is raised behind those before it."""
        self._thread.start()
        while (piece := self._next()) is not None:
            yield piece

    def close(self) -> None:
        """Make no more of them and wait for the one that is being made; again is harmless."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_S)

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            return None

    def _work(self) -> None:
        try:
            for piece in self._pieces:
                if not self._put(piece):
                    return
        except BaseException as error:  # noqa: BLE001  whoever takes the pieces raises it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, piece: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < _MOST or self._closed)
            if not self._closed:
                self._ready.append(piece)
            self._changed.notify_all()
            return not self._closed
