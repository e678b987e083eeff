"""A channel expires, or its table is dropped and restored, while a client has it open."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects import tables
from snowmelt.catalog.objects.channel_tombstones import tombstone_expired_channels
from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import TableName

pytestmark = pytest.mark.slow

LATER = dt.timedelta(seconds=60)
_databases = itertools.count(1)


@pytest.fixture
def loaded_database() -> str:
    return f"GOING{next(_databases)}"


@pytest.fixture
def service(
    shared_service: ServiceProcess, key_pair: KeyPair, loaded_database: str
) -> ServiceProcess:
    prepare_loading(shared_service, key_pair, loaded_database)
    return shared_service


@pytest.fixture
def table(loaded_database: str) -> str:
    return f"{loaded_database}.public.t"


def send(channel: Any, number: int) -> None:
    channel.insert_rows([{"id": number}], str(number))
    channel.flush(LATER)


def expire(service: ServiceProcess, database: str) -> None:
    """Let the channels of a database's table T expire, as after a long time without writes."""
    with (
        contextlib.closing(open_and_upgrade_database(service.settings.catalog_url)) as catalog,
        catalog.writing() as connection,
    ):
        found = tables.find_table(connection, TableName(database, "PUBLIC", "T"))
        ids = sa.select(model.channels.c.channel_id).filter_by(table_id=found.table_id)
        tombstone_expired_channels(
            connection, connection.scalars(ids).all(), dt.datetime.now(dt.UTC)
        )


def test_a_channel_that_expired_says_so_and_is_opened_anew(
    connect: Any, service: ServiceProcess, table: str, loaded_database: str
) -> None:
    client = connect()
    channel = client.open_channel("c", table=table)
    send(channel, 1)
    expire(service, loaded_database)
    with pytest.raises(SnowmeltError, match=r"does not exist|expired"):
        send(channel, 2)
    again = client.open_channel("c", table=table)
    assert again.latest_committed_offset_token() is None
    send(again, 2)
    assert again.latest_committed_offset_token() == "2"


def test_a_table_that_was_dropped_restored_or_truncated_goes_on_after_the_committed_token(
    connect: Any, service: ServiceProcess, ids: Any, table: str
) -> None:
    client = connect()
    channel = client.open_channel("c", table=table)
    send(channel, 1)
    service.sql(f"DROP TABLE {table}", f"UNDROP TABLE {table}")
    with pytest.raises(SnowmeltError):
        send(channel, 2)
    again = client.open_channel("c", table=table)
    assert again.latest_committed_offset_token() == "1"
    send(again, 2)
    assert ids() == [1, 2]
    service.sql(f"TRUNCATE TABLE {table}")
    with pytest.raises(SnowmeltError):
        send(again, 3)
    third = client.open_channel("c", table=table)
    assert third.latest_committed_offset_token() == "2"
    send(third, 3)
    assert ids() == [3]
