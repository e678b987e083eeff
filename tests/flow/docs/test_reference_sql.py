"""The reference of SQL statements: complete, its examples run, its privileges and errors hold."""

from __future__ import annotations

import re
from itertools import product

import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.model.privilege_kinds import PRIVILEGES
from snowmelt.catalog.statements import parser
from snowmelt.catalog.statements.executor import execute_statement
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
from support.reference_pages import REFERENCE, read_sections

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
    r"(?:DATABASE|SCHEMA|TABLE|PIPE|FUNCTION|TRUNCATE|INTEGRATION|BUCKET)\s+"
    r"(?:IF (?:NOT )?EXISTS\s+)?([\w.]+|'[^']+')"
)


class Undo(Exception):
    """Ends a transaction whose changes must not stay."""


def expected_names():
    """Return every statement that the catalog accepts, by the first words of its text."""
    names = set()
    for words, kind in parser._KINDS.items():
        for verb in ("create", "alter", "drop", "describe"):
            if getattr(kind, verb) is not None:
                names.add(f"{verb.upper()} {words}")
    names |= {f"SHOW {words}" for words in parser.LISTINGS}
    names |= {"SHOW GRANTS", "SHOW FUTURE GRANTS", "TRUNCATE TABLE"}
    others = set(parser._STATEMENT_PARSERS) - {"CREATE", "ALTER", "DROP", "DESCRIBE", "DESC"}
    return names | others - {"SHOW", "TRUNCATE"}


def test_every_statement_has_a_section_and_every_section_a_statement():
    pages = {path.stem for path in (REFERENCE / "sql").glob("*.md")}
    assert pages == {*PREPARED, SPARK_PAGE, "index", "system-views"}
    found = [
        name for page in PREPARED for each in read_sections(f"sql/{page}.md") for name in each.names
    ]
    assert len(found) == len(set(found))
    assert set(found) == expected_names()


def test_the_table_of_privileges_is_complete():
    text = (REFERENCE / "sql" / "index.md").read_text("utf-8")
    for kind, privileges in PRIVILEGES.items():
        if kind != "TRANSLATOR":  # a function to statements
            assert f"| {kind.lower()} | {', '.join(privileges)} |" in text


def all_errors(base=SnowmeltError):
    yield base
    for each in base.__subclasses__():
        yield from all_errors(each)


def test_errors_of_every_statement_have_their_codes_and_statuses():
    text = (REFERENCE / "sql" / "index.md").read_text("utf-8")
    known = {each.code: each.status for each in all_errors()}
    found = re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)
    assert len(found) >= 10
    assert [(code, int(status)) for code, status in found] == [
        (code, known[code]) for code, _ in found
    ]


@pytest.fixture
def database(tmp_path):
    found = open_and_upgrade_database(f"sqlite:///{tmp_path}/catalog.sqlite", create=True)
    yield found
    found.close()


def run_as(connection, role, statement):
    session = StatementSession(connection, None, role, None, None, SystemClock().now())
    try:
        return parser.parse_statement(statement).execute(session)
    except NothingDone:
        return None


def attempt(database, preparations, role, statement):
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


def object_of(section, statement, words):
    """Return the object of a privilege line as GRANT names it."""
    for name in section.names:
        if (name, words) in OBJECTS:
            return OBJECTS[name, words]
    found = _FIRST_NAME.search(statement)
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
            return f"FUNCTION {re.search(r'FUNCTION (?:IF EXISTS )?([^)]*[)])', statement)[1]}"
        case "account":
            return "ACCOUNT"
    raise AssertionError(f"{section.names}: what is {words!r}?")


def check_privileges(database, section, line):
    statement = section.example_of(line.form)
    lone = attempt(database, ["CREATE ROLE tester"], "TESTER", statement)
    if line.text.startswith("none"):
        if " IN " not in statement:
            assert lone is None, f"{section.names}: {lone}"
        return
    assert isinstance(lone, DENIED), f"{section.names} {line.form}: needs no privilege? {lone!r}"
    if line.text.startswith("the role"):
        if "created" not in line.text:
            assert (
                lone.fields.get("object") == "the account"
                or "role" in str(lone)
                or "SHOW GRANTS" in str(lone)
            )
        return
    demands = []
    for part in line.text.rstrip(".").split("; "):
        privileges, words = part.rsplit(" on ", 1)
        target = object_of(section, statement, words)
        grants = []
        for privilege in re.findall(r"`([A-Z ]+)`", privileges):
            grant = [f"GRANT {privilege} ON {target} TO ROLE tester"]
            if words.startswith("the dropped"):
                grant = [f"UN{statement[2:]}", *grant, f"DROP {target}"]
            grants.append(grant)
        demands.append(grants)
    roles = ["CREATE ROLE tester"]
    for chosen in product(*demands):
        given = [each for grant in chosen for each in grant]
        error = attempt(database, [*roles, *given], "TESTER", statement)
        assert error is None, f"{section.names} {line.form}: {given}: {error!r}"
        for left_out in range(len(chosen)):
            rest = [
                each for place, grant in enumerate(chosen) if place != left_out for each in grant
            ]
            error = attempt(database, [*roles, *rest], "TESTER", statement)
            assert isinstance(error, DENIED), f"{section.names}: {chosen[left_out]} is not needed"


@pytest.mark.parametrize("page", PREPARED)
def test_examples_run_and_privileges_errors_and_columns_hold(page, database, tmp_path):
    (tmp_path / "mine.py").write_text(LIBRARY)

    def here(text):
        return text.replace("/srv/", f"{tmp_path}/")

    for each in PREPARED[page]:
        execute_statement(database, each)
    for section in read_sections(f"sql/{page}.md"):
        section = type(section)(section.page, section.names, here(section.text))
        assert section.privileges, f"{section.names} names no privileges"
        pending = {section.example_of(line.form): [] for line in section.privileges}
        for line in section.privileges:
            pending[section.example_of(line.form)].append(line)
        for statement in section.statements:
            for line in pending.pop(statement, ()):
                check_privileges(database, section, line)
            result = execute_statement(database, statement)
            if (
                section.columns is not None
                and "TERSE" not in statement
                and "HISTORY" not in statement
            ) and re.match(r"SHOW|DESC", statement):
                assert list(result.columns) == section.columns, section.names
        for code, statements in section.errors:
            *before, last = statements.split("; ")
            error = attempt(database, before, "ACCOUNTADMIN", last)
            assert error is not None, f"{section.names}: {last} does not fail"
            assert error.code == code, f"{section.names}: {last}: {error!r}"
