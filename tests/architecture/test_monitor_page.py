"""The page for operators names every metric and every field of the log."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from snowmelt.catalog.jobs.backup_history import LastBackup
from snowmelt.catalog.jobs.run_history import (
    MigrationStateTotals,
    RunState,
    TableBacklog,
)
from snowmelt.catalog.objects.failover_groups import ReplicationLag, SiteRole
from snowmelt.catalog.objects.published_snapshots import PublicationLag
from snowmelt.catalog.views.freshness import ExpectedTable
from snowmelt.ingest.metrics import RequestMetrics
from snowmelt.schema.types import TableName
from snowmelt.server.logs import CONTEXT_FIELDS
from snowmelt.server.metrics import CatalogMetrics, MetricSources, render_metrics

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md").read_text()


def test_the_metrics_of_the_page_are_those_of_the_service() -> None:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    facts = CatalogMetrics(
        now,
        [TableBacklog(1, TableName("D", "P", "T"), 1, 1, now)],
        [MigrationStateTotals(RunState.COMMITTED, 1, 1, 1.0)],
        PublicationLag(1, 0, now),
        ReplicationLag("G", SiteRole.SECONDARY, 1.0, 1.0),
        [ExpectedTable(1, TableName("D", "P", "T"), 60, now, now)],
        LastBackup("point", "/backups", now),
    )
    sources = MetricSources(
        RequestMetrics[int]().snapshot,
        RequestMetrics[str]().snapshot,
        select_count_getters=[lambda: (0, 0, 0)],
    )
    text = render_metrics(sources, facts, with_table_labels=True).decode()
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
    }
    told = set(re.findall(r"^\| `(snowmelt_\w+)` ", PAGE, re.MULTILINE))
    assert told == {name for name in found if name.startswith("snowmelt_")}


def test_the_fields_of_the_log_are_on_the_page() -> None:
    assert [name for name in CONTEXT_FIELDS if f"`{name}`" not in PAGE] == []
