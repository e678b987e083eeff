"""The reference of SQL statements: complete, its examples run, its privileges and errors hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.model.records import PRIVILEGES
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.statements import executor
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.statements.histories import HISTORIES
from snowmelt.catalog.statements.statement_context import NothingDone, StatementSession
from snowmelt.clock import SystemClock
from snowmelt.errors import (
    DatabaseNotFound,
    NotFound,
    NotRestorable,
    PipeNotFound,
    PrivilegeMissing,
    SchemaNotFound,
    SnowmeltError,
    TableNotFound,
)
from snowmelt.loaders.file_pipe_check import check_file_copy
from support.reference_pages import REFERENCE, PrivilegeLine, Section, read_sections

if TYPE_CHECKING:
    from sqlalchemy import Connection


# What must exist before the examples of a page run.
PREPARED = {
    "namespaces": (),
    "tables": ("CREATE DATABASE demo",),
    "pipes": (
        "CREATE DATABASE demo",
        "CREATE TABLE demo.public.events (id NUMBER, at TIMESTAMP_NTZ(6), what VARCHAR)",
    ),
    "security": (
        "CREATE DATABASE demo",
        "CREATE TABLE demo.public.events (id NUMBER)",
        "CREATE BUCKET 'demo-data'",
    ),
    "buckets": (),
    "integrations": (),
    "functions": (
        "CREATE DATABASE demo",
        (
            "CREATE API INTEGRATION gateway API_PROVIDER = http "
            "API_ALLOWED_PREFIXES = ('https://geo.example/v1')"
        ),
    ),
    "libraries": (),
    "failover-groups": (),
    "histories": (
        "CREATE DATABASE demo",
        "CREATE TABLE demo.public.events (id NUMBER)",
    ),
}
LIBRARY = "def upper(reader):\n    yield from reader\n\nclass Pairs: ...\n\nclass Numbers: ...\n"
# Statements that Spark runs; the page `queries` has them.
SPARK_PAGE = "queries"
DENIED = (
    PrivilegeMissing,
    NotFound,
    NotRestorable,
    PipeNotFound,
    DatabaseNotFound,
    SchemaNotFound,
    TableNotFound,
)
# Objects that the example does not name, by the statement and the words for them.
OBJECTS = {
    ("CREATE PIPE", "the target table"): "TABLE demo.public.events",
    ("CREATE TABLE", "the source table"): "TABLE demo.public.events",
    ("GRANT", "the bucket"): "BUCKET 'demo-data'",
    ("CREATE EXTERNAL FUNCTION", "the integration"): "INTEGRATION gateway",
    ("CREATE EXTERNAL FUNCTION", "the function"): "FUNCTION demo.public.place(VARCHAR, NUMBER)",
}
_FIRST_NAME = re.compile(
    r"(?:DATABASE|SCHEMA|TABLE|PIPE|FUNCTION|INTEGRATION|BUCKET)\s+"
    r"(?:IF (?:NOT )?EXISTS\s+)?([\w.]+|'[^']+')"
)


class Undo(Exception):
    """Ends a transaction whose changes must not stay."""


def expected_names() -> set[Any]:
    """Return every statement that the catalog accepts, by the first words of its text."""
    names = set()
    for words, kind in executor._KINDS.items():
        for verb in ("create", "alter", "drop", "describe"):
            if getattr(kind, verb) is not None:
                names.add(f"{verb.upper()} {words}")
    names |= {f"SHOW {words}" for words in executor.LISTINGS}
    names |= {f"SHOW {word}" for word in HISTORIES}
    names |= {"SHOW GRANTS", "SHOW FUTURE GRANTS", "TRUNCATE TABLE"}
    others = set(executor._STATEMENT_PARSERS) - {"CREATE", "ALTER", "DROP", "DESCRIBE", "DESC"}
    return names | others - {"SHOW", "TRUNCATE"}


def test_every_statement_has_a_section_and_every_section_a_statement() -> None:
    pages = {path.stem for path in (REFERENCE / "sql").glob("*.md")}
    assert pages == {*PREPARED, SPARK_PAGE, "index", "system-views"}
    found = [
        name for page in PREPARED for each in read_sections(f"sql/{page}.md") for name in each.names
    ]
    assert len(found) == len(set(found))
    assert set(found) == expected_names()


def test_the_table_of_privileges_is_complete() -> None:
    text = (REFERENCE / "sql" / "index.md").read_text("utf-8")
    for kind, privileges in PRIVILEGES.items():
        if kind != "TRANSLATOR":  # a function to statements
            assert f"| {kind.lower()} | {', '.join(privileges)} |" in text


def all_errors(base: Any = SnowmeltError) -> Iterator[Any]:
    yield base
    for each in base.__subclasses__():
        yield from all_errors(each)


def test_errors_of_every_statement_have_their_codes_and_statuses() -> None:
    text = (REFERENCE / "sql" / "index.md").read_text("utf-8")
    known = {each.code: each.status for each in all_errors()}
    found = re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)
    assert len(found) >= 10
    assert [(code, int(status)) for code, status in found] == [
        (code, known[code]) for code, _ in found
    ]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = open_and_upgrade_database(f"sqlite:///{tmp_path}/catalog.sqlite", create=True)
    yield found
    found.close()


def run_as(connection: Connection, role: str, statement: str) -> executor.StatementResult | None:
    session = StatementSession(
        connection,
        *(None, role, None, None, SystemClock().now()),
        check_file_copy=check_file_copy,
    )
    try:
        return executor.parse_statement(statement).execute(session)
    except NothingDone:
        return None


def attempt(
    database: Database, preparations: list[str], role: str, statement: str
) -> SnowmeltError | None:
    """Run a statement as a role, without any effect that stays; return its error, if any."""
    error = None
    try:
        with database.writing() as connection:
            for each in preparations:
                run_as(connection, "ACCOUNTADMIN", each)
            try:
                run_as(connection, role, statement)
            except SnowmeltError as found:
                error = found
            raise Undo
    except Undo:
        return error


def object_of(section: Section, statement: str, words: str) -> str:
    """Return the object of a privilege line as GRANT names it."""
    for name in section.names:
        if (name, words) in OBJECTS:
            return OBJECTS[name, words]
    found = _FIRST_NAME.search(statement)
    assert found is not None
    parts = found[1].split(".")
    match words.removeprefix("the ").removeprefix("dropped "):
        case "database":
            return f"DATABASE {parts[0]}"
        case "schema":
            return f"SCHEMA {'.'.join(parts[:2])}"
        case "table":
            return f"TABLE {'.'.join(parts)}"
        case "integration" | "bucket" as kind:
            return f"{kind.upper()} {found[1]}"
        case "function":
            return f"FUNCTION {cast('re.Match[str]', re.search(r'FUNCTION (?:IF EXISTS )?([^)]*[)])', statement))[1]}"
        case "account":
            return "ACCOUNT"
    raise AssertionError(f"{section.names}: what is {words!r}?")


def grant_everything(database: Database) -> list[Any]:
    """Return statements that give a role all that ACCOUNTADMIN can grant on objects."""
    with database.reading() as connection:
        found = [f"DATABASE {each.name}" for each in namespaces.list_databases(connection)]
        for each in namespaces.list_schemas(connection):
            found.append(f"SCHEMA {each.database}.{each.name}")
        found += [f"TABLE {each.name}" for each in tables.list_tables(connection)]
    account = [f"GRANT CREATE {each} ON ACCOUNT TO tester" for each in ("BUCKET", "INTEGRATION")]
    return [*(f"GRANT OWNERSHIP ON {each} TO tester" for each in found), *account]


def find_privilege_mistakes(
    database: Database, section: Section, line: PrivilegeLine
) -> Iterator[str]:
    """Yield what a privilege line says too much or too little, by running its example."""
    statement = section.example_of(line.form)
    place = f"{section.names} {line.form}"
    role = ["CREATE ROLE tester"]
    error = attempt(database, role, "TESTER", statement)
    if line.text.startswith("none"):
        if error is not None and " IN " not in statement:
            yield f"{place}: needs a privilege: {error!r}"
        return
    if not isinstance(error, DENIED):
        yield f"{place}: needs no privilege: {error!r}"
    if line.text.startswith("the role"):
        error = attempt(database, [*role, *grant_everything(database)], "TESTER", statement)
        if not isinstance(error, DENIED):
            yield f"{place}: needs no ACCOUNTADMIN: {error!r}"
        return
    demands = []
    for part in line.text.rstrip(".").split("; "):
        privileges, words = part.rsplit(" on ", 1)
        target = object_of(section, statement, words)
        grants = []
        for privilege in re.findall(r"`([A-Z ]+)`", privileges):
            grant = [f"GRANT {privilege} ON {target} TO ROLE tester"]
            if words.startswith("the dropped"):
                grant = [f"UNDROP {target}", *grant, f"DROP {target}"]
            grants.append(grant)
        demands.append(grants)
    for chosen in product(*demands):
        given = [each for grant in chosen for each in grant]
        error = attempt(database, [*role, *given], "TESTER", statement)
        if error is not None:
            yield f"{place}: needs more than {given}: {error!r}"
        for left_out, grant in enumerate(chosen):
            rest = [each for other, more in enumerate(chosen) if other != left_out for each in more]
            error = attempt(database, [*role, *rest], "TESTER", statement)
            if not isinstance(error, DENIED):
                yield f"{place}: needs no {grant}: {error!r}"


def find_error_mistakes(database: Database, section: Section) -> Iterator[str]:
    """Yield which errors of a section do not follow from the statements beside them."""
    for code, statements in section.errors:
        *before, last = statements.split("; ")
        error = attempt(database, before, "ACCOUNTADMIN", last)
        if error is None or error.code != code:
            yield f"{section.names}: no {code} from {last}: {error!r}"


@pytest.mark.parametrize("page", PREPARED)
def test_examples_run_and_privileges_errors_and_columns_hold(
    page: str, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(LIBRARY)
    for each in PREPARED[page]:
        execute_statement(database, each)
    mistakes = []
    for written in read_sections(f"sql/{page}.md"):
        section = replace(written, text=written.text.replace("/srv/", f"{tmp_path}/"))
        if not section.privileges:
            mistakes.append(f"{section.names} names no privileges")
        for statement in section.statements:
            for line in section.privileges:
                if section.example_of(line.form) == statement:
                    mistakes += find_privilege_mistakes(database, section, line)
            try:
                result = execute_statement(database, statement, check_file_copy=check_file_copy)
            except SnowmeltError as error:
                mistakes.append(f"{section.names}: {statement}: {error!r}")
                continue
            if section.columns is not None and re.match("SHOW (?!TERSE)|DESC", statement):
                columns = [each for each in result.columns if each != "dropped_on"]
                if columns != section.columns:
                    mistakes.append(f"{section.names}: columns are {columns}")
        mistakes += find_error_mistakes(database, section)
    assert mistakes == [], "\n".join(mistakes)
