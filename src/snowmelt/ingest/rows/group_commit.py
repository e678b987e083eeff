"""Group commit: whatever waits is staged together and registered in one transaction.

A request is answered after the commit, so an acknowledged row belongs to the table, whichever
service goes on. Repetitions are known by the request id that the same transaction wrote.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from snowmelt import failpoints
from snowmelt.catalog.objects.tables import lock_tables
from snowmelt.catalog.streaming import channels, registration, row_channels
from snowmelt.catalog.streaming.commit_rules import CommitCode
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    ChannelGone,
    ContinuationNotNext,
    ContinuationStale,
    RowsBusy,
    TableNotFound,
)
from snowmelt.ingest.metrics import RowTally
from snowmelt.ingest.rows.append import Append, Committed, Continuation, Outcome, Outdated
from snowmelt.ingest.rows.chunk_builder import Moved, Torn, plans_of, tell_lost
from snowmelt.ingest.work_queue import Consumers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import sqlalchemy as sa

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.streaming.registration import ChannelAdvance, CommitDecision
    from snowmelt.catalog.streaming.row_channels import ChannelPosition, RowChannel
    from snowmelt.clock import Clock
    from snowmelt.ingest.durability import Durability
    from snowmelt.ingest.rows.chunk_builder import Aside, Keeper, Staged, Stager

_log = logging.getLogger("snowmelt.ingest")

_GROUP_LIMIT = 512
_PAUSE_S = 0.001
_OUTAGES = (CatalogBusy, CatalogUnavailable)
# What another member of the chunk is to blame for.
_ALONE = {CommitCode.SIBLING_REFUSED, CommitCode.DUPLICATE_CHANNEL}
_MOVED = {
    CommitCode.STALE_CLIENT_SEQUENCER,
    CommitCode.ROW_SEQUENCER_NOT_NEXT,
    CommitCode.CHANNEL_MISSING,
}
# What looking at a table anew may mend.
_ALTERED = {CommitCode.TABLE_MISSING, CommitCode.REOPEN_REQUIRED, CommitCode.COLUMN_MISSING}
_MOST_LOOKS = 3
_FIRST = Continuation(-1, -1)
_RACE = RowsBusy(reason="another request came in between")


class RowWriter:
    """One thread that commits what is submitted from any other."""

    def __init__(
        self,
        database: Database,
        durability: Durability,
        stager: Stager,
        *,
        clock: Clock,
        keeper: Keeper,
    ) -> None:
        self._database = database
        self._durability = durability
        self._stager = stager
        self._clock = clock
        self._keeper = keeper
        self._remembered = registration.CommitCache()
        self.tally = RowTally()
        self._writing: Consumers[Append] = Consumers(
            self._write, limit=_GROUP_LIMIT, names=["rows"]
        )

    def submit_all(self, appends: Sequence[Append]) -> None:
        """Queue requests, all or none; each one's `respond` is called once, from the writer's thread.

        Raises:
            RowsBusy: The writer is closed.
        """
        if not self._writing.put(appends):
            raise RowsBusy(reason="it is stopping")

    def close(self) -> None:
        """Settle what was submitted, then stop."""
        self._writing.close()

    def _write(self, group: Sequence[Append]) -> None:
        self._settle(group)
        # A writer back to back would starve everybody else who writes to the catalog.
        self._clock.sleep(_PAUSE_S)

    def _settle(self, group: Sequence[Append]) -> None:
        """Commit a group; what cannot be committed with others is tried alone."""
        try:
            outcomes = self._tried(group)
        except Exception as error:  # noqa: BLE001 - answered one by one
            if len(group) > 1 and not isinstance(error, _OUTAGES):
                if not isinstance(error, Torn):
                    _log.warning("a group of %d requests of rows failed: %r", len(group), error)
                for append in group:
                    self._settle([append.alone()])
                return
            outcomes = [error] * len(group)
        again: list[Append] = []
        for append, outcome in zip(group, outcomes, strict=True):
            if outcome is None:
                again.append(append.alone())
            else:
                self._answer(append, outcome)
        for append in again:
            self._settle([append])

    def _answer(self, append: Append, outcome: Outcome) -> None:
        try:
            append.respond(outcome)
        except Exception:  # noqa: BLE001 - the next one can be answered
            _log.exception("a request of rows could not be answered")

    def _tried(self, group: Sequence[Append]) -> list[Outcome | None]:
        failures = self._durability.failures
        aside = self._keeper.stage(group)
        looks = 1
        while True:
            try:
                return self._commit(group, aside, failures)
            except Moved as error:
                if looks == _MOST_LOOKS:
                    for each in aside:
                        tell_lost(each, str(error))
                aside = self._keeper.stage(group) if looks < _MOST_LOOKS else []
                looks += 1
            except Torn:
                if len(group) > 1:
                    raise
                aside = []

    def _commit(
        self, group: Sequence[Append], aside: Sequence[Aside], failures: int
    ) -> list[Outcome | None]:
        """Return what became of each request; None for those to be tried alone.

        Raises:
            Torn: Refused rows in `aside` are of requests that are not taken now.
            Moved: Their table has changed since they were staged.
            RowsBusy: A sync has failed since there had been so many `failures`.
        """
        staged = self._stager.stage_all(plans_of(group))
        failpoints.hit_failpoint(failpoints.Failpoint.ROWS_STAGED)
        # Never register what a failed sync may have lost: the rows are staged again, elsewhere.
        if (staged or aside) and not self._durability.sync(failures):
            raise RowsBusy(reason="its stage failed; its log says how")
        with self._database.writing(urgent=True) as connection:
            outcomes = _Transaction(self, connection, staged, aside).outcomes(group)
            failpoints.hit_failpoint(failpoints.Failpoint.ROWS_INSIDE_COMMIT)
        failpoints.hit_failpoint(failpoints.Failpoint.ROWS_COMMITTED)
        explained = self._explained(group, outcomes)
        self._count(group, staged, explained)
        return explained

    def _count(
        self,
        group: Sequence[Append],
        staged: Sequence[Staged],
        outcomes: Sequence[Outcome | None],
    ) -> None:
        new = [each for each, outcome in zip(group, outcomes, strict=True) if _is_new(outcome)]
        self.tally.rows += sum(each.rows for each in new)
        self.tally.refused += sum(each.converted.refused_count for each in new)
        known = set(map(id, new))
        # A chunk is taken whole or not at all.
        self.tally.bytes += sum(
            each.offer.length for each in staged if id(each.plan.members[0]) in known
        )

    def _explained(
        self, group: Sequence[Append], outcomes: Sequence[Outcome | CommitDecision | None]
    ) -> list[Outcome | None]:
        """Turn verdicts into what their requests are told."""
        found: list[Outcome | None] = []
        for append, outcome in zip(group, outcomes, strict=True):
            if not isinstance(outcome, registration.CommitDecision):
                found.append(outcome)
            elif outcome.code in _ALONE and not append.is_alone:
                found.append(None)
            elif outcome.code in _MOVED:
                is_elastic = append.continuation is None
                found.append(_RACE if is_elastic else self._moved(append))
            else:
                found.append(_refusal(outcome))
        return found

    def _moved(self, append: Append) -> Outcome:
        """Say why a channel is not where a request expects it: perhaps by a copy of the request."""
        table_id = append.target.table.table_id
        with self._database.reading() as connection:
            found = row_channels.find_row_channels(connection, table_id, [append.channel])
        known = found.get(append.channel)
        if known is None:
            return ChannelGone(channel=append.channel, pipe=append.target.path)
        at = append.continuation or _FIRST
        return standing(known, at, append.request_id, append.target.sender.user) or _RACE

    @property
    def remembered(self) -> registration.CommitCache:
        """What never changes once it is committed."""
        return self._remembered

    @property
    def clock(self) -> Clock:
        """The service's clock."""
        return self._clock


def standing(
    channel: RowChannel | ChannelPosition, at: Continuation, request_id: str, user: str
) -> Outcome | None:
    """Return what a request is told whose channel stands like this, None when it comes next."""
    if at.client_sequencer != channel.client_sequencer or channel.owner_user != user:
        return ContinuationStale(token=at, channel=channel.name)
    if at.row_sequencer == channel.row_sequencer + 1:
        return None
    if at.row_sequencer == channel.row_sequencer and request_id == channel.request_id:
        return Committed(is_repeated=True)
    return ContinuationNotNext(token=at, channel=channel.name)


class _Transaction:
    """One group inside its transaction."""

    def __init__(
        self,
        writer: RowWriter,
        connection: sa.Connection,
        staged: Sequence[Staged],
        aside: Sequence[Aside],
    ) -> None:
        self._connection = connection
        self._staged = staged
        self._aside = aside
        self._remembered = writer.remembered
        self._now = writer.clock.now()
        self._elastic: dict[tuple[int, str], Continuation] = {}

    def outcomes(self, group: Sequence[Append]) -> list[Outcome | CommitDecision | None]:
        """Register, move channels, count; return an outcome or a verdict for each request."""
        targets = [each.target for each in group]
        targets += [each.staged.plan.target for each in self._aside]
        touched = {target.table.table_id for target in targets}
        live = set(lock_tables(self._connection, touched))
        repeated = self._repeated(group)
        found: dict[int, Outcome | CommitDecision | None] = {
            id(each): Committed(is_repeated=True) if self._is_among(each, repeated) else None
            for each in group
        }
        # A chunk with a row that is there already would store it again: without it, then.
        clean = [
            each
            for each in self._staged
            if not any(self._is_among(member, repeated) for member in each.plan.members)
        ]
        offers = [
            staged.offered(self._channels(staged, live))
            for staged in (*clean, *(each.staged for each in self._aside))
        ]
        verdicts = registration.register_chunks(
            self._connection, offers, now=self._now, commit_cache=self._remembered
        )
        for staged, verdict in zip(clean, verdicts[: len(clean)], strict=True):
            members = staged.plan.members
            shares = verdict * len(members) if staged.plan.is_elastic else verdict
            for member, share in zip(members, shares, strict=True):
                found[id(member)] = share if share.code else Committed(share.is_replay)
        for each in group:
            if each.rows == 0 and found[id(each)] is None:
                found[id(each)] = self._advanced(each, live)
        self._check_aside(found, verdicts[len(clean) :])
        self._write_down([each for each in group if _is_new(found[id(each)])])
        return [found[id(each)] for each in group]

    def _check_aside(
        self,
        found: dict[int, Outcome | CommitDecision | None],
        verdicts: Sequence[Sequence[CommitDecision]],
    ) -> None:
        for aside, (verdict,) in zip(self._aside, verdicts, strict=True):
            if verdict.code in _ALTERED:
                raise Moved(verdict.message)
            if verdict.code:
                tell_lost(aside, verdict.message)
            elif not all(_is_new(found[id(each)]) for each in aside.sources):
                raise Torn

    def _channels(self, staged: Staged, live: set[int]) -> tuple[ChannelAdvance, ...]:
        members = staged.plan.members
        if not staged.plan.is_elastic:
            return tuple(each.chunk_advance(each.continuation or _FIRST) for each in members)
        first = members[0]
        at = self._next_elastic(first) if first.target.table.table_id in live else _FIRST
        rows = sum(each.rows for each in members)
        advance = first.chunk_advance(at)
        return (
            registration.ChannelAdvance(
                advance.name, at.client_sequencer, at.row_sequencer, None, None, rows
            ),
        )

    def _next_elastic(self, append: Append) -> Continuation:
        """Return where the elastic channel stands, opened when there is none."""
        table = append.target.table
        key = (table.table_id, append.channel)
        if key not in self._elastic:
            record = channels.find_channel(self._connection, table, append.channel)
            if record is None:
                record = channels.open_channel(
                    self._connection,
                    table,
                    append.channel,
                    user=append.target.sender.user,
                    client_prefix=None,
                    request_id=None,
                    now=self._now,
                ).record
            self._elastic[key] = Continuation(record.client_sequencer, record.row_sequencer)
        self._elastic[key] = self._elastic[key].following
        return self._elastic[key]

    def _advanced(self, append: Append, live: set[int]) -> Outcome | CommitDecision:
        if append.target.table.table_id not in live:
            return Outdated(str(TableNotFound(table=append.target.table.name)))
        if append.continuation is None:
            return Committed()
        if row_channels.apply_empty_append(
            self._connection, append.advance(append.continuation), self._now
        ):
            return Committed()
        return registration.CommitDecision(CommitCode.ROW_SEQUENCER_NOT_NEXT)

    def _repeated(self, group: Sequence[Append]) -> set[tuple[int, str]]:
        """Return which requests without a channel have been taken before."""
        asked: dict[int, list[str]] = {}
        for each in group:
            if each.continuation is None:
                asked.setdefault(each.target.table.table_id, []).append(each.request_id)
        return {
            (table_id, request_id)
            for table_id, ids in asked.items()
            for request_id in row_channels.find_saved_request_ids(self._connection, table_id, ids)
        }

    def _is_among(self, append: Append, repeated: set[tuple[int, str]]) -> bool:
        key = (append.target.table.table_id, append.request_id)
        return append.continuation is None and key in repeated

    def _write_down(self, committed: Sequence[Append]) -> None:
        elastic: dict[int, list[str]] = {}
        for each in committed:
            if each.continuation is None:
                elastic.setdefault(each.target.table.table_id, []).append(each.request_id)
        for table_id, ids in elastic.items():
            row_channels.save_request_ids(self._connection, table_id, ids, self._now)
        row_channels.apply_appends(self._connection, _merged(committed), self._now)


def _merged(committed: Iterable[Append]) -> list[row_channels.AppendTotals]:
    """Return counts with one line for each channel: one statement writes no row twice."""
    merged: dict[tuple[int, str], row_channels.AppendTotals] = {}
    for append in committed:
        new = append.settled()
        key = (new.table_id, new.channel)
        old = merged.get(key)
        merged[key] = new if old is None else old.combine_with(new)
    return list(merged.values())


def _is_new(outcome: Outcome | CommitDecision | None) -> bool:
    return isinstance(outcome, Committed) and not outcome.is_repeated


def _refusal(verdict: CommitDecision) -> Outcome:
    message = verdict.message or "the rows were refused"
    if verdict.code == CommitCode.BLOB_TOO_OLD:
        return RowsBusy(reason=message)
    return Outdated(message)
