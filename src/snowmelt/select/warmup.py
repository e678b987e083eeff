"""Kernel warm-up: loads or compiles every Numba kernel before the first query.

Loading from the Numba cache takes about 1 s. Without a cache (the first start after an
installation, or `snowmelt warm`), compilation takes 10 to 20 s of one processor.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.clock import SystemClock
from snowmelt.select.dialect import Dialect
from snowmelt.select.execution.engine import open_select
from snowmelt.select.request import (
    CsvInput,
    CsvOutput,
    HeaderMode,
    JsonInput,
    JsonOutput,
    ParquetInput,
    SelectRequest,
)
from snowmelt.select.resource_limits import EngineSettings

_log = logging.getLogger("snowmelt.server")

_SAMPLE_CSV = (
    b'id,at,name,fare\n1,2018-01-02T03:04:05Z,"West, Isle",2.5\n2,2018-05-06T07:08:09Z,"a ""b""",\n'
)
_SAMPLE_JSON_LINES = b'{"id": 1, "name": "a", "at": {"x": 1}}\n{"id": 2, "name": "b"}\n'
# Splits the samples into several blocks, so that the kernel that splits blocks runs too.
_SMALL_BLOCK_SETTINGS = EngineSettings(block_bytes=64)


def warm_up_kernels(stopping: threading.Event | None = None) -> None:
    """Run sample queries to load their kernels into this process.

    The most frequent kinds of query run first. Concurrent queries wait only for the kernels that they
    need. Stops before the next query once `stopping` is set.
    """
    for request in _make_warmup_requests():
        if stopping is not None and stopping.is_set():
            return
        execution = open_select(
            request, _BytesSource(_make_sample_object(request)), settings=_SMALL_BLOCK_SETTINGS
        )
        with contextlib.closing(execution):
            for _ in execution.stream_payloads():
                pass


class KernelWarmer:
    """Background thread that loads the kernels at service start, before the first query."""

    def __init__(self) -> None:
        """Create the thread without starting it."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="s3-warming", daemon=True)

    def start(self) -> None:
        """Start the thread and return immediately."""
        self._thread.start()

    def close(self) -> None:
        """Skip the remaining warm-up queries and wait for the running one."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        clock = SystemClock()
        began = clock.monotonic()
        try:
            warm_up_kernels(self._stopping)
        except Exception:  # noqa: BLE001 - the next query reports the error
            _log.exception("compiling the kernels failed")
            return
        if not self._stopping.is_set():
            _log.info(
                "the kernels are compiled after %.1f s: S3 Select runs at full speed",
                clock.monotonic() - began,
            )


def _make_sample_object(request: SelectRequest) -> bytes:
    if isinstance(request.input, JsonInput):
        return _SAMPLE_JSON_LINES
    return _make_sample_parquet() if isinstance(request.input, ParquetInput) else _SAMPLE_CSV


def _make_sample_parquet() -> bytes:
    sink = io.BytesIO()
    moments = pa.array([0, 1], pa.timestamp("us"))
    prices = pa.array([Decimal("2.50"), None], pa.decimal128(5, 2))
    pq.write_table(pa.table({"at": moments, "price": prices}), sink)
    return sink.getvalue()


def _make_warmup_requests() -> Iterator[SelectRequest]:
    used = CsvInput(header=HeaderMode.USE)
    ceph = CsvInput(header=HeaderMode.USE, escape=b"\\", comment=b"")
    yield SelectRequest("SELECT * FROM s3object WHERE cast(id as int) > 0", used)
    yield SelectRequest("SELECT * FROM s3object WHERE id > 0", used, JsonOutput())
    yield SelectRequest("SELECT count(*) FROM s3object", used)
    yield SelectRequest("SELECT count(*) FROM s3object", ceph, dialect=Dialect.CEPH)
    yield SelectRequest(
        "SELECT id, cast(id as int) * 2, cast(fare as float) FROM s3object "
        "WHERE name LIKE '%West%' AND cast(fare as float) > 1.5 AND name <> at AND name > 'B'",
        used,
        CsvOutput(quote_always=True),
    )
    yield SelectRequest(
        "SELECT id, lower(name), upper(name), cast(id as int) FROM s3object "
        "WHERE extract(year from to_timestamp(at)) = 2018 AND to_timestamp(at) < "
        "to_timestamp('2020-01-01T00:00:00Z')",
        used,
        JsonOutput(),
    )
    yield SelectRequest(
        "SELECT sum(cast(fare as float)), min(cast(id as int)), avg(cast(id as int)) "
        "FROM s3object WHERE fare <> ''",
        used,
    )
    yield SelectRequest(
        "SELECT s.id, s.name, s.at.x FROM s3object s", JsonInput(lines=True), JsonOutput()
    )
    yield SelectRequest("SELECT s.id FROM s3object s", JsonInput(lines=False), JsonOutput())
    yield SelectRequest("SELECT * FROM s3object", JsonInput(lines=True), JsonOutput())
    yield SelectRequest("SELECT * FROM s3object", ParquetInput())


class _BytesSource:
    def __init__(self, data: bytes) -> None:
        self._text = data

    @property
    def size(self) -> int:
        return len(self._text)

    @property
    def name(self) -> str:
        return "warming"

    def read_into(self, offset: int, view: memoryview) -> int:
        part = self._text[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass
