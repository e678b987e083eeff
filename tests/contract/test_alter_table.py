"""ALTER TABLE, on every database the catalog runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fixtures.catalog import NAME, Client, World, advance
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security import access_control
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming import channels
from snowmelt.errors import (
    AlreadyExists,
    PrivilegeMissing,
    SchemaNotFound,
    StatementError,
    TableNotFound,
    Unsupported,
)
from snowmelt.schema.types import TableName

NEW = TableName("DB", "PUBLIC", "U")


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.open("C")
    return client


@pytest.fixture
def run(world: World) -> Callable[..., str]:
    def statement(text: str, **who: Any) -> str:
        return execute_statement(
            world.database, text, clock=world.clock, default_database="db", **who
        ).message

    return statement


def described(world: World, name: TableName = NAME) -> list[tuple[object, ...]]:
    """Return name, type, nullability and ordinal of the columns."""
    return [row[:4] for row in execute_statement(world.database, f"DESCRIBE TABLE {name}").rows]


A, B = ("A", "NUMBER(38,0)", False, 1), ("B", "VARCHAR(16)", True, 2)


def test_columns_are_added_behind_and_numbered_on(world: World, run: Callable[..., str]) -> None:
    run("ALTER TABLE t ADD COLUMN c DATE, d FLOAT NOT NULL")
    assert described(world) == [A, B, ("C", "DATE", True, 3), ("D", "FLOAT", False, 4)]
    assert world.table().schema.version == 2


def test_an_ordinal_is_never_used_again(world: World, run: Callable[..., str]) -> None:
    run("ALTER TABLE t ADD COLUMN c DATE")
    run("ALTER TABLE t DROP COLUMN c")
    run("ALTER TABLE t ADD COLUMN c FLOAT")
    assert described(world) == [A, B, ("C", "FLOAT", True, 4)]
    run("ALTER TABLE t DROP COLUMN b, c")
    run("ALTER TABLE t ADD b INT")
    assert described(world) == [A, ("B", "NUMBER(38,0)", True, 5)]


def test_if_exists_and_if_not_exists_do_nothing_where_there_is_nothing_to_do(
    world: World, run: Callable[..., str]
) -> None:
    assert run("ALTER TABLE t ADD COLUMN IF NOT EXISTS b INT").endswith("nothing was done.")
    assert run("ALTER TABLE t DROP COLUMN IF EXISTS x").endswith("nothing was done.")
    assert run("ALTER TABLE IF EXISTS u DROP COLUMN x").endswith("Nothing was done.")
    assert run("ALTER TABLE t ALTER COLUMN b DROP NOT NULL").endswith("nothing was done.")
    assert world.table().schema.version == 1
    run("ALTER TABLE t ADD COLUMN IF NOT EXISTS b INT, IF NOT EXISTS c INT")
    assert [row[0] for row in described(world)] == ["A", "B", "C"]
    with pytest.raises(TableNotFound):
        run("ALTER TABLE u DROP COLUMN x")


def test_types_grow_and_not_null_is_lifted(world: World, run: Callable[..., str]) -> None:
    run("ALTER TABLE t ALTER COLUMN a DROP NOT NULL, b SET DATA TYPE VARCHAR(20)")
    assert described(world) == [("A", "NUMBER(38,0)", True, 1), ("B", "VARCHAR(20)", True, 2)]


def test_a_renamed_column_keeps_its_ordinal_and_its_place_in_cluster_by(
    world: World, run: Callable[..., str]
) -> None:
    run("ALTER TABLE t CLUSTER BY (b, a)")
    run('ALTER TABLE t RENAME COLUMN b TO "Word"')
    assert described(world) == [A, ("Word", "VARCHAR(16)", True, 2)]
    assert world.table().cluster_by == ("Word", "A")
    run("ALTER TABLE t DROP CLUSTERING KEY")
    assert world.table().cluster_by == ()


def test_show_tables_tells_what_is_set(world: World, run: Callable[..., str]) -> None:
    def shown() -> tuple[object, ...]:
        result = execute_statement(world.database, "SHOW TABLES LIKE 't'")
        assert result.columns[5:8] == ("cluster_by", "enable_schema_evolution", "owner")
        [row] = result.rows
        return row[5:8]

    assert shown() == ("", False, "ACCOUNTADMIN")
    run("ALTER TABLE t SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    run("ALTER TABLE t CLUSTER BY (a)")
    assert shown() == ("A", True, "ACCOUNTADMIN")
    run("ALTER TABLE t SET ENABLE_SCHEMA_EVOLUTION = FALSE")
    assert shown() == ("A", False, "ACCOUNTADMIN")


REFUSALS = {
    "ADD COLUMN b INT": ("Table DB.PUBLIC.T already has a column B. Use another name", 26),
    "DROP COLUMN x": ("Table DB.PUBLIC.T has no column X. Columns: A, B", 27),
    "DROP COLUMN a, b": ("Cannot drop all columns of table DB.PUBLIC.T", 27),
    "RENAME COLUMN x TO y": ("has no column X. Columns: A, B", 29),
    "RENAME COLUMN a TO b": ("already has a column B", 34),
    "ALTER COLUMN x DROP NOT NULL": ("has no column X", 28),
    "ALTER COLUMN b TYPE VARCHAR(5)": (
        "Column B of type VARCHAR(16) cannot become VARCHAR(5): the length is at least 16",
        28,
    ),
    "ALTER COLUMN a TYPE VARCHAR": ("it is NUMBER(38,0) and stays NUMBER", 28),
    "CLUSTER BY (a, x)": ("has no column X", 30),
}


@pytest.mark.parametrize(("text", "expected"), REFUSALS.items(), ids=REFUSALS)
def test_what_does_not_go_with_the_table_is_named_with_its_place(
    world: World, run: Callable[..., str], text: str, expected: tuple[str, int]
) -> None:
    with pytest.raises(StatementError) as caught:
        run(f"ALTER TABLE t {text}")
    assert expected[0] in str(caught.value)
    assert (caught.value.fields["line"], caught.value.fields["column"]) == (1, expected[1])
    assert world.table().schema.version == 1


def test_a_column_that_the_table_is_clustered_by_is_not_dropped(
    world: World, run: Callable[..., str]
) -> None:
    run("ALTER TABLE t CLUSTER BY (b)")
    with pytest.raises(StatementError, match="Cannot drop column B: table"):
        run("ALTER TABLE t DROP COLUMN b")


def test_rows_that_are_there_have_no_value_for_a_new_not_null_column(
    world: World, client: Client, run: Callable[..., str]
) -> None:
    run("ALTER TABLE t ADD COLUMN c INT NOT NULL")
    assert world.codes(client.offer(advance("C", 0, 1), schema_version=2)) == [[0]]
    with pytest.raises(StatementError, match="Column D cannot be NOT NULL, because"):
        run("ALTER TABLE t ADD COLUMN d INT NOT NULL")


def test_the_owner_alters_and_evolvers_add_columns(world: World, run: Callable[..., str]) -> None:
    who = {"role": "WRITER"}
    with pytest.raises(PrivilegeMissing, match="OWNERSHIP or EVOLVE SCHEMA on table"):
        run("ALTER TABLE t ADD COLUMN c INT", **who)
    with world.database.writing() as connection:
        table_id = world.table().table_id
        access_control.grant_privilege(connection, "EVOLVE SCHEMA", "TABLE", table_id, "WRITER")
    run("ALTER TABLE t ADD COLUMN c INT", **who)
    run("ALTER TABLE t ALTER COLUMN a DROP NOT NULL", **who)
    for text in ("DROP COLUMN c", "RENAME TO u", "ALTER COLUMN b TYPE VARCHAR(17)"):
        with pytest.raises(PrivilegeMissing, match="lacks OWNERSHIP on table"):
            run(f"ALTER TABLE t {text}", **who)


# --- channels that are open meanwhile


@pytest.mark.parametrize(
    "text",
    [
        "ADD COLUMN c INT",
        "ALTER COLUMN a DROP NOT NULL",
        "ALTER COLUMN b TYPE VARCHAR(17)",
        "CLUSTER BY (a)",
    ],
)
def test_rows_for_older_columns_are_taken_where_each_value_still_has_its_place(
    world: World, client: Client, run: Callable[..., str], text: str
) -> None:
    run(f"ALTER TABLE t {text}")
    assert world.codes(client.offer(advance("C", 0, 1), schema_version=1)) == [[0]]


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("ADD COLUMN c INT NOT NULL", 40, "it has the column C, which is NOT NULL"),
        ("RENAME COLUMN b TO c", 40, "its column B is called C"),
        ("DROP COLUMN b", 36, "column B was dropped"),
        ("ALTER COLUMN b SET DEFAULT 'x'", 36, "the default of its column B changed"),
    ],
)
def test_a_channel_whose_rows_do_not_fit_any_more_is_to_be_opened_again(
    world: World, client: Client, run: Callable[..., str], text: str, code: int, reason: str
) -> None:
    offer = client.offer(advance("C", 0, 1), schema_version=1)
    run(f"ALTER TABLE t {text}")
    [[verdict]] = world.register(offer)
    assert verdict.code == code
    assert verdict.message is not None
    assert reason in verdict.message
    assert "Open the channel again" in verdict.message
    opened = client.open("C").record
    assert (opened.client_sequencer, opened.row_sequencer) == (1, 0)
    assert world.codes(client.offer(advance("C", 1, 1), schema_version=2)) == [[0]]


def test_what_was_registered_before_stays_so_whatever_is_altered(
    world: World, client: Client, run: Callable[..., str]
) -> None:
    offer = client.offer(advance("C", 0, 1))
    assert world.codes(offer) == [[0]]
    run("ALTER TABLE t DROP COLUMN b")
    # The answer may have been lost: the same bytes again get the same answer.
    assert world.codes(offer) == [[0]]
    assert world.table().last_seq == 1


# --- RENAME TO


def test_a_renamed_table_keeps_rows_channels_and_grants(
    world: World, client: Client, run: Callable[..., str]
) -> None:
    assert world.codes(client.offer(advance("C", 0, 1, "one"))) == [[0]]
    before, later = world.table(), client.offer(advance("C", 1, 2), table=NEW)
    assert run("ALTER TABLE t RENAME TO u") == "Table DB.PUBLIC.T renamed to DB.PUBLIC.U."
    after = world.table(NEW)
    assert (after.table_id, after.incarnation) == (before.table_id, before.incarnation)
    with pytest.raises(TableNotFound):
        world.table()
    opened = client.open("C", name=NEW).record
    assert (opened.client_sequencer, opened.offset_token) == (1, "one")
    assert world.codes(later) == [[0]]


def test_a_channel_of_a_renamed_table_is_to_be_opened_under_the_new_name(
    world: World, client: Client, run: Callable[..., str]
) -> None:
    mine = client.offer(advance("C", 0, 1))
    other = world.client("OTHER").offer(advance("C", 0, 1), key_id=mine.key_id)
    run("ALTER TABLE t RENAME TO u")
    [[verdict]] = world.register(mine)
    assert verdict.code == 36
    assert verdict.message is not None
    assert "Table DB.PUBLIC.T was renamed to DB.PUBLIC.U" in verdict.message
    # The new name is nothing to a stranger.
    [[verdict]] = world.register(other)
    assert verdict.code == 4


def test_a_table_under_a_name_that_was_given_away_takes_no_rows_of_the_other(
    world: World, client: Client, run: Callable[..., str]
) -> None:
    stale = client.offer(advance("C", 0, 1))
    run("ALTER TABLE t RENAME TO u")
    world.create_table()
    assert world.codes(stale) == [[36]]
    # Counting goes on, so that no writer of the old table matches a channel of the new.
    assert client.open("C").record.client_sequencer == 1


def test_sequencers_stay_above_those_that_the_new_name_has_seen(
    world: World, client: Client, run: Callable[..., str]
) -> None:
    world.create_table(NEW)
    for _ in range(3):
        client.open("C", name=NEW)
    with world.database.writing() as connection:
        tables.drop_table(connection, NEW, world.now)
    run("ALTER TABLE t RENAME TO u")
    with world.database.reading() as connection:
        channel = channels.find_channel(connection, world.table(NEW), "C")
    assert channel is not None
    assert channel.client_sequencer == 0, "whoever has it open goes on"
    run("ALTER TABLE u RENAME TO t")
    run("ALTER TABLE t RENAME TO u")
    assert client.open("C", name=NEW).record.client_sequencer == 3


def test_a_table_may_move_to_another_schema_but_not_onto_another_table(
    world: World, run: Callable[..., str]
) -> None:
    run("CREATE SCHEMA other")
    run("CREATE TABLE other.t (x INT)")
    with pytest.raises(AlreadyExists, match=r"DB\.OTHER\.T"):
        run("ALTER TABLE t RENAME TO other.t")
    with pytest.raises(SchemaNotFound):
        run("ALTER TABLE t RENAME TO nowhere.t")
    run("ALTER TABLE t RENAME TO db.other.u")
    assert [row[0] for row in described(world, TableName("DB", "OTHER", "U"))] == ["A", "B"]


@pytest.mark.parametrize(
    "statement",
    [
        'CREATE TABLE db.public.pair (c TIMESTAMP_NTZ(9), "C$ns" INT)',
        'CREATE TABLE db.public.pair ("C$tz" INT, c TIMESTAMP_TZ(3))',
        'ALTER TABLE db.public.single ADD COLUMN "C$ns" INT',
        'ALTER TABLE db.public.single RENAME COLUMN other TO "C$tz"',
    ],
)
def test_no_column_has_the_name_under_which_files_keep_the_rest_of_another(
    world: World, run: Callable[..., str], statement: str
) -> None:
    run("CREATE TABLE db.public.single (c TIMESTAMP_TZ(9), other INT)")
    with pytest.raises(Unsupported, match=r'Column "C\$(ns|tz)" is not supported'):
        run(statement)
