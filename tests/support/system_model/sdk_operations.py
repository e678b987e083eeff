"""Steps of a run that use channels of the SDK."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from support.system_model.model import Batch, Channel, Table, tick
from support.system_model.rows import (
    Row,
    Validity,
    make_arrow_columns,
    make_row,
    to_arrow,
    to_sdk_row,
)
from support.system_model.run import Run
from support.system_model.values import MAX_BINARY, MAX_TEXT, ColumnType
from support.system_model.writers import SdkHandle, Writer, WriterError

CHANNEL_NAMES = ("c0", "c1", "C2", "ch 3")
_ON_ERROR = ("abort", "continue", "continue", "skip_batch")
_FENCED = frozenset({"ChannelFenced", "ChannelInvalid"})
_MIN_REASON_CHARACTERS = 12


def open_channel(
    run: Run,
    writer: Writer,
    table: Table,
    name: str,
    *,
    on_error: str | None = None,
    evolves: bool | None = None,
) -> None:
    """Open a channel in a writer, which fences its former owner."""
    if on_error is None:
        on_error = run.source.choice(_ON_ERROR)
    if evolves is None:
        evolves = run.source.random() < 0.6
    channel = table.channels.get(name) or Channel(table, name)
    if channel.owner is not None:
        run.close_handle(channel.owner)
    handle = SdkHandle(writer, channel, on_error, evolves=evolves and table.evolves)
    try:
        token = handle.call(
            "open", name=name, table=table.full_name, on_error=on_error, evolves=handle.evolves
        )
    except WriterError as error:
        run.differ(f"open of channel {name!r} of {table.full_name}: {error}")
        return
    run.log("open", writer.number, table.full_name, name, on_error, "->", token)
    table.channels[name] = channel
    run.reconcile(channel, token, "open", final=True)
    handle.last_token = channel.token or 0
    channel.owner = handle
    writer.handles[handle.opened_at] = handle


def reopen(run: Run, handle: SdkHandle) -> None:
    """Open the channel of a handle again, by the current name of its table."""
    run.close_handle(handle)
    channel = handle.channel
    if channel.table in run.tables:
        open_channel(
            run,
            handle.writer,
            channel.table,
            channel.name,
            on_error=handle.on_error,
            evolves=handle.evolves,
        )


def flush_handle(run: Run, handle: SdkHandle, where: str) -> None:
    """Flush a channel. All of its batches must be committed after it."""
    channel = handle.channel
    try:
        run.reconcile(channel, handle.call("flush"), where, final=False)
    except WriterError as error:
        run.log("flush", channel.table.full_name, channel.name, error)
        reopen(run, handle)
        return
    missing = [batch.token for batch in channel.pending if not batch.is_deferred]
    if missing:
        run.differ(
            f"{where}: channel {channel.name!r} of {channel.table.full_name} was flushed, and has token "
            f"{channel.token} without {missing}"
        )
        channel.pending = []


def flush_table(run: Run, table: Table) -> None:
    """Flush all channels of a table."""
    for handle in run.list_sdk_handles(table):
        if not handle.is_closed:
            flush_handle(run, handle, "flush of the table")


# --- steps


def open_any(run: Run) -> None:
    table = run.choose_table()
    open_channel(run, run.source.choice(run.writers), table, run.source.choice(CHANNEL_NAMES))


def flush_any(run: Run) -> None:
    if handles := run.list_sdk_handles():
        flush_handle(run, run.source.choice(handles), "flush")


def advance_any(run: Run) -> None:
    """Send a token without rows."""
    if not (handles := run.list_sdk_handles()):
        return
    handle = run.source.choice(handles)
    handle.last_token += 1
    run.log("advance", handle.channel.table.full_name, handle.channel.name, handle.last_token)
    try:
        handle.call("advance", token=str(handle.last_token))
    except WriterError as error:
        run.log("  ->", error)
        reopen(run, handle)
        return
    handle.channel.pending.append(Batch(handle.last_token, []))


def request_token(run: Run) -> None:
    if not (handles := run.list_sdk_handles()):
        return
    handle = run.source.choice(handles)
    try:
        run.reconcile(handle.channel, handle.call("token"), "token", final=False)
    except WriterError as error:
        run.log("token", error)
        reopen(run, handle)


def reopen_any(run: Run) -> None:
    if handles := run.list_sdk_handles():
        reopen(run, run.source.choice(handles))


def resume_any(run: Run) -> None:
    if not (handles := run.list_sdk_handles()):
        return
    handle = run.source.choice(handles)
    try:
        token = handle.call("resume")
    except WriterError as error:
        run.log("resume", error)
        reopen(run, handle)
        return
    run.reconcile(handle.channel, token, "resume", final=True)
    handle.last_token = handle.channel.token or 0


def close_any(run: Run) -> None:
    """Close a channel, or drop it. Both wait until its rows are committed."""
    if not (handles := run.list_sdk_handles()):
        return
    handle, drop = run.source.choice(handles), run.source.random() < 0.4
    channel = handle.channel
    run.log("close", channel.table.full_name, channel.name, "drop" if drop else "")
    try:
        handle.call("close", drop=drop)
    except WriterError as error:
        run.log("  ->", error)
        reopen(run, handle)
        return
    channel.commit_all()
    run.close_handle(handle)
    if drop:
        channel.table.channels.pop(channel.name, None)


def kill_writer(run: Run) -> None:
    """Kill a client, and open its channels again in its successor."""
    writer = run.source.choice(run.writers)
    lost = writer.kill()
    run.log("kill writer", writer.number, len(lost))
    run.counts["kills of clients"] += 1
    for handle in lost:
        if handle.channel.table in run.tables:
            open_channel(run, writer, handle.channel.table, handle.channel.name)


def kill_service(run: Run) -> None:
    delay_s = run.source.random() * 0.6
    run.log("kill service in", round(delay_s, 3))
    run.counts["kills of the service"] += 1
    run.site.kill_soon(delay_s)


# --- inserts


@dataclass
class Insert:
    """One step of inserts: `rows` with their tokens, which is one token per call."""

    handle: SdkHandle
    method: str
    rows: list[Row]
    tokens: list[int]
    token_before: int
    # Name and type of a field that is not a column yet, in the first row.
    new_field: tuple[str, ColumnType, Any] | None = None

    @property
    def channel(self) -> Channel:
        return self.handle.channel

    @property
    def invalid(self) -> set[int]:
        """Indexes of rows that must be rejected."""
        return self._find(Validity.INVALID) - self.uncertain

    @property
    def uncertain(self) -> set[int]:
        """Indexes of rows that may be rejected. Rows that change the table are among them."""
        if self.new_field is not None:
            return set(range(len(self.rows)))
        if self.handle.evolves:
            return self._find(Validity.INVALID, Validity.UNCERTAIN)
        return self._find(Validity.UNCERTAIN)

    @property
    def calls(self) -> list[tuple[int, list[int]]]:
        """Token and indexes of the rows of each call."""
        if self.method == "insert_each":
            return [(token, [index]) for index, token in enumerate(self.tokens)]
        return [(self.tokens[0], list(range(len(self.rows))))]

    def _find(self, *validities: Validity) -> set[int]:
        return {index for index, row in enumerate(self.rows) if row.validity in validities}


_NEW_FIELDS = (
    (ColumnType("BOOLEAN"), True, True),
    (ColumnType("NUMBER", 38), Decimal(7), 7),
    (ColumnType("VARCHAR", MAX_TEXT), "new", "new"),
    (ColumnType("FLOAT"), 1.5, 1.5),
    (ColumnType("DATE"), dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
)


def insert_any(run: Run) -> None:
    """Insert valid and invalid rows, by one of the three methods of the SDK."""
    handles = run.list_sdk_handles()
    if not handles:
        open_any(run)
        return
    source = run.source
    handle = source.choice(handles)
    table = handle.channel.table
    method = source.choice(["insert_rows"] * 3 + ["insert_each", "insert_arrow"])
    many = source.choice([1, 2, 3, 5, 8, source.randint(20, 150)])
    count = source.randint(1, 4) if method == "insert_each" else many
    rows = [make_row(table, source, handle.opened_at) for _ in range(count)]
    if method == "insert_arrow" and not all(row.is_valid for row in rows):
        method = "insert_rows"
    names = None
    if method == "insert_arrow":
        names = make_arrow_columns(table, rows, handle.opened_at)
        if names is None:
            return
    before = handle.last_token
    handle.last_token += count if method == "insert_each" else 1
    step = Insert(handle, method, rows, list(range(before + 1, handle.last_token + 1)), before)
    arguments = _make_arguments(run, step, names)
    outcome: list[tuple[int, str]] | WriterError
    try:
        outcome = handle.call(method, **arguments)
    except WriterError as error:
        outcome = error
    run.log(
        *(method, handle.writer.number, table.full_name, handle.channel.name, handle.on_error),
        *("tokens", step.tokens[0], step.tokens[-1], "keys", rows[0].key, rows[-1].key),
        *("->", str(outcome)[:200]),
    )
    if handle.evolves:
        _adopt_evolution(run, step)
    if isinstance(outcome, WriterError):
        _follow_error(run, step, outcome)
    else:
        _follow_result(run, step, dict(outcome))


def _make_arguments(run: Run, step: Insert, names: Sequence[str] | None) -> dict[str, Any]:
    source = run.source
    if names is not None:
        data = to_arrow(step.rows, names, source, quoted=True)
        return {"data": data, "token": str(step.tokens[0])}
    rows = [to_sdk_row(row, source) for row in step.rows]
    if step.method == "insert_each":
        return {"rows": rows, "tokens": [str(token) for token in step.tokens]}
    if step.handle.evolves and source.random() < 0.15:
        column_type, stored, sent = source.choice(_NEW_FIELDS)
        step.new_field = (f"E{tick()}", column_type, stored)
        rows[0][step.new_field[0]] = sent
    return {"rows": rows, "token": str(step.tokens[0])}


def _adopt_evolution(run: Run, step: Insert) -> None:
    """Adopt the column that a new field has added, and NOT NULL that rows have dropped."""
    table = step.channel.table
    if step.new_field is not None:
        name, column_type, stored = step.new_field
        found = {each.name: each for each in run.describe(table)}
        if name in found:
            column = table.add_column(name, column_type)
            step.rows[0].stored[column.ordinal] = stored
            # DESCRIBE shows the greatest lengths as the type without a length.
            shown = {f"VARCHAR({MAX_TEXT})": "VARCHAR", f"BINARY({MAX_BINARY})": "BINARY"}
            wanted = shown.get(column_type.sql, column_type.sql)
            returned = found[name].type.replace(" ", "")
            if shown.get(returned, returned) != wanted:
                run.differ(f"{table.full_name}: new column {name} has type {returned}")
    if any(column.is_required for column in table.columns):
        run.adopt_dropped_required(table)


def _follow_error(run: Run, step: Insert, error: WriterError) -> None:
    handle, channel = step.handle, step.channel
    if error.kind in _FENCED:
        reopen(run, handle)
        return
    if handle.on_error == "abort" and (step.invalid or step.uncertain):
        run.counts["calls aborted"] += 1
        if step.method != "insert_each":
            handle.last_token = step.token_before
            return
        # The calls before the first rejected row have inserted theirs. The token shows how many.
        first = min(step.invalid, default=len(step.rows))
        for index in range(first):
            channel.pending.append(Batch(step.tokens[index], [step.rows[index].stored]))
        try:
            token = handle.call("flush")
        except WriterError:
            reopen(run, handle)
            return
        run.reconcile(channel, token, "flush after a rejected row", final=True)
        handle.last_token = channel.token or 0
        return
    if step.new_field is not None:
        handle.last_token = step.token_before
        return
    run.differ(f"insert into {channel.table.full_name} ({handle.on_error}): {error}")
    reopen(run, handle)


def _follow_result(run: Run, step: Insert, errors: dict[int, str]) -> None:
    handle, table = step.handle, step.channel.table
    for index, row in enumerate(step.rows):
        if index in step.uncertain:
            continue
        if index in errors and index not in step.invalid:
            run.differ(f"valid row {row.key} of {table.full_name} rejected: {errors[index]}")
        if index not in errors and index in step.invalid:
            run.differ(f"invalid row {row.key} of {table.full_name} accepted: {row.sent}")
    run.counts["rows rejected"] += len(errors)
    run.counts["rows inserted"] += len(step.rows) - len(errors)
    if any(len(text) < _MIN_REASON_CHARACTERS for text in errors.values()):
        run.differ(f"rows were rejected without a reason: {errors}")
    if handle.on_error == "abort" and errors:
        run.differ(f"insert with on_error=abort returned {errors}")
    for token, indexes in step.calls:
        rejected = [step.rows[index].key for index in indexes if index in errors]
        if handle.on_error == "skip_batch" and rejected:
            # The token does not advance, and rejected rows wait for a later commit.
            table.maybe_rejected.update(rejected if table.has_error_table else ())
            continue
        accepted = [step.rows[index].stored for index in indexes if index not in errors]
        batch = Batch(token, accepted, rejected if table.has_error_table else [])
        batch.is_deferred = not accepted and not table.has_error_table
        step.channel.pending.append(batch)
