"""The call log as files: workers write records beside the native files, the driver reads them.

Each task writes one object, a long task several; each line is a JSON document. Spark's own worker
log would be lost with an executor, ends with the session, and overflows the JVM's stack when a task
logs several thousand lines.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.functions.caller.plan import CallRecord, QueryPosition
from snowmelt.storage.store import Store
from snowmelt.storage.store_factory import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from snowmelt.catalog.db.database import Database

CALL_LOG_FOLDER = "_calls"
# Beneath it, for as long as it takes: what dry runs would have sent.
DRY_RUN_FOLDER = "_dry_runs"
# What is lost at most when a worker is killed.
_MAX_BUFFERED_RECORDS = 1_000
_FLUSH_INTERVAL_S = 2.0

_FIELD_AFTER_NAME = b',"query_id":'

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallLogFiles:
    """Where the records of one function go, by its full name; travels to the workers."""

    store_url: str
    function: str
    folder: str = CALL_LOG_FOLDER

    def open_task_log(self, position: QueryPosition, clock: Clock | None = None) -> FileCallLog:
        """Return the ledger of a task."""
        return FileCallLog(self, position, clock or SystemClock())


class FileCallLog:
    """The records of one task; closed at its end."""

    def __init__(self, files: CallLogFiles, position: QueryPosition, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._record_prefix = b'{"function":' + msgspec.json.encode(files.function)
        self._lines: list[bytes] = []
        self._written_at = clock.monotonic()
        self._started_at = clock.now()
        # Attempts that run at the same time, and uses in one stage, have objects of their own.
        task = f"{position.stage}-{position.partition}-{position.attempt}-{uuid.uuid4().hex[:12]}"
        self._path = f"{files.folder}/{self._started_at:%Y-%m-%d}/{position.query_id}/{task}"
        self._object_count = 0

    def add_record(self, record: CallRecord) -> None:
        """Keep a record; every two seconds they are written."""
        line = msgspec.json.encode(record)
        # `replace` would take three times as long as all the rest. No text can hold what is
        # looked for: its quotation marks have a backslash before them.
        self._lines.append(self._record_prefix + line[line.index(_FIELD_AFTER_NAME) :])
        late = self._clock.monotonic() - self._written_at >= _FLUSH_INTERVAL_S
        if late or len(self._lines) >= _MAX_BUFFERED_RECORDS:
            self._write_object()

    def close(self) -> None:
        """Write what is left."""
        self._write_object()

    def _write_object(self) -> None:
        self._written_at = self._clock.monotonic()
        if not self._lines:
            return
        data = b"\n".join(self._lines)
        try:
            _open_cached_store(self._files.store_url).put(
                f"{self._path}-{self._object_count}.jsonl", data
            )
        except (SnowmeltError, OSError) as error:
            # Calls were made and paid for: a query is not lost for want of a record of them.
            _log.warning("Calls are not written down: %s", error)
        self._object_count += 1
        self._lines.clear()


def read_call_records(
    store: Store, since: dt.date = dt.date.min, *, folder: str = CALL_LOG_FOLDER
) -> Iterator[CallRecord]:
    """Yield what was written down since a day, in no order."""
    decoder = msgspec.json.Decoder(CallRecord)
    for found in store.list(folder):
        if _parse_day(found.path) >= since:
            yield from (decoder.decode(line) for line in store.get(found.path).splitlines())


def delete_call_records(store: Store, before: dt.date, *, folder: str = CALL_LOG_FOLDER) -> int:
    """Delete what was written down before a day; returns how many objects that were."""
    old = [found.path for found in store.list(folder) if _parse_day(found.path) < before]
    for path in old:
        store.delete(path)
    return len(old)


def _parse_day(path: str) -> dt.date:
    try:
        return dt.date.fromisoformat(path.split("/")[-3])
    except (IndexError, ValueError):
        return dt.date.max  # none of ours


_open_cached_store = lru_cache(maxsize=16)(open_store)


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
    # Workers import this module, and have no catalog.
    from snowmelt.catalog.model.records import ACCOUNTADMIN
    from snowmelt.catalog.objects.external_functions import (
        can_use_function,
        list_external_functions,
    )

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
