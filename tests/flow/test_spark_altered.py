"""Spark SQL on a table with changed columns: native files and chunks of every schema version."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.types import Column, LogicalType
from snowmelt.spark import Snowmelt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

FIRST = (
    Column("ID", LogicalType.FIXED, 1, nullable=False, precision=5, scale=0),
    Column("COST", LogicalType.FIXED, 2, precision=18, scale=2),
    Column("TINY", LogicalType.FIXED, 3, precision=4, scale=1),
    Column("WORD", LogicalType.TEXT, 4, length=10, byte_length=40),
    Column("GONE", LogicalType.REAL, 5),
)


def put(house: Lakehouse, **values: object) -> None:
    """Register one row for the table's current columns."""
    schema = chunk_arrow_schema(house.table().schema)
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    house.put(pa.table(arrays, schema=schema))


@pytest.fixture
def lake(tmp_path: Path, lakehouse: Lakehouse, spark: SparkSession) -> Snowmelt:
    lakehouse.create(columns=FIRST)
    return Snowmelt.local(tmp_path, spark=spark, create=True)


def one(lake: Snowmelt, text: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in lake.sql(text).collect()]


@pytest.mark.parametrize("is_migrated", [False, True], ids=["chunks", "native"])
def test_rows_of_every_age_are_one_table(
    lake: Snowmelt, lakehouse: Lakehouse, is_migrated: bool
) -> None:
    old = {"COST": Decimal("1.25"), "TINY": Decimal("2.5"), "WORD": "old", "GONE": 1.0}
    put(lakehouse, ID=Decimal(1), **old)
    lakehouse.migrate()
    put(lakehouse, ID=Decimal(2), **old)
    t = "demo.public.numbers"
    assert one(lake, f"SELECT sum(id), max(word) FROM {t}") == [(3, "old")]
    for change in (
        "ALTER COLUMN id TYPE NUMBER(12), cost TYPE NUMBER(38,2), tiny TYPE NUMBER(15,1)",
        "DROP COLUMN gone",
        "RENAME COLUMN word TO name",
        "ADD COLUMN word VARCHAR, at TIMESTAMP_TZ(9)",
        "CLUSTER BY (name)",
    ):
        lake.sql(f"ALTER TABLE {t} {change}")
    big = Decimal("9" * 36 + ".99")
    put(lakehouse, ID=Decimal(10**11), COST=big, NAME="new", WORD="w", TINY=Decimal("1e13"))
    if is_migrated:
        lakehouse.migrate()
    assert lake.table(t).columns == ["ID", "COST", "TINY", "NAME", "WORD", "AT", "AT$ns", "AT$tz"]
    found = one(lake, f"SELECT id, cost, tiny, name, word, at FROM {t} ORDER BY id")
    assert found == [
        (1, Decimal("1.25"), Decimal("2.5"), "old", None, None),
        (2, Decimal("1.25"), Decimal("2.5"), "old", None, None),
        (10**11, big, Decimal(10**13), "new", "w", None),
    ]
    # The condition is pushed down to the Parquet reader, whose files have narrower types.
    assert one(lake, f"SELECT id FROM {t} WHERE cost = 1.25 AND id < 2 AND tiny > 2") == [(1,)]
    assert one(lake, f"SELECT id FROM {t} WHERE cost > 10 OR tiny > 100000") == [(10**11,)]
    # This number would be negative as an INT32, the type in the older files.
    assert one(lake, f"SELECT count(*) FROM {t} WHERE tiny < 300000000.0") == [(2,)]
    assert one(lake, f"SELECT count(*) FROM {t} WHERE cost < 300000000000000000.00") == [(2,)]
    assert one(lake, f"SELECT count(*) FROM {t} WHERE word IS NULL AND name = 'old'") == [(2,)]
    assert one(lake, f"SELECT count(*) FROM {t}") == [(3,)]
    assert lakehouse.table(NUMBERS).cluster_by == ("NAME",)


def test_a_table_is_queried_by_its_new_name(lake: Snowmelt, lakehouse: Lakehouse) -> None:
    put(lakehouse, ID=Decimal(1), WORD="w")
    lakehouse.migrate()
    put(lakehouse, ID=Decimal(2), WORD="v")
    [answer] = one(lake, "ALTER TABLE demo.public.numbers RENAME TO demo.public.counts")
    assert answer == ("Table DEMO.PUBLIC.NUMBERS is called DEMO.PUBLIC.COUNTS now.",)
    assert one(lake, "SELECT sum(id) FROM demo.public.counts") == [(3,)]
