"""Metrics in Prometheus text format.

Counters are plain numbers. They get names and labels only when the metrics are read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.backup_history import LastBackup, find_last_backup
from snowmelt.catalog.jobs.run_history import (
    MigrationStateTotals,
    TableBacklog,
    list_table_backlogs,
    sum_migrations_by_state,
)
from snowmelt.catalog.objects.failover_groups import (
    ReplicationLag,
    SiteRole,
    measure_replication_lag,
)
from snowmelt.catalog.objects.published_snapshots import (
    DEMAND_TTL,
    PublicationLag,
    measure_publication_lag,
)
from snowmelt.catalog.views.freshness import ExpectedTable, list_expected_tables
from snowmelt.ingest.metrics import LATENCY_BUCKETS_S, RequestMetrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# Handlers set the route label here. Raw paths would make label cardinality unbounded.
ROUTE_SCOPE_KEY = "snowmelt.route"
OTHER_ROUTE = "other"


class RequestCounts:
    """Request counters of one port. Updated only in its event loop."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}

    def count_response(self, route: str, status: int) -> None:
        """Count a response."""
        key = (route, status)
        self._counts[key] = self._counts.get(key, 0) + 1

    def snapshot(self) -> dict[tuple[str, int], int]:
        """Return a copy of the counters. Thread-safe."""
        return self._counts.copy()


class CountingMiddleware:
    """ASGI layer that counts responses by the route in `ROUTE_SCOPE_KEY` of the scope."""

    def __init__(self, app: ASGIApp, request_counts: RequestCounts) -> None:
        self._app = app
        self._request_counts = request_counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and count its response."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._request_counts.count_response(
                    scope.get(ROUTE_SCOPE_KEY, OTHER_ROUTE), int(message["status"])
                )
            await send(message)

        await self._app(scope, receive, send_counted)


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MAX_LABELED_TABLES = 20
SelectCounts: TypeAlias = "tuple[int, int, int]"


@dataclass(slots=True)
class MetricSources:
    """Sources of the metrics. Each component of a service adds its source."""

    get_registration_counts: Callable[[], RequestMetrics[int]]
    get_row_counts: Callable[[], RequestMetrics[str]]
    get_opened_channels: Callable[[], int] = int
    requests_by_port: dict[str, RequestCounts] = field(default_factory=dict)
    select_count_getters: list[Callable[[], SelectCounts]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CatalogMetrics:
    """Metrics from the catalog, read at the same time."""

    read_at: dt.datetime
    backlogs: Sequence[TableBacklog]
    migrations: Sequence[MigrationStateTotals]
    publications: PublicationLag
    replication: ReplicationLag | None
    expected_tables: Sequence[ExpectedTable]
    last_backup: LastBackup | None


def read_catalog_metrics(database: Database, at: dt.datetime) -> CatalogMetrics:
    """Read the metrics of the catalog. Takes seconds if there are millions of unmigrated chunks."""
    with database.reading() as connection:
        return CatalogMetrics(
            at,
            list_table_backlogs(connection),
            sum_migrations_by_state(connection),
            measure_publication_lag(connection, since=at - DEMAND_TTL),
            measure_replication_lag(connection, at),
            list_expected_tables(connection),
            find_last_backup(connection),
        )


def render_metrics(
    sources: MetricSources, catalog_metrics: CatalogMetrics | None, *, with_table_labels: bool
) -> bytes:
    """Return the metrics page. `catalog_metrics` is None if the catalog did not respond."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_MetricsCollector(sources, catalog_metrics, with_table_labels))
    return generate_latest(registry)


@dataclass(eq=False, slots=True)
class _MetricsCollector:
    """Collector of all metrics except those of the process."""

    _sources: MetricSources
    _catalog_metrics: CatalogMetrics | None
    _with_table_labels: bool

    def collect(self) -> Iterator[Metric]:
        tallied, rows = self._sources.get_registration_counts(), self._sources.get_row_counts()
        yield from _make_registration_metrics(tallied)
        yield from _make_row_metrics(rows)
        yield CounterMetricFamily(
            "snowmelt_registered_rows",
            "Registered rows of all protocols, without repetitions.",
            tallied.rows + rows.rows,
        )
        yield CounterMetricFamily(
            "snowmelt_registered_bytes",
            "Bytes of registered chunks, without repetitions.",
            tallied.stored_bytes + rows.stored_bytes,
        )
        yield CounterMetricFamily(
            "snowmelt_channels_opened",
            "Channels opened or reopened.",
            self._sources.get_opened_channels(),
        )
        yield _make_labeled(
            CounterMetricFamily(
                "snowmelt_http_requests",
                "HTTP responses by port, route and status.",
                labels=["port", "route", "status"],
            ),
            (
                ([port, route, str(status)], count)
                for port, requests in self._sources.requests_by_port.items()
                for (route, status), count in sorted(requests.snapshot().items())
            ),
        )
        for select in self._sources.select_count_getters:
            running, finished, scanned_bytes = select()
            yield GaugeMetricFamily("snowmelt_selects_running", "Running SELECTs.", running)
            yield CounterMetricFamily("snowmelt_selects", "Finished SELECTs.", finished)
            yield CounterMetricFamily(
                "snowmelt_select_scanned_bytes", "Bytes scanned by finished SELECTs.", scanned_bytes
            )
        yield GaugeMetricFamily(
            "snowmelt_catalog_answered",
            "1 if the catalog responded in time for this page, else 0.",
            int(self._catalog_metrics is not None),
        )
        if self._catalog_metrics is not None:
            yield from _make_backlog_metrics(self._catalog_metrics)
            yield from _make_migration_metrics(self._catalog_metrics.migrations)
            yield from _make_publication_metrics(self._catalog_metrics)
            yield from _make_replication_metrics(self._catalog_metrics.replication)
            yield _make_late_metric(self._catalog_metrics)
            if self._catalog_metrics.last_backup is not None:
                yield _make_backup_metric(
                    self._catalog_metrics.last_backup, self._catalog_metrics.read_at
                )
            if self._with_table_labels:
                yield from _make_table_metrics(self._catalog_metrics)
                yield from _make_freshness_metrics(self._catalog_metrics)


def _make_backup_metric(last: LastBackup, at: dt.datetime) -> Metric:
    return GaugeMetricFamily(
        "snowmelt_backup_age_seconds",
        "Seconds since the last completed backup. Absent if there was none.",
        value=max((at - last.ended_at).total_seconds(), 0.0),
    )


def _make_replication_metrics(lag: ReplicationLag | None) -> Iterator[Metric]:
    if lag is None:
        return
    yield _make_labeled(
        GaugeMetricFamily(
            "snowmelt_replication_primary",
            "1 if this site is the primary of its failover group, else 0.",
            labels=["group", "role"],
        ),
        [([lag.group, lag.role], int(lag.role is SiteRole.PRIMARY))],
    )
    if lag.behind_s is not None:
        yield _make_labeled(
            GaugeMetricFamily(
                "snowmelt_replication_behind_seconds",
                "Age of the state that this secondary has.",
                labels=["group"],
            ),
            [([lag.group], lag.behind_s)],
        )
    if lag.silent_s is not None:
        yield _make_labeled(
            GaugeMetricFamily(
                "snowmelt_replication_silent_seconds",
                "Seconds since the last request of the follower that has been silent the longest.",
                labels=["group"],
            ),
            [([lag.group], lag.silent_s)],
        )


def _make_registration_metrics(counts: RequestMetrics[int]) -> Iterator[Metric]:
    yield _make_labeled(
        CounterMetricFamily(
            "snowmelt_registrations",
            "Registration results by status code, one for each channel of a chunk.",
            labels=["code"],
        ),
        (([str(code)], count) for code, count in sorted(counts.counts_by_code.items())),
    )
    yield _make_latency_histogram(
        "snowmelt_registration_seconds",
        "Latency of registrations.",
        counts,
    )
    yield GaugeMetricFamily(
        "snowmelt_registrations_waiting",
        "Pending registrations.",
        counts.pending_requests,
    )


def _make_row_metrics(counts: RequestMetrics[str]) -> Iterator[Metric]:
    yield _make_labeled(
        CounterMetricFamily(
            "snowmelt_row_requests",
            "Row API responses to appends by code; OK means committed.",
            labels=["code"],
        ),
        (([code], count) for code, count in sorted(counts.counts_by_code.items())),
    )
    yield CounterMetricFamily(
        "snowmelt_row_api_rows", "Registered rows of the row API.", counts.rows
    )
    yield CounterMetricFamily(
        "snowmelt_row_api_bytes", "Bytes of registered chunks of the row API.", counts.stored_bytes
    )
    yield CounterMetricFamily(
        "snowmelt_row_api_refused", "Rejected rows of committed appends.", counts.rejected_rows
    )
    yield _make_latency_histogram(
        "snowmelt_row_request_seconds", "Latency of appends of the row API.", counts
    )


def _make_latency_histogram(
    name: str, help_text: str, counts: RequestMetrics[int] | RequestMetrics[str]
) -> Metric:
    bounds = (*map(str, LATENCY_BUCKETS_S), "+Inf")
    totals = map(float, accumulate(counts.latency_buckets))
    family = HistogramMetricFamily(name, help_text)
    family.add_metric([], list(zip(bounds, totals, strict=True)), counts.total_latency_s)
    return family


def _make_backlog_metrics(catalog_metrics: CatalogMetrics) -> Iterable[Metric]:
    tables = catalog_metrics.backlogs
    oldest = min((table.oldest_registered_at for table in tables), default=catalog_metrics.read_at)
    for name, help_text, value in (
        ("tables", "Tables with unmigrated chunks.", len(tables)),
        ("chunks", "Unmigrated chunks.", sum(t.chunks for t in tables)),
        ("bytes", "Bytes of unmigrated chunks.", sum(t.bytes for t in tables)),
        (
            "oldest_seconds",
            "Age of the oldest unmigrated chunk, 0 if there is none.",
            _compute_age_s(catalog_metrics, oldest),
        ),
    ):
        yield GaugeMetricFamily(f"snowmelt_backlog_{name}", help_text, value)


def _make_table_metrics(catalog_metrics: CatalogMetrics) -> Iterator[Metric]:
    tables = catalog_metrics.backlogs[:MAX_LABELED_TABLES]
    ages = [_compute_age_s(catalog_metrics, table.oldest_registered_at) for table in tables]
    for name, values in (
        ("chunks", [table.chunks for table in tables]),
        ("bytes", [table.bytes for table in tables]),
        ("oldest_seconds", ages),
    ):
        yield _make_labeled(
            GaugeMetricFamily(
                f"snowmelt_table_backlog_{name}",
                f"Backlog ({name}) of the tables with the largest backlog.",
                labels=["table"],
            ),
            (([str(table.name)], value) for table, value in zip(tables, values, strict=True)),
        )


def _make_late_metric(catalog_metrics: CatalogMetrics) -> Metric:
    late = [
        each for each in catalog_metrics.expected_tables if each.late_at < catalog_metrics.read_at
    ]
    return GaugeMetricFamily(
        "snowmelt_late_tables",
        "Tables without a commit for longer than their FRESHNESS.",
        len(late),
    )


def _make_freshness_metrics(catalog_metrics: CatalogMetrics) -> Iterator[Metric]:
    tables = sorted(catalog_metrics.expected_tables, key=lambda each: each.late_at)
    for name, help_text, get_value in (
        (
            "last_commit",
            "Time since the last commit, or the creation, of tables with FRESHNESS.",
            lambda each: _compute_age_s(catalog_metrics, each.last_commit_at or each.created_at),
        ),
        ("freshness", "FRESHNESS of a table.", lambda each: each.freshness_s),
    ):
        yield _make_labeled(
            GaugeMetricFamily(f"snowmelt_table_{name}_seconds", help_text, labels=["table"]),
            (([str(table.name)], get_value(table)) for table in tables[:MAX_LABELED_TABLES]),
        )


def _make_migration_metrics(counts: Sequence[MigrationStateTotals]) -> Iterator[Metric]:
    for name, help_text, attribute in (
        ("migrations", "Migrations in the history, by state.", "runs"),
        ("migration_rows", "Migrated rows, by state of the migration.", "rows"),
        (
            "migration_seconds",
            "Total duration of migrations in the history in seconds, by state.",
            "seconds",
        ),
    ):
        yield _make_labeled(
            GaugeMetricFamily(f"snowmelt_{name}", help_text, labels=["state"]),
            (([count.state], getattr(count, attribute)) for count in counts),
        )


def _make_publication_metrics(catalog_metrics: CatalogMetrics) -> Iterator[Metric]:
    lag = catalog_metrics.publications
    oldest = lag.oldest_unpublished_at
    for name, help_text, value in (
        ("tables", "Tables that engines have loaded within ten minutes.", lag.tables),
        (
            "stalled_tables",
            "Tables whose publication is stalled by a damaged blob.",
            lag.stalled_tables,
        ),
        (
            "oldest_seconds",
            "Age of the oldest chunk that engines cannot see yet, 0 if there is none.",
            0.0 if oldest is None else _compute_age_s(catalog_metrics, oldest),
        ),
    ):
        yield GaugeMetricFamily(f"snowmelt_publications_{name}", help_text, value)


def _compute_age_s(catalog_metrics: CatalogMetrics, timestamp: dt.datetime) -> float:
    # The clock of another machine may be ahead.
    return max((catalog_metrics.read_at - timestamp).total_seconds(), 0.0)


def _make_labeled(
    family: CounterMetricFamily | GaugeMetricFamily, samples: Iterable[tuple[list[str], float]]
) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
