"""Refused rows of requests, on their way into the error tables of their tables.

They are staged as a chunk of their own and registered in the transaction that takes the good
rows of the same requests: both are there, or neither.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.error_tables import error_table_of
from snowmelt.catalog.tables import table_by_id
from snowmelt.errors import TableNotFound
from snowmelt.ingest.rows.appends import Append
from snowmelt.ingest.rows.chunking import Plan
from snowmelt.ingest.rows.conversion import Converted
from snowmelt.ingest.rows.places import PipePath, Target
from snowmelt.schema.refused import Origin, Refusal, converted, rows_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import DataKey, KeyRing
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.chunking import Staged, Stager
    from snowmelt.ingest.rows.places import Sender

_log = logging.getLogger("snowmelt.ingest")

_MOST_KEYS = 10_000


class Torn(Exception):
    """Refused rows would be kept whose request is not taken now: tried another way."""


class Moved(Exception):
    """The error table was altered or renamed since refused rows were staged for it."""


@dataclass(frozen=True, slots=True)
class Aside:
    """Refused rows of some requests, on the stage."""

    staged: Staged
    sources: tuple[Append, ...]


class Keeper:
    """Stages refused rows; used by one thread."""

    def __init__(self, database: Database, keyring: KeyRing, stager: Stager, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._stager = stager
        self._clock = clock
        self._keys: dict[tuple[str, str], DataKey] = {}

    def stage(self, group: Sequence[Append]) -> list[Aside]:
        """Put the refused rows of those requests on the stage whose tables have error tables.

        Raises:
            StageUnavailable: The stage does not take them.
        """
        sorted_out: dict[tuple[int, Sender], list[Append]] = defaultdict(list)
        for each in group:
            if each.converted.refused and each.target.table.error_table_id is not None:
                sorted_out[each.target.table.table_id, each.target.sender].append(each)
        found: list[Aside] = []
        for (table_id, sender), sources in sorted_out.items():
            table = self._error_table(table_id)
            if table is None:
                continue
            target = Target(_path(table), table, sender, self._key(table, sender))
            joined = self._joined(target, sources)
            if not joined.rows:
                _log.warning("Table %s does not take refused rows any more.", table.name)
                continue
            plan = Plan(target, (joined,))
            found += [Aside(staged, tuple(sources)) for staged in self._stager.stage_all([plan])]
        return found

    def _joined(self, target: Target, sources: Sequence[Append]) -> Append:
        now = self._clock.now()
        rows = [row for source in sources for row in rows_of(_origin(source, now), _each(source))]
        table = converted(target.table.schema, rows).table
        return Append(
            target=target,
            channel=f"refused:{target.sender.user}",
            continuation=None,
            request_id="",
            start_offset_token=None,
            end_offset_token=None,
            converted=Converted(table, table.nbytes, table.num_rows, 0, ()),
            inserted_ms=min(source.inserted_ms for source in sources),
            respond=lambda _: None,
        )

    def _error_table(self, table_id: int) -> TableRecord | None:
        # As it is now: what was found for the request may be seconds old.
        with self._database.reading() as connection:
            try:
                return error_table_of(connection, table_by_id(connection, table_id))
            except TableNotFound:
                return None

    def _key(self, table: TableRecord, sender: Sender) -> DataKey:
        known = self._keys.get((table.incarnation, sender.user))
        if known is None:
            with self._database.writing() as connection:
                known = self._keyring.data_key(connection, table, sender.user)
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            self._keys[table.incarnation, sender.user] = known
        return known


def tell_lost(aside: Aside, reason: str | None) -> None:
    """Say that refused rows were not kept, since their table does not take them."""
    _log.warning(
        "%d refused rows of table %s are not kept: %s",
        aside.staged.offer.rows,
        aside.sources[0].target.table.name,
        reason or f"table {aside.staged.offer.table} does not take them",
    )


def _origin(source: Append, now: dt.datetime) -> Origin:
    return Origin(
        table=str(source.target.table.name),
        protocol="rows",
        source=source.channel,
        at=now,
        start_offset_token=source.start_offset_token,
        offset_token=source.end_offset_token,
    )


def _each(source: Append) -> list[Refusal]:
    return [
        Refusal(each.number, each.reason, each.row, each.code, each.column)
        for each in source.converted.refused
    ]


def _path(table: TableRecord) -> PipePath:
    return PipePath(table.name.database, table.name.schema, table.name.table)
