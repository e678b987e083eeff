"""Routes of the Iceberg REST catalog under `/iceberg/v1`.

Plain ASGI application, because a framework would change the spelling of the header `ETag`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs, quote, unquote

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import SchemaRecord, TableRecord
from snowmelt.catalog.objects import namespaces
from snowmelt.catalog.objects.engine_requests import KEY_LIFETIME, IdempotencyKeyReused
from snowmelt.catalog.objects.renames_and_evolution import update_engine_properties
from snowmelt.catalog.objects.tables import list_tables
from snowmelt.catalog.security.access_control import VisibleObjects, has_privilege
from snowmelt.clock import Clock
from snowmelt.errors import (
    AuthenticationFailed,
    ConflictError,
    DatabaseNotFound,
    EngineCommitInvalid,
    InternalError,
    LoadFailed,
    PrivilegeMissing,
    RequestMalformed,
    RoleNotGranted,
    SchemaNotFound,
    ServiceBusy,
    SnowmeltError,
    TableNotFound,
    Unsupported,
    UserError,
)
from snowmelt.schema.types import to_internal_name
from snowmelt.server.error_responses import RouteNotFound, ServerResponse
from snowmelt.server.iceberg.authentication import (
    EngineAuthenticator,
    EngineIdentity,
    TokenRequestInvalid,
)
from snowmelt.server.iceberg.commit_process import CommitMessage, CommitProcesses
from snowmelt.server.iceberg.commit_request import (
    CommitNotSupported,
    CommitRequest,
    PropertyChanges,
    parse_commit_request,
)
from snowmelt.server.iceberg.idempotent_requests import IdempotentRequests
from snowmelt.server.iceberg.table_loader import NATIVE_ONLY_SUFFIX, TableAddress, TableLoader
from snowmelt.server.metrics import ROUTE_SCOPE_KEY
from snowmelt.server.middleware import read_body
from snowmelt.server.publisher_process import PublisherSupervisor
from snowmelt.server.streaming_routes import parse_host

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger("snowmelt.server")
MOUNT_PATH = "/iceberg"
_MAX_BODY_BYTES = 1 << 20
_MAX_PAGE_SIZE = 1000
# Separator of namespace levels in paths.
_LEVEL_SEPARATOR = "\x1f"
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
)


class WarehouseNotFound(DatabaseNotFound, code="warehouse_not_found"):
    """Warehouse {database} not found. A warehouse is the name of a database, or <database>@settled."""


class WarehouseMissing(RequestMalformed, code="warehouse_missing"):
    """A warehouse is required: set the option `warehouse` of the catalog to one of {names}."""


class WriteNotSupported(Unsupported, code="iceberg_write_not_supported"):
    """{what} over the Iceberg REST catalog is not supported. Use {instead}."""


class CommitNotStarted(UserError, code="iceberg_commit_not_started", status=429):
    """The commit was not started: {reason}. Repeat it."""


class _ExactName(bytes):
    """Name of a header that uvicorn writes unchanged, and not in lower case."""

    def lower(self) -> _ExactName:
        return self


# Iceberg's Java client recognizes only this spelling, and caches nothing without it.
_ETAG = _ExactName(b"ETag")


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def host(self) -> str:
        """The host name that the engine used to connect to the service."""
        return parse_host(self.headers)

    @property
    def is_clickhouse(self) -> bool:
        """True for ClickHouse, which appends the path to `s3.endpoint` twice (ClickHouse #93283)."""
        return b"clickhouse" in self.headers.get(b"user-agent", b"").lower()


# Method, path segments (`*`: any), and handler of a route.
_Route: TypeAlias = tuple[frozenset[str], tuple[str, ...], "Callable[[_Request], ServerResponse]"]


def _matches(segments: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(segments) == len(pattern) and all(
        wanted in {"*", segment} for segment, wanted in zip(segments, pattern, strict=True)
    )


class IcebergCatalog:
    """ASGI application of the REST catalog. Blocking work runs in `threads`."""

    def __init__(
        self,
        database: Database,
        authenticator: EngineAuthenticator,
        loader: TableLoader,
        publisher: PublisherSupervisor,
        commits: CommitProcesses,
        threads: Executor,
        clock: Clock,
    ) -> None:
        self._database = database
        self._authenticator = authenticator
        self._loader = loader
        self._publisher = publisher
        self._commits = commits
        self._threads = threads
        self._requests = IdempotentRequests(
            database, clock, lambda error: _error_response(error, "")
        )
        table = ("v1", "*", "namespaces", "*", "tables", "*")
        reads = frozenset({"GET", "HEAD"})
        post = frozenset({"POST"})
        self._routes: tuple[_Route, ...] = (
            (reads, ("v1", "config"), self._get_config),
            (post, ("v1", "oauth", "tokens"), self._issue_token),
            (reads, table[:3], self._list_namespaces),
            (reads, table[:4], self._get_namespace),
            (reads, table[:5], self._list_tables),
            (frozenset({"GET"}), table, self._load_table),
            (frozenset({"HEAD"}), table, self._check_table),
            (post, table, self._commit),
            (reads, (*table, "credentials"), self._get_credentials),
            # Metrics of scans and commits are discarded.
            (post, (*table, "metrics"), self._check_table),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        response = await self._respond(scope, receive)
        if response is None:
            return
        headers = response.all_headers()
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Scope, receive: Receive) -> ServerResponse | None:
        try:
            body = await read_body(receive, _MAX_BODY_BYTES, _BodyTooLarge)
            if body is None:
                return None
            request = _parse_request(scope, body)
            handle, label = self._find_handler(request)
            scope[ROUTE_SCOPE_KEY] = f"{MOUNT_PATH}/{label}"
            loop = asyncio.get_running_loop()
            threads = self._commits.threads if handle == self._commit else self._threads
            return await loop.run_in_executor(threads, handle, request)
        except Exception as error:  # noqa: BLE001 - every failure is an Iceberg error
            return _error_response(error, scope["path"])

    def _find_handler(self, request: _Request) -> tuple[Callable[[_Request], ServerResponse], str]:
        """Return the handler of a request, and the route's label in metrics.

        Raises:
            RouteNotFound: If no route matches.
            WriteNotSupported: If the request is a write operation that is not supported.
        """
        for methods, pattern, handler in self._routes:
            if request.method in methods and _matches(request.segments, pattern):
                return handler, "/".join(pattern)
        if request.method in {"POST", "DELETE"} and request.segments[2:3] == ("namespaces",):
            raise WriteNotSupported(
                what="Creating, altering and dropping tables and namespaces",
                instead="use the statements of Snowmelt, for example with `snowmelt sql`",
            )
        raise RouteNotFound(path="/".join((MOUNT_PATH, *request.segments)))

    def _get_config(self, request: _Request) -> ServerResponse:
        # Engines call this first, so start the publisher now.
        self._publisher.request_start()
        identity = self._authenticator.authenticate(request.headers)
        warehouse = request.query.get("warehouse", "")
        if not warehouse:
            names = self._list_databases(identity)
            if len(names) != 1:
                raise WarehouseMissing(names=", ".join(names[:10]) or "the databases of the role")
            warehouse = names[0]
        address = self._find_warehouse(identity, warehouse)
        return _json_response(
            {
                "defaults": {},
                "overrides": {"prefix": quote(address.warehouse, safe="")},
                "endpoints": list(_ENDPOINTS),
                "idempotency-key-lifetime": f"PT{KEY_LIFETIME // dt.timedelta(minutes=1)}M",
            }
        )

    def _issue_token(self, request: _Request) -> ServerResponse:
        issued = self._authenticator.issue_token(request.headers, request.body)
        response = _json_response(issued)
        return ServerResponse(response.status, response.body, ((b"cache-control", b"no-store"),))

    def _list_namespaces(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        address = self._find_warehouse(identity, request.segments[1])
        parent = request.query.get("parent", "")
        if parent:
            # Schemas contain no schemas. With another response, ClickHouse would descend
            # infinitely.
            self._require_schema(identity, address, parent)
            return _json_response({"namespaces": []})
        with self._database.reading() as connection:
            visible = VisibleObjects(connection, identity.role)
            schemas = namespaces.list_schemas(connection, address.database)
        names = [schema.name for schema in schemas if visible.includes_schema(schema)]
        page, following = _cut_page(names, request.query)
        return _json_response({"namespaces": [[name] for name in page], **following})

    def _get_namespace(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        address = self._find_warehouse(identity, request.segments[1])
        schema = self._require_schema(identity, address, request.segments[3])
        if request.method == "HEAD":
            return ServerResponse(HTTPStatus.NO_CONTENT, b"")
        properties = {"owner": schema.owner}
        if schema.comment:
            properties["comment"] = schema.comment
        return _json_response({"namespace": [schema.name], "properties": properties})

    def _list_tables(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        address = self._find_warehouse(identity, request.segments[1])
        schema = self._require_schema(identity, address, request.segments[3])
        with self._database.reading() as connection:
            visible = VisibleObjects(connection, identity.role)
            tables = list_tables(connection, database=address.database, schema=schema.name)
        names = [table.name.table for table in tables if visible.can_select_from(table)]
        page, following = _cut_page(names, request.query)
        identifiers = [{"namespace": [schema.name], "name": name} for name in page]
        return _json_response({"identifiers": identifiers, **following})

    def _load_table(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        address = self._parse_table(identity, request)
        loaded = self._loader.load(identity, address)
        refs_only = request.query.get("snapshots", "all") == "refs"
        etag = loaded.etag if not refs_only else f'{loaded.etag[:-1]}-refs"'
        headers = ((_ETAG, etag.encode()), (b"cache-control", b"private"))
        wanted = request.headers.get(b"if-none-match", b"").decode("latin-1")
        if etag in {each.strip().removeprefix("W/") for each in wanted.split(",")}:
            return ServerResponse(HTTPStatus.NOT_MODIFIED, b"", headers)
        body = self._loader.build_response(
            loaded,
            host=request.host,
            refs_only=refs_only,
            with_endpoint=not request.is_clickhouse,
        )
        return ServerResponse(HTTPStatus.OK, body, headers)

    def _check_table(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        self._loader.find_table(identity, self._parse_table(identity, request))
        return ServerResponse(HTTPStatus.NO_CONTENT, b"")

    def _commit(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        address = self._parse_table(identity, request)
        if address.native_only:
            raise WriteNotSupported(
                what=f"Writing through warehouse {address.warehouse}",
                instead=f"warehouse {address.database}",
            )
        table = self._loader.find_table(identity, address)

        def change(record: Callable[[sa.Connection], bool]) -> None:
            commit = parse_commit_request(request.body, table)
            if isinstance(commit, PropertyChanges):
                self._change_properties(identity, table, commit, record)
            else:
                self._commit_rows(identity, table, commit, request)

        rejected = self._requests.run(
            request.headers, identity.user, table.table_id, request.body, change
        )
        if rejected is not None:
            return rejected
        loaded = self._loader.load_after_commit(identity, address)
        body = self._loader.build_response(loaded, host=request.host, refs_only=False)
        return ServerResponse(HTTPStatus.OK, body, ((b"cache-control", b"no-store"),))

    def _commit_rows(
        self,
        identity: EngineIdentity,
        table: TableRecord,
        commit: CommitRequest,
        request: _Request,
    ) -> None:
        engine = request.headers.get(b"user-agent", b"").decode("latin-1")[:200]
        try:
            self._commits.run(
                CommitMessage(
                    table.table_id,
                    identity.role,
                    f"Iceberg commit by {identity.user} ({engine or 'unknown engine'})",
                    commit.parent_id,
                    dict(commit.snapshots[-1]),
                )
            )
        except ServiceBusy as error:
            # Not 503, which would mean that the outcome is unknown.
            raise CommitNotStarted(reason=error.fields["reason"]) from None

    def _change_properties(
        self,
        identity: EngineIdentity,
        table: TableRecord,
        changes: PropertyChanges,
        record: Callable[[sa.Connection], bool],
    ) -> None:
        with self._database.writing() as connection:
            if not has_privilege(connection, identity.role, "TABLE", table.table_id, "OWNERSHIP"):
                raise PrivilegeMissing(
                    role=identity.role, privilege="OWNERSHIP", object=f"table {table.name}"
                )
            if record(connection):
                update_engine_properties(connection, table, changes.apply)

    def _get_credentials(self, request: _Request) -> ServerResponse:
        identity = self._authenticator.authenticate(request.headers)
        loaded = self._loader.load(identity, self._parse_table(identity, request))
        body = self._loader.build_credentials_response(loaded, host=request.host)
        return ServerResponse(HTTPStatus.OK, body, ((b"cache-control", b"no-store"),))

    def _list_databases(self, identity: EngineIdentity) -> list[str]:
        with self._database.reading() as connection:
            visible = VisibleObjects(connection, identity.role)
            databases = namespaces.list_databases(connection)
        return [each.name for each in databases if visible.includes_database(each)]

    def _find_warehouse(self, identity: EngineIdentity, text: str) -> TableAddress:
        """Return the address of a warehouse's database, with empty schema and table.

        Raises:
            WarehouseNotFound: If the database does not exist or the role lacks privileges on it.
        """
        name = text.removesuffix(NATIVE_ONLY_SUFFIX)
        names = self._list_databases(identity)
        for candidate in (name, to_internal_name(name)):
            if candidate in names:
                return TableAddress(candidate, name != text, "", "")
        raise WarehouseNotFound(database=text[:200])

    def _require_schema(
        self, identity: EngineIdentity, address: TableAddress, namespace: str
    ) -> SchemaRecord:
        levels = namespace.split(_LEVEL_SEPARATOR)
        with self._database.reading() as connection:
            visible = VisibleObjects(connection, identity.role)
            if len(levels) == 1:
                for name in dict.fromkeys((namespace, namespace.upper())):
                    try:
                        schema = namespaces.find_schema(connection, address.database, name)
                    except SchemaNotFound:
                        continue
                    if visible.includes_schema(schema):
                        return schema
        raise SchemaNotFound(schema=".".join(levels)[:200])

    def _parse_table(self, identity: EngineIdentity, request: _Request) -> TableAddress:
        warehouse = self._find_warehouse(identity, request.segments[1])
        schema, table = request.segments[3], request.segments[5]
        if _LEVEL_SEPARATOR in schema:
            # Iceberg's Java client requests metadata tables in this form (`schema.table`,
            # `snapshots`), and expects this error.
            levels = schema.split(_LEVEL_SEPARATOR)
            raise TableNotFound(table=".".join((*levels, table))[:200])
        return TableAddress(warehouse.database, warehouse.native_only, schema, table)


class _BodyTooLarge(UserError, code="iceberg_body_too_large", status=413):
    """The request body is larger than {limit} bytes."""


def _parse_request(scope: Scope, body: bytes) -> _Request:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix(MOUNT_PATH)
    # Split before decoding, because names may contain slashes.
    segments = tuple(unquote(each) for each in path.strip("/").split("/"))
    fields = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = {name: values[-1] for name, values in fields.items()}
    return _Request(scope["method"], segments, query, dict(scope["headers"]), body)


def _json_response(message: object) -> ServerResponse:
    return ServerResponse(HTTPStatus.OK, json.dumps(message).encode())


def _cut_page(
    names: Iterable[str], query: Mapping[str, str]
) -> tuple[Sequence[str], dict[str, str]]:
    """Return a page of sorted names, and the token of the next page or None.

    Raises:
        RequestMalformed: If the page size is invalid.
    """
    after = query.get("pageToken", "")
    remaining = [name for name in sorted(names) if name > after]
    text = query.get("pageSize", "")
    if not text and "pageToken" not in query:
        return remaining, {}
    if text and not (text.isdigit() and int(text) > 0):
        raise RequestMalformed(reason=f"pageSize is {text[:20]!r}, expected a positive integer")
    size = min(int(text or _MAX_PAGE_SIZE), _MAX_PAGE_SIZE)
    page = remaining[:size]
    return page, {"next-page-token": page[-1]} if len(remaining) > size else {}


# Clients distinguish errors by status, and errors with status 404 by type.
_ERROR_TYPES: tuple[tuple[type[SnowmeltError], int, str], ...] = (
    (AuthenticationFailed, HTTPStatus.UNAUTHORIZED, "NotAuthorizedException"),
    (RoleNotGranted, HTTPStatus.FORBIDDEN, "ForbiddenException"),
    (WarehouseNotFound, HTTPStatus.NOT_FOUND, "NoSuchWarehouseException"),
    (DatabaseNotFound, HTTPStatus.NOT_FOUND, "NoSuchNamespaceException"),
    (SchemaNotFound, HTTPStatus.NOT_FOUND, "NoSuchNamespaceException"),
    (TableNotFound, HTTPStatus.NOT_FOUND, "NoSuchTableException"),
    (RouteNotFound, HTTPStatus.NOT_FOUND, "NoSuchEndpointException"),
    (WriteNotSupported, HTTPStatus.NOT_ACCEPTABLE, "UnsupportedOperationException"),
    (CommitNotSupported, HTTPStatus.NOT_ACCEPTABLE, "UnsupportedOperationException"),
    (ConflictError, HTTPStatus.CONFLICT, "CommitFailedException"),
    (PrivilegeMissing, HTTPStatus.FORBIDDEN, "ForbiddenException"),
    (EngineCommitInvalid, HTTPStatus.BAD_REQUEST, "BadRequestException"),
    (LoadFailed, HTTPStatus.BAD_REQUEST, "BadRequestException"),
    (RequestMalformed, HTTPStatus.BAD_REQUEST, "BadRequestException"),
    (IdempotencyKeyReused, HTTPStatus.UNPROCESSABLE_ENTITY, "UnprocessableEntityException"),
)


def _error_response(error: Exception, path: str) -> ServerResponse:
    if isinstance(error, TokenRequestInvalid):
        is_client_unknown = error.oauth_error in {"invalid_client", "invalid_grant"}
        oauth_status = HTTPStatus.UNAUTHORIZED if is_client_unknown else HTTPStatus.BAD_REQUEST
        oauth_message = {"error": error.oauth_error, "error_description": str(error)}
        return ServerResponse(oauth_status, json.dumps(oauth_message).encode())
    if not isinstance(error, SnowmeltError):
        _log.error("%s failed", path, exc_info=error)
        error = InternalError("The service failed on this request. Its log has the reason.")
    status, kind = error.status, "ServiceFailureException"
    for known, known_status, name in _ERROR_TYPES:
        if isinstance(error, known):
            status, kind = known_status, name
            break
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        kind, headers = "ServiceUnavailableException", ((b"retry-after", b"1"),)
    elif status == HTTPStatus.UNAUTHORIZED:
        headers = ((b"www-authenticate", b"Bearer"),)
    message = {"error": {"message": str(error), "type": kind, "code": status}}
    return ServerResponse(status, json.dumps(message).encode(), headers)
