"""`spark.read.format("snowmelt")`: the same rows as `lake.sql`, even in sessions without `Snowmelt`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from fixtures.chunks import Lakehouse, numbers
from snowmelt.clock import SystemClock
from snowmelt.spark.format import register
from support.typed_rows import ROWS, TYPED, TYPES, typed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from snowmelt.spark.snowmelt_session import Snowmelt


pytestmark = pytest.mark.spark
TABLE = "demo.public.numbers"


@pytest.fixture
def reading(spark: SparkSession, lakehouse: Lakehouse) -> Callable[..., DataFrame]:
    """Reads with the format in a session without `Snowmelt`."""
    register(spark)

    def read(table: str = TABLE, **options: Any) -> DataFrame:
        reader = spark.read.format("snowmelt").option("data_dir", str(lakehouse.folder))
        return reader.options(table=table, **options).load()

    return read


def values(frame: Any) -> list[Any]:
    return sorted(
        (row.N for row in frame.select("N").collect()), key=lambda each: (each is None, each)
    )


def test_rows_come_from_files_and_chunks_with_the_types_of_the_lake(
    lakehouse: Lakehouse, lake: Snowmelt, reading: Any
) -> None:
    lakehouse.create(TYPES, TYPED)
    lakehouse.put(typed_rows(ROWS[:1]), TYPES)
    lakehouse.migrate(TYPES)
    lakehouse.put(typed_rows(ROWS[1:]), TYPES)

    plain = lake.table("demo.public.types").drop("V", "A", "O")
    frame = reading("demo.public.types")
    documents = {name: frame.schema[name].dataType.simpleString() for name in ("V", "A", "O")}

    assert frame.drop("V", "A", "O").schema.simpleString() == plain.schema.simpleString()
    assert sorted(map(str, frame.drop("V", "A", "O").collect())) == sorted(
        map(str, plain.collect())
    )
    assert documents == {"V": "string", "A": "string", "O": "string"}
    assert frame.selectExpr("parse_json(V):city::string AS city").collect()[0].city == "Köln"


def test_conditions_select_rows_and_leave_out_what_statistics_rule_out(
    lakehouse: Lakehouse, reading: Any
) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 10))
    lakehouse.migrate()
    path = lakehouse.put(numbers(10, 10))
    lakehouse.is_damaged = True
    (lakehouse.folder / "stage" / path).unlink()
    lakehouse.put(numbers(20, 10))

    assert values(reading(where="n BETWEEN 5 AND 7 OR n >= 28")) == [5, 6, 7, 28, 29]
    assert values(reading(where="n in (3, 25)", columns="n")) == [3, 25]
    with pytest.raises(
        PySparkException, match="accepts only comparisons of columns with constants"
    ):
        reading(where="n % 2 = 0 and n < 5").count()
    with pytest.raises(PySparkException, match=r"Object .* not found"):
        reading().collect()


def test_earlier_states_are_read_as_long_as_they_are_kept(
    lakehouse: Lakehouse, reading: Any
) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 3))
    lakehouse.put(numbers(3, 3))
    lakehouse.migrate()
    before = SystemClock().now()
    lakehouse.put(numbers(6, 3))
    lakehouse.migrate()

    assert values(reading()) == list(range(9))
    assert values(reading(as_of=before.isoformat())) == list(range(6))
    assert values(reading(snapshot="2")) == list(range(6))
    assert values(reading(snapshot="1")) == [0, 1, 2]
    with pytest.raises(
        PySparkException, match=r"the last commit of DEMO.PUBLIC.NUMBERS is number 3"
    ):
        reading(snapshot="4").collect()
    with pytest.raises(PySparkException, match="was created later"):
        reading(as_of=(before - dt.timedelta(days=1)).isoformat()).collect()


def test_an_earlier_state_has_the_columns_of_its_time(
    lakehouse: Lakehouse, lake: Snowmelt, reading: Any
) -> None:
    lakehouse.create()
    lakehouse.put(numbers(0, 3))
    lakehouse.migrate()
    lakehouse.put(numbers(3, 3))
    before = SystemClock().now()
    lake.sql(f"ALTER TABLE {TABLE} RENAME COLUMN n TO m")
    lake.sql(f"ALTER TABLE {TABLE} ADD COLUMN n VARCHAR")
    late = numbers(6, 1).rename_columns(["M", "WORD"])
    lakehouse.put(late.append_column("N", pa.array(["six"])))
    lakehouse.migrate()
    for _ in range(2):
        for options in ({"as_of": before.isoformat()}, {"snapshot": "1"}, {"snapshot": "2"}):
            earlier = reading(where="n >= 2", **options)
            assert earlier.columns == ["N", "WORD"]
            assert values(earlier) == ([2] if options.get("snapshot") == "1" else [2, 3, 4, 5])
        current = reading()
        assert current.columns[-1] == "N"
        assert values(current) == ["six"] + [None] * 6
        if "M" in current.columns:
            lake.sql(f"ALTER TABLE {TABLE} DROP COLUMN m")


def test_what_cannot_be_read_is_told_in_a_sentence(
    lakehouse: Lakehouse, reading: Any, spark: SparkSession
) -> None:
    lakehouse.create()
    with pytest.raises(PySparkException, match=r"Table DEMO.PUBLIC.NONE does not exist"):
        reading("demo.public.none")
    with pytest.raises(PySparkException, match="has no column `X`"):
        reading(columns="x")
    with pytest.raises(PySparkException, match="set the option `table` to a full name"):
        reading("numbers")
    with pytest.raises(PySparkException, match="Option condition: reading with the format"):
        reading(condition="n = 1")
    with pytest.raises(PySparkException, match=r"(?i)Option maxRows: reading with the format"):
        spark.readStream.format("snowmelt").options(table=TABLE, maxRows=1).load()
    with pytest.raises(PySparkException, match=r"(?i)Option writeId: writing with the format"):
        spark.range(1).write.format("snowmelt").options(table=TABLE, writeId=1).mode(
            "append"
        ).save()
    url = "postgresql://me:hush@127.0.0.1/lake"
    with pytest.raises(PySparkException, match="plans would show its password") as caught:
        spark.read.format("snowmelt").options(catalog=url, table=TABLE).load()
    assert "hush" not in str(caught.value)
