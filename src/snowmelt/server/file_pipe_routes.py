"""Snowpipe's REST API of a pipe that loads files, and notifications of S3.

`insertFiles`, `insertReport` and `loadHistoryScan` are Snowpipe's; `s3Events` is an addition.

`insertFiles` only records the names; the process in `file_pipe_process` loads the files. Reports
are built from the history of loads and from the files that the pipe could not load.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_plus

import msgspec
import sqlalchemy as sa
from starlette.routing import Route

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.load_history import LoadFileState
from snowmelt.catalog.objects import file_pipes
from snowmelt.catalog.objects.file_pipes import PipeFileEvent
from snowmelt.catalog.objects.tables import (
    PipeRecord,
    find_pipe,
    find_table,
    resolve_pipe_table,
)
from snowmelt.catalog.security.access_control import (
    require_table_privilege,
    resolve_effective_role,
)
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.catalog.sql.pipe_copy import parse_pipe_copy
from snowmelt.clock import Clock
from snowmelt.errors import (
    DatabaseNotFound,
    InternalError,
    PipeNotFound,
    RequestMalformed,
    RoleNotGranted,
    SchemaNotFound,
    SnowmeltError,
    StatementError,
    TableNotFound,
)
from snowmelt.loaders.file_pipe_check import PipeLocation, find_pipe_location
from snowmelt.schema.types import TableName, to_internal_name
from snowmelt.server.auth import Authenticator, Principal
from snowmelt.server.error_responses import (
    MethodNotAllowed,
    RequestTooLarge,
    RouteNotFound,
    ServerResponse,
    UnsupportedMediaType,
    json_response,
)
from snowmelt.server.metrics import ROUTE_SCOPE_KEY
from snowmelt.server.middleware import authenticate, read_body
from snowmelt.server.rows.requests_and_errors import parse_query
from snowmelt.wire.file_pipes import (
    FilePipeError,
    FileReport,
    InsertFilesRequest,
    InsertFilesResponse,
    InsertReportResponse,
    LoadHistoryResponse,
    S3Notification,
)
from snowmelt.wire.streaming import decode_message

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from starlette.types import Receive, Scope, Send

_log = logging.getLogger("snowmelt.server")
_PREFIX = "/v1/data/pipes/"
# Limits of Snowpipe.
_MAX_FILES = 5000
_MAX_PATH_BYTES = 1024
_MAX_EVENTS = 10_000
_REPORT_RANGE = dt.timedelta(minutes=10)
_HISTORY_RANGE = dt.timedelta(days=14)
_MAX_BODY_BYTES = 16 << 20
_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_METHODS = {
    "insertFiles": "POST",
    "s3Events": "POST",
    "insertReport": "GET",
    "loadHistoryScan": "GET",
}
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _PipeRequest:
    pipe_name: str
    verb: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    principal: Principal


@dataclass(frozen=True, slots=True)
class _Pipe:
    record: PipeRecord
    location: PipeLocation
    table_id: int


@dataclass(eq=False, slots=True)
class FilePipeRoutes:
    """ASGI application for `/v1/data/pipes/…`."""

    _database: Database
    _authenticator: Authenticator
    _clock: Clock
    _threads: Executor

    def make_route(self) -> Route:
        """Return the route of the application."""
        return Route(f"{_PREFIX}{{rest:path}}", self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        # Names may contain an encoded slash.
        pipe_name, _, verb = path.removeprefix(_PREFIX).rpartition("/")
        user: str | None = None
        try:
            _check_method(verb, scope["method"], path)
            scope[ROUTE_SCOPE_KEY] = f"{_PREFIX}…/{verb}"
            headers = dict(scope["headers"])
            principal = await authenticate(self._authenticator, self._threads, headers)
            user = principal.user
            body = await read_body(receive, _MAX_BODY_BYTES, RequestTooLarge)
            if body is None:
                return
            request = _PipeRequest(
                unquote(pipe_name),
                verb,
                parse_query(scope["query_string"]),
                headers,
                body,
                principal,
            )
            loop = asyncio.get_running_loop()
            answer = json_response(
                await loop.run_in_executor(self._threads, self._respond, request)
            )
        except Exception as error:  # noqa: BLE001 - no request may end the service
            answer = _error_response(error, path, user)
        await send(answer.make_start_message())
        await send({"type": "http.response.body", "body": answer.body})

    def _respond(self, request: _PipeRequest) -> object:
        if request.verb == "insertFiles":
            return self._insert_files(request, _read_names(request))
        if request.verb == "s3Events":
            return self._insert_files(request, _read_event_urls(request.body))
        with self._database.reading() as connection:
            pipe = _find_pipe(connection, request)
            if request.verb == "insertReport":
                return self._make_report(connection, pipe, request.query)
            return self._scan_history(connection, pipe, request.query)

    def _insert_files(self, request: _PipeRequest, names: Sequence[str]) -> InsertFilesResponse:
        with self._database.writing() as connection:
            pipe = _find_pipe(connection, request)
            paths = {name: pipe.location.find_path(name) for name in names}
            found = {path: name for name, path in paths.items() if path is not None}
            skipped = file_pipes.save_notices(
                connection, pipe.record.pipe_id, found, self._clock.now()
            )
        shows_skipped = request.query.get("showSkippedFiles", "").lower() == "true"
        return InsertFilesResponse(
            "SUCCESS",
            request.query.get("requestId"),
            [name for name, path in paths.items() if path is None] or None,
            [found[path] for path in skipped] if shows_skipped else None,
        )

    def _make_report(
        self, connection: sa.Connection, pipe: _Pipe, query: Mapping[str, str]
    ) -> InsertReportResponse:
        """Return the events after `beginMark`, at most those of the last ten minutes."""
        now = self._clock.now()
        oldest = now - _REPORT_RANGE
        seconds, mark = query.get("recentSeconds"), query.get("beginMark")
        if seconds is not None:
            oldest = max(oldest, now - dt.timedelta(seconds=_read_count("recentSeconds", seconds)))
        start, is_complete = oldest, True
        if mark is not None:
            after = _EPOCH + (_read_count("beginMark", mark) + 1) * _MICROSECOND
            start, is_complete = max(oldest, after), after >= oldest
        events = file_pipes.list_file_events(
            connection, pipe.record, pipe.table_id, start=start, end=now + _MICROSECOND
        )
        shown = events[-_MAX_EVENTS:]
        if shown:
            mark = str((shown[-1].at - _EPOCH) // _MICROSECOND)
        return InsertReportResponse(
            str(pipe.record),
            is_complete and len(shown) == len(events),
            mark,
            [_make_file_report(each, pipe.location) for each in shown],
        )

    def _scan_history(
        self, connection: sa.Connection, pipe: _Pipe, query: Mapping[str, str]
    ) -> LoadHistoryResponse:
        now = self._clock.now()
        start, end = _read_time("startTimeInclusive", query), now
        if start is None:
            raise RequestMalformed(reason="startTimeInclusive is required")
        if "endTimeExclusive" in query:
            end = _read_time("endTimeExclusive", query) or now
        events = file_pipes.list_file_events(
            connection, pipe.record, pipe.table_id, start=max(start, now - _HISTORY_RANGE), end=end
        )
        shown = events[:_MAX_EVENTS]
        return LoadHistoryResponse(
            str(pipe.record),
            len(shown) == len(events),
            _format_time(start),
            _format_time(end),
            _format_time(shown[0].at) if shown else None,
            _format_time(shown[-1].at) if shown else None,
            [_make_file_report(each, pipe.location) for each in shown],
        )


def _check_method(verb: str, method: str, path: str) -> None:
    allowed = _METHODS.get(verb)
    if allowed is None:
        raise RouteNotFound(path=path)
    if method != allowed:
        raise MethodNotAllowed(path=path, allowed=allowed, method=method)


def _find_pipe(connection: sa.Connection, request: _PipeRequest) -> _Pipe:
    """Return the pipe of a request.

    Raises:
        PipeNotFound: If the pipe does not exist, or the role lacks INSERT on its table.
        RequestMalformed: If the pipe accepts streamed rows instead of files.
    """
    try:
        parts = TokenCursor(request.pipe_name).parse_last_name("a pipe", 3, "the name of a pipe")
    except StatementError as error:
        raise RequestMalformed(reason=f"{request.pipe_name[:200]!r}: {error}") from None
    if len(parts.parts) != 3:
        raise RequestMalformed(
            reason=f"{request.pipe_name[:200]!r} is not the full name of a pipe. "
            "Expected database.schema.pipe"
        )
    name = TableName(*parts.parts)
    pipe = find_pipe(connection, name)
    if pipe is None:
        raise PipeNotFound(pipe=name)
    loads_files = file_pipes.find_file_pipe(connection, pipe.pipe_id) is not None
    location = find_pipe_location(pipe.definition, name) if loads_files else None
    target = (
        resolve_pipe_table(parse_pipe_copy(pipe.definition), name)
        if location is None
        else location.table
    )
    scope, user = request.principal.scope, request.principal.user
    try:
        allowed = None if scope is None else scope.resolve_role(None, user)
        role = resolve_effective_role(connection, user, allowed and to_internal_name(allowed))
        table = find_table(connection, target)
        require_table_privilege(connection, role, table, "INSERT")
    except (DatabaseNotFound, SchemaNotFound, TableNotFound, RoleNotGranted):
        raise PipeNotFound(pipe=name) from None
    if location is None:
        raise RequestMalformed(reason=f"pipe {name} accepts streamed rows and does not load files")
    return _Pipe(pipe, location, table.table_id)


def _read_names(request: _PipeRequest) -> Sequence[str]:
    """Return the names of files in a request.

    Raises:
        UnsupportedMediaType: If the content type is neither JSON nor plain text.
        RequestMalformed: If the body or a name is invalid.
    """
    content_type = request.headers.get(b"content-type", b"")
    kind = content_type.partition(b";")[0].strip().lower()
    # Web pages may send plain text without CORS, but no Authorization header.
    if kind == b"text/plain" and b"authorization" in request.headers:
        try:
            lines = request.body.decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise RequestMalformed(reason=f"the body is not UTF-8: {error}") from None
        names = [each.strip() for each in lines if each.strip()]
    elif kind == b"application/json":
        decoded = decode_message(request.body, InsertFilesRequest)
        names = [each.path for each in decoded.files]
    else:
        raise UnsupportedMediaType(content_type=repr(content_type[:200].decode("latin-1")))
    if not 1 <= len(names) <= _MAX_FILES:
        raise RequestMalformed(
            reason=f"expected 1 to {_MAX_FILES} files in a request, got {len(names)}"
        )
    for each in names:
        if not each or "\0" in each or len(each.encode()) > _MAX_PATH_BYTES:
            raise RequestMalformed(
                reason=f"invalid path {each[:80]!r}. Expected 1 to {_MAX_PATH_BYTES} bytes, no NUL"
            )
    return names


def _read_event_urls(body: bytes) -> Sequence[str]:
    """Return the URLs of the objects that a notification reports as created.

    Raises:
        RequestMalformed: If the body is no notification of S3, EventBridge or SNS.
    """
    found = decode_message(body, S3Notification)
    if found.sns_type is not None:
        if found.sns_type != "Notification" or found.sns_message is None:
            raise RequestMalformed(
                reason=f"SNS message of type {found.sns_type[:80]!r} is not supported. Confirm the "
                "subscription at its URL; this service requests no URLs"
            )
        found = decode_message(found.sns_message.encode(), S3Notification)
    urls = [
        f"s3://{each.s3.bucket.name}/{unquote_plus(each.s3.object.key)}"
        for each in found.records
        if each.event_name.removeprefix("s3:").startswith("ObjectCreated:")
    ]
    if found.detail_type == "Object Created" and found.detail is not None:
        urls.append(f"s3://{found.detail.bucket.name}/{found.detail.object.key}")
    if not (found.records or found.test_event or found.detail_type):
        raise RequestMalformed(reason="expected a notification of S3 with Records")
    return urls


def _read_count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise RequestMalformed(reason=f"{name} must be a number, not {text[:80]!r}")
    return int(text)


def _read_time(name: str, query: Mapping[str, str]) -> dt.datetime | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise RequestMalformed(
            reason=f"{name} must be a time such as 2026-01-31T08:00:00Z, not {text[:80]!r}"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _format_time(instant: dt.datetime) -> str:
    return instant.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _make_file_report(event: PipeFileEvent, location: PipeLocation) -> FileReport:
    is_loaded = event.state is not LoadFileState.FAILED
    return FileReport(
        path=event.path.removeprefix(location.folder),
        stage_location=location.folder,
        file_size=event.size,
        time_received=_format_time(event.received_at),
        last_insert_time=_format_time(event.at),
        rows_inserted=event.rows,
        rows_parsed=event.rows + event.rejects,
        errors_seen=event.rejects,
        error_limit=location.reject_limit,
        first_error=event.error if is_loaded else None,
        system_error=None if is_loaded else event.error,
        complete=is_loaded,
        status=event.state.value,
    )


def _error_response(error: Exception, path: str, user: str | None) -> ServerResponse:
    if not isinstance(error, SnowmeltError):
        _log.error("%s failed for user %s", path, user, exc_info=error)
        error = InternalError("The service failed on this request. Its log has the reason.")
    status = HTTPStatus.SERVICE_UNAVAILABLE if error.retryable else error.status
    _log.info("%s answered %d to user %s: %s", path, status, user, error)
    headers = ((b"www-authenticate", b"Bearer"),) if status == HTTPStatus.UNAUTHORIZED else ()
    return ServerResponse(
        status, _encoder.encode(FilePipeError(error.code.upper(), str(error))), headers
    )
