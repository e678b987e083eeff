"""Many objects as one, in their order."""

from __future__ import annotations

import io
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.execution.engine import open_select
from snowmelt.select.formats.read_units import SourceSequence
from snowmelt.select.local_query import PipeSource, open_local_select
from snowmelt.select.request import (
    CsvInput,
    HeaderMode,
    JsonInput,
    JsonOutput,
    ParquetInput,
    ScanRange,
    SelectRequest,
)
from snowmelt.select.resource_limits import EngineSettings

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.select.request import InputFormat


def _answer(
    paths: list[Path],
    sql: str,
    form: InputFormat | None = None,
    scan_range: ScanRange | None = None,
) -> bytes:
    request = SelectRequest(sql, input=form or CsvInput(), scan_range=scan_range)
    with closing(open_local_select(request, paths)) as execution:
        return b"".join(execution.stream_payloads())


def _files(folder: Path, *contents: bytes) -> list[Path]:
    paths = [folder / f"{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def test_records_follow_in_the_order_of_the_objects(tmp_path: Path) -> None:
    paths = _files(tmp_path, b"1,a\n2,b", b"", b"3,c\n")
    assert _answer(paths, "select * from s3object") == b"1,a\n2,b\n3,c\n"


def test_an_aggregate_spans_all_objects_and_every_header_is_skipped(tmp_path: Path) -> None:
    paths = _files(tmp_path, b"n\n1\n2\n", b"n\n40\n")
    form = CsvInput(header=HeaderMode.USE)
    assert _answer(paths, "select sum(cast(n as int)), count(*) from s3object", form) == b"43,3\n"


def test_a_limit_opens_no_more_objects_than_it_needs() -> None:
    opened = []

    def opener(number: int) -> PipeSource:
        opened.append(number)
        return PipeSource(io.BytesIO(b"1\n2\n"), f"object {number}")

    sources = SourceSequence([partial(opener, number) for number in range(100)])
    request = SelectRequest("select * from s3object limit 3")
    with closing(open_select(request, sources)) as execution:
        assert b"".join(execution.stream_payloads()) == b"1\n2\n1\n"
    assert len(opened) < 10


def test_an_object_with_other_columns_is_named(tmp_path: Path) -> None:
    paths = _files(tmp_path, b"n\n1\n", b"m\n2\n")
    with pytest.raises(SelectError, match=str(paths[1])):
        _answer(paths, "select n from s3object", CsvInput(header=HeaderMode.USE))


def test_an_object_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), table)
    paths = _files(tmp_path, table.getvalue(), b"no parquet")
    with pytest.raises(SelectError, match=str(paths[1])):
        _answer(paths, "select n from s3object", ParquetInput())


def test_a_scan_range_means_one_object(tmp_path: Path) -> None:
    paths = _files(tmp_path, b"1\n", b"2\n")
    with pytest.raises(SelectError) as caught:
        _answer(paths, "select * from s3object", scan_range=ScanRange(0, 5))
    assert caught.value.s3_code == "UnsupportedScanRangeInput"


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(-1000, 1000), max_size=20), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_many_objects_answer_as_one_that_holds_all(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[list[int]], ahead: int
) -> None:
    folder = tmp_path_factory.mktemp("many")
    contents = [b"".join(b'{"n":%d}\n' % n for n in part) for part in numbers]
    paths = _files(folder, *contents)
    (folder / "all").write_bytes(b"".join(contents))
    request = SelectRequest(
        "select s.n, s.n * 2 as twice from s3object s where s.n > 0",
        input=JsonInput(lines=True),
        output=JsonOutput(),
    )
    limits = EngineSettings(block_bytes=64, blocks_in_flight=ahead)
    answers = []
    for source in (paths, folder / "all"):
        with closing(open_local_select(request, source, settings=limits)) as execution:
            answers.append(b"".join(execution.stream_payloads()))
    assert answers[0] == answers[1]


def test_an_error_tells_its_record_and_object(tmp_path: Path) -> None:
    paths = _files(tmp_path, b"n\n1\n2\n", b"n\n3\nfour\n")
    where = rf"\(in record 2 of {paths[1]}, which begins at byte 4\)"
    with pytest.raises(SelectError, match=where):
        _answer(paths, "select cast(n as int) from s3object", CsvInput(header=HeaderMode.USE))
