"""The call log as files: workers write records beside the native files, the driver reads them.

Each task writes one object, a long task several; each line is a JSON document. Spark's own worker
log would be lost with an executor, ends with the session, and overflows the JVM's stack when a task
logs several thousand lines.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from snowmelt.clock import SystemClock
from snowmelt.errors import SnowmeltError
from snowmelt.functions.caller.call_log import CallRecord
from snowmelt.storage.store_factory import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.clock import Clock
    from snowmelt.functions.caller.plan import QueryPosition
    from snowmelt.storage.store import Store

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
