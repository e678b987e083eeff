"""Batch small requests: look up, parse, convert and queue them in groups.

A thousand channels send a thousand small requests per second. Handled separately, each would need a
query, a conversion and one or two thread wake-ups. Requests of a group share them. Under load, a
short pause makes the groups larger.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from snowmelt.catalog.streaming import row_request_state
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import PipeNotFound, RequestMalformed, RowsBusy
from snowmelt.ingest.batch_worker_pool import WorkerPool
from snowmelt.ingest.rows.append_types import (
    AppendOutcome,
    AppendRequest,
    ContinuationToken,
    parse_continuation_token,
)
from snowmelt.ingest.rows.group_commit import find_position_outcome
from snowmelt.ingest.rows.row_converter import ConvertedRows
from snowmelt.ingest.rows.row_service import (
    RawAppendRequest,
    RowService,
    check_no_nul_texts,
    get_internal_channel_name,
    make_append_request,
)
from snowmelt.ingest.rows.targets import PipePath, PipeTarget, RowSender

_log = logging.getLogger("snowmelt.ingest")

_MAX_GROUP_REQUESTS = 512
# Pause per request of a group. Many requests mean many channels, whose clients buffer rows for a
# second. A group of any size takes about 20 ms.
_PAUSE_PER_REQUEST_S = 0.0033
_MAX_PAUSE_S = 0.15


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request and its body. `respond` is called with exactly one outcome."""

    request: RawAppendRequest
    data: Callable[[], bytes]
    _respond: Callable[[AppendOutcome], None] | None

    def respond(self, outcome: AppendOutcome) -> None:
        """Send the outcome of the request. Later calls are ignored."""
        respond, self._respond = self._respond, None
        if respond is not None:
            respond(outcome)


class RequestBatcher:
    """Thread that batches requests for the committer. Unusual requests are handled one by one."""

    def __init__(self, row_service: RowService, clock: Clock) -> None:
        self._row_service = row_service
        self._clock = clock
        self._workers: WorkerPool[PendingRequest] = WorkerPool(
            self._handle_group, max_batch_items=_MAX_GROUP_REQUESTS, thread_names=["rows-intake"]
        )

    def submit(self, pending: PendingRequest) -> None:
        """Queue a request. Its `respond` is called once, in any thread.

        Raises:
            RowsBusy: If the service is stopping.
        """
        if not self._workers.submit_all([pending]):
            raise RowsBusy(reason="it is stopping")

    def close(self) -> None:
        """Pass on the queued requests, then stop."""
        self._workers.close()

    def _handle_group(self, group: Sequence[PendingRequest]) -> None:
        places: dict[tuple[PipePath, RowSender], list[PendingRequest]] = defaultdict(list)
        for each in group:
            places[each.request.path, each.request.sender].append(each)
        for arrivals in places.values():
            self._run_and_respond_errors(self._append_together, arrivals)
        self._clock.sleep(min(len(group) * _PAUSE_PER_REQUEST_S, _MAX_PAUSE_S))

    def _run_and_respond_errors(
        self, work: Callable[[Sequence[PendingRequest]], None], requests: Sequence[PendingRequest]
    ) -> None:
        """Run `work`.

        If `work` raises an exception, send the exception as response to the requests.
        """
        try:
            work(requests)
        except Exception as error:  # noqa: BLE001 - told to those whom it concerns
            for each in requests:
                try:
                    each.respond(error)
                except Exception:  # noqa: BLE001 - the next one can be told
                    _log.exception("no response could be sent to an append request")

    def _append_together(self, requests: Sequence[PendingRequest]) -> None:
        """Convert and queue the rows of requests from one sender to one pipe."""
        if len(requests) == 1:
            self._append_one_by_one(requests)
            return
        first = requests[0].request
        try:
            target = self._row_service.target_resolver.find(first.path, first.sender)
        except PipeNotFound:
            # Handle separately: each response contains the new table of its channel.
            self._append_one_by_one(requests)
            return
        coming, others = self._split_by_order(target, requests)
        if target.table.table_id in self._row_service.back_pressure.throttled_table_ids:
            coming, others = [], requests
        self._append_one_by_one(others)
        bodies: list[tuple[PendingRequest, bytes]] = []
        for each in coming:
            try:
                bodies.append((each, each.data()))
            except Exception as error:  # noqa: BLE001 - told to the one that it concerns
                each.respond(error)
        rows = [data for _, data in bodies]
        from_sdk = bool(coming) and coming[0].request.client is not None
        converted = self._row_service.converter_pool.convert_all(
            rows, target.table, target.copy, from_sdk=from_sdk
        )
        inserted_ms = to_epoch_ms(self._clock.now())
        is_current = self._are_rejection_rules_current(target, converted)
        appends: list[AppendRequest] = []
        for (each, data), made in zip(bodies, converted, strict=True):
            if not made.rejected_count or (is_current and made.missing_columns is None):
                request = each.request
                name = get_internal_channel_name(request)
                appends.append(
                    make_append_request(request, target, name, made, inserted_ms, each.respond)
                )
            else:
                # The table's rules have changed, or schema evolution may add columns.
                each.data = partial(bytes, data)
                self._append_one_by_one([each])
        if appends:
            self._row_service.group_committer.submit_all(appends)

    def _are_rejection_rules_current(
        self, target: PipeTarget, converted_bodies: Sequence[ConvertedRows]
    ) -> bool:
        """Return True if rejected rows were rejected by the rules of the current table."""
        if not any(made.rejected_count for made in converted_bodies):
            return True
        now = self._row_service.target_resolver.find(target.path, target.sender, refresh=True)
        return (
            now.rejection_rules == target.rejection_rules
            and now.table.table_id == target.table.table_id
        )

    def _append_one_by_one(self, requests: Sequence[PendingRequest]) -> None:
        for each in requests:
            try:
                self._row_service.append_rows(each.request, each.data, each.respond)
            except Exception as error:  # noqa: BLE001 - told to the one that it concerns
                each.respond(error)

    def _split_by_order(
        self, target: PipeTarget, requests: Sequence[PendingRequest]
    ) -> tuple[Sequence[PendingRequest], Sequence[PendingRequest]]:
        """Return the requests that are next in their channels, and all others."""
        table_id = target.table.table_id
        plain: list[tuple[PendingRequest, str, ContinuationToken | None]] = []
        others: list[PendingRequest] = []
        for each in requests:
            token = each.request.continuation
            at = None if token is None else parse_continuation_token(token)
            try:
                check_no_nul_texts(each.request)
                name = get_internal_channel_name(each.request)
                doubted = self._row_service.may_contain_base64(each.request, target)
            except (RequestMalformed, RowsBusy):
                others.append(each)
                continue
            is_known = token is None or (at is not None and at.may_belong_to_table(table_id))
            if is_known and not doubted:
                plain.append((each, name, at))
            else:
                others.append(each)
        names = {name for _, name, at in plain if at is not None}
        with self._row_service.database.reading() as connection:
            known = row_request_state.find_channel_sequencers(connection, table_id, names)
        coming: list[PendingRequest] = []
        for each, name, at in plain:
            request, channel = each.request, known.get(name)
            is_next = at is None or (
                channel is not None
                and find_position_outcome(channel, at, request.request_id, request.sender.user)
                is None
            )
            # Rows of the official SDK have other conversion rules.
            is_next = is_next and (request.client is None) == (plain[0][0].request.client is None)
            (coming if is_next else others).append(each)
        return coming, others
