"""Client, service and migration form one trace per row if OpenTelemetry is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    yield found
    provider.shutdown()


def test_a_rows_way_is_one_trace(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with EmbeddedService(tmp_path / "data") as embedded, embedded.client() as client:
        embedded.sql("CREATE DATABASE demo")
        embedded.sql("CREATE TABLE demo.public.t (a INT)")
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_row({"a": 1}, offset_token="1")
            channel.wait_for_commit("1")
        service = embedded.service
        stores = service.settings.stage_url, service.settings.warehouse_url
        migrate_table(
            service.database,
            service.keyring,
            TableName("DEMO", "PUBLIC", "T"),
            MigrationSettings(*stores),
        )
    spans = {span.name: span for span in exporter.get_finished_spans()}
    way = ("insert", "flush", "put", "register", "registration", "migrated")
    names = [f"snowmelt.{step}" for step in way]
    assert set(names) == set(spans)
    assert len({spans[name].context.trace_id for name in names}) == 1
    parent = spans["snowmelt.registration"].parent
    assert parent is not None
    assert parent.span_id == spans["snowmelt.register"].context.span_id
    assert [event.name for event in spans["snowmelt.registration"].events] == ["visible"]
    assert (
        cast("SpanContext", spans["snowmelt.put"].parent).span_id
        == spans["snowmelt.flush"].context.span_id
    )
    starts = [cast("int", spans[name].start_time) for name in names]
    assert starts == sorted(starts)


def test_nothing_is_loaded_by_the_client_itself() -> None:
    code = "import sys, snowmelt.client.client; print('opentelemetry' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
