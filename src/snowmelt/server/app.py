"""Build a service: all components and the ASGI application."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from snowmelt.catalog.db.database import Database, DatabaseServerClock, open_and_upgrade_database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.encryption_keys import KeyRing, open_or_create_keyring
from snowmelt.catalog.views.activity import ActivityMonitor
from snowmelt.clock import Clock, SystemClock
from snowmelt.config import Settings
from snowmelt.errors import AlreadyExists, NotFound, TransactionConflict
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from snowmelt.ingest.channels import ChannelService
from snowmelt.ingest.decoder_pool import BlobDecoderPool
from snowmelt.ingest.migration_backlog import BackPressure
from snowmelt.ingest.registrar import GroupCommitSettings, Registrar
from snowmelt.ingest.registration_verifier import (
    CatalogCache,
    RegistrationVerifier,
    VerificationDepth,
    VerificationPolicy,
)
from snowmelt.ingest.stage_locations import EndpointStageLocator, FolderStageLocator, StageLocator
from snowmelt.ingest.stage_sync import StageSync
from snowmelt.schema.types import to_internal_name
from snowmelt.server.auth import Authenticator
from snowmelt.server.console.app import Console
from snowmelt.server.console.check_runner import CheckRunner
from snowmelt.server.console.layout import MOUNT_PATH as CONSOLE_PATH
from snowmelt.server.console.pages.checks import list_check_problems
from snowmelt.server.console.request import ConsoleParts
from snowmelt.server.console.site_findings import list_site_problems
from snowmelt.server.console.workers import ConsoleWorkers
from snowmelt.server.error_responses import RouteNotFound, error_response
from snowmelt.server.file_pipe_routes import FilePipeRoutes
from snowmelt.server.iceberg.authentication import EngineAuthenticator
from snowmelt.server.iceberg.commit_process import CommitProcesses
from snowmelt.server.iceberg.routes import MOUNT_PATH, IcebergCatalog
from snowmelt.server.iceberg.table_loader import TableLoader
from snowmelt.server.metrics import MetricSources
from snowmelt.server.middleware import RequestChecks, ServiceMiddleware
from snowmelt.server.monitoring_routes import MetricsEndpoint, make_health_route, read_metrics_token
from snowmelt.server.publisher_process import PublisherSupervisor
from snowmelt.server.query_process import QueryProcesses
from snowmelt.server.replication.routes import ReplicationRoutes
from snowmelt.server.rows.components import RowApiComponents, SharedComponents, build_row_api
from snowmelt.server.rows.in_flight_appends import InFlightAppends
from snowmelt.server.rows.routes import make_row_routes
from snowmelt.server.settings_validation import check_settings, has_remote_clients
from snowmelt.server.statement_routes import StatementRoutes
from snowmelt.server.streaming_routes import StreamingRoutes
from snowmelt.server.sts_stage_locator import choose_tls_upload_locator, make_sts_stage_locator
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.storage.store_factory import open_store
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from starlette.requests import Request


_log = logging.getLogger("snowmelt.server")

DEV_USER = "DEVELOPER"
_THREAD_COUNT = 8
_ICEBERG_THREAD_COUNT = 32


@dataclass(frozen=True, slots=True)
class ServiceComponents:
    """All components of a running service, except its sockets."""

    settings: Settings
    clock: DatabaseServerClock
    database: Database
    keyring: KeyRing
    stage: Store
    channel_service: ChannelService
    decoder_pool: BlobDecoderPool
    registrar: Registrar
    authenticator: Authenticator
    threads: ThreadPoolExecutor
    metric_sources: MetricSources
    back_pressure: BackPressure
    row_api: RowApiComponents
    publisher: PublisherSupervisor
    iceberg: IcebergCatalog
    iceberg_threads: ThreadPoolExecutor
    queries: QueryProcesses
    engine_commits: CommitProcesses
    console: Console | None
    replication: ReplicationRoutes

    @property
    def s3_stage(self) -> Store | None:
        """The stage if clients upload through the S3 endpoint, else None.

        With TLS, the official SDK of the row API uploads through the endpoint even if the stage is
        a folder.
        """
        is_folder = isinstance(self.channel_service.stage_locator, FolderStageLocator)
        return None if is_folder and not self.settings.tls_cert else self.stage

    def close(self) -> None:
        """Finish pending requests, then close threads and connections."""
        if self.console is not None:
            self.console.close()
        self.row_api.close()
        self.channel_service.write_batcher.close()
        self.registrar.close()
        self.decoder_pool.close()
        self.queries.close()
        self.engine_commits.close()
        self.replication.close()
        self.iceberg_threads.shutdown()
        self.threads.shutdown()
        self.database.close()


def build_service(settings: Settings, *, clock: Clock | None = None) -> ServiceComponents:
    """Open or create catalog, keys and stage, and start the registrar.

    Raises:
        ConfigurationError: If the combination of settings is invalid.
        CatalogUnavailable: If the catalog cannot be reached.
    """
    check_settings(settings)
    machine = clock or SystemClock()
    if settings.verify == VerificationDepth.OFF:
        _log.warning(
            "verify=off: chunks commit without verification; never use this with real rows"
        )
    if settings.verify == VerificationDepth.FOOTER:
        _log.warning("verify=footer: chunks commit without decoding their rows")
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    stage = open_store(settings.stage_url)
    database = open_and_upgrade_database(settings.catalog_url, clock=machine)
    clock = DatabaseServerClock(machine)
    database.bind_to_history()
    with database.reading() as connection:
        deployment_id = leases.read_deployment_id(connection)
        clock.synchronize(connection)
    try:
        keyring = open_or_create_keyring(database, settings.keys_dir)
        uploading = _make_upload_locator(settings, keyring, clock)
    except BaseException:
        database.close()
        raise
    known = CatalogCache(database, keyring)
    pressure = BackPressure(
        database,
        clock=clock,
        max_chunks=settings.backlog_max_chunks,
        max_bytes=settings.backlog_max_bytes,
    )
    is_local = isinstance(stage, LocalStore)
    processes = settings.verify_processes if is_local else max(settings.verify_processes, 2)
    decoder_pool = BlobDecoderPool(stage.url, processes)
    verifier = RegistrationVerifier(
        known,
        stage,
        deployment_id=deployment_id,
        policy=VerificationPolicy(
            VerificationDepth(settings.verify), _parse_decoding_exempt_users(settings)
        ),
        back_pressure=pressure if pressure.has_limits else None,
        decode_blobs=decoder_pool.decode,
    )
    pace = GroupCommitSettings(
        pause_s=settings.group_pause_ms / 1000,
        max_group_requests=settings.group_limit,
        max_queued_requests=settings.queue_limit,
        # One more thread than processes, to prepare the next request while all processes are busy.
        verify_threads=max(settings.verify_threads, processes + 1),
    )
    durability = StageSync(stage, verifier, clock)
    registrar = Registrar(database, durability, verifier, clock=clock, settings=pace)
    authenticator = Authenticator(
        database,
        keyring,
        clock,
        anonymous_user=_ensure_dev_user(database, clock) if settings.dev else None,
    )
    handing = _choose_stage_locator(settings, stage, uploading)
    writes = WriteBatcher(database, clock)
    rows = build_row_api(
        SharedComponents(
            settings,
            database,
            writes,
            keyring,
            stage,
            durability,
            pressure,
            authenticator,
            clock,
            *choose_tls_upload_locator(uploading),
        )
    )
    publisher = PublisherSupervisor(database, settings, clock)
    # Loads of tables may wait for a publication and must not block other requests.
    iceberg_threads = ThreadPoolExecutor(_ICEBERG_THREAD_COUNT, thread_name_prefix="iceberg")
    warehouse = open_warehouse(settings.warehouse_url)
    engine_commits = CommitProcesses(settings)
    iceberg = IcebergCatalog(
        database,
        EngineAuthenticator(database, keyring, authenticator, clock),
        TableLoader(database, keyring, settings, clock, warehouse=warehouse, publisher=publisher),
        publisher,
        engine_commits,
        iceberg_threads,
        clock,
    )
    queries = QueryProcesses(settings, clock)
    service_threads = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="serve")
    return ServiceComponents(
        settings=settings,
        clock=clock,
        database=database,
        keyring=keyring,
        stage=stage,
        channel_service=ChannelService(database, writes, keyring, known, handing, clock),
        decoder_pool=decoder_pool,
        registrar=registrar,
        authenticator=authenticator,
        threads=service_threads,
        metric_sources=MetricSources(registrar.get_metrics_snapshot, rows.metrics.snapshot),
        back_pressure=pressure,
        row_api=rows,
        publisher=publisher,
        iceberg=iceberg,
        iceberg_threads=iceberg_threads,
        queries=queries,
        engine_commits=engine_commits,
        console=_build_console(
            ConsoleParts(
                settings=settings,
                clock=clock,
                database=database,
                keyring=keyring,
                stage=stage,
                authenticator=authenticator,
                queries=queries,
                activity=ActivityMonitor(database, clock),
                workers=ConsoleWorkers(settings, authenticator),
                checks=CheckRunner(settings, clock),
                finding_sources=[list_site_problems, list_check_problems],
            )
        ),
        replication=ReplicationRoutes(
            settings, database, stage, warehouse, keyring, clock, service_threads
        ),
    )


def _build_console(parts: ConsoleParts) -> Console | None:
    """Return the console, or None if it is off. "auto" requires loopback or TLS to protect cookies."""
    mode = parts.settings.console
    if mode == "auto":
        is_safe = parts.settings.listens_on_loopback or parts.settings.tls_cert
        mode = "read" if is_safe else "off"
    return None if mode == "off" else Console(parts, is_writable=mode == "write")


def _parse_decoding_exempt_users(settings: Settings) -> frozenset[str]:
    """Return the users of `unverified_users`, and log them."""
    names = frozenset(
        to_internal_name(name.strip())
        for name in settings.unverified_users.split(",")
        if name.strip()
    )
    if names:
        _log.warning(
            "unverified_users: chunks of %s are committed without decoding their rows",
            ", ".join(sorted(names)),
        )
    return names


def _choose_stage_locator(
    settings: Settings, stage: Store, upload_locator: StageLocator
) -> StageLocator:
    """Return the locator of the stage. Only clients on this machine get its folder."""
    if isinstance(stage, LocalStore) and not has_remote_clients(settings):
        return FolderStageLocator(stage.root)
    return upload_locator


def _make_upload_locator(settings: Settings, keyring: KeyRing, clock: Clock) -> StageLocator:
    """Return the locator for uploads, either through the S3 endpoint or directly to the bucket."""
    at_endpoint = EndpointStageLocator(
        keyring,
        clock,
        settings.stage_credentials_s,
        endpoint=settings.stage_endpoint.rstrip("/"),
        scheme="https" if settings.tls_cert else "http",
        host=settings.host,
        port=settings.s3_port,
        region=settings.s3_region,
    )
    return make_sts_stage_locator(settings, at_endpoint) if settings.stage_role else at_endpoint


def create_app(service: ServiceComponents) -> ServiceMiddleware:
    """Return the ASGI application of a service."""
    streaming = StreamingRoutes(service.channel_service, service.registrar, service.threads)
    statements = StatementRoutes(
        service.database,
        service.settings,
        service.clock,
        service.threads,
        service.queries,
        service.keyring,
    )
    checks = RequestChecks(
        authenticator=service.authenticator,
        threads=service.threads,
        max_body_bytes=service.settings.max_body_bytes,
        loopback_only=service.settings.listens_on_loopback,
        public_hosts=service.settings.public_host_names,
    )
    taking = InFlightAppends(service.row_api)
    app = Starlette(
        routes=[
            make_health_route(service.database, service.stage, service.threads),
            *make_row_routes(service.row_api, taking),
            FilePipeRoutes(
                service.database, service.authenticator, service.clock, service.threads
            ).make_route(),
            Mount(MOUNT_PATH, app=service.iceberg),
            *_make_console_routes(service.console),
            _make_metrics_endpoint(service).make_route(),
        ],
        exception_handlers={HTTPStatus.NOT_FOUND: _handle_not_found},
    )
    front = ServiceMiddleware(
        app,
        post_routes=streaming.make_post_routes()
        | statements.make_post_routes()
        | service.replication.make_post_routes(),
        checks=checks,
        find_app_handler=taking.find_immediate_append,
    )
    service.metric_sources.get_opened_channels = lambda: streaming.channels_opened
    service.metric_sources.requests_by_port["streaming"] = front.request_counts
    return front


def _make_metrics_endpoint(service: ServiceComponents) -> MetricsEndpoint:
    token = read_metrics_token(service.settings.metrics_token_file)
    return MetricsEndpoint(
        service.metric_sources,
        service.database,
        clock=service.clock,
        threads=service.threads,
        token=token,
        # Require a token, because metrics contain names of tables.
        with_table_labels=token is not None or service.settings.listens_on_loopback,
    )


def _make_console_routes(console: Console | None) -> list[BaseRoute]:
    if console is None:
        return []

    async def redirect(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return RedirectResponse(f"{CONSOLE_PATH}/", HTTPStatus.SEE_OTHER)

    return [Route("/", redirect, methods=["GET"]), Mount(CONSOLE_PATH, app=console)]


async def _handle_not_found(request: Request, error: Exception) -> Response:
    del error
    problem = RouteNotFound(path=request.url.path)
    answer = error_response(problem, path=request.url.path, user=None)
    return Response(answer.body, answer.status, media_type="application/json")


def _ensure_dev_user(database: Database, clock: Clock) -> str:
    """Create the user for requests without a token. It has no key."""
    _log.warning("--dev: requests without a token have all privileges")
    try:
        _create_dev_user(database, clock)
    except (AlreadyExists, TransactionConflict):  # Another service, which starts too, created it.
        _create_dev_user(database, clock)
    return DEV_USER


def _create_dev_user(database: Database, clock: Clock) -> None:
    with database.writing() as connection:
        try:
            access_control.find_user(connection, DEV_USER)
        except NotFound:
            if not failover_groups.is_writable(connection):
                # A secondary has the users of its primary.
                return
            access_control.create_user(
                connection, DEV_USER, default_role=ACCOUNTADMIN, now=clock.now()
            )
            access_control.grant_role(connection, ACCOUNTADMIN, DEV_USER)
