"""What a statement answers, as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from snowmelt.catalog.results import Result


def shown(spark: SparkSession, result: Result) -> DataFrame:
    """Return what a statement answered; a message as the one column `status`."""
    columns = result.columns or ("status",)
    rows = result.rows if result.columns else ((result.message,),)
    arrays = [_array([row[index] for row in rows]) for index in range(len(columns))]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, names=list(columns)))


def _array(values: Sequence[object]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array([None if value is None else str(value) for value in values], pa.string())
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array
