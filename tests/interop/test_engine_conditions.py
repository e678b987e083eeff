"""A condition selects the same rows in an engine with and without the statistics of our files."""

from __future__ import annotations

import base64
import operator
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg import expressions as ice
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.table import Table

from fixtures.engines import Lake
from fixtures.s3 import S3Process
from fixtures.service import KeyPair
from support.engine_conditions import (
    TESTED,
    Condition,
    make_batches,
    make_conditions,
    write_sql,
)
from support.served_sites import wait_until

pytestmark = pytest.mark.slow
BATCHES, ROWS = 5, 12
PYICEBERG: dict[str, Any] = {
    "=": ice.EqualTo,
    "<>": ice.NotEqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
    "IN": ice.In,
    "STARTS WITH": ice.StartsWith,
    "IS NULL": ice.IsNull,
    "IS NOT NULL": ice.NotNull,
}
POLARS: dict[str, Callable[[Any, Any], pl.Expr]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.fixture
def filled(own_s3: S3Process, key_pair: KeyPair) -> Lake:
    """A table with rows in native files and in fresh files, each with a range of every column."""
    lake = Lake(own_s3, key_pair)
    listed = ", ".join(f"{column.key} {column.sql}" for column in TESTED)
    lake.service.sql(
        f"CREATE TABLE demo.public.v (id INT, {listed})",
        "GRANT SELECT ON TABLE demo.public.v TO ROLE reading",
        "GRANT INSERT ON TABLE demo.public.v TO ROLE loading",
    )
    catalog = open_catalog(lake)
    catalog.load_table("PUBLIC.V")
    with lake.client() as client:
        channel = client.open_channel("v", table="demo.public.v", default_timezone="UTC")
        for number, batch in enumerate(make_batches(1, BATCHES, ROWS)):
            told = channel.insert_rows(batch, offset_token=str(number))
            assert not told.errors
            channel.wait_for_commit(str(number))
            # So each batch is published in a file of its own.
            wait_for_rows(catalog, (number + 1) * ROWS)
            if number == BATCHES // 3:
                lake.migrate()
    return lake


def wait_for_rows(catalog: Any, rows: int) -> None:
    wait_until(
        lambda: catalog.load_table("PUBLIC.V").scan().count() == rows, "the batch is not published"
    )


def open_catalog(lake: Lake) -> Any:
    return load_catalog("lake", type="rest", uri=lake.uri, warehouse="DEMO", token=lake.token)


def to_pyiceberg(condition: Condition) -> Any:
    values = [] if condition.operator.startswith("IS ") else [condition.value]
    return PYICEBERG[condition.operator](condition.column.name, *values)


def select_with_pyiceberg(table: Table, whole: pa.Table, condition: Condition) -> tuple[Any, Any]:
    given = to_pyiceberg(condition)
    pruned = table.scan(given, selected_fields=("ID",)).to_arrow()["ID"].to_pylist()
    exact = expression_to_pyarrow(bind(table.schema(), given, case_sensitive=True), table.schema())
    return sorted(pruned), sorted(whole.filter(exact)["ID"].to_pylist())


def to_polars(condition: Condition) -> pl.Expr:
    column = pl.col(condition.column.name)
    match condition.operator:
        case "IS NULL":
            return column.is_null()
        case "IS NOT NULL":
            return column.is_not_null()
        case "IN":
            return column.is_in(condition.value)
        case "STARTS WITH":
            return column.str.starts_with(condition.value)
    return POLARS[condition.operator](column, condition.value)


def check_polars(filled: Lake, open_engine: Any) -> None:
    engine = open_engine("polars", filled.uri, "DEMO", filled.token)
    for condition in make_conditions(2, 25):
        given = base64.b64encode(to_polars(condition).meta.serialize()).decode()
        pruned, exact = (
            sorted(engine.ask(table="PUBLIC.V", columns=["ID"], where=given, whole=whole))
            for whole in (False, True)
        )
        assert pruned == exact, condition


def check_duckdb(filled: Lake, open_engine: Any) -> None:
    engine = open_engine("duckdb", filled.uri, "DEMO", filled.token)
    engine.ask(query="SET TimeZone = 'UTC'")
    engine.ask(query="CREATE TABLE memory.whole AS SELECT * FROM lake.PUBLIC.V")
    for condition in make_conditions(3, 120):
        where = write_sql(condition)
        pruned, exact = (
            engine.ask(query=f"SELECT ID FROM {table} WHERE {where} ORDER BY ID")
            for table in ("lake.PUBLIC.V", "memory.whole")
        )
        assert pruned == exact, where


def check_pyiceberg(filled: Lake) -> None:
    table = open_catalog(filled).load_table("PUBLIC.V")
    whole = table.scan().to_arrow()
    assert whole.num_rows == BATCHES * ROWS
    assert len(list(table.scan().plan_files())) > 3
    for condition in make_conditions(1, 120):
        pruned, exact = select_with_pyiceberg(table, whole, condition)
        assert pruned == exact, condition


def test_engines_find_every_row(filled: Lake, open_engine: Any) -> None:
    check_pyiceberg(filled)
    check_polars(filled, open_engine)
    check_duckdb(filled, open_engine)
