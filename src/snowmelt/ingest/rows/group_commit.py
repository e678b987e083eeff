"""Group commit: stage all pending requests together, and register them in one transaction.

The response is sent after the commit, so an acknowledged row is in the table even if another
service takes over. The transaction also writes the request IDs, by which repeated requests are
recognized.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from snowmelt import failpoints
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.replication_triggers import require_writable
from snowmelt.catalog.objects.tables import lock_tables
from snowmelt.catalog.streaming import channels, registration, row_request_state
from snowmelt.catalog.streaming.commit_rules import CommitCode
from snowmelt.catalog.streaming.registration import ChannelAdvance, CommitDecision
from snowmelt.catalog.streaming.row_request_state import ChannelSequencers, RowChannel
from snowmelt.clock import Clock
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    ChannelGone,
    ContinuationNotNext,
    ContinuationStale,
    RowsBusy,
    TableNotFound,
)
from snowmelt.ingest.batch_worker_pool import WorkerPool
from snowmelt.ingest.metrics import RequestMetrics
from snowmelt.ingest.rows.append_types import (
    AppendCommitted,
    AppendOutcome,
    AppendRequest,
    ContinuationToken,
    SchemaOutdated,
)
from snowmelt.ingest.rows.chunk_builder import (
    ErrorRowCommitMismatch,
    ErrorRowStager,
    ErrorTableMoved,
    RowChunkStager,
    StagedErrorRows,
    StagedRowChunk,
    plan_chunks,
    report_lost_rows,
)
from snowmelt.ingest.stage_sync import StageSync

_log = logging.getLogger("snowmelt.ingest")

_MAX_GROUP_REQUESTS = 512
_PAUSE_S = 0.001
_OUTAGE_ERRORS = (CatalogBusy, CatalogUnavailable)
# Rejections that another request in the same chunk may have caused.
_RETRY_ALONE_CODES = {CommitCode.SIBLING_REFUSED, CommitCode.DUPLICATE_CHANNEL}
_POSITION_MISMATCH_CODES = {
    CommitCode.STALE_CLIENT_SEQUENCER,
    CommitCode.ROW_SEQUENCER_NOT_NEXT,
    CommitCode.CHANNEL_MISSING,
}
# Rejections that may disappear after another lookup of the table.
_TABLE_CHANGED_CODES = {
    CommitCode.TABLE_MISSING,
    CommitCode.REOPEN,
    CommitCode.COLUMN_MISSING,
}
_MAX_ERROR_TABLE_ATTEMPTS = 3
_NO_POSITION = ContinuationToken(-1, -1)
_CONCURRENT_REQUEST_ERROR = RowsBusy(reason="another request was committed first")


class GroupCommitter:
    """Commits requests of all threads in one thread."""

    def __init__(
        self,
        database: Database,
        stage_sync: StageSync,
        stager: RowChunkStager,
        *,
        clock: Clock,
        error_row_stager: ErrorRowStager,
    ) -> None:
        self._database = database
        self._stage_sync = stage_sync
        self._stager = stager
        self._clock = clock
        self._error_row_stager = error_row_stager
        self._commit_cache = registration.CommitCache()
        self.metrics: RequestMetrics[str] = RequestMetrics()
        self._workers: WorkerPool[AppendRequest] = WorkerPool(
            self._commit_and_pause, max_batch_items=_MAX_GROUP_REQUESTS, thread_names=["rows"]
        )

    def submit_all(self, requests: Sequence[AppendRequest]) -> None:
        """Queue all requests or none. The committer's thread calls `respond` of each request once.

        Raises:
            RowsBusy: If the committer is closed.
        """
        if not self._workers.submit_all(requests):
            raise RowsBusy(reason="it is stopping")

    def close(self) -> None:
        """Commit the queued requests, then stop the thread."""
        self._workers.close()

    def _commit_and_pause(self, group: Sequence[AppendRequest]) -> None:
        self._commit_group(group)
        # Without a pause, this thread would starve all other writers of the catalog.
        self._clock.sleep(_PAUSE_S)

    def _commit_group(self, group: Sequence[AppendRequest]) -> None:
        """Commit a group. Requests that cannot be committed with others are committed alone."""
        try:
            outcomes = self._commit_with_retries(group)
        except Exception as error:  # noqa: BLE001 - answered one by one
            if len(group) > 1 and not isinstance(error, _OUTAGE_ERRORS):
                if not isinstance(error, ErrorRowCommitMismatch):
                    _log.warning("a group of %d append requests failed: %r", len(group), error)
                for append in group:
                    self._commit_group([append.with_own_chunk()])
                return
            outcomes = [error] * len(group)
        again: list[AppendRequest] = []
        for append, outcome in zip(group, outcomes, strict=True):
            if outcome is None:
                again.append(append.with_own_chunk())
                continue
            try:
                append.respond(outcome)
            except Exception:  # noqa: BLE001 - the next one can be answered
                _log.exception("no response could be sent to an append request")
        for append in again:
            self._commit_group([append])

    def _commit_with_retries(self, group: Sequence[AppendRequest]) -> list[AppendOutcome | None]:
        failures = self._stage_sync.failure_count
        aside = self._error_row_stager.stage_rejected_rows(group)
        looks = 1
        while True:
            try:
                return self._commit_once(group, aside, failures)
            except ErrorTableMoved as error:
                if looks == _MAX_ERROR_TABLE_ATTEMPTS:
                    for each in aside:
                        report_lost_rows(each, str(error))
                aside = (
                    self._error_row_stager.stage_rejected_rows(group)
                    if looks < _MAX_ERROR_TABLE_ATTEMPTS
                    else []
                )
                looks += 1
            except ErrorRowCommitMismatch:
                if len(group) > 1:
                    raise
                aside = []

    def _commit_once(
        self,
        group: Sequence[AppendRequest],
        error_rows: Sequence[StagedErrorRows],
        sync_failures_before: int,
    ) -> list[AppendOutcome | None]:
        """Return the outcome of each request, or None if it must be committed alone.

        Raises:
            ErrorRowCommitMismatch: If `error_rows` has rows of requests that are not accepted.
            ErrorTableMoved: If an error table changed after its rows were staged.
            RowsBusy: If a sync failed after `sync_failures_before` was read.
        """
        staged = self._stager.stage_all(plan_chunks(group))
        failpoints.hit_failpoint(failpoints.Failpoint.ROWS_STAGED)
        # Do not register rows that a failed sync may have lost: stage them again under another
        # name.
        if (staged or error_rows) and not self._stage_sync.sync(sync_failures_before):
            raise RowsBusy(
                reason="a sync of the stage failed. The log of the service has the reason"
            )
        with self._database.writing(urgent=True) as connection:
            require_writable(connection)
            outcomes = _GroupTransaction(
                connection, staged, error_rows, self._commit_cache, self._clock.now()
            ).register_group(group)
            failpoints.hit_failpoint(failpoints.Failpoint.ROWS_INSIDE_COMMIT)
        failpoints.hit_failpoint(failpoints.Failpoint.ROWS_COMMITTED)
        explained = self._decisions_to_outcomes(group, outcomes)
        self._count_committed(group, staged, explained)
        return explained

    def _count_committed(
        self,
        group: Sequence[AppendRequest],
        staged_chunks: Sequence[StagedRowChunk],
        outcomes: Sequence[AppendOutcome | None],
    ) -> None:
        new = [
            each
            for each, outcome in zip(group, outcomes, strict=True)
            if _is_newly_committed(outcome)
        ]
        self.metrics.rows += sum(each.row_count for each in new)
        self.metrics.rejected_rows += sum(each.converted_rows.rejected_count for each in new)
        known = set(map(id, new))
        # A chunk is accepted completely or not at all.
        self.metrics.stored_bytes += sum(
            each.offer.length for each in staged_chunks if id(each.plan.requests[0]) in known
        )

    def _decisions_to_outcomes(
        self,
        group: Sequence[AppendRequest],
        outcomes: Sequence[AppendOutcome | CommitDecision | None],
    ) -> list[AppendOutcome | None]:
        """Convert commit decisions to the outcomes of their requests."""
        found: list[AppendOutcome | None] = []
        for append, outcome in zip(group, outcomes, strict=True):
            if not isinstance(outcome, registration.CommitDecision):
                found.append(outcome)
            elif outcome.code in _RETRY_ALONE_CODES and not append.needs_own_chunk:
                found.append(None)
            elif outcome.code in _POSITION_MISMATCH_CODES:
                is_elastic = append.continuation is None
                found.append(
                    _CONCURRENT_REQUEST_ERROR
                    if is_elastic
                    else self._explain_position_mismatch(append)
                )
            else:
                message = outcome.message or "the rows were refused"
                is_too_old = outcome.code == CommitCode.BLOB_TOO_OLD
                found.append(RowsBusy(reason=message) if is_too_old else SchemaOutdated(message))
        return found

    def _explain_position_mismatch(self, request: AppendRequest) -> AppendOutcome:
        """Return the outcome of a request that is not its channel's next one. It may be a repetition."""
        table_id = request.target.table.table_id
        with self._database.reading() as connection:
            found = row_request_state.find_row_channels(connection, table_id, [request.channel])
        known = found.get(request.channel)
        if known is None:
            return ChannelGone(channel=request.channel, pipe=request.target.path)
        at = request.continuation or _NO_POSITION
        return (
            find_position_outcome(known, at, request.request_id, request.target.sender.user)
            or _CONCURRENT_REQUEST_ERROR
        )


def find_position_outcome(
    channel: RowChannel | ChannelSequencers, token: ContinuationToken, request_id: str, user: str
) -> AppendOutcome | None:
    """Return the outcome of a request from the position of its channel, or None if it is the next one."""
    if token.client_sequencer != channel.client_sequencer or channel.owner_user != user:
        return ContinuationStale(token=token, channel=channel.name)
    if token.row_sequencer == channel.row_sequencer + 1:
        return None
    if token.row_sequencer == channel.row_sequencer and request_id == channel.request_id:
        return AppendCommitted(is_repeated=True)
    return ContinuationNotNext(token=token, channel=channel.name)


@dataclass(eq=False, slots=True)
class _GroupTransaction:
    """One group inside its transaction."""

    _connection: sa.Connection
    _staged_chunks: Sequence[StagedRowChunk]
    _error_rows: Sequence[StagedErrorRows]
    _commit_cache: registration.CommitCache
    _now: dt.datetime
    _elastic_positions: dict[tuple[int, str], ContinuationToken] = field(default_factory=dict)

    def register_group(
        self, group: Sequence[AppendRequest]
    ) -> list[AppendOutcome | CommitDecision | None]:
        """Register chunks, advance channels and add counts. Return an outcome or decision per request."""
        targets = [each.target for each in group]
        targets += [each.staged_chunk.plan.target for each in self._error_rows]
        touched = {target.table.table_id for target in targets}
        live = set(lock_tables(self._connection, touched))
        repeated = self._find_replayed_requests(group)
        found: dict[int, AppendOutcome | CommitDecision | None] = {
            id(each): AppendCommitted(is_repeated=True)
            if self._is_replayed(each, repeated)
            else None
            for each in group
        }
        # Omit requests that are already committed: their chunk would store the rows again.
        clean = [
            each
            for each in self._staged_chunks
            if not any(self._is_replayed(member, repeated) for member in each.plan.requests)
        ]
        offers = [
            replace(staged.offer, channels=self._make_channel_advances(staged, live))
            for staged in (*clean, *(each.staged_chunk for each in self._error_rows))
        ]
        verdicts = registration.register_chunks(
            self._connection, offers, now=self._now, commit_cache=self._commit_cache
        )
        for staged, verdict in zip(clean, verdicts[: len(clean)], strict=True):
            members = staged.plan.requests
            shares = verdict * len(members) if staged.plan.is_elastic_channel else verdict
            for member, share in zip(members, shares, strict=True):
                found[id(member)] = share if share.code else AppendCommitted(share.is_replay)
        for each in group:
            if each.row_count == 0 and found[id(each)] is None:
                found[id(each)] = self._apply_empty_append(each, live)
        for aside, (decision,) in zip(self._error_rows, verdicts[len(clean) :], strict=True):
            if decision.code in _TABLE_CHANGED_CODES:
                raise ErrorTableMoved(decision.message)
            if decision.code:
                report_lost_rows(aside, decision.message)
            elif not all(_is_newly_committed(found[id(each)]) for each in aside.requests):
                raise ErrorRowCommitMismatch
        self._save_request_ids_and_totals(
            [each for each in group if _is_newly_committed(found[id(each)])]
        )
        return [found[id(each)] for each in group]

    def _make_channel_advances(
        self, staged_chunk: StagedRowChunk, live_table_ids: set[int]
    ) -> tuple[ChannelAdvance, ...]:
        members = staged_chunk.plan.requests
        if not staged_chunk.plan.is_elastic_channel:
            return tuple(
                each.make_channel_advance(each.continuation or _NO_POSITION) for each in members
            )
        first = members[0]
        at = (
            self._get_or_open_elastic_position(first)
            if first.target.table.table_id in live_table_ids
            else _NO_POSITION
        )
        rows = sum(each.row_count for each in members)
        return (
            ChannelAdvance(first.channel, at.client_sequencer, at.row_sequencer, None, None, rows),
        )

    def _get_or_open_elastic_position(self, request: AppendRequest) -> ContinuationToken:
        """Return the position of the elastic channel. Open it if it does not exist."""
        table = request.target.table
        key = (table.table_id, request.channel)
        if key not in self._elastic_positions:
            record = channels.find_channel(self._connection, table, request.channel)
            if record is None:
                record = channels.open_channel(
                    self._connection,
                    table,
                    request.channel,
                    user=request.target.sender.user,
                    client_prefix=None,
                    request_id=None,
                    now=self._now,
                ).record
            self._elastic_positions[key] = ContinuationToken(
                record.client_sequencer, record.row_sequencer
            )
        self._elastic_positions[key] = self._elastic_positions[key].next_token
        return self._elastic_positions[key]

    def _apply_empty_append(
        self, request: AppendRequest, live_table_ids: set[int]
    ) -> AppendOutcome | CommitDecision:
        if request.target.table.table_id not in live_table_ids:
            return SchemaOutdated(str(TableNotFound(table=request.target.table.name)))
        if request.continuation is None:
            return AppendCommitted()
        empty = row_request_state.EmptyAppend(
            request.target.table.table_id,
            request.channel,
            request.target.sender.user,
            request.continuation.client_sequencer,
            request.continuation.row_sequencer,
            request.end_offset_token,
        )
        if row_request_state.apply_empty_append(self._connection, empty, self._now):
            return AppendCommitted()
        return registration.CommitDecision(CommitCode.ROW_SEQUENCER_NOT_NEXT)

    def _find_replayed_requests(self, group: Sequence[AppendRequest]) -> set[tuple[int, str]]:
        """Return the requests without a channel that are already committed."""
        return {
            (table_id, request_id)
            for table_id, ids in _group_elastic_request_ids(group).items()
            for request_id in row_request_state.find_saved_request_ids(
                self._connection, table_id, ids
            )
        }

    def _is_replayed(self, request: AppendRequest, replayed_requests: set[tuple[int, str]]) -> bool:
        key = (request.target.table.table_id, request.request_id)
        return request.continuation is None and key in replayed_requests

    def _save_request_ids_and_totals(self, committed: Sequence[AppendRequest]) -> None:
        for table_id, ids in _group_elastic_request_ids(committed).items():
            row_request_state.save_request_ids(self._connection, table_id, ids, self._now)
        # One item per channel, because a statement cannot update a row twice.
        merged: dict[tuple[int, str], row_request_state.AppendTotals] = {}
        for append in committed:
            new = append.compute_totals()
            key = (new.table_id, new.channel)
            old = merged.get(key)
            merged[key] = new if old is None else old.combine_with(new)
        row_request_state.apply_appends(self._connection, list(merged.values()), self._now)


def _group_elastic_request_ids(requests: Iterable[AppendRequest]) -> dict[int, list[str]]:
    """Return the IDs of requests without a channel, by table."""
    found: dict[int, list[str]] = {}
    for each in requests:
        if each.continuation is None:
            found.setdefault(each.target.table.table_id, []).append(each.request_id)
    return found


def _is_newly_committed(outcome: AppendOutcome | CommitDecision | None) -> bool:
    return isinstance(outcome, AppendCommitted) and not outcome.is_repeated
