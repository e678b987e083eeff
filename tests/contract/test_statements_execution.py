"""The catalog's SQL, on every database it runs on."""

from __future__ import annotations

import base64
import datetime as dt
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import find_user
from snowmelt.catalog.security.encryption_keys import find_access_key, open_or_create_keyring
from snowmelt.catalog.statements.executor import StatementResult, execute_statement
from snowmelt.catalog.streaming.channels import open_channel
from snowmelt.clock import ManualClock
from snowmelt.errors import (
    AlreadyExists,
    DatabaseNotFound,
    InvalidPublicKey,
    NotEmpty,
    NotFound,
    PrivilegeMissing,
    RoleNotGranted,
    SchemaNotFound,
    StatementError,
    TableNotFound,
    Unsupported,
)
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
FLIGHTS = TableName("DEMO", "PUBLIC", "FLIGHTS")


@pytest.fixture(scope="module")
def public_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


@pytest.fixture
def run(database: Database) -> Callable[..., StatementResult]:
    def statement(text: str, **who: Any) -> StatementResult:
        return execute_statement(database, text, clock=ManualClock(NOW), **who)

    return statement


@pytest.fixture
def demo(run: Callable[..., StatementResult]) -> Callable[..., StatementResult]:
    """A database with a table, and a role LOADER without any privilege."""
    run("CREATE DATABASE demo")
    run("CREATE TABLE demo.public.flights (origin VARCHAR(3) NOT NULL, delay NUMBER(4,1))")
    run("CREATE ROLE loader")
    return run


def names(result: StatementResult) -> list[object]:
    at = result.columns.index("name")
    return [row[at] for row in result.rows]


def test_a_database_comes_with_schema_public(run: Callable[..., StatementResult]) -> None:
    assert run("CREATE DATABASE demo").message == "Database DEMO created."
    shown = run("SHOW SCHEMAS IN DATABASE demo")
    assert shown.columns[:4] == ("created_on", "name", "database_name", "owner")
    assert shown.rows == ((NOW, "PUBLIC", "DEMO", "ACCOUNTADMIN", "", 1),)


def test_describe_table_lists_the_columns(demo: Callable[..., StatementResult]) -> None:
    described = demo("DESCRIBE TABLE demo.public.flights")
    assert described.columns == ("name", "type", "nullable", "ordinal", "default")
    assert described.rows == (
        ("ORIGIN", "VARCHAR(3)", False, 1, None),
        ("DELAY", "NUMBER(4,1)", True, 2, None),
    )


def test_describe_lists_what_databases_and_schemas_hold(
    demo: Callable[..., StatementResult],
) -> None:
    assert demo("DESC DATABASE demo").rows == ((NOW, "PUBLIC", "SCHEMA"),)
    assert demo("DESC SCHEMA demo.public").rows == ((NOW, "FLIGHTS", "TABLE"),)


def test_create_twice_is_refused_kept_or_replaced_as_asked(
    demo: Callable[..., StatementResult], database: Database
) -> None:
    with database.reading() as connection:
        before = find_table(connection, FLIGHTS)
    with pytest.raises(AlreadyExists):
        demo("CREATE TABLE demo.public.flights (x INT)")
    kept = demo("CREATE TABLE IF NOT EXISTS demo.public.flights (x INT)")
    assert kept.message == "Table DEMO.PUBLIC.FLIGHTS already exists; nothing was done."
    with database.reading() as connection:
        assert find_table(connection, FLIGHTS) == before
    replaced = demo("CREATE OR REPLACE TABLE demo.public.flights (x INT) CLUSTER BY (x)")
    assert replaced.message == "Table DEMO.PUBLIC.FLIGHTS replaced."
    with database.reading() as connection:
        after = find_table(connection, FLIGHTS)
    assert after.incarnation != before.incarnation
    assert after.cluster_by == ("X",)


def test_a_statement_that_fails_changes_nothing(demo: Callable[..., StatementResult]) -> None:
    with pytest.raises(NotFound):
        demo("CREATE USER u RSA_PUBLIC_KEY_2 = 'bm8=' DEFAULT_ROLE = missing")
    with pytest.raises(InvalidPublicKey):
        demo("CREATE USER u RSA_PUBLIC_KEY_2 = 'bm8='")
    assert demo("SHOW USERS").rows == ()


def test_short_names_need_defaults(demo: Callable[..., StatementResult]) -> None:
    with pytest.raises(
        StatementError, match=r"three parts, such as demo\.public\.FLIGHTS \(line 1"
    ):
        demo("DESCRIBE TABLE flights")
    with pytest.raises(StatementError, match=r"two parts, such as demo\.NEW"):
        demo("CREATE SCHEMA new")
    where = {"default_database": "demo"}
    assert demo("DESCRIBE TABLE flights", **where).rows
    assert demo("DESCRIBE TABLE public.flights", **where).rows
    demo("CREATE SCHEMA new", **where)
    demo("CREATE TABLE t (x INT)", default_schema="new", **where)
    assert names(demo("SHOW TABLES IN demo.new")) == ["T"]


def test_missing_places_are_named(demo: Callable[..., StatementResult]) -> None:
    with pytest.raises(DatabaseNotFound, match="NOWHERE"):
        demo("CREATE SCHEMA nowhere.s")
    with pytest.raises(SchemaNotFound, match=r"DEMO\.NOWHERE"):
        demo("CREATE TABLE demo.nowhere.t (x INT)")
    with pytest.raises(TableNotFound, match=r"DEMO\.PUBLIC\.NOWHERE"):
        demo("DESCRIBE TABLE demo.public.nowhere")
    with pytest.raises(SchemaNotFound):
        demo("SHOW TABLES IN demo.nowhere")


def test_drop_if_exists_tells_and_does_nothing(demo: Callable[..., StatementResult]) -> None:
    for what in ("TABLE demo.public.x", "SCHEMA demo.x", "DATABASE x", "USER x", "ROLE x"):
        assert "does not exist" in demo(f"DROP {what.replace(' ', ' IF EXISTS ', 1)}").message


def test_drop_takes_what_is_inside_unless_restricted(demo: Callable[..., StatementResult]) -> None:
    with pytest.raises(NotEmpty, match=r"Schema DEMO\.PUBLIC is not empty: it has 1 tables"):
        demo("DROP SCHEMA demo.public RESTRICT")
    with pytest.raises(NotEmpty):
        demo("DROP DATABASE demo RESTRICT")
    assert demo("DROP DATABASE demo").message == "Database DEMO dropped."
    assert demo("SHOW TABLES").rows == ()
    assert demo("SHOW DATABASES").rows == ()


def test_show_is_narrowed_by_pattern_prefix_scope_and_limit(
    demo: Callable[..., StatementResult],
) -> None:
    for name in ("airports", "air_lines", '"airMail"', "weather"):
        demo(f"CREATE TABLE demo.public.{name} (x INT)")
    demo("CREATE SCHEMA demo.other")
    demo("CREATE TABLE demo.other.airships (x INT)")
    assert names(demo("SHOW TABLES LIKE 'AIR%' IN SCHEMA demo.public")) == [
        "AIRPORTS", "AIR_LINES", "airMail",
    ]  # fmt: skip
    assert names(demo(r"SHOW TABLES LIKE 'air\\_%'")) == ["AIR_LINES"]
    assert names(demo("SHOW TABLES LIKE 'airport_'")) == ["AIRPORTS"]
    assert names(demo("SHOW TABLES LIKE 'air.*'")) == []
    assert names(demo("SHOW TABLES IN demo STARTS WITH 'air'")) == ["airMail"]
    assert names(demo("SHOW TABLES IN ACCOUNT LIMIT 2")) == ["AIRSHIPS", "AIRPORTS"]
    assert len(demo("SHOW TABLES IN DATABASE demo").rows) == 6


def test_terse_tells_the_columns_of_snowflake_alone(demo: Callable[..., StatementResult]) -> None:
    shown = demo("SHOW TERSE TABLES LIKE 'flights'")
    assert shown.columns == ("created_on", "name", "kind", "database_name", "schema_name")
    assert shown.rows == ((NOW, "FLIGHTS", "TABLE", "DEMO", "PUBLIC"),)
    assert demo("SHOW TERSE SCHEMAS IN demo").rows == ((NOW, "PUBLIC", None, "DEMO", None),)
    assert demo("SHOW TERSE DATABASES").rows == ((NOW, "DEMO", "STANDARD", None, None),)
    demo("DROP TABLE demo.public.flights")
    gone = demo("SHOW TERSE TABLES HISTORY LIKE 'flights'")
    assert gone.columns[5:] == ("dropped_on",)
    assert gone.rows[0][1:] == ("FLIGHTS", "TABLE", "DEMO", "PUBLIC", NOW)


def test_show_channels_lists_where_each_channel_stands(
    demo: Callable[..., StatementResult], database: Database
) -> None:
    with database.writing() as connection:
        table = find_table(connection, FLIGHTS)
        for name in ("EWR", "JFK"):
            open_channel(
                connection, table, name, user="LOADER", client_prefix="p", request_id=name, now=NOW
            )
    shown = demo("SHOW CHANNELS LIKE 'e%' IN TABLE demo.public.flights")
    assert shown.columns == (
        "created_on", "name", "table_name", "database_name", "schema_name", "client_sequencer",
        "row_sequencer", "offset_token", "last_commit_on", "rows", "state",
    )  # fmt: skip
    assert [row[:5] for row in shown.rows] == [(NOW, "EWR", "FLIGHTS", "DEMO", "PUBLIC")]
    assert shown.rows[0][7:9] == (None, None)
    assert shown.rows[0][10] == "never"
    assert names(demo("SHOW CHANNELS")) == ["EWR", "JFK"]
    assert demo("SHOW CHANNELS", role="LOADER").rows == ()


def test_users_get_keys_roles_and_may_lose_them(
    run: Callable[..., StatementResult], database: Database, public_key: str
) -> None:
    run("CREATE ROLE loader")
    run(f"CREATE USER ann RSA_PUBLIC_KEY = '{public_key}' DEFAULT_ROLE = loader")
    bare = "".join(public_key.splitlines()[1:-1])
    run(f"ALTER USER ann SET RSA_PUBLIC_KEY_2 = '{bare}'")
    with database.reading() as connection:
        ann = find_user(connection, "ANN")
    assert ann.fingerprints[0] == ann.fingerprints[1]
    assert base64.b64decode(ann.public_keys[0])
    described: dict[str, Any] = dict(cast("Any", run("DESCRIBE USER ann").rows))
    assert described == {
        "NAME": "ANN",
        "DEFAULT_ROLE": "LOADER",
        "RSA_PUBLIC_KEY": bare,
        "RSA_PUBLIC_KEY_FP": ann.fingerprints[0],
        "RSA_PUBLIC_KEY_2": bare,
        "RSA_PUBLIC_KEY_2_FP": ann.fingerprints[0],
    }
    run("ALTER USER ann UNSET RSA_PUBLIC_KEY")
    described = dict(cast("Any", run("DESCRIBE USER ann").rows))
    assert (described["RSA_PUBLIC_KEY"], described["RSA_PUBLIC_KEY_2"]) == (None, bare)
    run("ALTER USER ann UNSET RSA_PUBLIC_KEY_2")
    assert run("SHOW USERS").rows == ((NOW, "ANN", "LOADER", ""),)
    run("GRANT ROLE loader TO USER ann")
    assert ("USAGE", "ROLE", "LOADER", "USER", "ANN") in run("SHOW GRANTS TO USER ann").rows
    assert run("SHOW GRANTS OF ROLE loader").rows == (("USAGE", "ROLE", "LOADER", "USER", "ANN"),)
    run("REVOKE ROLE loader FROM USER ann")
    assert run("SHOW GRANTS OF ROLE loader").rows == ()
    run("DROP USER ann")
    run("DROP ROLE loader")
    assert names(run("SHOW ROLES")) == ["ACCOUNTADMIN", "PUBLIC"]


def test_a_user_acts_in_granted_roles_only(demo: Callable[..., StatementResult]) -> None:
    demo("CREATE USER ann DEFAULT_ROLE = loader")
    with pytest.raises(RoleNotGranted):
        demo("SHOW TABLES", user="ANN")
    with pytest.raises(RoleNotGranted):
        demo("SHOW TABLES", user="ANN", role="ACCOUNTADMIN")
    demo("GRANT ROLE loader TO USER ann")
    assert demo("SHOW TABLES", user="ANN").rows == ()
    assert names(demo("SHOW ROLES", user="ANN")) == ["LOADER", "PUBLIC"]
    assert names(demo("SHOW USERS", user="ANN")) == ["ANN"]


def test_a_user_creates_own_access_keys_and_describes_the_own_user(
    demo: Callable[..., StatementResult], database: Database, tmp_path: Path
) -> None:
    keyring = open_or_create_keyring(database, tmp_path / "keys")
    for user in ("ann", "eve"):
        demo(f"CREATE USER {user}")
    with pytest.raises(Unsupported, match="snowmelt user access-key"):
        demo("ALTER USER ann ADD ACCESS KEY", user="ANN")
    opened = {"user": "ANN", "open_keyring": lambda: keyring}
    created = demo("ALTER USER ann ADD ACCESS KEY", **opened)
    assert created.columns == ("access_key_id", "secret")
    [(key_id, secret)] = created.rows
    with database.reading() as connection:
        found = find_access_key(connection, keyring, str(key_id))
    assert found is not None
    assert (found.user, found.secret) == ("ANN", secret)
    assert dict(cast("Any", demo("DESCRIBE USER ann", user="ANN").rows))["NAME"] == "ANN"
    # A token for some roles must not become a key for all of them.
    with pytest.raises(PrivilegeMissing):
        demo("ALTER USER ann ADD ACCESS KEY", **opened, is_role_fixed=True)
    for text in ("ALTER USER eve ADD ACCESS KEY", "DESCRIBE USER eve"):
        with pytest.raises(PrivilegeMissing):
            demo(text, **opened)
    with pytest.raises(NotFound):
        demo("ALTER USER nobody ADD ACCESS KEY", open_keyring=lambda: keyring)


@pytest.mark.timeout(60)
def test_a_like_pattern_takes_no_exponential_time(demo: Callable[..., StatementResult]) -> None:
    demo(f"CREATE ROLE {'a' * 250}")
    assert demo(f"SHOW ROLES LIKE '{'%a' * 50}%b'").rows == ()
    assert len(demo(f"SHOW ROLES LIKE '%{'a_%' * 50}a'").rows) == 1
    for pattern, found in (
        *(("lo%d_r", 1), ("%o%d%", 2), ("%r", 1), ("l%", 1), ("%oade_", 1), ("%", 4)),
        *(("lo", 0), ("%x%", 0), ("%er%r", 0), ("loader%r", 0)),
    ):
        rows = demo(f"SHOW ROLES LIKE '{pattern}'").rows
        assert len(rows) == found, pattern


def test_a_role_sees_only_what_it_may_use(demo: Callable[..., StatementResult]) -> None:
    loader = {"role": "LOADER"}
    demo("GRANT INSERT ON TABLE demo.public.flights TO ROLE loader")
    with pytest.raises(DatabaseNotFound):
        demo("DESCRIBE TABLE demo.public.flights", **loader)
    assert demo("SHOW TABLES", **loader).rows == ()
    demo("GRANT USAGE ON DATABASE demo TO ROLE loader")
    with pytest.raises(SchemaNotFound):
        demo("DESCRIBE TABLE demo.public.flights", **loader)
    assert names(demo("SHOW DATABASES", **loader)) == ["DEMO"]
    demo("GRANT USAGE ON SCHEMA demo.public TO ROLE loader")
    assert demo("DESCRIBE TABLE demo.public.flights", **loader).rows
    assert names(demo("SHOW TABLES", **loader)) == ["FLIGHTS"]
    assert demo("SHOW GRANTS", **loader).rows == (
        ("USAGE", "DATABASE", "DEMO", "ROLE", "LOADER"),
        ("USAGE", "SCHEMA", "DEMO.PUBLIC", "ROLE", "LOADER"),
        ("INSERT", "TABLE", "DEMO.PUBLIC.FLIGHTS", "ROLE", "LOADER"),
    )
    demo("REVOKE INSERT ON TABLE demo.public.flights FROM ROLE loader")
    with pytest.raises(TableNotFound):
        demo("DESCRIBE TABLE demo.public.flights", **loader)


FORBIDDEN = [
    "CREATE DATABASE d",
    "CREATE SCHEMA demo.s",
    "CREATE TABLE demo.public.t (x INT)",
    "CREATE OR REPLACE TABLE demo.public.flights (x INT)",
    "CREATE USER u",
    "CREATE ROLE r",
    "ALTER USER u SET DEFAULT_ROLE = loader",
    "DROP TABLE demo.public.flights",
    "DROP SCHEMA demo.public",
    "DROP DATABASE demo",
    "DROP ROLE IF EXISTS nobody",
    "GRANT ROLE accountadmin TO USER u",
    "GRANT OWNERSHIP ON TABLE demo.public.flights TO ROLE loader",
    "GRANT INSERT ON TABLE demo.public.flights TO ROLE loader",
    "REVOKE INSERT ON TABLE demo.public.flights FROM ROLE loader",
    "SHOW GRANTS TO ROLE accountadmin",
    "SHOW GRANTS TO USER somebody",
]


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_role_that_may_only_insert_changes_nothing_else(
    demo: Callable[..., StatementResult], text: str
) -> None:
    for grant in (
        "USAGE ON DATABASE demo",
        "USAGE ON SCHEMA demo.public",
        "ALL ON demo.public.flights",
    ):
        demo(f"GRANT {grant} TO ROLE loader")
    with pytest.raises(PrivilegeMissing, match="Role LOADER lacks"):
        demo(text, role="LOADER")


def test_a_role_that_may_create_owns_what_it_creates(demo: Callable[..., StatementResult]) -> None:
    loader = {"role": "LOADER"}
    demo("GRANT USAGE, CREATE SCHEMA ON DATABASE demo TO ROLE loader")
    demo("CREATE SCHEMA demo.mine", **loader)
    demo("CREATE TABLE demo.mine.t (x INT)", **loader)
    assert demo("SHOW TABLES IN demo.mine", **loader).rows[0][7] == "LOADER"
    demo("GRANT SELECT ON TABLE demo.mine.t TO ROLE public", **loader)
    demo("CREATE OR REPLACE TABLE demo.mine.t (y INT)", **loader)
    demo("DROP SCHEMA demo.mine", **loader)
    assert names(demo("SHOW SCHEMAS IN demo")) == ["PUBLIC"]


def test_ownership_passes_on(demo: Callable[..., StatementResult]) -> None:
    for grant in ("USAGE ON DATABASE demo", "USAGE ON SCHEMA demo.public"):
        demo(f"GRANT {grant} TO ROLE loader")
    demo("GRANT OWNERSHIP ON TABLE demo.public.flights TO ROLE loader")
    assert demo("SHOW GRANTS ON TABLE demo.public.flights").rows == (
        ("OWNERSHIP", "TABLE", "DEMO.PUBLIC.FLIGHTS", "ROLE", "LOADER"),
    )
    demo("DROP TABLE demo.public.flights", role="LOADER")


def test_an_unknown_role_is_named(run: Callable[..., StatementResult]) -> None:
    with pytest.raises(NotFound, match="Role NOBODY does not exist"):
        run("SHOW TABLES", role="NOBODY")


def test_two_that_create_the_same_name_at_once_both_get_an_answer(
    run: Callable[..., StatementResult],
) -> None:
    outcomes: list[str] = []
    together = threading.Barrier(4)

    def create() -> None:
        together.wait()
        try:
            outcomes.append(run("CREATE DATABASE same").message)
        except AlreadyExists as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Database SAME already exists."] * 3 + ["Database SAME created."]
