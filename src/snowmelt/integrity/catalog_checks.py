"""Compare a table's commit sequence, channels and ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog.jobs.lineage import ChannelCommit, LedgerChunk, RowlessCommit, iterate_ledger
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.objects.channel_tombstones import find_tombstones
from snowmelt.catalog.streaming.channels import ChannelRecord
from snowmelt.integrity.findings import Finding, make_finding
from snowmelt.integrity.table_state import LedgerTotals, StoredChunkRow, TableState
from snowmelt.schema.types import to_display_name


def check_catalog(
    connection: sa.Connection, state: TableState
) -> tuple[list[Finding], LedgerTotals]:
    """Check a table's records in the catalog. Return findings, and the ledger's totals by sequence.

    The caller must have read `state` in the same transaction.
    """
    table = state.table
    findings = list(_check_sequences(state))
    totals = LedgerTotals.of_length(max(table.migrated_seq, 0))
    follower = _ChannelFollower(state)
    start = state.lineage_from or 0
    rows = {chunk.record.seq: chunk for chunk in state.chunks}
    expected = start + 1
    for chunk in iterate_ledger(connection, table.table_id):
        if chunk.seq > table.migrated_seq:
            findings.append(
                make_finding(
                    "ledger-beyond-watermark",
                    table.name,
                    f"Chunk {chunk.seq} is in the ledger; the watermark is {table.migrated_seq}.",
                    seq=chunk.seq,
                )
            )
            continue
        if chunk.seq > expected:
            findings.append(_make_ledger_gap(state, expected, chunk.seq - 1))
        expected = chunk.seq + 1
        totals.add(chunk)
        findings += _compare_with_row(state, chunk, rows.get(chunk.seq))
        follower.follow(chunk.seq, chunk.path, chunk.offset, chunk.channels)
    if state.lineage_from is not None and expected <= table.migrated_seq:
        findings.append(_make_ledger_gap(state, expected, table.migrated_seq))
    for waiting in state.waiting_chunks:
        follower.follow(
            waiting.record.seq, waiting.stage_path, waiting.record.offset, waiting.channels
        )
    follower.end()
    findings += follower.findings
    findings += _check_tombstones(connection, state, follower)
    findings += _check_row_counts(state)
    findings += _check_migrations(state)
    findings += _check_loads(state)
    return findings, totals


def _check_sequences(state: TableState) -> Iterator[Finding]:
    table = state.table
    if not 0 <= table.migrated_seq <= table.last_seq:
        yield make_finding(
            "sequence-invalid",
            table.name,
            f"The watermark is {table.migrated_seq}, the last sequence {table.last_seq}; expected"
            " 0 ≤ watermark ≤ last sequence.",
        )
    numbers = [chunk.record.seq for chunk in state.waiting_chunks]
    if numbers and numbers[-1] > table.last_seq:
        yield make_finding(
            "sequence-invalid",
            table.name,
            f"Chunk {numbers[-1]} exists; the last sequence is {table.last_seq}.",
            seq=numbers[-1],
        )
    expected = table.migrated_seq + 1
    for number in (*numbers, table.last_seq + 1):
        if number > expected:
            yield make_finding(
                "chunk-missing",
                table.name,
                f"{_format_range(expected, number - 1)} missing between the watermark"
                f" {table.migrated_seq} and the last sequence {table.last_seq}.",
                seq=expected,
            )
        expected = max(expected, number + 1)


def _format_range(first: int, last: int) -> str:
    return f"Chunk {first} is" if first == last else f"Chunks {first} to {last} are"


def _make_ledger_gap(state: TableState, first: int, last: int) -> Finding:
    return make_finding(
        "ledger-missing",
        state.table.name,
        f"{_format_range(first, last)} not in the ledger; it must have all from"
        f" {(state.lineage_from or 0) + 1} to the watermark {state.table.migrated_seq}.",
        seq=first,
    )


def _compare_with_row(
    state: TableState, chunk: LedgerChunk, row: StoredChunkRow | None
) -> Iterator[Finding]:
    """Compare a chunk of the ledger with its row in `chunks`, unless that row is deleted."""
    if row is None:
        return
    record = row.record
    pairs = {
        "path": (chunk.path, row.stage_path),
        "offset": (chunk.offset, record.offset),
        "length": (chunk.length, record.length),
        "MD5": (chunk.md5, record.md5),
        "rows": (chunk.rows, record.rows),
        "channels": (chunk.channels, row.channels),
    }
    for name, (kept, found) in pairs.items():
        if kept != found:
            yield make_finding(
                "ledger-differs",
                state.table.name,
                f"Chunk {chunk.seq}: {name} is {found!r} in its row and {kept!r} in the ledger.",
                seq=chunk.seq,
            )


@dataclass(slots=True)
class _Position:
    """Last commit of a channel. `token` is the last offset token that its current owner committed."""

    client_sequencer: int
    row_sequencer: int
    token: str | None
    path: str | None
    offset: int | None


class _ChannelFollower:
    """Replays the commits of all channels in sequence order, and reports gaps and contradictions."""

    def __init__(self, state: TableState) -> None:
        self.findings: list[Finding] = []
        self.positions: dict[str, _Position] = {}
        self._state = state
        # A channel that is dropped and created again counts from 1 again.
        self._rowless: dict[tuple[str, int], list[RowlessCommit]] = {}
        # The last token that each client of a channel has committed without rows.
        self._rowless_tokens: dict[tuple[str, int], str] = {}
        for each in state.rowless:
            self._rowless.setdefault((each.channel, each.row_sequencer), []).append(each)
            if each.offset_token is not None:
                client = each.channel, each.client_sequencer
                self._rowless_tokens[client] = each.offset_token
        # Commits without rows were not recorded before the lineage began.
        self._is_complete = state.lineage_from == 0

    def follow(self, seq: int, path: str, offset: int, channels: Iterable[ChannelCommit]) -> None:
        """Apply the commits of one chunk."""
        for commit in channels:
            self._follow_commit(seq, commit)
            self._advance(commit, path, offset)

    def end(self) -> None:
        """Compare the stored state of each channel with its last commit."""
        for channel in self._state.channels:
            position = self.positions.get(channel.name)
            if position is not None:
                self._check_channel(channel, position)

    def _add(self, kind: str, channel: str, detail: str, **subject: object) -> None:
        name = to_display_name(channel)
        self.findings.append(
            make_finding(
                kind, self._state.table.name, f"Channel {name}: {detail}", channel=name, **subject
            )
        )

    def _follow_commit(self, seq: int, commit: ChannelCommit) -> None:
        name, found = commit.channel, commit.row_sequencer
        client = commit.client_sequencer
        if self._find_rowless(name, found, client, client) is not None:
            self._add(
                "channel-repeated",
                name,
                f"chunk {seq} has row sequencer {found}, which is that of a commit without rows.",
                seq=seq,
            )
            return
        last = self.positions.get(name)
        if last is None:
            return
        self._skip_rowless(name, client, found)
        expected = last.row_sequencer + 1
        if commit.client_sequencer < last.client_sequencer:
            self._add(
                "channel-order",
                name,
                f"chunk {seq} was committed by client sequencer {commit.client_sequencer} after"
                f" {last.client_sequencer}.",
                seq=seq,
            )
        elif found == expected or (
            # The channel was dropped and created again, so its row sequencers restart at 1.
            client > last.client_sequencer and self._counts_from_one(name, client, found)
        ):
            return
        elif found <= last.row_sequencer:
            self._add(
                "channel-repeated",
                name,
                f"chunk {seq} repeats row sequencer {found}; expected {expected}.",
                seq=seq,
            )
        elif self._is_complete:
            self._add(
                "channel-gap",
                name,
                f"chunk {seq} has row sequencer {found}; expected {expected}.",
                seq=seq,
            )

    def _find_rowless(
        self, channel: str, row_sequencer: int, first: int, last: int
    ) -> RowlessCommit | None:
        """Return a commit without rows of one of the client sequencers from `first` to `last`."""
        found = self._rowless.get((channel, row_sequencer), ())
        return next((each for each in found if first <= each.client_sequencer <= last), None)

    def _skip_rowless(self, channel: str, client: int, until: int | None) -> None:
        """Apply the next commits without rows, up to a client and a row sequencer."""
        last = self.positions[channel]
        while until is None or last.row_sequencer + 1 < until:
            following = last.row_sequencer + 1
            commit = self._find_rowless(channel, following, last.client_sequencer, client)
            if commit is None:
                return
            self._apply_rowless(commit)

    def _apply_rowless(self, commit: RowlessCommit) -> None:
        last = self.positions[commit.channel]
        if commit.client_sequencer != last.client_sequencer:
            last.token = None
        last.client_sequencer = commit.client_sequencer
        last.row_sequencer = commit.row_sequencer
        last.token = last.token if commit.offset_token is None else commit.offset_token
        last.path = last.offset = None

    def _counts_from_one(self, channel: str, client: int, row_sequencer: int) -> bool:
        return all(
            self._find_rowless(channel, each, 0, client) is not None
            for each in range(1, row_sequencer)
        )

    def _advance(self, commit: ChannelCommit, path: str, offset: int) -> None:
        last = self.positions.get(commit.channel)
        token = commit.end_token
        if token is None and last is not None and last.client_sequencer == commit.client_sequencer:
            token = last.token
        self.positions[commit.channel] = _Position(
            commit.client_sequencer, commit.row_sequencer, token, path, offset
        )

    def _check_channel(self, channel: ChannelRecord, last: _Position) -> None:
        client = channel.client_sequencer
        self._skip_rowless(channel.name, client, None)
        is_reopened = channel.client_sequencer > last.client_sequencer
        if channel.client_sequencer < last.client_sequencer:
            self._add(
                "channel-fence",
                channel.name,
                f"its client sequencer is {channel.client_sequencer}; it has committed with"
                f" {last.client_sequencer}.",
            )
        if channel.row_sequencer != last.row_sequencer and not (
            is_reopened and self._counts_from_one(channel.name, client, channel.row_sequencer + 1)
        ):
            self._add(
                "channel-position",
                channel.name,
                f"its row sequencer is {channel.row_sequencer}; its last commit has"
                f" {last.row_sequencer}.",
            )
            return
        self._check_token(channel, last, is_reopened=is_reopened)
        if not is_reopened and last.path is not None:
            found = (channel.last_path, channel.last_chunk_offset)
            expected = (last.path.partition("/")[2], last.offset)
            if found != expected:
                self._add(
                    "channel-last-chunk",
                    channel.name,
                    f"its record has blob {found[0]} at {found[1]}; its last chunk is in"
                    f" {expected[0]} at {expected[1]}.",
                )

    def _check_token(self, channel: ChannelRecord, last: _Position, *, is_reopened: bool) -> None:
        tokens = self._state.openings.get(channel.name, {})
        committed = last.token
        if is_reopened:
            # The channel has committed only calls without rows since it was created again.
            committed = self._rowless_tokens.get((channel.name, channel.client_sequencer))
        if committed is not None:
            expected = committed
        elif channel.client_sequencer in tokens:
            expected = tokens[channel.client_sequencer] or ""
        else:
            # The channel was opened by TRUNCATE or UNDROP, or before the history begins.
            return
        if (channel.offset_token or "") != expected:
            self._add(
                "channel-token",
                channel.name,
                f"its committed offset token is {channel.offset_token!r}; expected"
                f" {expected or None!r}.",
                token=channel.offset_token,
            )


def _check_tombstones(
    connection: sa.Connection, state: TableState, follower: _ChannelFollower
) -> Iterator[Finding]:
    live = {channel.name for channel in state.channels}
    gone = sorted(follower.positions.keys() - live)
    for name, tombstone in find_tombstones(connection, state.table.name, gone).items():
        committed = follower.positions[name].client_sequencer
        if tombstone.client_sequencer < committed:
            yield make_finding(
                "tombstone-low",
                state.table.name,
                f"Channel {to_display_name(name)} was dropped with client sequencer"
                f" {tombstone.client_sequencer}; it has committed with {committed}.",
                channel=to_display_name(name),
            )


def _check_row_counts(state: TableState) -> Iterator[Finding]:
    for name, parsed, inserted, rejected in state.row_counts:
        if parsed != inserted + rejected:
            yield make_finding(
                "channel-rows",
                state.table.name,
                f"Channel {to_display_name(name)}: {parsed} rows were parsed, but {inserted} inserted"
                f" and {rejected} rejected.",
                channel=to_display_name(name),
            )


def _check_migrations(state: TableState) -> Iterator[Finding]:
    runs = sorted(
        (run for run in state.migrations if run.state is RunState.COMMITTED),
        key=lambda run: run.to_seq,
    )
    table, expected = state.table, 0
    for run in runs:
        if run.from_seq != expected:
            yield make_finding(
                "migration-gap",
                table.name,
                f"Migration {run.run_id} begins after chunk {run.from_seq}; the one before ends with"
                f" {expected}.",
                run=run.run_id,
            )
        expected = run.to_seq
    if expected != table.migrated_seq:
        yield make_finding(
            "migration-gap",
            table.name,
            f"The last migration ends with chunk {expected}; the watermark is {table.migrated_seq}.",
        )
    added: dict[str, int] = {}
    for file in state.files:
        # A row change makes fresh files native and removes them in one commit.
        if not (file.changed_rows and file.added_at == file.removed_at):
            added[file.run_id] = added.get(file.run_id, 0) + file.rows
    for run in runs:
        is_known = state.lineage_from is not None and run.from_seq >= state.lineage_from
        if is_known and run.rows != added.get(run.run_id, 0):
            yield make_finding(
                "run-rows-differ",
                table.name,
                f"Migration {run.run_id} has {run.rows} rows in the history and"
                f" {added.get(run.run_id, 0)} in its files.",
                run=run.run_id,
            )


def _check_loads(state: TableState) -> Iterator[Finding]:
    added: dict[str, int] = {}
    for file in state.files:
        added[file.run_id] = added.get(file.run_id, 0) + file.rows
    changing = {file.removed_by for file in state.files if file.changed_rows}
    for load in state.loads:
        inputs = state.rows_of_load_files.get(load.load_id)
        if inputs is not None and inputs != (load.rows, load.rejects):
            yield make_finding(
                "load-differs",
                state.table.name,
                f"Load {load.load_id} has {load.rows} rows and {load.rejects} rejects; its files have"
                f" {inputs[0]} and {inputs[1]}.",
                load=load.load_id,
            )
        found = added.get(load.load_id, load.rows)
        if found != load.rows and load.load_id not in changing:
            yield make_finding(
                "run-rows-differ",
                state.table.name,
                f"Load {load.load_id} has {load.rows} rows in the history and {found} in its files.",
                load=load.load_id,
            )
