"""Results of the statement API: values as text, and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.wire.statements import (
    ResultColumn,
    ResultMetadata,
    StatementRequest,
    StatementResponse,
    decode_rows,
    encode_rows,
)

KINDS = [
    st.booleans(),
    st.integers(),
    st.decimals(allow_nan=False, allow_infinity=False, places=6),
    st.floats(allow_nan=False),
    st.text(),
    st.dates(),
    st.datetimes(timezones=st.just(dt.UTC)),
]


def send(
    columns: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Encode as the service does, decode as a client does."""
    metadata, data = encode_rows(columns, rows)
    response = StatementResponse(metadata, data, "handle", 0)
    return decode_rows(msgspec.json.decode(msgspec.json.encode(response), type=StatementResponse))


@given(st.data())
def test_values_arrive_as_they_were(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(*(st.none() | each for each in kinds)), max_size=5))
    columns = tuple(f"c{index}" for index in range(len(kinds)))
    assert send(columns, rows) == (columns, rows)


def test_columns_of_several_kinds_and_of_nulls_are_text() -> None:
    metadata, data = encode_rows(("a", "b"), [(1, None), ("x", None)])
    assert [each.type for each in metadata.row_type] == ["text", "text"]
    assert data == [["1", None], ["x", None]]


def test_forms_are_those_of_the_sql_api() -> None:
    when = dt.datetime(1969, 12, 31, 23, 59, 58, 250_000, dt.UTC)
    row = (True, Decimal("1.50"), when, dt.date(1970, 1, 11), 7)
    metadata, [texts] = encode_rows(("a", "b", "c", "d", "e"), [row])
    assert texts == ["true", "1.50", "-1.750000000", "10", "7"]
    names = ["boolean", "fixed", "timestamp_ltz", "date", "fixed"]
    assert [each.type for each in metadata.row_type] == names
    wire = msgspec.to_builtins(StatementResponse(metadata, [texts], "h", 0))
    assert {"resultSetMetaData", "data", "code", "statementHandle", "sqlState"} <= set(wire)
    assert set(wire["resultSetMetaData"]) == {"numRows", "rowType", "format", "partitionInfo"}


def test_a_type_of_a_later_service_is_read_as_text() -> None:
    metadata = ResultMetadata(1, [ResultColumn("a", "geography")])
    assert decode_rows(StatementResponse(metadata, [["POINT"]], "h", 0)) == (("a",), [("POINT",)])


def test_a_request_needs_a_statement() -> None:
    with pytest.raises(msgspec.ValidationError, match="statement"):
        msgspec.json.decode(b"{}", type=StatementRequest)
