"""Whatever bytes and claims come: a chunk is refused with its reason, or queries are right."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.blob import encryption
from snowmelt.blob.chunk_table_reader import read_chunk
from snowmelt.catalog.streaming.chunks import ChunkRecord
from snowmelt.ingest.blob_decoder import BlobDecodeJob, ChunkDecodeJob, decode_blobs
from snowmelt.ingest.decoder_pool import BlobDecoderPool
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.iceberg_table_form import native_fields, to_native_table
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.storage.local_store import LocalStore
from snowmelt.table.pruning import Comparison, IsNull, prune_chunks
from snowmelt.wire.streaming import ChunkStatisticsMessage
from support.chunk_data import chunk_column, relaxed
from support.hostile_client import claims, encoded

RECORD = ChunkRecord(
    *(1, 1, "abc", "", 0, 0, "", 1, 0, 1, b""),
    registered_at=dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
)
PATH = "2026/11/21/1/40/totwo8_abc_4711_18_0.bdec"
KEY = bytes(32)
INTEGERS = TableSchema(1, (Column("ID", LogicalType.FIXED, 1, precision=18, scale=0),))


def job(
    stage: LocalStore, parquet: bytes, claimed: dict[Any, Any], path: str = PATH
) -> BlobDecodeJob:
    """Stage a chunk with right checksums and return the job that inspects it."""
    data = encryption.apply_aes_ctr(parquet, key=encryption.derive_blob_key(KEY, path), offset=0)
    stage.put(f"abc/{path}", data)
    md5 = hashlib.md5(data).hexdigest()
    chunk = ChunkDecodeJob(
        0,
        len(data),
        md5,
        1,
        KEY,
        claimed["rows"],
        msgspec.json.encode(claimed),
        1,
        (1,),
        True,
        True,
    )
    return BlobDecodeJob(path, f"abc/{path}", md5, (chunk,))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return LocalStore(tmp_path_factory.mktemp("inspected"))


INSTANTS = st.integers(-(10**18), 4 * 10**18)
FORMS = {
    Column("A", LogicalType.FIXED, 1, precision=5, scale=0): st.integers(-99_999, 99_999),
    Column("B", LogicalType.FIXED, 2, precision=38, scale=2): st.integers(
        -(10**38) + 1, 10**38 - 1
    ),
    Column("C", LogicalType.REAL, 3): st.floats(),
    Column("D", LogicalType.TEXT, 4, length=40): st.text(
        st.characters(exclude_categories=["Cs"]), max_size=40
    ),
    Column("E", LogicalType.BINARY, 5, byte_length=40): st.binary(max_size=40),
    Column("F", LogicalType.BOOLEAN, 6): st.booleans(),
    Column("G", LogicalType.DATE, 7): st.integers(-719_162, 2_932_896),
    Column("H", LogicalType.TIME, 8, scale=9): st.integers(0, 86_400 * 10**9 - 1),
    Column("I", LogicalType.TIMESTAMP_NTZ, 9, scale=9): INSTANTS,
    Column("J", LogicalType.TIMESTAMP_TZ, 10, scale=9): INSTANTS.map(lambda at: at << 14 | 1500),
    Column("K", LogicalType.TIMESTAMP_LTZ, 11, scale=3): st.integers(-(10**12), 4 * 10**12),
    Column("L", LogicalType.VARIANT, 12): st.sampled_from(
        ["null", '{"a":1}', "[]", "no JSON", "1e400", "[" * 201 + "]" * 201]
    ),
}


@st.composite
def chunks(draw: st.DrawFn) -> tuple[TableSchema, pa.Table]:
    """Columns, and rows for them in chunk form that every reader can represent."""
    chosen = draw(st.lists(st.sampled_from(list(FORMS)), min_size=1, max_size=4, unique=True))
    schema = TableSchema(1, tuple(sorted(chosen, key=lambda column: column.ordinal)))
    rows = draw(st.integers(1, 6))
    arrays = [
        chunk_column(
            column, draw(st.lists(st.none() | FORMS[column], min_size=rows, max_size=rows))
        )
        for column in schema.columns
    ]
    return schema, pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(schema))


@st.composite
def told(draw: st.DrawFn) -> tuple[TableSchema, bytes, dict[Any, Any]]:
    """A true chunk, and what became of it: some bytes, or some of its claims, changed."""
    schema, table = draw(chunks())
    options = draw(
        st.sampled_from(
            [{}, {"compression": "zstd"}, {"use_dictionary": True}, {"compression": "snappy"}]
        )
    )
    parquet, claimed = (
        bytearray(encoded(table, **cast("dict[str, Any]", options))),
        claims(table, schema),
    )
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            # The footer is at the end; its length and the magic bytes seldom say anything new.
            parquet[draw(st.integers(4, len(parquet) - 9))] = draw(st.integers(0, 255))
        else:
            column = claimed["columns"][draw(st.sampled_from(sorted(claimed["columns"])))]
            name = draw(st.sampled_from(sorted(column)))
            column[name] = draw(st.none() | st.integers(-5, 5) | st.sampled_from(["", "61", "Z"]))
    return schema, bytes(parquet), claimed


@relaxed
@given(told())
def test_a_chunk_whose_bytes_or_claims_were_changed_is_refused_or_read_right(
    stage: LocalStore, case: tuple[TableSchema, bytes, dict[Any, Any]]
) -> None:
    schema, parquet, claimed = case
    try:
        # What is no message of the protocol is refused before it is inspected.
        msgspec.convert(claimed, type=ChunkStatisticsMessage)
    except msgspec.ValidationError:
        return
    [found] = decode_blobs(stage, [job(stage, parquet, claimed)], {1: {1: schema}})
    [finding] = found.chunks
    assert not finding.failure_traceback, finding.failure_traceback
    if finding.code:
        assert finding.message
        return
    native = to_native_table(read_chunk(parquet, schema), schema)
    assert native.num_rows == claimed["rows"]
    record = msgspec.structs.replace(RECORD, rows=native.num_rows, statistics=finding.statistics)
    for column in schema.columns:
        name = native_fields(column)[0].name
        # Every value has a form in Python, so that every reader returns it.
        for value in native.column(name).to_pylist():
            asked = IsNull(column.name) if value is None else Comparison(column.name, "<=>", value)
            assert prune_chunks([record], schema, {1: schema}, [asked]), (asked, finding)


@relaxed
@given(st.lists(told(), min_size=1, max_size=3), st.floats(0, 1), st.integers(0, 255))
def test_chunks_that_are_decoded_together_get_the_findings_they_get_alone(
    stage: LocalStore,
    cases: list[tuple[TableSchema, bytes, dict[Any, Any]]],
    place: float,
    spoiled: int,
) -> None:
    # The same columns three times, once with a byte changed, and others beside them.
    schema, first, said = cases[0]
    copy = bytearray(first)
    copy[4 + int(place * (len(first) - 13))] = spoiled
    cases = [*cases, (schema, bytes(copy), said), cases[0]]
    jobs = []
    schemas: dict[int, dict[int, TableSchema]] = {}
    for number, (own, parquet, claimed) in enumerate(cases):
        try:
            msgspec.convert(claimed, type=ChunkStatisticsMessage)
        except msgspec.ValidationError:
            continue
        table_id = 1 if own == schema else number + 2
        schemas[table_id] = {1: schema if own == schema else own}
        blob = job(stage, parquet, claimed, PATH.replace("_0.", f"_{number}."))
        chunk = msgspec.structs.replace(blob.chunks[0], table_id=table_id)
        jobs.append(msgspec.structs.replace(blob, chunks=(chunk,)))
    together = decode_blobs(stage, jobs, schemas)
    assert together == [found for each in jobs for found in decode_blobs(stage, [each], schemas)]


def children() -> set[int]:
    """The processes that this one has started, and which still live."""
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        found.update(map(int, (task / "children").read_text().split()))
    return found


class Killer(threading.Thread):
    """Ends every new child by a signal as soon as it is there."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._spared = children()
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(0.005):
            for child in children() - self._spared:
                self._spared.add(child)
                os.kill(child, self._number)

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()


@pytest.fixture
def inspector(stage: LocalStore) -> Iterator[BlobDecoderPool]:
    inspector = BlobDecoderPool(stage.url, 1)
    yield inspector
    inspector.close()


@pytest.fixture
def true_job(stage: LocalStore) -> BlobDecodeJob:
    table = integers([1, 2, 3])
    return job(stage, encoded(table), claims(table, INTEGERS), PATH.replace("_0.", "_1."))


def integers(values: list[int]) -> Any:
    return pa.table({"ID": list(map(Decimal, values))}, schema=chunk_arrow_schema(INTEGERS))


@pytest.mark.slow
def test_a_process_that_died_is_replaced_and_nothing_is_refused_for_it(
    inspector: BlobDecoderPool, true_job: BlobDecodeJob
) -> None:
    before = children()
    [first] = inspector.decode([true_job], {1: {1: INTEGERS}})
    assert first.chunks[0].code == 0
    [process] = children() - before
    os.kill(process, signal.SIGSEGV)
    [again] = inspector.decode([true_job], {1: {1: INTEGERS}})
    assert again.chunks == first.chunks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (signal.SIGABRT, 38, "it ended the decoder process with status -6"),
        # What ends a decoder that uses the processor for too long.
        (signal.SIGPROF, 38, "it ended the decoder process with status -27"),
        (signal.SIGKILL, 10, "its decoder process was killed"),
    ],
)
def test_what_ends_its_process_twice_is_refused_or_asked_for_again(
    inspector: BlobDecoderPool,
    true_job: BlobDecodeJob,
    number: signal.Signals,
    code: int,
    reason: str,
) -> None:
    with Killer(number):
        [found] = inspector.decode([true_job], {1: {1: INTEGERS}})
    [finding] = found.chunks
    assert finding.code == code
    assert reason in finding.message
    [later] = inspector.decode([true_job], {1: {1: INTEGERS}})
    assert later.chunks[0].code == 0
