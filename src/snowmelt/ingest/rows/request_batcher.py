"""Small requests that wait together are handled together: looked up, read, converted and queued.

A thousand channels send a thousand small requests a second. One by one each costs a query, a
conversion and a wake-up or two; together they share them. While many come, a short pause lets
more of them gather.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from snowmelt.catalog.streaming import row_channels
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import PipeNotFound, RequestMalformed, RowsBusy
from snowmelt.ingest.rows.append import parse_continuation
from snowmelt.ingest.rows.group_commit import standing
from snowmelt.ingest.rows.row_service import append_of, channel_of, check_texts
from snowmelt.ingest.work_queue import Consumers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.catalog.streaming.row_channels import ChannelPosition
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.append import Append, Continuation, Outcome
    from snowmelt.ingest.rows.row_converter import Converted
    from snowmelt.ingest.rows.row_service import RowDesk, RowsRequest
    from snowmelt.ingest.rows.targets import PipePath, Sender, Target

_log = logging.getLogger("snowmelt.ingest")

_GROUP_LIMIT = 512
# For each request of a group: many are a sign of many channels, which gather rows for a second
# themselves. Each group costs some 20 ms, however small it is.
_GATHERING_S = 0.002
_MOST_GATHERING_S = 0.15


class Arrival:
    """A request that came, with what returns its rows; `respond` gets one outcome."""

    __slots__ = ("_respond", "data", "request")

    def __init__(
        self,
        request: RowsRequest,
        data: Callable[[], bytes],
        respond: Callable[[Outcome], None],
    ) -> None:
        self.request = request
        self.data = data
        self._respond: Callable[[Outcome], None] | None = respond

    def respond(self, outcome: Outcome) -> None:
        """Tell what became of it; only the first outcome counts."""
        respond, self._respond = self._respond, None
        if respond is not None:
            respond(outcome)


class Intake:
    """One thread before the writer; whatever is unusual goes through the desk one by one."""

    def __init__(self, desk: RowDesk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._arriving: Consumers[Arrival] = Consumers(
            self._take, limit=_GROUP_LIMIT, names=["rows-intake"]
        )

    def submit(self, arrival: Arrival) -> None:
        """Queue a request; it is responded to once, from whatever thread.

        Raises:
            RowsBusy: The service is stopping.
        """
        if not self._arriving.put([arrival]):
            raise RowsBusy(reason="it is stopping")

    def close(self) -> None:
        """Hand on what was submitted, then stop."""
        self._arriving.close()

    def _take(self, group: Sequence[Arrival]) -> None:
        places: dict[tuple[PipePath, Sender], list[Arrival]] = defaultdict(list)
        for each in group:
            places[each.request.path, each.request.sender].append(each)
        for arrivals in places.values():
            self._guarded(self._handle, arrivals)
        self._clock.sleep(min(len(group) * _GATHERING_S, _MOST_GATHERING_S))

    def _guarded(
        self, work: Callable[[Sequence[Arrival]], None], arrivals: Sequence[Arrival]
    ) -> None:
        """Respond with what is raised, so that nobody waits in vain and the thread lives on."""
        try:
            work(arrivals)
        except Exception as error:  # noqa: BLE001 - told to those whom it concerns
            for each in arrivals:
                try:
                    each.respond(error)
                except Exception:  # noqa: BLE001 - the next one can be told
                    _log.exception("a request of rows could not be answered")

    def _handle(self, arrivals: Sequence[Arrival]) -> None:
        """Convert and queue the rows of requests by one sender to one pipe."""
        if len(arrivals) == 1:
            self._alone(arrivals)
            return
        first = arrivals[0].request
        try:
            target = self._desk.targets.find(first.path, first.sender)
        except PipeNotFound:
            # Each is told where its own channel went.
            self._alone(arrivals)
            return
        coming, others = self._sorted_out(target, arrivals)
        if target.table.table_id in self._desk.pressure.tables:
            coming, others = [], arrivals
        self._alone(others)
        bodies: list[tuple[Arrival, bytes]] = []
        for each in coming:
            try:
                bodies.append((each, each.data()))
            except Exception as error:  # noqa: BLE001 - told to the one that it concerns
                each.respond(error)
        rows = [data for _, data in bodies]
        from_sdk = bool(coming) and coming[0].request.client is not None
        converted = self._desk.conversions.convert_all(
            rows, target.table, target.copy, from_sdk=from_sdk
        )
        inserted_ms = to_epoch_ms(self._clock.now())
        is_current = self._is_current(target, converted)
        appends: list[Append] = []
        for (each, data), made in zip(bodies, converted, strict=True):
            if not made.refused_count or (is_current and made.lacking is None):
                request = each.request
                name = channel_of(request)
                appends.append(append_of(request, target, name, made, inserted_ms, each.respond))
            else:
                # The table has other rules now, or gets columns for them.
                each.data = _given(data)
                self._alone([each])
        if appends:
            self._desk.writer.submit_all(appends)

    def _is_current(self, target: Target, converted: Sequence[Converted]) -> bool:
        """Tell whether rows that are refused are refused by the table as it is now."""
        if not any(made.refused_count for made in converted):
            return True
        now = self._desk.targets.find(target.path, target.sender, again=True)
        return now.rules == target.rules and now.table.table_id == target.table.table_id

    def _alone(self, arrivals: Sequence[Arrival]) -> None:
        for each in arrivals:
            try:
                self._desk.append(each.request, each.data, each.respond)
            except Exception as error:  # noqa: BLE001 - told to the one that it concerns
                each.respond(error)

    def _sorted_out(
        self, target: Target, arrivals: Sequence[Arrival]
    ) -> tuple[Sequence[Arrival], Sequence[Arrival]]:
        """Return the requests that come next in their channels, and all others."""
        table_id = target.table.table_id
        plain: list[tuple[Arrival, str, Continuation | None]] = []
        others: list[Arrival] = []
        for each in arrivals:
            token = each.request.continuation
            at = None if token is None else parse_continuation(token)
            try:
                check_texts(each.request)
                name = channel_of(each.request)
                doubted = self._desk.doubts(each.request, target)
            except (RequestMalformed, RowsBusy):
                others.append(each)
                continue
            is_known = token is None or (at is not None and at.is_of(table_id))
            if is_known and not doubted:
                plain.append((each, name, at))
            else:
                others.append(each)
        names = {name for _, name, at in plain if at is not None}
        with self._desk.database.reading() as connection:
            known = row_channels.find_channel_positions(connection, table_id, names)
        coming: list[Arrival] = []
        for each, name, at in plain:
            is_next = at is None or _is_next(known.get(name), at, each.request)
            # Rows of the SDK and of others are converted by rules of their own.
            is_next = is_next and (each.request.client is None) == (
                plain[0][0].request.client is None
            )
            (coming if is_next else others).append(each)
        return coming, others


def _is_next(channel: ChannelPosition | None, at: Continuation, request: RowsRequest) -> bool:
    if channel is None:
        return False
    return standing(channel, at, request.request_id, request.sender.user) is None


def _given(data: bytes) -> Callable[[], bytes]:
    return lambda: data
