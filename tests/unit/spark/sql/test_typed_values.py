"""VALUES are split where a common type of Spark would change a value."""

from __future__ import annotations

import pytest
from pyspark.sql import types as st

from snowmelt.spark.sql.typed_values import split_by_types


def refuse(query: str) -> st.StructType:
    raise AssertionError(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 UNION ALL SELECT 1e0",
        "VALUES (1, 'a''b'), (-2.5, NULL), (NULL, 'c')",
        "VALUES (1), (2) AS t(a)",
        "VALUES 1, 2",
        "VALUES (1, 1e0)",
        "VALUES (DATE '2024-01-01', TRUE), (date'2024-01-02', false), (NULL, NULL)",
        # Spark names the rows that differ.
        "VALUES (1), (2, 3)",
    ],
)
def test_values_that_no_common_type_changes_stay_together(query: str) -> None:
    assert split_by_types(query, refuse) == [query]


def test_digits_that_no_common_type_holds_are_split() -> None:
    tiny = f"0.{'0' * 36}1"
    assert split_by_types(f"VALUES ({tiny}, 1), (1, 2), ({tiny}, 3)", refuse) == [
        f"VALUES ({tiny}, 1), ({tiny}, 3)",
        "VALUES (1, 2)",
    ]


def test_text_beside_numbers_is_split() -> None:
    assert split_by_types("VALUES (1), ('01')", refuse) == ["VALUES (1)", "VALUES ('01')"]


def test_spark_tells_the_types_of_expressions() -> None:
    asked = []

    def describe(query: str) -> st.StructType:
        asked.append(query)
        return st.StructType(
            [st.StructField("a", st.DoubleType()), st.StructField("b", st.NullType())]
        )

    assert split_by_types("VALUES (9007199254740993), (1e0), (void(1)), (1e0)", describe) == [
        "VALUES (9007199254740993)",
        "VALUES (1e0), (1e0)",
        "VALUES (void(1))",
    ]
    assert asked == ["SELECT 1e0, void(1)"]
