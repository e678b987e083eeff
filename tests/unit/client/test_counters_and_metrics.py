"""A client's counters are there for OpenTelemetry as long as the client is."""

from __future__ import annotations

import datetime as dt
import weakref
from functools import partial
from typing import Any, cast
from zoneinfo import ZoneInfo

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from snowmelt.client.channel_state import ChannelFailure, ChannelState, ChannelTarget
from snowmelt.client.counters_and_metrics import ClientStatus, publish_client_metrics
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.row_buffer import InsertBatch
from snowmelt.client.settings import ClientSettings
from snowmelt.errors import InvalidRow
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema

TARGET = ChannelTarget(
    TableName("D", "S", "T"), TableSchema(1, (Column("A", LogicalType.REAL, 1),)), 1, b"k" * 32
)


class Owner:
    def __init__(self) -> None:
        self.backlog = FlushScheduler(
            ClientSettings(max_client_lag=dt.timedelta(minutes=10)), lambda: None
        )

    def status(self) -> ClientStatus:
        return self.backlog.client_status(None)


def test_counters_are_offered_as_long_as_their_client_lives() -> None:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))

    def told() -> dict[Any, Any]:
        data = reader.get_metrics_data()
        return {
            metric.name.removeprefix("snowmelt.client."): cast("NumberDataPoint", point).value
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if dict(point.attributes or {}) == {"client": "mine"}
        }

    other, owner, idle = Owner(), Owner(), Owner()
    publish_client_metrics(weakref.WeakMethod(other.status), "other")
    publish_client_metrics(weakref.WeakMethod(owner.status), "mine")
    # Of the same name: what they do counts together.
    publish_client_metrics(weakref.WeakMethod(idle.status), "mine")
    backlog = owner.backlog
    state = ChannelState("c", TARGET, partial(RowConverter, zone=ZoneInfo("UTC")), (0, 0), None)
    backlog.add_channel(state, ChannelFailure("reopened"))
    backlog.insert(state, InsertBatch((1.0,), 1, 8))
    backlog.flush_now()
    backlog.record_commits(backlog.wait_for_due_flush() or ())
    form = state.converter.fast_checker
    size = 0
    for number in range(2):
        values = form.try_check({"a": float(number)})
        assert values is not None
        size += values[-1]
        backlog.insert_fast_row(state, form, values, None)
    backlog.record_rejected_rows(state, 4, InvalidRow(reason="wrong"))
    found = told()
    assert found.pop("lag") >= 0
    assert found == {
        "rows.inserted": 3,
        "rows.refused": 4,
        "rows.committed": 1,
        "bytes.committed": 8,
        "bytes.waiting": size,
    }
    del owner
    assert set(told().values()) == {0}
    del idle
    assert told() == {}
