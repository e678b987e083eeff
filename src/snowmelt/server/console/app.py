"""The console as an ASGI application: checks, login, pages, live regions and JSON."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
import sqlalchemy as sa

from snowmelt.catalog.security.access_control import resolve_effective_role
from snowmelt.catalog.security.encryption_keys import ConsoleToken
from snowmelt.catalog.views.visibility import read_visibility
from snowmelt.errors import (
    AuthenticationFailed,
    InternalError,
    NotFound,
    PrivilegeMissing,
    RequestMalformed,
    SnowmeltError,
)
from snowmelt.schema.types import to_internal_name
from snowmelt.server.console import login
from snowmelt.server.console.assets import find_asset
from snowmelt.server.console.json_api import JSON_PATH, find_view
from snowmelt.server.console.layout import MOUNT_PATH, ConsolePage, href, render_document
from snowmelt.server.console.live import LiveStreams
from snowmelt.server.console.markup import tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.pages.actions import find_action
from snowmelt.server.console.pages.routes import find_route
from snowmelt.server.console.request import ConsoleParts, PageRequest
from snowmelt.server.console.request_guard import (
    SECURITY_HEADERS,
    InvalidFormToken,
    check_origin,
    parse_form,
)
from snowmelt.server.console.sessions import SESSION_S, Session, Sessions
from snowmelt.server.error_responses import RequestTooLarge, RouteNotFound, ServerResponse
from snowmelt.server.metrics import ROUTE_SCOPE_KEY
from snowmelt.server.middleware import read_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger("snowmelt.server")
_audit = logging.getLogger("snowmelt.audit")
_Result = TypeVar("_Result")

_THREAD_COUNT = 2
_PAGE_TIMEOUT_S = 10.0
# Maximum time of the catalog reads for one page.
_READ_TIMEOUT_S = 5.0
_SQLITE_STEPS = 20_000
_MAX_FORM_BYTES = 1 << 20
_HTML_TYPE = b"text/html; charset=utf-8"
_CODES_PATH = f"{JSON_PATH}/login-codes"


class ConsoleTooSlow(SnowmeltError, code="console_too_slow", status=503):
    """The catalog took longer than {seconds:g} s for this page. Narrow the list with a filter, or try again."""


class Console:
    """ASGI application for paths below `/console`. Does not delay other requests."""

    def __init__(self, parts: ConsoleParts, *, is_writable: bool) -> None:
        self.parts = parts
        self._is_writable = is_writable
        self._sessions = Sessions(parts.keyring, parts.clock)
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="console")
        self._streams = LiveStreams(parts.clock)

    def end_streams(self) -> None:
        """End all live pages, so that a stopping service does not wait for them. Thread-safe."""
        self._streams.stop()

    def close(self) -> None:
        """End the child processes, and wait until the current pages are rendered."""
        self.parts.workers.close()
        self.parts.checks.close()
        self._threads.shutdown()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        call = _Call(scope)
        scope[ROUTE_SCOPE_KEY] = MOUNT_PATH
        try:
            if call.path == "/live":
                await self._stream(call, receive, send)
                return
            response = await self._respond(call, receive)
        except Exception as error:  # noqa: BLE001 - no request may end the service
            response = self._make_error_response(call, error)
        if response is None:
            return
        await send(response.make_start_message())
        body = b"" if call.method == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, call: _Call, receive: Receive) -> ServerResponse | None:
        if asset := find_asset(call.path):
            headers = (
                *_security_headers(),
                (b"cache-control", b"public, max-age=31536000, immutable"),
            )
            return ServerResponse(200, asset.content, headers, asset.content_type.encode())
        changes = call.method not in {"GET", "HEAD"}
        check_origin(call.headers, changes=changes and not call.is_json)
        if changes and call.is_json and call.path.startswith(f"{JSON_PATH}/"):
            return await self._handle_command_request(call, receive)
        fields: dict[str, str] = {}
        if changes:
            body = await read_body(receive, _MAX_FORM_BYTES, RequestTooLarge)
            if body is None:
                return None
            fields = parse_form(call.headers, body)
        if call.path == "/login":
            return await self._log_in(call, fields)
        session, is_new = await self._find_session(call)
        if session is None:
            return self._redirect_to_login(call)
        renewed = session.token if is_new else self._sessions.renew(session)
        response = await self._respond_in_session(call, session, fields if changes else None)
        if renewed is not None and not call.has_token and call.path != "/logout":
            extra = self._cookie_header(call, renewed)
            return ServerResponse(
                response.status, response.body, (*response.headers, extra), response.content_type
            )
        return response

    async def _respond_in_session(
        self, call: _Call, session: Session, fields: dict[str, str] | None
    ) -> ServerResponse:
        if fields is not None:
            if not session.accepts_csrf(fields.get("csrf", "")):
                raise InvalidFormToken
            if call.path == "/logout":
                self._sessions.end(session.token)
                _audit.info("console: user %s logged out", session.user)
                return _redirect(href("/login"), self._cookie_header(call, None))
            if call.path == "/role":
                token = self._sessions.switch_role(session, fields.get("role", ""))
                target = login.local_target(call.referring_path)
                return _redirect(target, self._cookie_header(call, token))
            return await self._act(call, session, fields)
        if call.path.startswith(f"{JSON_PATH}/"):
            return await self._run(self._make_json, call, session)
        found = find_route(call.path)
        if found is None:
            if find_action(call.path) is not None:
                return await self._act(call, session, {})
            raise RouteNotFound(path=f"{MOUNT_PATH}{call.path}")
        route, names = found
        page = await self._run(self._show, route.show, names, call.query, session)
        return _page_response(call, page, session, is_live=True)

    async def _act(self, call: _Call, session: Session, fields: dict[str, str]) -> ServerResponse:
        """Run an action: a page that waits for child processes, or changes data."""
        found = find_action(call.path)
        if found is None:
            raise RouteNotFound(path=f"{MOUNT_PATH}{call.path}")
        action, names = found
        if action.changes and fields:
            if not self._is_writable:
                raise PrivilegeMissing(
                    "The console of this service is read-only. Run the statement with `snowmelt"
                    " sql`, or set SNOWMELT_CONSOLE=write.",
                    privilege="write",
                )
            _audit.info(
                "console: user %s as %s: %s %s",
                session.user or "(this machine)",
                session.role,
                call.path,
                json.dumps({name: text for name, text in fields.items() if name != "csrf"}),
            )

        def read(show: Callable[[PageRequest], _Result]) -> Awaitable[_Result]:
            return self._run(self._show, show, names, call.query, session)

        page = await action.run(ActionRequest(self.parts, session, fields, call.query, read))
        # A page that is also a route is updated after its form was sent.
        route = find_route(call.path)
        return _page_response(call, page, session, is_live=route is not None)

    async def _find_session(self, call: _Call) -> tuple[Session | None, bool]:
        """Return the session of a request, and True if the response must set its cookie."""
        if call.has_token:
            return await self._open_token_session(call), False
        return await self._run(self._check_cookie, call.get_cookie())

    def _check_cookie(self, cookie: str) -> tuple[Session | None, bool]:
        with self.parts.database.reading() as connection:
            is_open = login.is_open(self.parts, connection)
            session = self._sessions.check(connection, cookie, is_open=is_open) if cookie else None
            if session is None and is_open:
                token = login.begin_open_session(self._sessions)
                return Session(token, (token.role,)), True
        return session, False

    async def _open_token_session(self, call: _Call) -> Session:
        principal = await self._run(self.parts.authenticator.authenticate_any, call.raw_headers)
        wanted = call.query.get("role")
        scope = principal.scope

        def resolve() -> str:
            allowed = wanted if scope is None else scope.resolve_role(wanted, principal.user)
            name = to_internal_name(allowed) if allowed else None
            with self.parts.database.reading() as connection:
                return resolve_effective_role(connection, principal.user, name)

        role = await self._run(resolve)
        return Session(self._sessions.begin(principal.user, role, ""), (role,))

    async def _handle_command_request(self, call: _Call, receive: Receive) -> ServerResponse | None:
        """Respond to a request with a JSON body, which pages of other origins cannot send."""
        body = await read_body(receive, _MAX_FORM_BYTES, RequestTooLarge)
        if body is None:
            return None
        try:
            given = msgspec.json.decode(body, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise RequestMalformed(
                reason=f"expected a JSON object with text values ({error})"
            ) from None
        call.query.update(given)
        if call.path == _CODES_PATH:
            return await self._issue_code(call)
        session, _ = await self._find_session(call)
        if session is None:
            raise AuthenticationFailed(
                reason="the console needs a user. Give --user and --private-key, or a --profile"
            )
        return await self._run(self._make_json, call, session)

    async def _issue_code(self, call: _Call) -> ServerResponse:
        """Return a login code for `snowmelt console`, which authenticates with a token."""
        if not call.has_token:
            raise AuthenticationFailed(
                reason="a login code requires a key-pair JWT or an access key"
            )
        session = await self._open_token_session(call)
        credential = login.find_credential(
            call.headers["authorization"],
            call.headers.get("x-snowflake-authorization-token-type", "KEYPAIR_JWT"),
        )
        code = self._sessions.issue_code(session.user, session.role, credential)
        _audit.info("console: a login code for user %s as %s", session.user, session.role)
        return _json_response({"code": code, "path": f"{MOUNT_PATH}/login"})

    async def _log_in(self, call: _Call, fields: dict[str, str]) -> ServerResponse:
        target = login.local_target(fields.get("next") or call.query.get("next", ""))
        if call.method != "POST":
            return _page_response(call, login.make_login_page(None, target), None, is_live=False)
        try:
            if fields.get("code"):
                token = self._sessions.redeem_code(fields["code"].strip())
                _audit.info("console: user %s logged in by code as %s", token.user, token.role)
            else:
                log_in = partial(login.log_in_with_key, self.parts, self._sessions)
                token = await self._run(log_in, fields)
        except SnowmeltError as error:
            page = login.make_login_page(str(error), target)
            return _page_response(call, page, None, is_live=False)
        return _redirect(target, self._cookie_header(call, token))

    def _redirect_to_login(self, call: _Call) -> ServerResponse:
        if call.method in {"GET", "HEAD"} and not call.path.startswith(JSON_PATH):
            here = f"{MOUNT_PATH}{call.path}" + (f"?{call.query_text}" if call.query_text else "")
            return _redirect(href("/login", next=here))
        raise AuthenticationFailed(reason="there is no valid session. Log in again")

    async def _stream(self, call: _Call, receive: Receive, send: Send) -> None:
        check_origin(call.headers, changes=False)
        target = call.query.get("page", "")
        path, _, query_text = target.removeprefix(MOUNT_PATH).partition("?")
        found = find_route(path)
        session, _ = await self._find_session(call)
        if session is None:
            raise AuthenticationFailed(reason="there is no valid session. Log in again")
        if found is None:
            raise RouteNotFound(path=target[:200])
        route, names = found
        query = dict(parse_qsl(query_text))
        current = session

        async def make() -> Mapping[str, str]:
            page: ConsolePage = await self._run(self._show, route.show, names, query, current)
            return page.regions

        async def check() -> bool:
            if call.has_token:
                return True
            found_session, is_new = await self._run(self._check_cookie, call.get_cookie())
            return found_session is not None and not is_new

        await self._streams.stream((session.role, target), make, check, receive, send)

    async def _run(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, partial(work, *arguments)
        )
        try:
            return await asyncio.wait_for(running, _PAGE_TIMEOUT_S)
        except TimeoutError:
            raise ConsoleTooSlow(seconds=_PAGE_TIMEOUT_S) from None

    def _show(
        self,
        show: Callable[[PageRequest], _Result],
        names: tuple[str, ...],
        query: Mapping[str, str],
        session: Session,
    ) -> _Result:
        with self._reading() as connection:
            return show(self._make_request(connection, names, query, session))

    def _make_json(self, call: _Call, session: Session) -> ServerResponse:
        view = find_view(call.path.removeprefix(JSON_PATH))
        if view is None:
            raise RouteNotFound(path=f"{MOUNT_PATH}{call.path}")
        with self._reading() as connection:
            return _json_response(view(self._make_request(connection, (), call.query, session)))

    def _make_request(
        self,
        connection: sa.Connection,
        names: tuple[str, ...],
        query: Mapping[str, str],
        session: Session,
    ) -> PageRequest:
        now: dt.datetime = self.parts.clock.now()
        visibility = read_visibility(connection, session.role)
        return PageRequest(self.parts, session, visibility, connection, names, query, now)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """Open a read transaction with a limit of `_READ_TIMEOUT_S`."""
        with (
            self.parts.database.reading() as connection,
            _limiting_time(connection, self.parts.clock.monotonic, _READ_TIMEOUT_S),
        ):
            yield connection

    def _cookie_header(self, call: _Call, token: ConsoleToken | None) -> tuple[bytes, bytes]:
        value, age = ("", 0) if token is None else (self._sessions.seal(token), int(SESSION_S))
        secure = "; Secure" if call.is_secure else ""
        text = (
            f"{call.cookie_name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"
        )
        return b"set-cookie", text.encode()

    def _make_error_response(self, call: _Call, error: Exception) -> ServerResponse:
        if not isinstance(error, SnowmeltError):
            _log.error("console: %s failed", call.path, exc_info=error)
            error = InternalError("The service failed on this page. Its log has the reason.")
        status = HTTPStatus.SERVICE_UNAVAILABLE if error.retryable else HTTPStatus(error.status)
        if isinstance(error, NotFound):
            status = HTTPStatus.NOT_FOUND
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.warning("console: %s returned %d: %s", call.path, status, error)
        if call.path.startswith(JSON_PATH) or call.path == "/live":
            return _json_response({"error": error.code, "message": str(error)}, status)
        hint = None
        if isinstance(error, PrivilegeMissing):
            hint = (
                "Choose another role on the overview, or ask an administrator for the privilege. "
            )
        remedy = tag("p", hint, tag("a", "Back to the overview", href=href("/")))
        failure = tag("p", str(error), class_="error", role="alert")
        page = ConsolePage("The request failed", status.phrase, [failure, remedy], status=status)
        return _page_response(call, page, None, is_live=False)


class _Call:
    """Parsed request: method, headers, path, query and cookies."""

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.raw_headers: dict[bytes, bytes] = dict(scope["headers"])
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        text = raw.decode("latin-1").partition("?")[0].removeprefix(MOUNT_PATH)
        # Keep the percent-encoding, because a name may contain a slash.
        self.path = text or "/"
        self.query_text: str = scope["query_string"].decode("latin-1")
        self.query = dict(parse_qsl(self.query_text))
        forwarded = self.headers.get("x-forwarded-proto", "")
        self.is_secure = scope.get("scheme") == "https" or forwarded == "https"

    @property
    def is_json(self) -> bool:
        """True if the body of the request is JSON."""
        kind: str = self.headers.get("content-type", "")
        return kind.partition(";")[0].strip() == "application/json"

    @property
    def has_token(self) -> bool:
        """True if the request has an Authorization header. Browsers send none."""
        return "authorization" in self.headers

    @property
    def cookie_name(self) -> str:
        """Name of the cookie. Contains the port, because services of a host share cookies."""
        port = self.headers.get("host", "").rpartition(":")[2]
        name = f"snowmelt-console-{port if port.isdigit() else 'default'}"
        return f"__Host-{name}" if self.is_secure else name

    @property
    def referring_path(self) -> str:
        """Path and query of the page from which the form was sent."""
        referrer: str = self.headers.get("referer", "")
        return "/" + referrer.partition("://")[2].partition("/")[2]

    def get_cookie(self) -> str:
        """Return the session cookie, or an empty string if there is none."""
        try:
            cookies = SimpleCookie(self.headers.get("cookie", ""))
        except CookieError:
            return ""
        found = cookies.get(self.cookie_name)
        return "" if found is None else found.value


@contextlib.contextmanager
def _limiting_time(
    connection: sa.Connection, monotonic: Callable[[], float], seconds: float
) -> Iterator[None]:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(seconds * 1000)}"))
        yield
        return
    driver: Any = connection.connection.driver_connection
    until = monotonic() + seconds
    driver.set_progress_handler(lambda: int(monotonic() > until), _SQLITE_STEPS)
    try:
        yield
    except sa.exc.OperationalError as error:
        if "interrupted" in str(error.orig):
            raise ConsoleTooSlow(seconds=seconds) from error
        raise
    finally:
        driver.set_progress_handler(None, 0)


def _security_headers() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


def _page_response(
    call: _Call, page: ConsolePage, session: Session | None, *, is_live: bool
) -> ServerResponse:
    path = call.path + (f"?{urlencode(call.query)}" if call.query else "")
    body = render_document(page, session, is_live=is_live, path=path)
    headers = (*_security_headers(), (b"cache-control", b"no-store"))
    return ServerResponse(page.status, body, headers, _HTML_TYPE)


def _json_response(message: object, status: int = 200) -> ServerResponse:
    headers = (*_security_headers(), (b"cache-control", b"no-store"))
    return ServerResponse(status, json.dumps(message, ensure_ascii=False).encode(), headers)


def _redirect(target: str, *headers: tuple[bytes, bytes]) -> ServerResponse:
    location = (b"location", target.encode("ascii", "ignore"))
    kept = (location, *_security_headers(), (b"cache-control", b"no-store"), *headers)
    return ServerResponse(HTTPStatus.SEE_OTHER, b"", kept, _HTML_TYPE)
