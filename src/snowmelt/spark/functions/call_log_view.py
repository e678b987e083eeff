"""The call log as a DataFrame, from the files that `call_log` writes."""

from __future__ import annotations

import datetime as dt
from dataclasses import astuple
from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.catalog.model.privilege_kinds import ACCOUNTADMIN
from snowmelt.catalog.objects.external_functions import can_use_function, list_external_functions
from snowmelt.spark.functions.call_log import read_call_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from snowmelt.catalog.db.database import Database
    from snowmelt.storage.store import Store

# In the order of `CallRecord`.
_COLUMNS = pa.schema(
    [
        ("FUNCTION_NAME", pa.string()),
        ("QUERY_ID", pa.string()),
        ("BATCH_ID", pa.string()),
        ("STAGE", pa.int32()),
        ("PARTITION", pa.int32()),
        ("ATTEMPT", pa.int32()),
        ("ROW_COUNT", pa.int64()),
        ("ROWS_SENT", pa.int64()),
        ("CACHE_HITS", pa.int64()),
        ("ROW_ERRORS", pa.int64()),
        ("BYTES_SENT", pa.int64()),
        ("BYTES_RECEIVED", pa.int64()),
        ("ATTEMPTS", pa.int32()),
        ("POLLS", pa.int32()),
        ("STATUS", pa.int32()),
        ("OUTCOME", pa.string()),
        ("ERROR", pa.string()),
        ("START_TIME", pa.string()),
        ("WAITING_MS", pa.float64()),
        ("CALLING_MS", pa.float64()),
    ]
)


def create_call_log_frame(
    spark: SparkSession, database: Database, role: str, store: Store, since: dt.date
) -> DataFrame:
    """Return the batches since a day of the functions that a role may use, the newest first.

    `ATTEMPT` is that of the task, `ATTEMPTS` are the requests that its batch took.
    """
    found = [astuple(record) for record in read_call_records(store, since)]
    if role != ACCOUNTADMIN:
        with database.reading() as connection:
            there = [
                each
                for each in list_external_functions(connection)
                if can_use_function(connection, role, each)
            ]
        names = {str(each.name) for each in there}
        found = [record for record in found if record[0] in names]
    started = _COLUMNS.get_field_index("START_TIME")
    found.sort(key=lambda record: str(record[started]), reverse=True)
    columns = list(zip(*found, strict=True)) or [() for _ in _COLUMNS]
    table = pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, _COLUMNS, strict=True)],
        schema=_COLUMNS,
    )
    instant = pa.field("START_TIME", pa.timestamp("us", "UTC"))
    texts = table.column(started).to_pylist()
    times = [dt.datetime.fromisoformat(text) if text else None for text in texts]
    table = table.set_column(started, instant, pa.array(times, instant.type))
    # When, what, and what came of it.
    others = (name for name in _COLUMNS.names if name != "START_TIME")
    return spark.createDataFrame(table.select(["START_TIME", *others]))
