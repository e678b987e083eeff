"""One master key for all services of a catalog: whoever comes with another one is told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.keys import KeyRing, check_of, load_master_key
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.catalog.database import Database

_C = model.deployment.c.master_key_check
_K = model.data_keys


def open_keyring(database: Database, place: Path) -> KeyRing:
    """Return the keys of a catalog; a new catalog's master key is made.

    Args:
        database: The catalog.
        place: The folder of the master key, or its file.

    Raises:
        ConfigurationError: The catalog has another master key, or it is not there, or others may
            read it.
    """
    with database.reading() as connection:
        check = connection.execute(sa.select(_C)).scalar_one()
        first = connection.execute(sa.select(_K.c.key_id).limit(1)).scalar()
    key = load_master_key(place, create=check is None and first is None)
    keyring = KeyRing(key)
    if check is None:
        with database.reading() as connection:
            # A catalog older than the check: its own keys tell.
            keyring.keys(connection, [] if first is None else [first])
        with database.writing() as connection:
            connection.execute(
                sa.update(model.deployment)
                .where(_C.is_(None))
                .values(master_key_check=check_of(key))
            )
            # Of two services that begin a catalog at once with a key each, one is right.
            check = connection.execute(sa.select(_C)).scalar_one()
    if check != check_of(key):
        raise ConfigurationError(
            setting="keys_dir",
            reason=f"{place} holds another master key than the one of this catalog; all services of "
            "a catalog need the same",
        )
    return keyring


def is_of_catalog(database: Database, place: Path) -> bool:
    """Tell whether a place holds the catalog's master key, or the catalog has none yet.

    Raises:
        ConfigurationError: There is no key, or others may read it.
    """
    with database.reading() as connection:
        check = connection.execute(sa.select(_C)).scalar_one()
    return check is None or check == check_of(load_master_key(place, create=False))
