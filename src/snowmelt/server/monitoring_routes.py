"""Routes for monitoring: `GET /healthz` and `GET /metrics`.

`/healthz` checks the catalog and the stage, which registrations need. `/metrics` returns metrics
for Prometheus.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases
from snowmelt.clock import Clock
from snowmelt.errors import ConfigurationError, SnowmeltError
from snowmelt.server.metrics import (
    CONTENT_TYPE,
    ROUTE_SCOPE_KEY,
    CatalogMetrics,
    MetricSources,
    read_catalog_metrics,
    render_metrics,
)
from snowmelt.storage.store import Store

if TYPE_CHECKING:
    from starlette.requests import Request


HEALTH_PATH = "/healthz"
# An arbitrary path: only the availability of the stage is checked.
_PROBE_PATH = "healthz/probe"


def make_health_route(database: Database, stage: Store, threads: Executor) -> Route:
    """Return the route. Its status is 200 if catalog and stage respond, else 503 with the failed one."""

    def ping_catalog() -> None:
        with database.reading() as connection:
            leases.read_deployment_id(connection)

    def check_parts() -> dict[str, str]:
        return {
            "catalog": _run_check(ping_catalog),
            "stage": _run_check(lambda: stage.head(_PROBE_PATH)),
        }

    async def health(request: Request) -> JSONResponse:
        request.scope[ROUTE_SCOPE_KEY] = HEALTH_PATH
        parts = await asyncio.get_running_loop().run_in_executor(threads, check_parts)
        is_well = all(state == "ok" for state in parts.values())
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "ok" if is_well else "failing", **parts}, status)

    return Route(HEALTH_PATH, health, methods=["GET"])


def _run_check(check: Callable[[], object]) -> str:
    try:
        check()
    except (SnowmeltError, OSError) as error:
        return str(error)
    return "ok"


METRICS_PATH = "/metrics"
# Prometheus has a timeout of 10 s, so other metrics must not wait for the catalog.
_CATALOG_TIMEOUT_S = 3.0


class MetricsEndpoint:
    """Endpoint of the metrics. Concurrent requests share one read of the catalog."""

    def __init__(
        self,
        sources: MetricSources,
        database: Database,
        *,
        clock: Clock,
        threads: Executor,
        token: str | None,
        with_table_labels: bool,
    ) -> None:
        """Create the endpoint. Callers must send `token`. None: no token is required."""
        self._sources = sources
        self._database = database
        self._clock = clock
        self._threads = threads
        self._token = token
        self._with_table_labels = with_table_labels
        self._catalog_read: asyncio.Future[CatalogMetrics] | None = None

    def make_route(self) -> Route:
        """Return the route."""
        return Route(METRICS_PATH, self._handle, methods=["GET"])

    async def _handle(self, request: Request) -> Response:
        request.scope[ROUTE_SCOPE_KEY] = METRICS_PATH
        if not self._is_authorized(request):
            return PlainTextResponse(
                "Authentication failed: present the token of metrics_token_file as a bearer token.\n",
                HTTPStatus.UNAUTHORIZED,
                {"www-authenticate": "Bearer"},
            )
        facts = await self._read_catalog_metrics()
        make = partial(
            render_metrics, self._sources, facts, with_table_labels=self._with_table_labels
        )
        content = await asyncio.get_running_loop().run_in_executor(self._threads, make)
        return Response(content, media_type=None, headers={"content-type": CONTENT_TYPE})

    def _is_authorized(self, request: Request) -> bool:
        if self._token is None:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(), self._token.encode()
        )

    async def _read_catalog_metrics(self) -> CatalogMetrics | None:
        if self._catalog_read is None or self._catalog_read.done():
            loop = asyncio.get_running_loop()
            self._catalog_read = loop.run_in_executor(
                self._threads, read_catalog_metrics, self._database, self._clock.now()
            )
        reading = self._catalog_read
        await asyncio.wait([reading], timeout=_CATALOG_TIMEOUT_S)
        if not reading.done():
            return None
        try:
            return reading.result()
        except SnowmeltError:
            return None


def read_metrics_token(path: str) -> str | None:
    """Return the token in a file, or None if no file is set.

    Raises:
        ConfigurationError: If the file cannot be read, or is empty.
    """
    if not path:
        return None
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            setting="metrics_token_file", reason=f"{path} cannot be read: {error}"
        ) from None
    if not token:
        raise ConfigurationError(setting="metrics_token_file", reason=f"{path} is empty")
    return token
