"""Bodies converted together give what each gives alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snowmelt.catalog.sql.pipe_copy import PipeCopy, parse_pipe_copy
from snowmelt.clock import SystemClock
from snowmelt.ingest.rows import row_converter
from snowmelt.ingest.rows.row_converter import ConverterPool
from snowmelt.schema.types import Column, LogicalType, TableSchema

SCHEMA = TableSchema(
    1,
    (
        Column("ID", LogicalType.FIXED, 1, precision=9, scale=0),
        Column("NAME", LogicalType.TEXT, 2, length=1000, byte_length=4000),
    ),
)
TABLE: Any = SimpleNamespace(table_id=1, schema=SCHEMA, schema_evolution=False, error_table_id=None)
CONVERSIONS = ConverterPool(ZoneInfo("UTC"), SystemClock())
COPY = parse_pipe_copy(
    "COPY INTO t FROM (SELECT $1:id::number, UPPER($1:name)"
    " FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
)
# Most rows are good, as they are in life; the others differ in what they do to their neighbours.
lines = st.one_of(
    *[st.builds(lambda n: b'{"id":%d,"name":"%d"}' % (n, n), st.integers(0, 99_999))] * 12,
    st.sampled_from(
        [
            b'{"id":1e99,"name":"too much"}',
            b'{"id":1234567890,"name":"too much"}',
            b'{"id":"7","name":"a text"}',
            b'{"name":"alone"}',
            b'{"id":1,"name":"two"}{"id":2,"name":"on a line"}',
            b'{"id":1,"name":{"n":',
            b'{"id":3}}}',
            b'{"id":4,"other":5}',
            b"null",
            b"[1]",
            b"no json",
            b"\xff",
            b"",
            b" ",
        ]
    ),
)
bodies = st.builds(
    lambda rows, end: b"\n".join(rows) + end,
    st.lists(lines, max_size=6),
    st.sampled_from([b"", b"\n", b"\n\n"]),
)


def told(converted: row_converter.ConvertedRows) -> tuple[Any, int, list[tuple[int, str, Any]]]:
    return (
        converted.table.to_pylist(),
        converted.parsed_count,
        [(each.number, each.reason, each.row) for each in converted.rejected],
    )


@pytest.mark.slow
@pytest.mark.parametrize("copy", [None, COPY], ids=["plain", "pipe"])
@settings(max_examples=40, deadline=None)
@example(7, [b'{"id":1}{"id":2}\n{"id":"x"}\n', b"{}"])
@given(st.sampled_from([None, 7]), st.lists(bodies, min_size=2, max_size=12))
def test_together_is_as_each_alone(
    copy: PipeCopy | None, error_table_id: Any, given_bodies: list[Any]
) -> None:
    table: Any = SimpleNamespace(**{**vars(TABLE), "error_table_id": error_table_id})
    with pytest.MonkeyPatch.context() as patch:
        # However few: by columns where that is possible at all.
        patch.setattr(row_converter, "_MIN_COLUMNAR_BYTES", 0)
        patch.setattr("snowmelt.ingest.rows.columnar_reader._MIN_COLUMNAR_BYTES", 0)
        together = CONVERSIONS.convert_all(given_bodies, table, copy)
    alone = [CONVERSIONS.convert(each, table, copy) for each in given_bodies]
    assert list(map(told, together)) == list(map(told, alone))


def test_good_bodies_share_one_conversion() -> None:
    body = msgspec.json.Encoder().encode_lines([{"id": n, "name": "x" * 300} for n in range(50)])
    bad = body.replace(b'{"id":7,', b'{"id":1234567890,')
    made = CONVERSIONS.convert_all([body, bad, body, body], TABLE, None)
    assert [each.table.num_rows for each in made] == [50, 49, 50, 50]
    assert [each.rejected_count for each in made] == [0, 1, 0, 0]
    # Slices of the same columns, the refused row's body apart.
    first, *_, last = (each.table.column("ID").chunk(0) for each in made)
    assert first.buffers()[1].address == last.buffers()[1].address
