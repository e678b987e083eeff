"""Call log files. Workers write records next to the native files, and the driver reads them.

Each task writes one object (a long task writes several) with one JSON document per line. Spark's
own worker log is unsuitable: it is lost with its executor, ends with the session, and overflows the
JVM's stack when a task logs several thousand lines.
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
# Subfolder for the records of running dry runs.
DRY_RUN_FOLDER = "_dry_runs"
# Buffered records at which the buffer is written, and seconds since the last write. If a worker is
# killed, the buffered records are lost.
_MAX_BUFFERED_RECORDS = 1_000
_FLUSH_INTERVAL_S = 2.0

_FIELD_AFTER_NAME = b',"query_id":'

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallLogFiles:
    """Location of the call records of one function, given by its full name. Picklable."""

    store_url: str
    function: str
    folder: str = CALL_LOG_FOLDER

    def open_task_log(self, position: QueryPosition, clock: Clock | None = None) -> FileCallLog:
        """Return the call log of a task."""
        return FileCallLog(self, position, clock or SystemClock())


class FileCallLog:
    """Call log of one task. Close it when the task ends."""

    def __init__(self, files: CallLogFiles, position: QueryPosition, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._record_prefix = b'{"function":' + msgspec.json.encode(files.function)
        self._lines: list[bytes] = []
        self._written_at = clock.monotonic()
        self._started_at = clock.now()
        # Concurrent attempts, and several calls in one stage, write separate objects.
        task = f"{position.stage}-{position.partition}-{position.attempt}-{uuid.uuid4().hex[:12]}"
        self._path = f"{files.folder}/{self._started_at:%Y-%m-%d}/{position.query_id}/{task}"
        self._object_count = 0

    def add_record(self, record: CallRecord) -> None:
        """Add a record. Write the buffer if it has 1,000 records, or 2 s after the last write."""
        line = msgspec.json.encode(record)
        # Edit the JSON text: `replace` of the record takes three times as long as all other steps.
        # No string contains the search text, because JSON escapes quotation marks in strings.
        self._lines.append(self._record_prefix + line[line.index(_FIELD_AFTER_NAME) :])
        late = self._clock.monotonic() - self._written_at >= _FLUSH_INTERVAL_S
        if late or len(self._lines) >= _MAX_BUFFERED_RECORDS:
            self._write_object()

    def close(self) -> None:
        """Write the remaining records."""
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
            # Only log the failure: calls may have cost money, so the query must not fail for its
            # log.
            _log.warning("Cannot write the log of external function calls: %s", error)
        self._object_count += 1
        self._lines.clear()


def read_call_records(
    store: Store, since: dt.date = dt.date.min, *, folder: str = CALL_LOG_FOLDER
) -> Iterator[CallRecord]:
    """Yield the records since a day, in no particular order."""
    for path in list_call_logs(store, since, folder=folder):
        yield from read_call_log(store, path)


def list_call_logs(store: Store, since: dt.date, *, folder: str = CALL_LOG_FOLDER) -> Iterator[str]:
    """Yield the paths of the objects with records since a day. Paths sort by day."""
    return (each.path for each in store.list(folder) if _parse_day(each.path) >= since)


def read_call_log(store: Store, path: str) -> Iterator[CallRecord]:
    """Yield the records of one object."""
    decoder = msgspec.json.Decoder(CallRecord)
    yield from (decoder.decode(line) for line in store.get(path).splitlines())


def delete_call_records(store: Store, before: dt.date, *, folder: str = CALL_LOG_FOLDER) -> int:
    """Delete the records before a day and return the number of deleted objects."""
    old = [found.path for found in store.list(folder) if _parse_day(found.path) < before]
    for path in old:
        store.delete(path)
    return len(old)


def _parse_day(path: str) -> dt.date:
    try:
        return dt.date.fromisoformat(path.split("/")[-3])
    except (IndexError, ValueError):
        return dt.date.max  # Not a call log object: it is never deleted.


_open_cached_store = lru_cache(maxsize=16)(open_store)


# Columns of the call log, in the order of the fields of `CallRecord`.
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
    """Return the batches of functions that the role may use since a day, newest first.

    `ATTEMPT` is the attempt number of the task, `ATTEMPTS` the number of requests for the batch.
    """
    # Import late: workers import this module, and must not load the catalog.
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
    others = (name for name in _COLUMNS.names if name != "START_TIME")
    return spark.createDataFrame(table.select(["START_TIME", *others]))
