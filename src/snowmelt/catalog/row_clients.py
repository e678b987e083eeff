"""What clients of the row API were told about bytes: base64, or digits.

Only paths matter that somebody was told base64 by: elsewhere nobody writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog.dialects import insert_for
from snowmelt.catalog.model import row_clients

if TYPE_CHECKING:
    import datetime as dt

_C = row_clients
_ANYBODY = ""


def tell_base64(connection: sa.Connection, path: str, now: dt.datetime) -> None:
    """Note that a client which asks about this path is told to write base64."""
    insert = insert_for(connection, _C).values(path=path, token=_ANYBODY, at=now)
    # Services' clocks differ a little.
    later = insert.excluded.at > _C.c.at
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["path", "token"], set_={"at": insert.excluded.at}, where=later
        )
    )


def told_base64(connection: sa.Connection, path: str) -> dt.datetime | None:
    """Return when a client was last told so, None when none ever was."""
    return _at(connection, path, _ANYBODY)


def tell_digits(
    connection: sa.Connection, path: str, token: str, since: dt.datetime, *, before: dt.datetime
) -> None:
    """Note that the client with this token writes digits since then; the first note stays.

    Args:
        connection: A writing transaction.
        path: What it asked about.
        token: The token's id.
        since: When it surely knows.
        before: What is older is of tokens that have expired, and forgotten.
    """
    old = (_C.c.path == path) & (_C.c.token != _ANYBODY) & (_C.c.at < before)
    connection.execute(sa.delete(_C).where(old))
    row = {"path": path, "token": token, "at": since}
    connection.execute(insert_for(connection, _C).values(row).on_conflict_do_nothing())


def knows_digits(connection: sa.Connection, path: str, token: str) -> dt.datetime | None:
    """Return since when the client with this token writes digits, None when that is not known."""
    return _at(connection, path, token)


def _at(connection: sa.Connection, path: str, token: str) -> dt.datetime | None:
    found = sa.select(_C.c.at).where(_C.c.path == path, _C.c.token == token)
    at: dt.datetime | None = connection.execute(found).scalar()
    return at
