"""Requests of rows on their way: each one once, however often it comes meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.errors import RowsBusy
from snowmelt.ingest.rows.appends import Committed, Outdated
from snowmelt.ingest.rows.intake import Arrival
from snowmelt.server.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.ingest.rows.appends import Outcome
    from snowmelt.ingest.rows.desk import RowsRequest
    from snowmelt.ingest.rows.places import PipePath, Sender
    from snowmelt.server.rows.parts import RowParts

    Key = tuple[Sender, PipePath, str, str, str | None]


@dataclass(frozen=True, slots=True)
class Load:
    """What a request brings.

    Attributes:
        weight: Bytes of memory that its rows take until they are committed.
        data: Returns the rows; called in a thread.
        is_small: To be handled together with others.
        done: Called in a thread when the rows are committed.
    """

    weight: int
    data: Callable[[], bytes]
    is_small: bool
    done: Callable[[], None] | None = None


class Taking:
    """Hands requests to the desk or the intake; used in the event loop only."""

    def __init__(self, parts: RowParts) -> None:
        self.parts = parts
        self.running: dict[Key, asyncio.Future[Outcome]] = {}
        self.held_bytes = 0
        self.mailbox = Mailbox()

    def take(self, request: RowsRequest, load: Load) -> asyncio.Future[Outcome]:
        """Return what becomes of a request; a copy of one on its way gets the same future.

        The future holds exceptions as results. It must not be cancelled: the client may go away,
        what has begun goes on.

        Raises:
            RowsBusy: Too many rows are on their way.
        """
        key = (
            request.sender,
            request.path,
            request.channel,
            request.request_id,
            request.continuation,
        )
        future = self.running.get(key)
        if future is not None:
            return future
        if self.held_bytes and self.held_bytes + load.weight > self.parts.limits.held_bytes:
            raise RowsBusy(reason="too many rows are on their way")
        self.held_bytes += load.weight
        loop = asyncio.get_running_loop()
        future = self.running[key] = loop.create_future()
        _Taken(self, key, request, load, future).begin(again=False)
        return future


class _Taken:
    """One request until it is settled."""

    __slots__ = ("_future", "_is_again", "_key", "_load", "_owner", "_request")

    def __init__(
        self,
        owner: Taking,
        key: Key,
        request: RowsRequest,
        load: Load,
        future: asyncio.Future[Outcome],
    ) -> None:
        self._owner = owner
        self._key = key
        self._request = request
        self._load = load
        self._future = future
        self._is_again = False

    def begin(self, *, again: bool) -> None:
        """Hand it on."""
        self._is_again = again
        parts = self._owner.parts
        respond = self._owner.mailbox.slot(self._future.get_loop(), self._settle)
        try:
            if self._load.is_small and not again:
                parts.intake.submit(Arrival(self._request, self._load.data, respond))
            else:
                parts.threads.submit(self._append, respond)
        except (RowsBusy, RuntimeError):
            self._settle(RowsBusy(reason="it is stopping"))

    def _append(self, respond: Callable[[Outcome], None]) -> None:
        try:
            self._owner.parts.desk.append(
                self._request, self._load.data, respond, again=self._is_again
            )
        except Exception as error:  # noqa: BLE001 - the outcome of this request
            respond(error)

    def _settle(self, outcome: Outcome) -> None:
        if isinstance(outcome, Outdated) and not self._is_again:
            # The table was altered: the rows are at hand, so they are converted for it as it is.
            self.begin(again=True)
            return
        owner = self._owner
        del owner.running[self._key]
        owner.held_bytes -= self._load.weight
        if self._load.done is not None and isinstance(outcome, Committed):
            owner.parts.threads.submit(self._load.done)
        if not self._future.done():
            self._future.set_result(outcome)
