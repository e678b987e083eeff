"""Change events of several connectors of Debezium, and values that are none."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from snowmelt.loaders.kafka.change_events import make_change_row
from snowmelt.loaders.kafka.message_rows import MessageInvalid

AT = dt.datetime(2023, 11, 14, 22, 13, 20, 123456, dt.UTC)
AT_US = 1_700_000_000_123_456


def row(**fields: Any) -> dict[str, Any]:
    """A row without time and position, unless given."""
    return {"CDC_TIME": None, "CDC_POSITION": None, **fields}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            {"op": "c", "before": None, "after": {"id": 1}, "source": {"file": "bin.3", "pos": 4, "row": 0, "ts_us": AT_US, "ts_ms": 1}},
            row(id=1, CDC_OPERATION="insert", CDC_TIME=AT, CDC_POSITION='{"file": "bin.3", "pos": 4, "row": 0}'),
        ),
        (
            {"op": "u", "after": '{"_id": 1, "n": 2}', "ts_ms": 1000},
            row(_id=1, n=2, CDC_OPERATION="update", CDC_TIME=dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        ),
        ({"op": "d", "before": {"id": 7}, "after": None}, row(id=7, CDC_OPERATION="delete")),
        ({"op": "r", "after": {"id": 7}}, row(id=7, CDC_OPERATION="snapshot")),
        ({"op": "t", "before": None, "after": None}, row(CDC_OPERATION="truncate")),
        ({"op": "m", "before": None, "message": {}}, None),
        ({"schema": {}, "payload": {"op": "c", "after": {"id": 1}}}, row(id=1, CDC_OPERATION="insert")),
        ({"id": 1, "__deleted": "false"}, row(id=1, CDC_OPERATION="upsert")),
        ({"id": 1, "__deleted": True}, row(id=1, CDC_OPERATION="delete")),
        ({"id": 1, "__deleted": []}, row(id=1, CDC_OPERATION="upsert")),
        ({"op": "m", "ts_ms": 1, "source": {}, "message": {"prefix": "p"}}, None),
        ({"__v": 3, "__typename": "T", "__deleted": "false", "__table": "t", "__source_db": "d"}, row(__v=3, __typename="T", CDC_OPERATION="upsert")),
        (
            {"id": 1, "__op": "c", "__lsn": 5, "__source_ts_us": AT_US},
            row(id=1, CDC_OPERATION="insert", CDC_TIME=AT, CDC_POSITION='{"lsn": 5}'),
        ),
    ],
)  # fmt: skip
def test_an_event_is_a_row_with_operation_time_and_position(
    event: Any, expected: dict[str, Any] | None
) -> None:
    assert make_change_row(event) == expected


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ([1], "its value is not an object"),
        ({"id": 1}, "expected `op` with `before` and `after`"),
        ({"op": ["c"], "after": {}}, r"operation is \['c'\], expected one of c, r, u, d, t"),
        ({"op": "c", "after": {"cdc_time": 1}}, "'cdc_time' has the name of a column of change events"),
        ({"CDC_BEFORE": 1, "__op": "c"}, "'CDC_BEFORE' has the name of a column"),
        ({"op": "c", "after": [1]}, "`before` or `after` is not an object"),
        ({"op": "c", "after": "[1]"}, "its document: it is JSON, but no object"),
        ({"op": "c", "after": {}, "ts_ms": "noon"}, "its time is 'noon'"),
        ({"op": "c", "after": {}, "ts_ms": 10**30}, "its time is 1000"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_change_event_has_a_reason(event: Any, reason: str) -> None:
    with pytest.raises(MessageInvalid, match=reason):
        make_change_row(event)
