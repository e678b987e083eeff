"""The page of metrics, in Prometheus' text format: plain numbers, named only when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from snowmelt.catalog.jobs.migrations import count_migrations, list_table_backlogs
from snowmelt.ingest.metrics import LATENCY_BUCKETS_S

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.jobs.migrations import MigrationStateTotals, TableBacklog
    from snowmelt.ingest.metrics import RegistrationCounts, RowCounts

# --- Requests by route and status, counted in plain numbers where they are answered.

# Whoever answers may write here what kind of request it was; paths of strangers are no labels.
ROUTE = "snowmelt.route"
OTHER = "other"


class Requests:
    """The requests of one port; counted in its event loop only."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}

    def count(self, route: str, status: int) -> None:
        """Count one answer."""
        key = (route, status)
        self._counts[key] = self._counts.get(key, 0) + 1

    def taken(self) -> dict[tuple[str, int], int]:
        """Return the counts as they are now; from any thread."""
        return self._counts.copy()


class Counted:
    """An ASGI application whose answers are counted by the scope's `ROUTE`."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and count it when its answer begins."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests.count(scope.get(ROUTE, OTHER), int(message["status"]))
            await send(message)

        await self._app(scope, receive, send_counted)


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MOST_TABLES = 20
Selected: TypeAlias = "tuple[int, int, int]"


@dataclass(slots=True)
class Sources:
    """Where the numbers come from; each part of a service adds its own.

    Attributes:
        tally: What the registrar has answered.
        rows: What the row API has.
        channels_opened: How many channels were opened.
        requests: By the name of their port.
        selects: How many run, how many have ended, and the bytes these have scanned.
    """

    tally: Callable[[], RegistrationCounts]
    rows: Callable[[], RowCounts]
    channels_opened: Callable[[], int] = int
    requests: dict[str, Requests] = field(default_factory=dict)
    selects: list[Callable[[], Selected]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """What the catalog says at one moment."""

    at: dt.datetime
    backlogs: Sequence[TableBacklog]
    migrations: Sequence[MigrationStateTotals]


def read_catalog(database: Database, at: dt.datetime) -> CatalogFacts:
    """Read what the page tells of the catalog; takes long where millions of chunks wait."""
    with database.reading() as connection:
        return CatalogFacts(at, list_table_backlogs(connection), count_migrations(connection))


def page(sources: Sources, facts: CatalogFacts | None, *, names_tables: bool) -> bytes:
    """Return the whole page; without `facts` it says that the catalog did not answer."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Page(sources, facts, names_tables=names_tables))
    return generate_latest(registry)


class _Page:
    """Everything of one page but the process."""

    def __init__(self, sources: Sources, facts: CatalogFacts | None, *, names_tables: bool) -> None:
        self._sources = sources
        self._facts = facts
        self._names_tables = names_tables

    def collect(self) -> Iterator[Metric]:
        tallied, rows = self._sources.tally(), self._sources.rows()
        yield from _registrations(tallied)
        yield from _rows(rows)
        yield _counter(
            "snowmelt_registered_rows",
            "Rows registered, each once; of all protocols.",
            tallied.rows + rows.rows,
        )
        yield _counter(
            "snowmelt_registered_bytes",
            "Bytes of the chunks registered, each once.",
            tallied.stored_bytes + rows.stored_bytes,
        )
        yield _counter(
            "snowmelt_channels_opened",
            "Channels opened, again or for the first time.",
            self._sources.channels_opened(),
        )
        yield _requests(self._sources.requests)
        for select in self._sources.selects:
            yield from _selects(*select())
        yield _gauge(
            "snowmelt_catalog_answered",
            "1 when the catalog was read in time for this page, else 0.",
            int(self._facts is not None),
        )
        if self._facts is not None:
            yield from _backlog(self._facts)
            yield from _migrations(self._facts.migrations)
            if self._names_tables:
                yield from _tables(self._facts)


def _registrations(tallied: RegistrationCounts) -> Iterator[Metric]:
    codes = CounterMetricFamily(
        "snowmelt_registrations",
        "Answers to registrations by code of the protocol, one for each channel of a chunk.",
        labels=["code"],
    )
    for code, count in sorted(tallied.counts_by_code.items()):
        codes.add_metric([str(code)], count)
    yield codes
    yield _durations(
        "snowmelt_registration_seconds",
        "Time from a registration's request to its answer.",
        tallied,
    )
    yield _gauge(
        "snowmelt_registrations_waiting",
        "Registrations that are not answered yet.",
        tallied.pending_requests,
    )


def _rows(tallied: RowCounts) -> Iterator[Metric]:
    codes = CounterMetricFamily(
        "snowmelt_row_requests",
        "Requests of rows answered, by code of the row API; OK is committed.",
        labels=["code"],
    )
    for code, count in sorted(tallied.counts_by_code.items()):
        codes.add_metric([code], count)
    yield codes
    yield _counter("snowmelt_row_api_rows", "Rows of the row API registered.", tallied.rows)
    yield _counter("snowmelt_row_api_bytes", "Bytes of their chunks.", tallied.stored_bytes)
    yield _counter(
        "snowmelt_row_api_refused", "Rows refused of requests committed.", tallied.rejected_rows
    )
    yield _durations(
        "snowmelt_row_request_seconds", "Time from a request of rows to its answer.", tallied
    )


def _durations(name: str, about: str, tallied: RegistrationCounts | RowCounts) -> Metric:
    total = 0
    buckets = []
    for bound, count in zip(
        (*map(str, LATENCY_BUCKETS_S), "+Inf"), tallied.latency_buckets, strict=True
    ):
        total += count
        buckets.append((bound, float(total)))
    family = HistogramMetricFamily(name, about)
    family.add_metric([], buckets, tallied.total_latency_s)
    return family


def _requests(ports: dict[str, Requests]) -> Metric:
    family = CounterMetricFamily(
        "snowmelt_http_requests",
        "Requests answered, by port, route and HTTP status.",
        labels=["port", "route", "status"],
    )
    for port, requests in ports.items():
        for (route, status), count in sorted(requests.taken().items()):
            family.add_metric([port, route, str(status)], count)
    return family


def _selects(running: int, ended: int, scanned: int) -> Iterable[Metric]:
    return (
        _gauge("snowmelt_selects_running", "Selects that run.", running),
        _counter("snowmelt_selects", "Selects that have ended.", ended),
        _counter("snowmelt_select_scanned_bytes", "Bytes that ended selects scanned.", scanned),
    )


def _backlog(facts: CatalogFacts) -> Iterable[Metric]:
    tables = facts.backlogs
    oldest = min((table.oldest_registered_at for table in tables), default=facts.at)
    return (
        _gauge("snowmelt_backlog_tables", "Tables with chunks to migrate.", len(tables)),
        _gauge(
            "snowmelt_backlog_chunks",
            "Chunks that are not in native files yet.",
            sum(table.chunks for table in tables),
        ),
        _gauge(
            "snowmelt_backlog_bytes", "Bytes of these chunks.", sum(table.bytes for table in tables)
        ),
        _gauge(
            "snowmelt_backlog_oldest_seconds",
            "Age of the oldest of these chunks, 0 without any.",
            _age_s(facts, oldest),
        ),
    )


def _tables(facts: CatalogFacts) -> Iterable[Metric]:
    chunks = GaugeMetricFamily(
        "snowmelt_table_backlog_chunks", "The same for the tables with most.", labels=["table"]
    )
    size = GaugeMetricFamily(
        "snowmelt_table_backlog_bytes", "The same for the tables with most.", labels=["table"]
    )
    oldest = GaugeMetricFamily(
        "snowmelt_table_backlog_oldest_seconds",
        "The same for the tables with most.",
        labels=["table"],
    )
    for table in facts.backlogs[:MOST_TABLES]:
        name = [str(table.name)]
        chunks.add_metric(name, table.chunks)
        size.add_metric(name, table.bytes)
        oldest.add_metric(name, _age_s(facts, table.oldest_registered_at))
    return chunks, size, oldest


def _migrations(counts: Sequence[MigrationStateTotals]) -> Iterable[Metric]:
    runs = GaugeMetricFamily(
        "snowmelt_migrations", "Migrations in the history, by state.", labels=["state"]
    )
    rows = GaugeMetricFamily(
        "snowmelt_migration_rows", "Rows that these migrations moved.", labels=["state"]
    )
    seconds = GaugeMetricFamily(
        "snowmelt_migration_seconds", "Time that these migrations took.", labels=["state"]
    )
    for count in counts:
        runs.add_metric([count.state], count.runs)
        rows.add_metric([count.state], count.rows)
        seconds.add_metric([count.state], count.seconds)
    return runs, rows, seconds


def _age_s(facts: CatalogFacts, instant: dt.datetime) -> float:
    # Another machine's clock may be ahead.
    return max((facts.at - instant).total_seconds(), 0.0)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)
