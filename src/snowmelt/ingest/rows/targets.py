"""Finding the table behind a pipe, remembered for a moment.

What is found here only prepares: role, table, columns and key are looked at again in the
transaction that registers the rows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from snowmelt.catalog import access, pipes, row_clients, stages, tables
from snowmelt.catalog.pipe_grammar import parse_pipe_copy
from snowmelt.catalog.pipes import pipe_table
from snowmelt.errors import PipeNotFound, UserError
from snowmelt.ingest.rows.places import PipePath, Sender, Target
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    import sqlalchemy as sa

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.catalog.pipe_syntax import PipeCopy
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableName

_WRITES = "INSERT"
# A grant that is taken away is noticed by the registering transaction in any case.
_REMEMBERED_S = 2.0
_MOST_REMEMBERED = 10_000


class Targets:
    """Looks up pipes for senders; thread-safe."""

    def __init__(self, database: Database, keyring: KeyRing, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._known: dict[tuple[PipePath, Sender], tuple[float, Target]] = {}
        self._prefixes: dict[str, str] = {}
        self._lock = threading.Lock()

    def find(self, path: PipePath, sender: Sender, *, again: bool = False) -> Target:
        """Return the table behind a pipe; `again` looks even where it was looked at a moment ago.

        Raises:
            PipeNotFound: There is no such pipe, or this role may not insert by it.
        """
        now = self._clock.monotonic()
        known = self._known.get((path, sender))
        if known is not None and now < known[0] and not again:
            return known[1]
        with self._database.reading() as connection:
            table, copy = writable(connection, path, sender)
            told = row_clients.told_base64(connection, str(path.name))
        if known is not None and table.incarnation == known[1].table.incarnation:
            data_key = known[1].data_key
        else:
            with self._database.writing() as connection:
                data_key = self._keyring.data_key(connection, table, sender.user)
        target = Target(path, table, sender, data_key, copy, told)
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[path, sender] = (now + _REMEMBERED_S, target)
        return target

    def prefix(self, user: str) -> str:
        """Return the prefix beneath which this service stages what a user sends."""
        with self._lock:
            prefix = self._prefixes.get(user)
            if prefix is None:
                with self._database.writing() as connection:
                    prefix = stages.issue_prefix(connection, user, self._clock.now())
                self._prefixes[user] = prefix
        return prefix


def name_of(connection: sa.Connection, table_id: int, sender: Sender) -> TableName | None:
    """Return what a table is called now; None where the sender may not insert into it any more."""
    role = internal_name(sender.role) if sender.role else None
    try:
        table = tables.table_by_id(connection, table_id)
        effective = access.effective_role(connection, sender.user, role)
        access.require_table(connection, effective, table, _WRITES)
    except UserError:
        return None
    return table.name if table.dropped_at is None else None


def writable(
    connection: sa.Connection, path: PipePath, sender: Sender
) -> tuple[TableRecord, PipeCopy | None]:
    """Return the table behind a pipe, which the sender may insert into, and what the pipe computes.

    Raises:
        PipeNotFound: There is no such pipe, or this role may not insert by it.
    """
    pipe = pipes.find_pipe(connection, path.name)
    copy = None if pipe is None else parse_pipe_copy(pipe.definition)
    name = path.default_table if copy is None else pipe_table(copy, path.name)
    if name is None:
        raise PipeNotFound(pipe=path)
    role = internal_name(sender.role) if sender.role else None
    try:
        effective = access.effective_role(connection, sender.user, role)
        table = tables.find_table(connection, name)
        access.require_table(connection, effective, table, _WRITES)
    except UserError as error:
        raise PipeNotFound(f"{PipeNotFound(pipe=path)} {error}") from None
    return table, copy
