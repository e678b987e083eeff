"""The demo's chapter on Kafka, without Spark."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import snowmelt
from snowmelt.cli.flights_demo.kafka_chapter import run_kafka_chapter
from snowmelt.embedded import EMBEDDED_USER, EmbeddedService

pytestmark = pytest.mark.slow


def test_each_message_is_loaded_once_though_the_connector_is_killed(tmp_path: Path) -> None:
    promises: dict[str, Any] = {}
    shown = io.StringIO()
    with EmbeddedService(tmp_path) as service:
        service.sql("CREATE DATABASE demo")
        with snowmelt.StatementClient(
            service.url, user=EMBEDDED_USER, private_key=service.private_key_file
        ) as client:
            run_kafka_chapter(
                service,
                lambda text: client.execute(text).rows,
                tmp_path,
                Console(file=shown),
                lambda what, promised, seen, *, kept: promises.update(
                    {what: (promised, seen, kept)}
                ),
            )
    assert all(kept for _, _, kept in promises.values()), promises
    assert promises["rejected Kafka messages kept once"][1] == 3
    assert promises["each Kafka message once"][1].startswith("20,000 rows")
    assert "kill -9" in shown.getvalue()
