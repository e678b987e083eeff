"""`snowmelt sql`: where statements come from, and what is printed."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.mark.slow
def test_statements_run_in_order_and_tell_what_they_did(snowmelt: Callable[..., Finished]) -> None:
    ended = snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT); SHOW TABLES")
    assert ended.returncode == 0
    assert ended.stdout.startswith("Database DEMO created.\nTable DEMO.PUBLIC.T created.\n")
    assert ended.stdout.endswith("1 row\n")


def test_the_first_statement_that_fails_ends_it_and_is_pointed_at(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    script = tmp_path / "tables.sql"
    script.write_text(
        "CREATE DATABASE demo;\n  CREATE TABLE demo.public.t\n (a GEOMETRY); CREATE ROLE r"
    )
    ended = snowmelt("sql", "-f", "tables.sql")
    assert ended.returncode == 1
    assert ended.stdout == "Database DEMO created.\n"
    assert "GEOMETRY is not supported" in ended.stderr
    assert ended.stderr.endswith("(line 3, column 5).\n")
    later = snowmelt("sql", "SHOW ROLES; SHOW ROLE", "--format", "csv")
    assert later.stdout == "name\nACCOUNTADMIN\nPUBLIC\n"
    assert later.stderr.endswith("(line 1, column 18).\n")


@pytest.mark.slow
def test_statements_come_from_standard_input(snowmelt_process: Callable[..., Finished]) -> None:
    given = "CREATE ROLE loader;\nSHOW ROLES LIKE 'l%'\n"
    ended = snowmelt_process("sql", "--format", "csv", given=given)
    assert ended.stdout == "status\nRole LOADER created.\nname\nLOADER\n"


@pytest.mark.parametrize("text", ["", " ; -- nothing\n"])
def test_no_statement_is_an_error(snowmelt: Callable[..., Finished], text: str) -> None:
    ended = snowmelt("sql", given=text)
    assert (ended.returncode, ended.stderr) == (1, "snowmelt: No statement to run.\n")


def test_json_and_csv_say_the_same(snowmelt: Callable[..., Finished]) -> None:
    snowmelt("sql", 'CREATE DATABASE demo; CREATE TABLE demo.public.t ("a,b" INT NOT NULL, c TIME)')
    described = snowmelt("sql", "DESC TABLE demo.public.t", "--format", "json")
    rows = json.loads(described.stdout)
    assert rows == [
        {"name": "a,b", "type": "NUMBER(38,0)", "nullable": False, "ordinal": 1, "default": None},
        {"name": "C", "type": "TIME(9)", "nullable": True, "ordinal": 2, "default": None},
    ]
    listed = snowmelt("sql", "DESC TABLE demo.public.t", "--format", "csv").stdout
    assert list(csv.DictReader(listed.splitlines())) == [
        {name: str("" if value is None else value).lower() if name != "name" and name != "type" else value
         for name, value in row.items()}
        for row in rows
    ]  # fmt: skip


@pytest.mark.slow
def test_instants_for_programs_name_their_zone(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("2026-01-01 00:00:00|2026-01-01 00:00:00\n")
    snowmelt(
        "sql",
        "CREATE DATABASE demo; CREATE TABLE demo.public.t (i TIMESTAMP_LTZ(0), n TIMESTAMP_NTZ(0));"
        "COPY demo.public.t FROM 't.csv'",
    )
    found = snowmelt("sql", "SELECT i, n FROM demo.public.t", "--format", "json").stdout
    assert json.loads(found) == [{"i": "2026-01-01 00:00:00+00:00", "n": "2026-01-01 00:00:00"}]
    found = snowmelt("sql", "SELECT i FROM demo.public.t").stdout
    assert "2026-01-01 00:00:00\n" in found


@pytest.mark.slow
def test_defaults_and_role_reach_the_statements(snowmelt: Callable[..., Finished]) -> None:
    snowmelt("sql", "CREATE DATABASE demo; CREATE ROLE loader")
    made = snowmelt("sql", "CREATE TABLE t (a INT)", "--database", "demo")
    assert made.stdout == "Table DEMO.PUBLIC.T created.\n"
    refused = snowmelt("sql", "CREATE DATABASE other", "--role", "loader")
    assert (
        refused.stderr
        == "snowmelt: Role LOADER lacks CREATE DATABASE on the account, which only ACCOUNTADMIN has.\n"
    )


@pytest.mark.spark
@pytest.mark.slow
def test_queries_go_to_spark_and_statements_do_not(
    snowmelt_process: Callable[..., Finished], tmp_path: Path
) -> None:
    folder = tmp_path / "snowmelt-data"
    ended = snowmelt_process(
        "sql",
        "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT, d NUMBER(5,2)); "
        "SELECT count(*) AS n, max(d) AS d FROM demo.public.t",
        "--format",
        "json",
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines() == [f"snowmelt: created a new catalog in {folder}"]
    assert ended.stdout.endswith('[\n {"n": 0, "d": null}\n]\n')


@pytest.mark.parametrize(
    "arguments",
    [
        ("sql", "SHOW TABLES"),
        ("sql", "SELECT 1"),
        ("sql", "DROP DATABASE demo"),
        ("user", "add", "loader", "--role", "ACCOUNTADMIN"),
        ("channels", "list"),
        ("maintain",),
        ("migrate", "--engine", "local"),
    ],
)
def test_a_wrong_folder_is_refused_and_nothing_is_created_in_it(
    arguments: tuple[str, ...], snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    ended = snowmelt(*arguments)
    assert ended.returncode == 1
    assert "there is no catalog at" in ended.stderr
    assert "snowmelt serve" in ended.stderr
    assert not list(tmp_path.rglob("*"))


def test_the_first_statement_of_a_catalog_creates_it_and_says_so(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    ended = snowmelt("sql", "CREATE DATABASE demo")
    assert ended.returncode == 0
    assert "created a new catalog in" in ended.stderr
    assert "created" not in snowmelt("sql", "SHOW DATABASES").stderr


def test_no_other_account_of_the_machine_can_read_the_catalog(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("sql", "CREATE DATABASE demo")
    catalog = tmp_path / "snowmelt-data" / "catalog.db"
    assert catalog.stat().st_mode & 0o077 == 0
    # A catalog of an earlier version, which everybody could read.
    catalog.chmod(0o644)
    snowmelt("sql", "SHOW DATABASES")
    assert catalog.stat().st_mode & 0o007 == 0


def test_a_query_for_spark_names_its_reason_where_spark_is_missing(
    snowmelt: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name)
    )
    ended = snowmelt("sql", "SELECT upper(a) FROM demo.public.t")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "snowmelt: Spark, which runs this query because it selects UPPER(a), "
        "needs the package pyspark. Run: pip install 'snowmelt[spark]'.\n"
    )
