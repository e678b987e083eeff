"""The reference of COPY: complete, and its examples load what the page says."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import cast

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import SystemClock
from snowmelt.load import copy_parser, filters, parsers, sources
from snowmelt.loaders.copy_job import CopyContext, run_copy
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from support import copy_reference_page
from support.reference_pages import REFERENCE, split_statements

FILES = {
    "people.csv": b"id,name,born\n1,Ada,1815-12-10\n2,Grace,1906-12-09\n",
    "names.txt": b"3;Alan;Turing;23.06.1912\n",
    "quoted.txt": b'4|"  Kurt  "|19060428\n5\n',
    "mixed.csv": b"6,Emmy,1882-03-23\nseven,Kurt,1906-04-28\n",
    "people.json": b'{"id": 8, "name": "Lise", "born": "1878-11-07"}\n',
    "fixed.txt": b"10Hedy  1914-11-09\n",
    "people.csv.gz": gzip.compress(b"id,name,born\r\n11,Rosa,1920-07-25\r\n"),
    "latin.csv": "12,Émilie,1706-12-17\n".encode("latin-1"),
    "pairs.txt": b"id=13;name=Mary\n",
    "lines.log": b"14 Sofja\n",
    "ids.txt": b"15\n",
    "days/born=1858-04-23/x.csv": b"16,Max\n",
}
# Rows and rejects of the examples, in the order of the page.
LOADED = [
    (2, 0),
    (1, 0),
    (2, 0),
    (1, 0),
    (1, 0),
    (1, 1),
    (1, 1),
    (2, 0),
    (1, 0),
    (1, 0),
    (1, 0),
    (1, 0),
    (1, 0),
    (1, 0),
]


def page() -> str:
    return (REFERENCE / "copy.md").read_text("utf-8")


def test_every_source_filter_and_parser_has_its_section() -> None:
    for kind, package in (("source", sources), ("filter", filters), ("parser", parsers)):
        synonyms = set(getattr(package, "_SHORT_NAMES", ()))
        assert set(copy_reference_page.PURPOSES[kind]) == set(package.NAMES) - synonyms
        for synonym in synonyms:
            assert f"Synonym: `{synonym}`" in page()


def test_no_effect_is_described_of_what_is_no_parameter() -> None:
    there = {
        parameter.name
        for package in (sources, filters, parsers)
        for name in package.NAMES
        for parameter in package.definition(name).parameters
    }
    assert copy_reference_page.effect_names() == there


def test_every_option_of_the_statement_has_a_row() -> None:
    _, _, rest = page().partition("## Options of the statement\n")
    options, _, rest = rest.partition("## Options of a column\n")
    first_words = {
        cast("re.Match[str]", re.match(r"[A-Z]+", name))[0]
        for row in re.findall(r"^\| (`.+?) \|", options, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }
    known = copy_parser.StatementOptionParser(TokenCursor(""))._option_parsers
    assert first_words == set(known) - {"FILTER", "PARSER"} | set(copy_parser._IGNORED_OPTIONS)
    for word in copy_parser._UNSUPPORTED_OPTIONS:
        assert f"`{word}" in options
    columns, _, _ = rest.partition("<!-- made")
    for word in (*copy_parser._COLUMN_TEXT_OPTIONS, "NO ESCAPE", "ENFORCELENGTH"):
        assert f"`{word}" in columns


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    database = open_and_upgrade_database(f"sqlite:///{tmp_path}/catalog.sqlite", create=True)
    execute_statement(database, "CREATE DATABASE demo")
    columns = cast("re.Match[str]", re.search(r"demo\.public\.people \(.+\)(?=`)", page()))[0]
    execute_statement(database, f"CREATE TABLE {columns}")
    context = CopyContext(database, f"file://{tmp_path}/warehouse", "ACCOUNTADMIN", SystemClock())
    loaded = []
    for block in re.findall(r"```sql\n(.*?)```", page(), re.DOTALL):
        for statement in split_statements(block):
            result = run_copy(context, statement.replace("/srv", str(tmp_path)), LocalTaskRunner())
            loaded.append((result.totals.rows, result.totals.rejects))
    assert loaded == LOADED
    assert (tmp_path / "rejected.csv").read_bytes() == b"seven,Kurt,1906-04-28\n"
    assert "mixed.csv" in (tmp_path / "reasons.txt").read_text()
    database.close()
