"""Steps of a run that create pipes with expressions, and append rows through them."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from support.system_model.model import Channel, Column, Table, quote
from support.system_model.row_api_operations import make_url, send_request
from support.system_model.rows import Row, SentValue, Validity, new_key
from support.system_model.run import Run
from support.system_model.sdk_operations import CHANNEL_NAMES
from support.system_model.values import ColumnType, random_value, to_json

SCHEMA = "PUBLIC"
_NAMES = ("P1", "P2", "P3")
_SOURCE = "TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"
_FORMS = ("list", "alias", "position")
_CAST = frozenset({"NUMBER", "VARCHAR", "BOOLEAN", "DATE"})


@dataclass(frozen=True)
class PipeItem:
    """Expression of a pipe: a field of the row, and the column as it was at the creation."""

    field: str
    name: str
    type: ColumnType
    expression: str


@dataclass(frozen=True)
class Pipe:
    """Pipe into the table that has a name when rows arrive.

    `form` is how expressions find their columns: by a list of names, by their aliases, or by the
    names of the first columns when the pipe was created.
    """

    name: str
    table_name: str
    form: str
    items: tuple[PipeItem, ...]

    @property
    def statement(self) -> str:
        columns = ", ".join(quote(each.name) for each in self.items)
        listed = f" ({columns})" if self.form == "list" else ""
        expressions = ", ".join(
            f"{each.expression} AS {quote(each.name)}" if self.form == "alias" else each.expression
            for each in self.items
        )
        matching = " MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE" if self.form == "alias" else ""
        return (
            f"CREATE OR REPLACE PIPE DEMO.{SCHEMA}.{self.name} AS COPY INTO {self.table_name}{listed} "
            f"FROM (SELECT {expressions} FROM {_SOURCE}){matching}"
        )

    def find_table(self, run: Run) -> Table | None:
        return next((each for each in run.tables if each.full_name == self.table_name), None)

    def find_columns(self, table: Table) -> list[tuple[PipeItem, Column | None]]:
        """Return the current column of each expression."""
        columns = {each.name: each for each in table.columns}
        return [(item, columns.get(item.name)) for item in self.items]


def create_any(run: Run) -> None:
    """Create or replace a pipe into a table."""
    source, table = run.source, run.choose_table()
    form = source.choice(_FORMS)
    columns = [
        each
        for each in table.columns
        if each is table.key or each.is_required or source.random() < 0.7
    ]
    if form == "position":
        columns = table.columns[: len(columns)]
    items = tuple(_make_item(number, each, source) for number, each in enumerate(columns))
    pipe = Pipe(source.choice(_NAMES), table.full_name, form, items)
    if run.change(pipe.statement):
        run.pipes[pipe.name] = pipe


def _make_item(number: int, column: Column, source: random.Random) -> PipeItem:
    # The error table has rows as they were sent: the field of the key has the name of its column.
    field = column.name if column.name == "K" else f"f{number}"
    expression = f"$1:{field}"
    share = source.random()
    if share < 0.3 and column.type.kind in _CAST:
        expression += f"::{column.type.sql}"
    elif share < 0.5:
        expression = f"COALESCE({expression}, $1:missing)"
    return PipeItem(field, column.name, column.type, expression)


def append_any(run: Run) -> None:
    """Open a channel through a pipe, and append rows once or twice with the same request."""
    if not run.pipes:
        create_any(run)
        return
    source = run.source
    pipe = run.pipes[source.choice(sorted(run.pipes))]
    table = pipe.find_table(run)
    name = source.choice(CHANNEL_NAMES)
    url = f"{make_url(SCHEMA, pipe.name, name)}?requestId={uuid.uuid4()}"
    response = send_request(run, "PUT", url, b"{}")
    run.log(
        "pipe open", pipe.name, pipe.table_name, name, response.status_code, response.text[:200]
    )
    if table is None:
        if response.status_code != 404:
            run.differ(f"pipe {pipe.name} opens a channel of {pipe.table_name}: {response.text}")
        return
    if response.status_code != 200:
        run.differ(f"pipe {pipe.name}: open of {name!r} of {table.full_name}: {response.text}")
        return
    channel = table.channels.get(name) or Channel(table, name)
    if channel.owner is not None:
        run.close_handle(channel.owner)
    table.channels[name] = channel
    opened = response.json()
    status = opened["channel_status"]
    run.reconcile(channel, status.get("last_committed_offset_token"), "pipe open", final=True)
    continuation = opened["next_continuation_token"]
    for _ in range(source.randint(1, 3)):
        rows = [_make_row(pipe, table, source) for _ in range(source.choice([1, 3, 40]))]
        token = (channel.token or 0) + 1
        body = "\n".join(_to_json(row, source) for row in rows).encode()
        url = (
            f"{make_url(SCHEMA, pipe.name, name, data=True)}/rows?continuationToken={continuation}"
            f"&endOffsetToken={token}&requestId={uuid.uuid4()}"
        )
        response = send_request(run, "POST", url, body)
        run.log(
            *("pipe append", pipe.name, table.full_name, name, "token", token),
            *("keys", rows[0].key, rows[-1].key, response.status_code, response.text[:200]),
        )
        if response.status_code != 200:
            run.differ(f"pipe {pipe.name}: append to {table.full_name}: {response.text}")
            return
        rejected = [row.key for row in rows if not row.is_valid]
        table.add_rows(
            [row.stored for row in rows if row.is_valid],
            rejected if table.has_error_table else [],
        )
        channel.token = token
        continuation = response.json()["next_continuation_token"]
        run.counts["rows through pipes"] += len(rows) - len(rejected)
        run.counts["rows rejected by pipes"] += len(rejected)


def _make_row(pipe: Pipe, table: Table, source: random.Random) -> Row:
    row = Row({}, {})
    key = Decimal(new_key())
    row.stored[table.key.ordinal] = key
    found = pipe.find_columns(table)
    for item, column in found:
        value: Any = None
        if column is table.key:
            value = key
        elif column is not None and not _can_hold(column.type, item.type):
            row.sent[item.field] = None
        elif (share := source.random()) > 0.3:
            value = random_value(item.type, source)
        elif share > 0.15:
            row.sent[item.field] = None
        if value is not None:
            row.sent[item.field] = SentValue(item.type, value)
        if column is not None:
            row.stored[column.ordinal] = value
        if column is None or (value is None and column.is_required):
            row.lower_validity(Validity.INVALID)
    targets = [column for _, column in found]
    for column in table.columns:
        if column not in targets:
            row.stored[column.ordinal] = column.default if column.has_default else None
            if column.is_required and not column.has_default:
                row.lower_validity(Validity.INVALID)
    return row


def _can_hold(column_type: ColumnType, other: ColumnType) -> bool:
    """True if a column stores each value of another type exactly."""
    return (
        column_type.kind == other.kind
        and column_type.size >= other.size
        and column_type.scale == other.scale
    )


def _to_json(row: Row, source: random.Random) -> str:
    fields = [
        f"{json.dumps(name)}:"
        + ("null" if sent is None or sent.type is None else to_json(sent.type, sent.value))
        for name, sent in row.sent.items()
    ]
    source.shuffle(fields)
    return "{" + ",".join(fields) + "}"
