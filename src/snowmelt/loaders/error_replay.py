"""Refused rows once more: from a table's error table into the table, each at most once.

Rows are inserted in numbered batches. Before a batch goes into the table, by a channel whose
offset token is its number, markers with that number are committed to the error table, one for
each row. A row was replayed when its marker's number is committed, which the token tells, and a
line behind the batch once more. Whoever begins opens both channels first: nothing of a run before
is under way then, and a batch with markers that was not committed is taken up as it was.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt import failpoints
from snowmelt.catalog.objects.error_tables import find_error_table
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.errors import UserError
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.error_table import REPLAY_PROTOCOL, REPLAY_VOID_PROTOCOL, TRUNCATED_CODE
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.client.channel import Channel
    from snowmelt.client.client import Client
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableName
    from snowmelt.storage.store import Store

    Change = Callable[[dict[str, object]], dict[str, object]]

_BATCH_ROWS = 10_000
_CHANNEL = "snowmelt:replay"
_DONE = "batch:"
# Which row of its batch it was says nothing here, and reasons are counted.
_PLACE = re.compile(r", rowIndex:[0-9]+")
_COLUMNS = (
    "REFUSAL_ID",
    "REFUSED_AT",
    "TABLE_NAME",
    "PROTOCOL",
    "OFFSET_TOKEN",
    "CODE",
    "ROW_DATA",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Which rows of which table: those refused at `since` or later, each as `change` makes it.

    Rows carry the name that the table had; `former_names` are others than its own. `parse`
    reads what is no JSON object, such as a line of a file. Naive times are of `zone`.
    """

    table: TableName
    zone: ZoneInfo
    since: dt.datetime | None = None
    former_names: frozenset[str] = frozenset()
    change: Change | None = None
    parse: Callable[[str], Mapping[str, object] | str] | None = None


@dataclass(slots=True)
class Replayed:
    """What came of it: rows inserted now, and by runs before; those refused again, by reason."""

    inserted: int = 0
    before: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Lake:
    """Where the error table is read: its catalog, keys and stage."""

    database: Database
    keyring: KeyRing
    stage: Store
    clock: Clock


@dataclass(slots=True)
class _Journal:
    """What the error table says of a table.

    `rows` are refused rows by id, `markers` the rows of each batch, `done` the batches that are
    known to be in the table whatever its channel says.
    """

    rows: dict[str, dict[str, object]] = field(default_factory=dict)
    markers: dict[int, set[str]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def is_in(self, number: int, committed: int) -> bool:
        """Tell whether a batch is in the table."""
        return number <= committed or number in self.done

    def following(self, committed: int) -> int:
        """Return a number that no batch has had."""
        return max([committed, *self.markers, *self.done]) + 1


class Replay:
    """One run; it stops another one that is at work for the same table."""

    def __init__(self, options: ReplayOptions, lake: Lake) -> None:
        self._options = options
        self._lake = lake
        self._channel: Channel | None = None
        self._markers: Channel | None = None
        self.done = Replayed()

    def run(self, client: Client, progress: Callable[[Replayed], None] | None = None) -> Replayed:
        """Insert what the table takes by now.

        Raises:
            UserError: The table has no error table.
            ChannelFenced: Another run has begun meanwhile; it goes on with the rest.
            TableNotFound: There is no such table, or the user may not insert into it.
            ServiceUnavailable: The service does not answer.
        """
        table, errors = self._tables()
        with (
            client.open_channel(
                f'"{_CHANNEL}"',
                table=str(table.name),
                default_timezone=self._options.zone,
                compatibility="strict",
            ) as self._channel,
            client.open_channel(
                f'"{_CHANNEL} {table.table_id}"', table=str(errors.name)
            ) as self._markers,
        ):
            committed = int(self._channel.latest_committed_offset_token() or 0)
            journal = self._journal(table, errors)
            for number in sorted(journal.markers):
                if not journal.is_in(number, committed):
                    keys = sorted(journal.markers[number] & journal.rows.keys())
                    self._replay(table, [journal.rows[key] for key in keys], number, marked=True)
            for rows in _batches(self._left(journal, committed)):
                number = journal.following(committed)
                self._replay(table, rows, number)
                journal.done.add(number)
                if progress is not None:
                    progress(self.done)
        return self.done

    def look(self) -> Replayed:
        """Return what `run` would do; nothing is changed, and no service is asked.

        Raises:
            UserError: The table has no error table.
            TableNotFound: There is no such table.
        """
        table, errors = self._tables()
        journal = self._journal(table, errors)
        with self._lake.database.reading() as connection:
            known = find_channel(connection, table, _CHANNEL)
        committed = int((known and known.offset_token) or 0)
        for rows in _batches(self._left(journal, committed, with_interrupted=True)):
            self.done.inserted += len(self._taken(table, rows))
        return self.done

    def _tables(self) -> tuple[TableRecord, TableRecord]:
        with self._lake.database.reading() as connection:
            table = find_table(connection, self._options.table)
            errors = find_error_table(connection, table)
        if errors is None:
            raise UserError(
                f"Table {table.name} has no error table, so that nothing is kept of what it "
                "refused; ALTER TABLE … SET ERROR_TABLE gives it one."
            )
        return table, errors

    def _journal(self, table: TableRecord, errors: TableRecord) -> _Journal:
        lake, found = self._lake, _Journal()
        whole = read_table(
            lake.database, lake.keyring, lake.stage, errors.name, _COLUMNS, clock=lake.clock
        )
        void: set[tuple[int, str]] = set()
        for row in whole.to_pylist():
            key, number = row["REFUSAL_ID"], row["OFFSET_TOKEN"]
            if row["TABLE_NAME"] not in {str(table.name), *self._options.former_names}:
                continue
            if row["PROTOCOL"] != REPLAY_PROTOCOL:
                found.rows[key] = row
            elif key.startswith(_DONE):
                found.done.add(int(number))
            elif row["CODE"] == REPLAY_VOID_PROTOCOL:
                void.add((int(number), key))
            else:
                found.markers.setdefault(int(number), set()).add(key)
        for number, key in void:
            found.markers.get(number, set()).discard(key)
        return found

    def _left(
        self, journal: _Journal, committed: int, *, with_interrupted: bool = False
    ) -> Iterator[dict[str, object]]:
        """Return the rows that are in no batch, those refused first before others."""
        since, gone = self._options.since, set[str]()
        for number, keys in journal.markers.items():
            if journal.is_in(number, committed):
                gone |= keys
                self.done.before += len(keys)
            elif not with_interrupted:
                gone |= keys
        left = [
            row
            for key, row in journal.rows.items()
            if key not in gone and (since is None or row["REFUSED_AT"] >= since)  # type: ignore[operator]
        ]
        return iter(sorted(left, key=lambda row: (row["REFUSED_AT"], row["REFUSAL_ID"])))

    def _replay(
        self,
        table: TableRecord,
        rows: Sequence[dict[str, object]],
        number: int,
        *,
        marked: bool = False,
    ) -> None:
        """Bring one batch into the table; `marked` is one whose markers are there."""
        assert self._channel is not None  # noqa: S101 - `run` has opened both
        assert self._markers is not None  # noqa: S101
        taken = self._taken(table, rows)
        bad = [str(row["REFUSAL_ID"]) for row in rows if row["REFUSAL_ID"] not in taken]
        said = (
            [(key, REPLAY_VOID_PROTOCOL) for key in bad]
            if marked
            else [(key, None) for key in taken]
        )
        self._mark(self._markers, table, number, said)
        if not taken:
            return
        failpoints.hit_failpoint(failpoints.Failpoint.REPLAY_MARKED)
        self._channel.insert_rows(list(taken.values()), str(number))
        self._channel.flush()
        failpoints.hit_failpoint(failpoints.Failpoint.REPLAY_INSERTED)
        # Should the channel expire one day, its token goes, and this line stays.
        self._mark(self._markers, table, number, [(f"{_DONE}{number}", None)])
        self.done.inserted += len(taken)

    def _mark(
        self,
        markers: Channel,
        table: TableRecord,
        number: int,
        said: Sequence[tuple[str, str | None]],
    ) -> None:
        if not said:
            return
        shared = {
            "REFUSED_AT": self._lake.clock.now(),
            "TABLE_NAME": str(table.name),
            "PROTOCOL": REPLAY_PROTOCOL,
            "OFFSET_TOKEN": str(number),
        }
        markers.insert_rows([shared | {"REFUSAL_ID": key, "CODE": code} for key, code in said])
        markers.flush()

    def _taken(
        self, table: TableRecord, rows: Sequence[dict[str, object]]
    ) -> dict[str, Mapping[str, object]]:
        """Return by id the rows that the table takes as it is now; count the others."""
        read: dict[str, Mapping[str, object]] = {}
        for row in rows:
            made = self._read(row)
            if isinstance(made, str):
                self._refused(made)
            else:
                read[str(row["REFUSAL_ID"])] = made
        schema = table.schema if self._channel is None else self._channel.state.target.schema
        errors = RowConverter(schema, zone=self._options.zone).convert(list(read.values())).errors
        keys = list(read)
        for error in errors:
            self._refused(_PLACE.sub("", str(error.error)))
            del read[keys[error.row_index]]
        return read

    def _refused(self, reason: str) -> None:
        self.done.refused += 1
        self.done.reasons[reason] += 1

    def _read(self, row: Mapping[str, object]) -> Mapping[str, object] | str:
        """Return what was refused as a row, or why it is none."""
        data = row["ROW_DATA"]
        if row["CODE"] == TRUNCATED_CODE or not isinstance(data, str):
            return "the row was too long to be kept whole"
        try:
            found = json.loads(data, parse_float=Decimal)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            parse = self._options.parse
            found = "it is no JSON object" if parse is None else parse(data)
        if isinstance(found, str) or self._options.change is None:
            return found  # type: ignore[no-any-return]
        return self._options.change(dict(found))


def _batches(rows: Iterator[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        yield batch
