"""DROP, UNDROP, TRUNCATE and what is kept between, on every database the catalog runs on."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import cast

import pytest

from fixtures.catalog import NAME, Client, World, advance
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.security import access_control
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.catalog.streaming import channels, chunks
from snowmelt.errors import AlreadyExists, NotRestorable, PrivilegeMissing, TableNotFound
from snowmelt.schema.types import TableName
from snowmelt.table.garbage_collection import expire_idle_channels

DAY_S = 86_400.0


def names(result: StatementResult) -> list[object]:
    return [row[result.columns.index("name")] for row in result.rows]


def channel(world: World, table: TableRecord) -> channels.ChannelRecord:
    with world.database.reading() as connection:
        return cast("channels.ChannelRecord", channels.find_channel(connection, table, "C"))


def test_undrop_brings_rows_grants_and_tokens_back_and_fences_who_was_there(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    before = world.table()
    late = client.offer(advance("C", 0, 2, "20"))
    run("DROP TABLE t")
    with pytest.raises(TableNotFound):
        world.table()
    assert run("UNDROP TABLE t").message == "Table DB.PUBLIC.T restored."
    after = world.table()
    assert (after.incarnation, after.last_seq) == (before.incarnation, 1)
    assert after.dropped_at is None
    assert channel(world, after).offset_token == "10"
    [[verdict]] = world.register(late)
    assert verdict.code == 20
    assert verdict.message is not None
    assert "its table was restored with UNDROP" in verdict.message
    assert "reopen the channel and resume after its committed offset token" in verdict.message
    opened = client.open("C").record
    assert (opened.offset_token, opened.row_sequencer) == ("10", 1)
    again = client.offer(advance("C", opened.client_sequencer, 2, "20"))
    assert world.codes(again) == [[0]]
    with world.database.reading() as connection:
        events = [each.event for each in channels.list_channel_history(connection, after.table_id)]
        assert len(chunks.list_chunks(connection, after.table_id, 0, 2)) == 2
    assert events[:3] == ["opened", "table undropped", "table dropped"]


def test_tokens_that_came_back_are_kept_like_those_of_a_channel_just_opened(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    run("ALTER TABLE t SET DATA_RETENTION_TIME_IN_DAYS = 90")
    run("DROP TABLE t")
    world.clock.advance(40 * DAY_S)
    run("UNDROP TABLE t")
    assert expire_idle_channels(world.database, world.clock, idle_s=30 * DAY_S) == 0
    assert client.open("C").record.offset_token == "10"


def test_a_chunk_that_was_registered_before_is_known_after(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    chunk = client.offer(advance("C", 0, 2, "20"))
    assert world.codes(chunk) == [[0]]
    run("DROP TABLE t")
    assert world.codes(chunk) == [[4]]
    run("UNDROP TABLE t")
    assert world.codes(chunk) == [[0]]
    assert world.table().last_seq == 2


def test_the_last_one_dropped_comes_back_first_and_a_taken_name_is_a_sentence(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    first = world.table().table_id
    run("CREATE OR REPLACE TABLE t (x INT)")
    second = world.table().table_id
    with pytest.raises(AlreadyExists, match=r"Rename it \(ALTER TABLE DB.PUBLIC.T REN"):
        run("UNDROP TABLE t")
    run("ALTER TABLE t RENAME TO newer")
    run("UNDROP TABLE t")
    assert world.table().table_id == first
    run("DROP TABLE t")
    run("ALTER TABLE newer RENAME TO t")
    run("DROP TABLE t")
    run("UNDROP TABLE t")
    assert world.table().table_id == second


def test_sequencers_never_fall_whatever_had_the_name_meanwhile(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    run("DROP TABLE t")
    world.create_table()
    newer = -1
    for _ in range(3):
        newer = client.open("C").record.client_sequencer
    run("ALTER TABLE t RENAME TO other")
    run("UNDROP TABLE t")
    assert channel(world, world.table()).client_sequencer > newer


@pytest.mark.parametrize(
    ("said", "days"),
    [
        ("ALTER TABLE t SET DATA_RETENTION_TIME_IN_DAYS = 3", 3),
        ("ALTER SCHEMA db.public SET DATA_RETENTION_TIME_IN_DAYS = 5", 5),
        ("ALTER DATABASE db SET DATA_RETENTION_TIME_IN_DAYS = 2", 2),
        ("COMMENT ON TABLE t IS 'x'", 1),
    ],
)
def test_a_table_is_kept_as_long_as_it_or_what_it_is_in_says(
    world: World, run: Callable[..., StatementResult], said: str, days: int
) -> None:
    run(said)
    assert world.table().retention_days == days
    run("DROP TABLE t")
    world.clock.advance(days * DAY_S - 1)
    run("UNDROP TABLE t")
    run("DROP TABLE t")
    world.clock.advance(days * DAY_S)
    with pytest.raises(NotRestorable, match="within its retention time"):
        run("UNDROP TABLE t")


def test_without_retention_nothing_comes_back(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("CREATE TABLE gone (x INT) DATA_RETENTION_TIME_IN_DAYS = 0 COMMENT = 'short'")
    run("DROP TABLE gone")
    with pytest.raises(NotRestorable):
        run("UNDROP TABLE gone")


def test_a_schema_comes_back_with_what_it_took_along_and_no_more(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("CREATE SCHEMA s DATA_RETENTION_TIME_IN_DAYS = 2")
    for table in ("a", "b"):
        run(f"CREATE TABLE s.{table} (x INT) DATA_RETENTION_TIME_IN_DAYS = 0")
    run("DROP TABLE s.a")
    run("DROP SCHEMA s")
    world.clock.advance(2 * DAY_S - 1)
    assert run("UNDROP SCHEMA s").message == "Schema DB.S restored."
    assert names(run("SHOW TABLES IN SCHEMA s")) == ["B"]
    run("DROP SCHEMA s")
    run("CREATE SCHEMA s")
    with pytest.raises(AlreadyExists, match=r"ALTER SCHEMA DB\.S RENAME TO"):
        run("UNDROP SCHEMA s")
    run("ALTER SCHEMA s RENAME TO s2")
    run("UNDROP SCHEMA s")
    assert names(run("SHOW SCHEMAS LIKE 's%' IN db")) == ["S", "S2"]


def test_a_database_comes_back_with_schemas_tables_and_functions(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    run("CREATE SCHEMA s")
    run("CREATE TABLE s.a (x INT)")
    run("CREATE SCHEMA gone")
    run("DROP SCHEMA gone")
    run("DROP DATABASE db")
    assert names(run("SHOW DATABASES HISTORY")) == ["DB"]
    assert run("UNDROP DATABASE db").message == "Database DB restored."
    assert names(run("SHOW SCHEMAS IN db")) == ["PUBLIC", "S"]
    assert names(run("SHOW TABLES IN db")) == ["T", "A"]
    assert client.open("C").record.offset_token == "10"
    run("CREATE OR REPLACE DATABASE db")
    run("ALTER DATABASE db RENAME TO newer")
    run("UNDROP DATABASE db")
    assert client.open("C").record.offset_token == "10"


def test_show_history_lists_what_can_come_back_to_who_may_see_it(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("DROP TABLE t")
    run("CREATE TABLE t (x INT)")
    shown = run("SHOW TABLES HISTORY LIKE 't' IN SCHEMA public")
    assert shown.columns[-1] == "dropped_on"
    assert [row[-1] for row in shown.rows] == [None, world.now]
    seen = run("SHOW TABLES HISTORY", role="WRITER").rows
    assert [row[-1] for row in seen] == [world.now]
    assert len(run("SHOW TABLES").rows) == 1
    world.clock.advance(DAY_S)
    assert [row[-1] for row in run("SHOW TABLES HISTORY").rows] == [None]


def test_who_owned_it_and_may_create_restores_it(
    world: World, run: Callable[..., StatementResult]
) -> None:
    who = {"role": "WRITER"}
    run("DROP TABLE t")
    with pytest.raises(NotRestorable):
        run("UNDROP TABLE t", **who)
    run("UNDROP TABLE t")
    run("GRANT OWNERSHIP ON TABLE t TO ROLE writer")
    run("DROP TABLE t", **who)
    with pytest.raises(PrivilegeMissing, match="CREATE TABLE on schema"):
        run("UNDROP TABLE t", **who)
    run("GRANT CREATE TABLE ON SCHEMA public TO ROLE writer")
    run("UNDROP TABLE t", **who)


def test_what_clean_up_has_taken_does_not_come_back(
    world: World, run: Callable[..., StatementResult]
) -> None:
    table = world.table()
    with world.database.writing() as connection:
        assert not namespaces.mark_purged_if_expired(connection, table.table_id, world.now)
    run("DROP TABLE t")
    # A clean-up whose clock is ahead by more than the retention.
    ahead = world.now + dt.timedelta(days=1)
    with world.database.writing() as connection:
        assert not namespaces.mark_purged_if_expired(connection, table.table_id, world.now)
        assert namespaces.mark_purged_if_expired(connection, table.table_id, ahead)
    with pytest.raises(NotRestorable):
        run("UNDROP TABLE t")
    with world.database.writing() as connection:
        tables.delete_table_record(connection, table.table_id)


def test_either_undrop_or_clean_up_has_a_table_never_both(
    world: World, run: Callable[..., StatementResult]
) -> None:
    """At the last moment by one clock, after it by another."""
    for number in range(10):
        run(f"CREATE TABLE r{number} (x INT)")
        table = world.table(TableName("DB", "PUBLIC", f"R{number}"))
        run(f"DROP TABLE r{number}")
        ahead = world.now + dt.timedelta(days=1)
        purged: list[bool] = []
        start = threading.Barrier(2)

        def clean(
            table_id: int = table.table_id,
            ahead: dt.datetime = ahead,
            purged: list[bool] = purged,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            with world.database.writing() as connection:
                purged.append(namespaces.mark_purged_if_expired(connection, table_id, ahead))

        cleaner = threading.Thread(target=clean)
        cleaner.start()
        start.wait()
        try:
            run(f"UNDROP TABLE r{number}")
            restored = True
        except NotRestorable:
            restored = False
        cleaner.join()
        assert [restored] != purged


def test_truncate_empties_and_streams_go_on_from_their_tokens(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    run("ALTER TABLE t SET COMMENT = 'kept' ENABLE_SCHEMA_EVOLUTION = TRUE")
    run("ALTER TABLE t CLUSTER BY (b)")
    old = world.table()
    late = client.offer(advance("C", 0, 2, "20"))
    assert run("TRUNCATE TABLE t").message == "Table DB.PUBLIC.T truncated."
    new = world.table()
    assert (new.last_seq, new.comment, new.cluster_by) == (0, "kept", ("B",))
    assert new.schema.columns == old.schema.columns
    assert new.schema_evolution
    assert world.codes(late) == [[36]]
    opened = client.open("C").record
    assert (opened.offset_token, opened.row_sequencer) == ("10", 1)
    again = client.offer(
        advance("C", opened.client_sequencer, 2, "20"), key_id=world.key_id("LOADER")
    )
    assert world.codes(again) == [[0]]
    run("ALTER TABLE t RENAME TO later")
    run("UNDROP TABLE t")
    assert world.table().table_id == old.table_id
    assert client.open("C").record.offset_token == "10"


def test_truncate_is_the_owners_and_if_exists_is_kind(
    world: World, run: Callable[..., StatementResult]
) -> None:
    with pytest.raises(PrivilegeMissing):
        run("TRUNCATE TABLE t", role="WRITER")
    assert run("TRUNCATE TABLE IF EXISTS u").message.endswith("Nothing was done.")


def test_a_table_like_another_has_its_columns_and_none_of_its_rows(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    run("ALTER TABLE t CLUSTER BY (b)")
    run("CREATE TABLE u LIKE t")
    copy = world.table(TableName("DB", "PUBLIC", "U"))
    assert (copy.schema.columns, copy.cluster_by) == (world.table().schema.columns, ("B",))
    assert copy.last_seq == 0
    run("GRANT CREATE TABLE ON SCHEMA public TO ROLE writer")
    with pytest.raises(PrivilegeMissing, match="SELECT on table"):
        run("CREATE TABLE v LIKE t", role="WRITER")


def test_a_renamed_schema_or_database_tells_open_channels_where_their_table_is(
    world: World, run: Callable[..., StatementResult], client: Client
) -> None:
    late = client.offer(advance("C", 0, 2, "20"))
    run("ALTER SCHEMA public RENAME TO s")
    [[verdict]] = world.register(late)
    assert verdict.code == 36
    assert verdict.message is not None
    assert "was renamed to DB.S.T" in verdict.message
    run("ALTER DATABASE db RENAME TO d2")
    name = TableName("D2", "S", "T")
    opened = client.open("C", name=name).record
    assert opened.offset_token == "10"
    with pytest.raises(AlreadyExists):
        run("ALTER SCHEMA d2.s RENAME TO d2.s")
    run("CREATE DATABASE d3")
    run("ALTER SCHEMA d2.s RENAME TO d3.moved")
    assert client.open("C", name=TableName("D3", "MOVED", "T")).record.client_sequencer == 2


@pytest.mark.parametrize(
    ("rename", "name"),
    [
        ("ALTER TABLE t RENAME TO u", ("DB", "PUBLIC", "U")),
        ("ALTER SCHEMA public RENAME TO s", ("DB", "S", "T")),
        ("ALTER DATABASE db RENAME TO d2", ("D2", "PUBLIC", "T")),
    ],
)
def test_a_channel_that_was_dropped_before_a_rename_stays_fenced_after_it(
    world: World,
    run: Callable[..., StatementResult],
    client: Client,
    rename: str,
    name: tuple[str, str, str],
) -> None:
    renamed = TableName(*name)
    late = client.offer(advance("C", 0, 1, "20"), table=renamed)
    with world.database.writing() as connection:
        channels.drop_channel(connection, tables.find_table(connection, NAME), "C", now=world.now)
    run(rename)
    opened = client.open("C", name=renamed).record
    assert (opened.client_sequencer, opened.offset_token) == (1, None)
    [[verdict]] = world.register(late)
    assert verdict.code == 20


def test_grants_on_all_and_on_future_tables(
    world: World, run: Callable[..., StatementResult]
) -> None:
    run("CREATE ROLE reader")
    run("CREATE TABLE u (x INT)")
    run("GRANT USAGE ON DATABASE db TO ROLE reader")
    run("GRANT USAGE ON ALL SCHEMAS IN DATABASE db TO ROLE reader")
    message = run("GRANT SELECT ON ALL TABLES IN SCHEMA public TO ROLE reader").message
    assert message == "SELECT on 2 tables in schema DB.PUBLIC granted to role READER."
    run("GRANT SELECT, INSERT ON FUTURE TABLES IN SCHEMA public TO ROLE reader")
    run("GRANT INSERT ON FUTURE TABLES IN DATABASE db TO ROLE writer")
    run("CREATE TABLE later (x INT)")
    assert run("SHOW GRANTS ON TABLE later").rows == (
        ("OWNERSHIP", "TABLE", "DB.PUBLIC.LATER", "ROLE", "ACCOUNTADMIN"),
        ("INSERT", "TABLE", "DB.PUBLIC.LATER", "ROLE", "READER"),
        ("SELECT", "TABLE", "DB.PUBLIC.LATER", "ROLE", "READER"),
    )
    run("CREATE SCHEMA s")
    run("CREATE TABLE s.there (x INT)")
    assert ("INSERT", "TABLE", "DB.S.THERE", "ROLE", "WRITER") in run(
        "SHOW GRANTS ON TABLE s.there"
    ).rows
    assert run("SHOW FUTURE GRANTS IN DATABASE db").rows == (
        ("INSERT", "TABLE", "DB.<TABLE>", "ROLE", "WRITER"),
    )
    assert len(run("SHOW FUTURE GRANTS TO ROLE reader").rows) == 2
    run("REVOKE SELECT ON ALL TABLES IN DATABASE db FROM ROLE reader")
    run("REVOKE ALL PRIVILEGES ON FUTURE TABLES IN SCHEMA public FROM ROLE reader")
    assert run("SHOW FUTURE GRANTS TO ROLE reader").rows == ()
    with pytest.raises(PrivilegeMissing):
        run("GRANT SELECT ON FUTURE TABLES IN SCHEMA public TO ROLE writer", role="WRITER")
    run("DROP ROLE writer")


def test_replaced_tables_pass_their_grants_on_when_asked(
    world: World, run: Callable[..., StatementResult]
) -> None:
    table = world.table()
    run("CREATE OR REPLACE TABLE t (x INT) COPY GRANTS")
    with world.database.reading() as connection:
        new = tables.find_table(connection, NAME)
        assert new.table_id != table.table_id
        assert access_control.has_privilege(connection, "WRITER", "TABLE", new.table_id, "INSERT")
