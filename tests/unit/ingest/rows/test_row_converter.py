"""Values for BINARY columns that may be base64 are refused, and nothing else is."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.catalog.sql.pipe_copy import PipeCopy, parse_pipe_copy
from snowmelt.clock import SystemClock
from snowmelt.ingest.rows.row_converter import ConvertedRows, ConverterPool, find_ambiguous_bytes
from snowmelt.schema.types import Column, LogicalType, TableSchema

SCHEMA = TableSchema(
    1,
    (
        Column("ID", LogicalType.FIXED, 1, precision=9, scale=0),
        Column("raw", LogicalType.BINARY, 2, byte_length=1 << 20),
    ),
)
TABLE: Any = SimpleNamespace(table_id=1, schema=SCHEMA, schema_evolution=False, error_table_id=7)
CONVERSIONS = ConverterPool(ZoneInfo("UTC"), SystemClock())
PIPE = parse_pipe_copy(
    'COPY INTO t FROM (SELECT $1:id::number AS id, SUBSTR($1:raw, 1, 6) AS "raw"'
    " FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
)


def convert(
    *lines: dict[Any, Any] | bytes, copy: PipeCopy | None = None
) -> tuple[ConvertedRows, list[tuple[int, str | None, str | None]]]:
    body = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    found = CONVERSIONS.convert(body, TABLE, copy, reject_ambiguous_bytes=True)
    return found, [(each.number, each.column, each.code) for each in found.rejected]


@given(st.binary(max_size=30))
def test_no_bytes_as_base64_pass(content: bytes) -> None:
    found = find_ambiguous_bytes(
        [{'"raw"': base64.b64encode(content).decode()}], SCHEMA, from_pipe=False
    )
    assert bool(found) == bool(content)


@pytest.mark.parametrize("value", ["", "abcd12", " deadbeef", None, 5, ["deadbeef"]])
def test_what_is_no_base64_is_left_to_the_column(value: int | list[str] | str | None) -> None:
    assert not find_ambiguous_bytes(
        [{'"raw"': value}, {"id": "deadbeef"}, "deadbeef"], SCHEMA, from_pipe=False
    )


def test_refused_rows_keep_their_places() -> None:
    rows: list[Any] = [
        {"id": 1, "raw": "AAAA"},
        b"no json",
        {"id": "x"},
        {"id": 4},
        {"raw": "abcd12"},
    ]
    found, refused = convert(*rows, {"id": 6, "RAW": "deadbeef"})
    assert found.table.column("raw").to_pylist() == [None, bytes.fromhex("abcd12")]
    assert refused == [
        (0, '"raw"', "invalid_value"),
        (1, None, None),
        (2, "ID", "invalid_value"),
        (5, '"raw"', "invalid_value"),
    ]
    assert [each.row for each in found.rejected] == [
        '{"id": 1, "raw": "AAAA"}',
        "no json",
        '{"id": "x"}',
        '{"id": 6, "RAW": "deadbeef"}',
    ]


def test_many_rows_without_a_value_go_on_by_columns_and_one_value_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"id": number, "raw": None} for number in range(2_000)]
    one_by_one = []
    whole = ConverterPool._convert_by_rows

    def noted(*given: Any, **more: Any) -> Any:
        one_by_one.append(1)
        return whole(*given, **more)

    monkeypatch.setattr(ConverterPool, "_convert_by_rows", noted)
    found, refused = convert(*rows)
    assert (len(found.table), refused, one_by_one) == (2_000, [], [])
    found, refused = convert(*rows, {"id": 1, "raw": "AAAA"})
    assert (len(found.table), refused) == (2_000, [(2_000, '"raw"', "invalid_value")])
    assert one_by_one


def test_what_a_pipe_makes_of_a_value_is_not_told_apart_from_it() -> None:
    # The first six letters of base64 `abcdefgh` are digits that no base64 ends with.
    found, refused = convert({"id": 1, "raw": "abcdefgh"}, {"id": 2}, copy=PIPE)
    assert found.table.column("ID").to_pylist() == [2]
    assert refused == [(0, '"raw"', "invalid_value")]
