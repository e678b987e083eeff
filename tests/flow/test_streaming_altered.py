"""A table is altered while the SDK's channels are open: they continue, or report an error."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fixtures.service import ServiceProcess
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.config import Settings
from snowmelt.errors import ChannelFenced, ChannelInvalid, InvalidRow, UserError
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

pytestmark = pytest.mark.slow

T = "demo.public.t"
LATER = dt.timedelta(seconds=60)


@pytest.fixture
def service(loading_service: ServiceProcess) -> ServiceProcess:
    return loading_service


def rows(first: int, last: int, **more: int) -> list[Any]:
    return [{"id": n, "name": f"row {n}", **more} for n in range(first, last)]


def read(service: ServiceProcess, name: str = "T") -> Any:
    settings = Settings.load(service.data_dir)
    catalog = open_and_upgrade_database(settings.catalog_url)
    where = TableName("DEMO", "PUBLIC", name)
    try:
        keyring = KeyRing(load_master_key(settings.keys_dir))
        return read_table(catalog, keyring, open_store(settings.stage_url), where).to_pylist()
    finally:
        catalog.close()


def test_a_channel_goes_on_and_sees_a_column_that_was_added(
    connect: Any, service: ServiceProcess
) -> None:
    client = connect()
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 5), "4")
    channel.flush(LATER)
    with pytest.raises(InvalidRow):
        channel.insert_row({"id": 10**12})
    service.sql(f"ALTER TABLE {T} ALTER COLUMN id SET DATA TYPE NUMBER(20,0)")
    # The client reads the columns once a second, so it rejects now valid rows for at most that
    # time.
    give_up_at = time.monotonic() + 200
    while True:
        with contextlib.suppress(InvalidRow):
            channel.insert_row({"id": 10**12})
            break
        assert time.monotonic() < give_up_at
    service.sql(
        f"ALTER TABLE {T} ADD COLUMN extra INT",
        f"ALTER TABLE {T} ALTER COLUMN id DROP NOT NULL",
    )
    channel.insert_rows(rows(5, 10), "9")
    channel.insert_rows(rows(10, 11, extra=7), "10")
    channel.insert_row({"id": None, "extra": 8}, "11")
    channel.flush(LATER)
    with pytest.raises(InvalidRow, match=r"Extra columns: \[absent\]"):
        channel.insert_rows(rows(12, 13, absent=1), "12")
    assert channel.is_valid
    assert channel.client_sequencer == 0
    found = read(service)
    assert [row["ID"] for row in found] == [*range(5), 10**12, *range(5, 11), None]
    assert [row["EXTRA"] for row in found] == [None] * 11 + [7, 8]


@pytest.mark.parametrize(
    ("change", "later", "names"),
    [
        ("RENAME COLUMN name TO title", {"title": "later"}, {"TITLE": ["row 0", "row 9", "later"]}),
        ("DROP COLUMN name", {}, {}),
        (
            "DROP COLUMN name; ADD COLUMN name VARCHAR",
            {"name": "later"},
            {"NAME": [None, "row 9", "later"]},
        ),
        ("ALTER COLUMN id SET DATA TYPE NUMBER(20,0)", {}, {"NAME": ["row 0", "row 9", None]}),
    ],
)
def test_rows_that_are_held_follow_their_table(
    connect: Any,
    service: ServiceProcess,
    change: str,
    later: dict[str, str],
    names: dict[str, list[str | None]] | dict[str, list[str]],
) -> None:
    client = connect(max_client_lag=dt.timedelta(minutes=5))
    channels = [client.open_channel(f"c{number}", table=T) for number in range(3)]
    channels[0].insert_rows(rows(0, 5), "4")
    client.flush(LATER)
    channels[0].insert_rows(rows(5, 9), "8")
    channels[0].insert_row(rows(9, 10)[0], "9")
    channels[1].insert_rows(rows(10, 20), "19")
    service.sql(*(f"ALTER TABLE {T} {each}" for each in change.split("; ")))
    channels[2].insert_rows(rows(20, 25), "24")
    client.flush(LATER)
    channels[0].insert_rows([{"id": 30, **later}], "30")
    client.flush(LATER)
    assert [channel.client_sequencer for channel in channels] == [0, 0, 0]
    found = sorted(read(service), key=lambda row: row["ID"])
    assert [int(row["ID"]) for row in found] == [*range(25), 30]
    for name, values in names.items():
        assert [found[at][name] for at in (0, 9, -1)] == values
    assert ("NAME" in found[0]) == ("NAME" in names)


def test_a_former_owner_does_not_take_an_altered_table_back(
    connect: Any, service: ServiceProcess
) -> None:
    mine, theirs = connect(max_client_lag=dt.timedelta(minutes=5)), connect()
    lost, kept = mine.open_channel("lost", table=T), mine.open_channel("kept", table=T)
    lost.insert_rows(rows(0, 5), "4")
    kept.insert_rows(rows(5, 10), "9")
    taken = theirs.open_channel("lost", table=T)
    service.sql(f"ALTER TABLE {T} RENAME COLUMN name TO title")
    with pytest.raises(ChannelFenced, match="another client"):
        mine.flush(LATER)
    assert not lost.is_valid
    assert kept.is_valid
    taken.insert_rows([{"id": 11, "title": "x"}], "11")
    taken.flush(LATER)
    assert taken.is_valid
    assert sorted(int(row["ID"]) for row in read(service)) == [5, 6, 7, 8, 9, 11]


def test_rows_go_where_their_table_went_and_end_with_it(
    connect: Any, service: ServiceProcess
) -> None:
    client = connect(max_client_lag=dt.timedelta(minutes=5))
    channel, idle = client.open_channel("c", table=T), client.open_channel("idle", table=T)
    channel.insert_rows(rows(0, 5), "4")
    channel.flush(LATER)
    channel.insert_rows(rows(5, 10), "9")
    service.sql(
        f"ALTER TABLE {T} RENAME TO u",
        f"CREATE TABLE {T} LIKE demo.public.u",
        f"GRANT INSERT ON TABLE {T} TO ROLE loading",
    )
    # This channel has the name and client sequencer of the other one, but they must be
    # distinguished.
    other = client.open_channel("c", table=T)
    assert other.latest_committed_offset_token() is None
    assert channel.latest_committed_offset_token() == "4"
    other.insert_rows(rows(100, 105), "104")
    client.flush(LATER)
    for change in ("t RENAME TO x", "u RENAME TO t", "x RENAME TO u"):
        service.sql(f"ALTER TABLE demo.public.{change}")
    channel.insert_rows(rows(10, 15), "14")
    other.insert_rows(rows(105, 110), "109")
    client.flush(LATER)
    idle.close(drop=True)
    assert (str(channel.table), str(other.table)) == ("DEMO.PUBLIC.T", "DEMO.PUBLIC.U")
    assert channel.client_sequencer == 0
    assert sorted(int(row["ID"]) for row in read(service, "T")) == list(range(15))
    assert sorted(int(row["ID"]) for row in read(service, "U")) == list(range(100, 110))
    service.sql(f"DROP TABLE {T}", f"CREATE TABLE {T} LIKE demo.public.u")
    channel.insert_rows(rows(15, 20), "19")
    with pytest.raises(ChannelInvalid, match="last committed offset token is '14'"):
        channel.flush(LATER)
    other.insert_rows(rows(110, 115), "114")
    other.flush(LATER)
    assert len(read(service, "U")) == 15


def test_columns_are_added_as_rows_bring_them(connect: Any, service: ServiceProcess) -> None:
    channel = connect().open_channel("c", table=T, schema_evolution=True)
    with pytest.raises(UserError, match="EVOLVE SCHEMA"):
        channel.insert_row({"id": 0, "price": 1})
    service.sql(f"GRANT EVOLVE SCHEMA ON TABLE {T} TO ROLE loading")
    with pytest.raises(UserError, match="ENABLE_SCHEMA_EVOLUTION"):
        channel.insert_row({"id": 0, "price": 1})
    service.sql(f"ALTER TABLE {T} SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    others = connect().open_channel("d", table=T)
    channel.insert_row({"id": 0, "price": Decimal("1.5")}, "0")
    batch = [
        {"id": 1, "price": 2, "tags": ["a"], "seen": dt.datetime(2026, 1, 1)},
        {"name": "no id", "on": True, "seen": dt.date(2026, 1, 2), '"Mixed"': None},
    ]
    channel.insert_rows(batch, "2")
    table = pa.table({"id": [3], "price": [Decimal("3.25")], "count": pa.array([7], pa.int32())})
    channel.insert_arrow(table, "3")
    others.insert_row({"id": 4, "count": 8}, "4")
    channel.flush(LATER)
    others.flush(LATER)
    found = {row["ID"] and int(row["ID"]): row for row in read(service)}
    assert set(found) == {0, 1, None, 3, 4}
    assert [found[n]["PRICE"] for n in (0, 1, 3)] == [Decimal("1.5"), 2, Decimal("3.25")]
    assert found[None]["ON"] is True
    assert found[1]["SEEN"] == dt.datetime(2026, 1, 1)
    assert [found[n]["COUNT"] for n in (3, 4)] == [7, 8]
    types = {row[0]: row[1] for row in service.sql(f"DESCRIBE TABLE {T}").rows}
    assert types["PRICE"] == "NUMBER(38,9)"
    assert types["TAGS"] == "VARIANT"
    assert str(types["Mixed"]).startswith("VARCHAR")
    with pytest.raises(InvalidRow, match="PRICE"):
        channel.insert_row({"id": 5, "price": "dear"})


def test_a_row_that_cannot_have_its_columns_is_refused_alone(
    connect: Any, service: ServiceProcess
) -> None:
    channel = connect().open_channel("c", table=T, schema_evolution=True, on_error="continue")
    done = channel.insert_rows([{"id": 0}, {"id": 1, "price": 1}, {"id": 10**12}], "0")
    assert [error.row_index for error in done.errors] == [1, 2]
    assert done.errors[0].extra_columns == ("price",)
    assert "EVOLVE SCHEMA" in str(done.errors[0].error)
    service.sql(
        f"ALTER TABLE {T} SET ENABLE_SCHEMA_EVOLUTION = TRUE",
        f"GRANT EVOLVE SCHEMA ON TABLE {T} TO ROLE loading",
    )
    # These names are not valid for columns. Other rows are not affected.
    odd = [{"id": 2, "": 1}, {"id": 3, "\ud800": 1}, {"id": 4, "a\0b": 1}]
    done = channel.insert_rows([*odd, {"id": 5, "price": 1}], "1")
    assert [error.row_index for error in done.errors] == [0, 1, 2]
    service.sql(f"ALTER TABLE {T} ALTER COLUMN id SET DATA TYPE NUMBER(20,0)")
    assert not channel.insert_rows([{"id": 10**12}], "2").has_errors
    channel.flush(LATER)
    assert [(row["ID"], row["PRICE"]) for row in read(service)] == [
        (0, None),
        (5, 1),
        (10**12, None),
    ]
