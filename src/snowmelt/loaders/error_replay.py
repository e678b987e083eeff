"""Replay rejected rows of a table's error table into the table, each at most once.

Rows are inserted in numbered batches. The offset token of the channel is the number of the last
batch. Before a batch is inserted, one marker per row with its number is committed to the error
table. A row was replayed if the number in its marker is committed. The channel's offset token, and
another marker that is written after the batch, show which numbers are committed. Each run first
opens both channels, which fences earlier runs. A batch that has markers but was not committed is
retried unchanged.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from snowmelt import failpoints
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.tables import find_error_table, find_table
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.client.channel import Channel
from snowmelt.clock import Clock
from snowmelt.errors import UserError
from snowmelt.json.exact import parse_row
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.error_table import (
    REPLAY_PROTOCOL,
    REPLAY_VOID_PROTOCOL,
    SDK_PROTOCOL,
    TRUNCATED_CODE,
)
from snowmelt.schema.types import LogicalType, TableName, TableSchema, to_display_name
from snowmelt.storage.store import Store
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    from snowmelt.client.client import Client

    Change = Callable[[dict[str, object]], dict[str, object]]

_UTC = ZoneInfo("UTC")
# A zone whose offset always differs from UTC, so that values that depend on the zone differ.
_OTHER_ZONE = ZoneInfo("Etc/GMT-1")
_ZONED_TYPES = {LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ}
_LOCAL_TIME_REASON = (
    "{columns}: the time has no time zone, and the zone of the client's channel is not stored. Give it as "
    "--time-zone, such as America/Los_Angeles, the client's default"
)
_BATCH_ROWS = 10_000
_CHANNEL_NAME = "snowmelt:replay"
_DONE_MARKER_PREFIX = "batch:"
# Omit the position in the batch, so that equal reasons are counted together.
_ROW_INDEX_PATTERN = re.compile(r", rowIndex:[0-9]+")
_ERROR_TABLE_COLUMNS = (
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
    """Options of a replay. It replays the rows rejected since `since`, after `transform_row`.

    Error rows contain the name that the table had when they were rejected; `former_names` are its
    earlier names. `parse_text` parses data that is not a JSON object, such as a line of a file.
    `zone` is the time zone of times without one. None: UTC, and rows of the SDK with such times are
    rejected again, because the error table does not have the zone of their channel.
    """

    table: TableName
    zone: ZoneInfo | None = None
    since: dt.datetime | None = None
    former_names: frozenset[str] = frozenset()
    transform_row: Change | None = None
    parse_text: Callable[[str], Mapping[str, object] | str] | None = None


@dataclass(slots=True)
class ReplayResult:
    """Numbers of rows that this run and earlier runs inserted, and of rows rejected again, by reason."""

    inserted: int = 0
    already_inserted: int = 0
    rejected: int = 0
    reject_reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ErrorTableReadContext:
    """Catalog, keys and stage from which the error table is read."""

    database: Database
    keyring: KeyRing
    stage: Store
    clock: Clock


@dataclass(slots=True)
class _ErrorTableContents:
    """The rows of an error table that belong to one table.

    `rejected_rows` maps IDs to rejected rows. `markers` maps batch numbers to row IDs.
    `committed_batches` are the batches that are known to be committed.
    """

    rejected_rows: dict[str, dict[str, object]] = field(default_factory=dict)
    markers: dict[int, set[str]] = field(default_factory=dict)
    committed_batches: set[int] = field(default_factory=set)

    def is_committed(self, batch_number: int, last_committed_batch: int) -> bool:
        """Return True if a batch is committed."""
        return batch_number <= last_committed_batch or batch_number in self.committed_batches

    def next_batch_number(self, last_committed_batch: int) -> int:
        """Return an unused batch number."""
        return max([last_committed_batch, *self.markers, *self.committed_batches]) + 1


class ErrorReplay:
    """One replay. It fences other replays of the same table."""

    def __init__(self, options: ReplayOptions, source: ErrorTableReadContext) -> None:
        self._options = options
        self._source = source
        self._channel: Channel | None = None
        self._markers: Channel | None = None
        self.done = ReplayResult()

    def run(
        self, client: Client, on_progress: Callable[[ReplayResult], None] | None = None
    ) -> ReplayResult:
        """Insert the rows that the table now accepts.

        Raises:
            UserError: If the table has no error table.
            ChannelFenced: If another replay has begun. It continues with the remaining rows.
            TableNotFound: If the table does not exist or the user lacks INSERT on it.
            ServiceUnavailable: If the service does not respond.
        """
        table, errors = self._find_tables()
        with (
            client.open_channel(
                f'"{_CHANNEL_NAME}"',
                table=str(table.name),
                default_timezone=self._options.zone or _UTC,
                compatibility="strict",
            ) as self._channel,
            client.open_channel(
                f'"{_CHANNEL_NAME} {table.table_id}"', table=str(errors.name)
            ) as self._markers,
        ):
            committed = int(self._channel.latest_committed_offset_token() or 0)
            journal = self._read_error_table(table, errors)
            for number in sorted(journal.markers):
                if not journal.is_committed(number, committed):
                    keys = sorted(journal.markers[number] & journal.rejected_rows.keys())
                    self._replay_batch(
                        table,
                        [journal.rejected_rows[key] for key in keys],
                        number,
                        has_markers=True,
                    )
            for rows in _split_into_batches(self._list_pending_rows(journal, committed)):
                number = journal.next_batch_number(committed)
                self._replay_batch(table, rows, number)
                journal.committed_batches.add(number)
                if on_progress is not None:
                    on_progress(self.done)
        return self.done

    def dry_run(self) -> ReplayResult:
        """Return the expected result of `run`. Changes nothing, and does not use the service.

        Raises:
            UserError: If the table has no error table.
            TableNotFound: If the table does not exist.
        """
        table, errors = self._find_tables()
        journal = self._read_error_table(table, errors)
        with self._source.database.reading() as connection:
            known = find_channel(connection, table, _CHANNEL_NAME)
        committed = int((known and known.offset_token) or 0)
        for rows in _split_into_batches(
            self._list_pending_rows(journal, committed, with_interrupted=True)
        ):
            self.done.inserted += len(self._select_accepted_rows(table, rows))
        return self.done

    def _find_tables(self) -> tuple[TableRecord, TableRecord]:
        with self._source.database.reading() as connection:
            table = find_table(connection, self._options.table)
            errors = find_error_table(connection, table)
        if errors is None:
            raise UserError(
                f"Cannot replay rows of table {table.name}: it has no error table, so rejected rows are "
                "not stored. To store them, run ALTER TABLE … SET ERROR_TABLE."
            )
        return table, errors

    def _read_error_table(
        self, table: TableRecord, error_table: TableRecord
    ) -> _ErrorTableContents:
        lake, found = self._source, _ErrorTableContents()
        whole = read_table(
            lake.database,
            lake.keyring,
            lake.stage,
            error_table.name,
            _ERROR_TABLE_COLUMNS,
            clock=lake.clock,
        )
        void: set[tuple[int, str]] = set()
        for row in whole.to_pylist():
            key, number = row["REFUSAL_ID"], row["OFFSET_TOKEN"]
            if row["TABLE_NAME"] not in {str(table.name), *self._options.former_names}:
                continue
            if row["PROTOCOL"] != REPLAY_PROTOCOL:
                found.rejected_rows[key] = row
            elif key.startswith(_DONE_MARKER_PREFIX):
                found.committed_batches.add(int(number))
            elif row["CODE"] == REPLAY_VOID_PROTOCOL:
                void.add((int(number), key))
            else:
                found.markers.setdefault(int(number), set()).add(key)
        for number, key in void:
            found.markers.get(number, set()).discard(key)
        return found

    def _list_pending_rows(
        self,
        journal: _ErrorTableContents,
        last_committed_batch: int,
        *,
        with_interrupted: bool = False,
    ) -> Iterator[dict[str, object]]:
        """Yield the rows that are in no batch, in the order in which they were rejected.

        With `with_interrupted`, also yield the rows of batches that are not committed.
        """
        since, gone = self._options.since, set[str]()
        for number, keys in journal.markers.items():
            if journal.is_committed(number, last_committed_batch):
                gone |= keys
                self.done.already_inserted += len(keys)
            elif not with_interrupted:
                gone |= keys
        left = [
            row
            for key, row in journal.rejected_rows.items()
            if key not in gone and (since is None or row["REFUSED_AT"] >= since)  # type: ignore[operator]
        ]
        return iter(sorted(left, key=lambda row: (row["REFUSED_AT"], row["REFUSAL_ID"])))

    def _replay_batch(
        self,
        table: TableRecord,
        rows: Sequence[dict[str, object]],
        batch_number: int,
        *,
        has_markers: bool = False,
    ) -> None:
        """Commit one batch; `has_markers` is True if its markers are committed."""
        assert self._channel is not None  # noqa: S101 - `run` has opened both
        assert self._markers is not None  # noqa: S101
        taken = self._select_accepted_rows(table, rows)
        bad = [str(row["REFUSAL_ID"]) for row in rows if row["REFUSAL_ID"] not in taken]
        said = (
            [(key, REPLAY_VOID_PROTOCOL) for key in bad]
            if has_markers
            else [(key, None) for key in taken]
        )
        self._write_markers(self._markers, table, batch_number, said)
        if not taken:
            return
        failpoints.hit_failpoint(failpoints.Failpoint.REPLAY_MARKED)
        self._channel.insert_rows(list(taken.values()), str(batch_number))
        self._channel.flush()
        failpoints.hit_failpoint(failpoints.Failpoint.REPLAY_INSERTED)
        # If the channel expires with its token, this row shows that the batch is committed.
        self._write_markers(
            self._markers, table, batch_number, [(f"{_DONE_MARKER_PREFIX}{batch_number}", None)]
        )
        self.done.inserted += len(taken)

    def _write_markers(
        self,
        channel: Channel,
        table: TableRecord,
        batch_number: int,
        entries: Sequence[tuple[str, str | None]],
    ) -> None:
        if not entries:
            return
        shared = {
            "REFUSED_AT": self._source.clock.now(),
            "TABLE_NAME": str(table.name),
            "PROTOCOL": REPLAY_PROTOCOL,
            "OFFSET_TOKEN": str(batch_number),
        }
        channel.insert_rows([shared | {"REFUSAL_ID": key, "CODE": code} for key, code in entries])
        channel.flush()

    def _select_accepted_rows(
        self, table: TableRecord, rows: Sequence[dict[str, object]]
    ) -> dict[str, Mapping[str, object]]:
        """Return the rows that the table now accepts, by ID. Count the others as rejected."""
        read: dict[str, Mapping[str, object]] = {}
        for row in rows:
            made = self._parse_rejected_row(row)
            if isinstance(made, str):
                self._count_rejected_row(made)
            else:
                read[str(row["REFUSAL_ID"])] = made
        schema = table.schema if self._channel is None else self._channel.state.target.schema
        zone = self._options.zone or _UTC
        converter = RowConverter(schema, zone=zone, get_now=self._source.clock.now)
        errors = converter.convert(list(read.values())).errors
        keys = list(read)
        for error in errors:
            self._count_rejected_row(_ROW_INDEX_PATTERN.sub("", str(error.error)))
            del read[keys[error.row_index]]
        if self._options.zone is None:
            sent = {str(row["REFUSAL_ID"]) for row in rows if row["PROTOCOL"] == SDK_PROTOCOL}
            local = {key: value for key, value in read.items() if key in sent}
            for key, columns in _find_local_times(schema, local).items():
                self._count_rejected_row(_LOCAL_TIME_REASON.format(columns=columns))
                del read[key]
        return read

    def _count_rejected_row(self, reason: str) -> None:
        self.done.rejected += 1
        self.done.reject_reasons[reason] += 1

    def _parse_rejected_row(self, row: Mapping[str, object]) -> Mapping[str, object] | str:
        """Parse rejected data. Return the row, or the reason why it cannot be parsed."""
        data = row["ROW_DATA"]
        if row["CODE"] == TRUNCATED_CODE or not isinstance(data, str):
            return "the row was too long to be kept whole"
        found: Mapping[str, object] | str = parse_row(data)
        if isinstance(found, str):
            parse = self._options.parse_text
            found = "it is not a JSON object" if parse is None else parse(data)
        if isinstance(found, str) or self._options.transform_row is None:
            return found
        return self._options.transform_row(dict(found))


def _find_local_times(
    schema: TableSchema, rows: Mapping[str, Mapping[str, object]]
) -> dict[str, str]:
    """Return the columns whose stored values depend on the default time zone, by row ID."""
    names = [column.name for column in schema.columns if column.kind in _ZONED_TYPES]
    if not (names and rows):
        return {}
    first, second = (
        RowConverter(schema, zone=zone).convert(list(rows.values())).table
        for zone in (_UTC, _OTHER_ZONE)
    )
    found: dict[str, list[str]] = {}
    for name in names:
        pairs = zip(first.column(name).to_pylist(), second.column(name).to_pylist(), strict=True)
        for key, (value, other) in zip(rows, pairs, strict=True):
            if value != other:
                found.setdefault(key, []).append(to_display_name(name))
    return {key: ", ".join(columns) for key, columns in found.items()}


def _split_into_batches(rows: Iterator[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        yield batch
