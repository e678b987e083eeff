"""Makes compiled code ready when a service starts, so that no client waits for it.

Compiled kernels are kept beside the package, or in the data folder where that cannot be written;
a start loads them in half a second. The first start after an installation compiles them, which
takes ten to twenty seconds of one processor; queries that come meanwhile wait for what they need.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from snowmelt.clock import SystemClock
from snowmelt.select.dialect import Dialect
from snowmelt.select.engine import open_select
from snowmelt.select.request import (
    CsvInput,
    CsvOutput,
    Header,
    JsonInput,
    JsonOutput,
    SelectRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.select.limits import EngineSettings
    from snowmelt.select.request import Input

_log = logging.getLogger("snowmelt.server")

_CSV = (
    b'id,at,price,name\n1,2026-01-31T12:00:00Z,1.5,one\n2,2026-02-01,-2e3,"tw,o"\n3,,x,\xc3\xa9\n'
)
_LINES = b'{"id": 1, "name": "one", "price": 1.5}\n{"id": 2, "name": "tw\\"o", "at": [1]}\n'
_CSV_EXPRESSIONS = (
    "select count(*) from s3object",
    "select * from s3object s where s.id > 1",
    "select s.id, s.name from s3object s where cast(s.id as int) + 1 >= 2 or s.name = 'one'",
    "select s.name from s3object s where s.name like '%o%' and s.name > 'a' and s.price < 5",
    "select cast(s.id as int), cast(s.price as float) from s3object s where s.price <> 'x'",
    "select sum(cast(s.id as float)), min(cast(s.id as int)), max(s.name) from s3object s",
    "select extract(year from to_timestamp(s.at)) from s3object s where s.at <> ''",
    "select upper(s.name), char_length(s.name) from s3object s order by s.id limit 2",
    "select s.name, count(*) from s3object s group by s.name",
)
_LINES_EXPRESSIONS = (
    "select * from s3object s where s.id > 1",
    "select s.id, s.name from s3object s where s.price > 1 or s.name like 't%'",
)


class Warming:
    """Runs small queries through the engine, in a thread."""

    def __init__(self, limits: EngineSettings) -> None:
        """Prepare; `start` begins."""
        self._limits = limits
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="s3-warming", daemon=True)

    def start(self) -> None:
        """Begin, and return at once."""
        self._thread.start()

    def close(self) -> None:
        """Leave out what has not begun, and wait for the rest."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        clock = SystemClock()
        began = clock.monotonic()
        try:
            for request, content in _queries():
                if self._stopping.is_set():
                    return
                execution = open_select(request, _Content(content), settings=self._limits)
                with contextlib.closing(execution):
                    for _ in execution.payloads():
                        pass
        except Exception:  # noqa: BLE001 - whoever asks next hears what is wrong
            _log.exception("making queries ready failed")
            return
        _log.info("queries are ready after %.1f s", clock.monotonic() - began)


def _queries() -> Iterator[tuple[SelectRequest, bytes]]:
    csv: Input = CsvInput(header=Header.USE)
    quoted: Input = CsvInput(header=Header.USE, quoted_record_delimiter=True)
    lines: Input = JsonInput(lines=True)
    # What is asked most comes first.
    for output in (CsvOutput(), JsonOutput()):
        for expression in _CSV_EXPRESSIONS:
            yield SelectRequest(expression, csv, output), _CSV
    for output in (CsvOutput(), JsonOutput()):
        for expression in _LINES_EXPRESSIONS:
            yield SelectRequest(expression, lines, output), _LINES
    yield SelectRequest("select s.id from s3object s", quoted), _CSV
    ceph = SelectRequest("select * from stdin where int(_1) > 1;", CsvInput(Header.IGNORE))
    for dialect in (Dialect.CEPH, Dialect.CEPH_2020):
        yield SelectRequest(ceph.expression, ceph.input, ceph.output, dialect=dialect), _CSV


class _Content:
    """Bytes in memory as an object."""

    name = "warming"

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._content = content

    def read_into(self, offset: int, view: memoryview) -> int:
        part = self._content[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass
