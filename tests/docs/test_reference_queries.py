"""The reference of statements that Spark runs: examples, privileges, errors and system views."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.errors import LoadRefused, PrivilegeMissing, SnowmeltError
from snowmelt.spark import Snowmelt
from support import system_views_page
from support.reference_pages import REFERENCE, PrivilegeLine, read_sections, split_statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]
OBJECTS = {
    "the database": "DATABASE demo",
    "the schema": "SCHEMA demo.public",
    "the table": "TABLE demo.public.events",
}
MISSING = (PrivilegeMissing, LoadRefused)


def seen_by(lakehouse: Lakehouse, spark: SparkSession, role: str) -> Snowmelt:
    return Snowmelt(
        spark,
        catalog=lakehouse.database,
        stage=lakehouse.stage.url,
        warehouse=lakehouse.warehouse.url,
        keys=lakehouse.keyring,
        role=role,
    )


def grants_of(line: PrivilegeLine) -> list[Any]:
    """Return the GRANT statements of a privilege line, without the role."""
    parts = [part.rsplit(" on ", 1) for part in line.text.rstrip(".").split("; ")]
    return [f"GRANT {what.strip('`')} ON {OBJECTS[where]}" for what, where in parts]


def error_of(lake: Snowmelt, statement: str) -> SnowmeltError | None:
    try:
        lake.sql(statement).collect()
    except SnowmeltError as error:
        return error
    return None


@pytest.fixture
def prepared(lakehouse: Lakehouse, lake: Snowmelt, tmp_path: Path) -> Path:
    lake.sql("CREATE DATABASE demo")
    lake.sql("CREATE TABLE demo.public.events (id NUMBER NOT NULL, what VARCHAR)")
    folder = tmp_path / "srv"
    folder.mkdir()
    (folder / "events.csv").write_text("id,what\n3,pause\n")
    return folder


def test_the_examples_run_with_exactly_the_privileges_of_the_page(
    lakehouse: Lakehouse, lake: Snowmelt, spark: SparkSession, prepared: Path
) -> None:
    def here(text: str) -> str:
        return text.replace("/srv", str(prepared))

    sections = read_sections("sql/queries.md")
    assert [each.names for each in sections] == [
        ("SELECT",),
        ("INSERT",),
        ("DELETE",),
        ("UPDATE",),
        ("MERGE",),
        ("CREATE TABLE AS",),
        ("COPY",),
    ]
    for number, section in enumerate(sections):
        (line,) = section.privileges
        first, *others = section.statements
        grants = grants_of(line)
        # A query of CREATE TABLE AS reads the table, too.
        extra = ["GRANT SELECT ON TABLE demo.public.events"] if "AS SELECT" in first else []
        for left_out in (*range(len(grants)), None):
            role = f"r{number}_{'all' if left_out is None else left_out}"
            lake.sql(f"CREATE ROLE {role}")
            for place, grant in enumerate([*grants, *extra]):
                if place != left_out:
                    lake.sql(f"{grant} TO ROLE {role}")
            error = error_of(seen_by(lakehouse, spark, role.upper()), here(first))
            if left_out is None:
                assert error is None, f"{section.names}: {error!r}"
            else:
                assert isinstance(error, MISSING) or (
                    error is not None and error.code.endswith("not_found")
                ), f"{section.names} without {grants[left_out]}: {error!r}"
        for statement in others:
            lake.sql(here(statement)).collect()
        for code, statement in section.errors:
            error = error_of(lake, here(statement))
            assert error is not None, f"{section.names}: {statement} does not fail"
            assert error.code == code, f"{section.names}: {statement}: {error!r}"
        if section.names == ("COPY",):
            result = lake.sql(here(f"{first} FORCE"))
            assert result.columns == section.columns


def test_the_views_exist_with_the_columns_of_the_page(lake: Snowmelt, prepared: Path) -> None:
    text = (REFERENCE / "sql" / "system-views.md").read_text("utf-8")
    for name, columns in system_views_page.list_views():
        is_history = name.endswith(("HISTORY", "CALLS"))
        place = "account_usage" if is_history else "demo.information_schema"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = lake.sql(f"SELECT * FROM {place}.{name}")
        assert [(each.name, each.dataType.simpleString()) for each in found.schema] == [
            (column, {"long": "bigint", "int32": "int", "int64": "bigint"}.get(kind, kind))
            for column, kind in columns
        ]
    for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL):
        for statement in split_statements(block):
            lake.sql(statement).collect()
