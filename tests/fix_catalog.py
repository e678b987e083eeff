"""A catalog with one table, and clients that register chunks without any files."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from snowmelt.catalog.model.privileges import ACCOUNTADMIN
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.streaming import channels, registration, stages
from snowmelt.catalog.streaming.registration import ChannelAdvance, ChunkOffer
from snowmelt.clock import ManualClock
from snowmelt.schema.types import Column, Kind, TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.streaming.channels import Opened
    from snowmelt.catalog.streaming.registration import Verdict

NAME = TableName("DB", "PUBLIC", "T")
COLUMNS = (
    Column("A", Kind.FIXED, 1, nullable=False, precision=38, scale=0),
    Column("B", Kind.TEXT, 2, length=16, byte_length=64),
)
START = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
KEYRING = encryption_keys.KeyRing(bytes(32))


@dataclass
class Client:
    """A user's client with a prefix of its own; remembers nothing but what it was told."""

    world: World
    user: str
    role: str | None
    prefix: str
    counter: itertools.count[int] = field(default_factory=itertools.count)

    def open(self, channel: str, *, name: TableName = NAME, **options: object) -> Opened:
        """Open a channel."""
        with self.world.database.writing() as connection:
            options = {"request_id": f"r{next(self.counter)}", **options}
            return channels.open_channel(
                connection,
                tables.find_table(connection, name),
                channel,
                user=self.user,
                client_prefix=self.prefix,
                now=self.world.now,
                **options,
            )

    def offer(self, *advances: ChannelAdvance, **changes: object) -> ChunkOffer:
        """Return a chunk of a new blob with rows of these channels."""
        number = next(self.counter)
        return replace(
            ChunkOffer(
                path=f"2026/11/21/12/0/t5_{self.prefix}_1_{number}.bdec",
                blob_md5=_md5("blob", self.prefix, number),
                prefix=self.prefix,
                user=self.user,
                role=self.role,
                table=NAME,
                offset=0,
                length=1000,
                md5=_md5("chunk", self.prefix, number),
                key_id=self.world.key_id(self.user),
                rows=10,
                schema_version=1,
                statistics=b"{}",
                first_insert_ms=1,
                last_insert_ms=2,
                channels=advances,
            ),
            **changes,
        )


class World:
    """A database DB with a table T, users LOADER and OTHER who may write to it through WRITER."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock(START)
        with database.writing() as connection:
            now = self.now
            namespaces.create_database(connection, "DB", owner=ACCOUNTADMIN, now=now)
            access_control.create_role(connection, "WRITER", now=now)
            for user in ("LOADER", "OTHER"):
                access_control.create_user(connection, user, default_role=None, now=now)
                access_control.grant_role(connection, "WRITER", user)
        self.create_table()

    @property
    def now(self) -> dt.datetime:
        """What the clock says."""
        return self.clock.now()

    def create_table(self, name: TableName = NAME, **options: object) -> TableRecord:
        """Create a table that WRITER may insert into."""
        with self.database.writing() as connection:
            table = tables.create_table(
                connection,
                name,
                COLUMNS,
                owner=ACCOUNTADMIN,
                now=self.now,
                **options,
            )
            access_control.grant(connection, "USAGE", "DATABASE", table.database_id, "WRITER")
            access_control.grant(connection, "USAGE", "SCHEMA", table.schema_id, "WRITER")
            access_control.grant(connection, "INSERT", "TABLE", table.table_id, "WRITER")
        return table

    def table(self, name: TableName = NAME) -> TableRecord:
        """Return a table as it is now."""
        with self.database.reading() as connection:
            return tables.find_table(connection, name)

    def key_id(self, user: str, name: TableName = NAME) -> int:
        """Return the id of a user's key for a table."""
        with self.database.writing() as connection:
            table = tables.find_table(connection, name)
            return KEYRING.data_key(connection, table, user).key_id

    def client(self, user: str = "LOADER", role: str | None = "WRITER") -> Client:
        """Return a client with a prefix of its own."""
        with self.database.writing() as connection:
            return Client(self, user, role, stages.issue_prefix(connection, user, self.now))

    def register(self, *offers: ChunkOffer) -> list[tuple[Verdict, ...]]:
        """Register chunks in one transaction."""
        with self.database.writing() as connection:
            return registration.register(connection, offers, now=self.now)

    def codes(self, *offers: ChunkOffer) -> list[list[int]]:
        """Register chunks and return the codes of their channels."""
        return [[verdict.code for verdict in verdicts] for verdicts in self.register(*offers)]


@pytest.fixture
def world(database: Database) -> World:
    """A catalog with one table, once on each database."""
    return World(database)


def advance(
    channel: str, client_sequencer: int, row_sequencer: int, token: str | None = None
) -> ChannelAdvance:
    """Return one channel's part of a chunk."""
    return ChannelAdvance(channel, client_sequencer, row_sequencer, token, token)


def advances(channel: str, epoch: int, row_sequencers: Sequence[int]) -> list[ChannelAdvance]:
    """Return several steps of one channel, with the row sequencer as token."""
    return [advance(channel, epoch, number, str(number)) for number in row_sequencers]


def _md5(*parts: object) -> str:
    return hashlib.md5("/".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()
