"""Statement API: `POST /api/v2/statements`, a subset of Snowflake's SQL API.

A statement runs as the user of the token, with the role in the request. Queries run in processes
with limits (`query_process`). COPY runs in a child process with the permissions of the service, so
only ACCOUNTADMIN may run it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import uuid
from concurrent.futures import Executor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from pathlib import Path

import msgspec

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security.access_control import resolve_effective_role
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.sql.lexer import is_infer_schema
from snowmelt.catalog.statements.executor import execute_statement, is_query
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.config import Settings, copy_environment
from snowmelt.errors import (
    InternalError,
    LoadFailed,
    PrivilegeMissing,
    RequestMalformed,
    SnowmeltError,
    StatementError,
    Unsupported,
)
from snowmelt.load.copy_ast import VALIDATION_COLUMNS, StandardInput, is_file_statement
from snowmelt.load.copy_into_parser import parse_infer_schema
from snowmelt.load.copy_parser import parse_copy
from snowmelt.loaders.file_pipe_check import check_file_copy
from snowmelt.schema.types import to_display_name, to_internal_name
from snowmelt.server.error_responses import ServerResponse
from snowmelt.server.middleware import AuthenticatedRequest, PostRoute
from snowmelt.server.query_process import QueryProcesses
from snowmelt.wire.statements import (
    STATEMENTS_PATH,
    StatementFailure,
    StatementRequest,
    StatementResponse,
    encode_rows,
)
from snowmelt.wire.streaming import decode_message

_log = logging.getLogger("snowmelt.server")
# Error codes of Snowflake's SQL API, for compilation errors and for all other errors.
_COMPILATION_ERROR = ("001003", "42000")
_EXECUTION_ERROR = ("000603", "XX000")
# The limit of Snowflake.
_MAX_STATEMENT_CHARACTERS = 1 << 20
_encoder = msgspec.json.Encoder()


@dataclass(eq=False, slots=True)
class StatementRoutes:
    """Handler of the statement API. Queries and COPY run in processes, others in threads."""

    _database: Database
    _settings: Settings
    _clock: Clock
    _threads: Executor
    _queries: QueryProcesses
    _keyring: KeyRing

    def make_post_routes(self) -> dict[str, PostRoute]:
        """Return the routes by path, without trailing slash."""
        return {STATEMENTS_PATH: PostRoute(self.execute)}

    async def execute(self, call: AuthenticatedRequest) -> ServerResponse:
        """Run the statement of a request.

        Raises:
            RequestMalformed: If the body is not a request of the API.
        """
        request = _decode_request(call.body)
        handle = str(uuid.uuid4())
        try:
            # Parse in a thread, because parsing a long statement takes seconds.
            loop = asyncio.get_running_loop()
            if await loop.run_in_executor(self._threads, is_query, request.statement):
                return ServerResponse(HTTPStatus.OK, await self._run_query(request, call, handle))
            result = await self._run(request, call)
        except Exception as error:  # noqa: BLE001 - any failure has the form of the SQL API
            return _make_failure(error, handle, user=call.user)
        columns = result.columns or ("status",)
        rows = result.rows if result.columns else ((result.message,),)
        metadata, data = encode_rows(columns, rows)
        response = StatementResponse(metadata, data, handle, to_epoch_ms(self._clock.now()))
        return ServerResponse(HTTPStatus.OK, _encoder.encode(response))

    async def _run(self, request: StatementRequest, call: AuthenticatedRequest) -> StatementResult:
        role = call.resolve_internal_role(request.role)
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._threads, is_file_statement, request.statement):
            script = await loop.run_in_executor(
                self._threads, partial(self._write_copy_script, request.statement, call.user, role)
            )
            try:
                return await self._run_copy(script, request)
            finally:
                script.unlink()
        run = partial(
            execute_statement,
            self._database,
            request.statement,
            user=call.user,
            role=role,
            default_database=request.database,
            default_schema=request.schema,
            clock=self._clock,
            open_keyring=lambda: self._keyring,
            check_file_copy=check_file_copy,
            is_role_fixed=call.scope is not None and bool(call.scope.roles),
        )
        return await loop.run_in_executor(self._threads, run)

    async def _run_query(
        self, request: StatementRequest, call: AuthenticatedRequest, handle: str
    ) -> bytes:
        loop = asyncio.get_running_loop()
        role = await loop.run_in_executor(self._threads, self._resolve_role, request, call)
        namespace = (
            () if request.database is None else (request.database, request.schema or "public")
        )
        return await self._queries.run(
            request.statement,
            user=call.user,
            role=role,
            namespace=[to_internal_name(each) for each in namespace],
            handle=handle,
        )

    def _resolve_role(self, request: StatementRequest, call: AuthenticatedRequest) -> str:
        with self._database.reading() as connection:
            return resolve_effective_role(
                connection, call.user, call.resolve_internal_role(request.role)
            )

    def _write_copy_script(self, statement: str, user: str, role: str | None) -> Path:
        """Check a COPY and write it to a file, because arguments of processes are visible to all users."""
        with self._database.reading() as connection:
            effective = resolve_effective_role(connection, user, role)
        if effective != ACCOUNTADMIN:
            raise PrivilegeMissing(
                "The statement reads files with the permissions of the service: over the statement API, only "
                f"role ACCOUNTADMIN may run it, not {to_display_name(effective)}.",
                privilege="ACCOUNTADMIN",
            )
        parsed = (
            parse_infer_schema(statement)[0]
            if is_infer_schema(statement)
            else parse_copy(statement)
        )
        if parsed.local or isinstance(parsed.inputs, StandardInput):
            raise Unsupported(
                what="COPY of the client's files over the statement API",
                instead="send rows with `snowmelt tail`, or name files that the service can read",
            )
        descriptor, name = tempfile.mkstemp(prefix="snowmelt-copy-", suffix=".sql")
        os.close(descriptor)
        script = Path(name)
        script.write_text(statement, encoding="utf-8")
        return script

    async def _run_copy(self, script: Path, request: StatementRequest) -> StatementResult:
        command = ["-m", "snowmelt", "copy", "--file", str(script), "--format", "json", "--quiet"]
        for option, value in (("--database", request.database), ("--schema", request.schema)):
            command += [] if value is None else [option, value]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=copy_environment() | self._settings.to_environment(),
        )
        try:
            output, errors = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            raise
        if process.returncode:
            text = errors.decode("utf-8", "replace").strip()
            raise LoadFailed(text.removeprefix("snowmelt: ") or "COPY failed.", where="", reason="")
        rows = json.loads(output, parse_float=Decimal)
        columns = tuple(rows[0]) if rows else VALIDATION_COLUMNS
        return StatementResult(columns, tuple(tuple(row.values()) for row in rows))


def _decode_request(body: bytes) -> StatementRequest:
    request = decode_message(body, StatementRequest)
    if len(request.statement) > _MAX_STATEMENT_CHARACTERS:
        raise RequestMalformed(
            reason=f"the statement has {len(request.statement):,} characters, and at most "
            f"{_MAX_STATEMENT_CHARACTERS:,} are allowed"
        )
    if request.bindings:
        raise RequestMalformed(reason="bindings are not supported. Write values into the statement")
    return request


def _make_failure(error: Exception, handle: str, *, user: str) -> ServerResponse:
    if not isinstance(error, SnowmeltError):
        _log.error("statement %s of user %s failed", handle, user, exc_info=error)
        error = InternalError("The service failed on this statement. Its log has the reason.")
    is_syntax = isinstance(error, StatementError)
    code, sql_state = _COMPILATION_ERROR if is_syntax else _EXECUTION_ERROR
    failure = StatementFailure(code, str(error), sql_state, handle, error.code)
    if is_syntax:
        failure.reason = str(error.fields.get("reason"))
        line, column = error.fields.get("line"), error.fields.get("column")
        failure.line = line if isinstance(line, int) else None
        failure.column = column if isinstance(column, int) else None
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    if error.retryable:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    elif isinstance(error, InternalError):
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    _log.info("statement %s of user %s failed: %s", handle, user, error)
    return ServerResponse(status, _encoder.encode(failure))
