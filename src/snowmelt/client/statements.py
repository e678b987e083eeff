"""Public class `StatementClient`: runs SQL statements on a service over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import msgspec

from snowmelt.client.auth import OAuth
from snowmelt.client.connection import ServiceConnection
from snowmelt.client.transport import find_response_message
from snowmelt.errors import (
    AuthenticationFailed,
    ServiceUnavailable,
    StatementError,
    StatementFailed,
    UnknownOutcome,
)
from snowmelt.schema.notebook_tables import render_notebook_table
from snowmelt.wire.statements import (
    STATEMENTS_PATH,
    StatementFailure,
    StatementRequest,
    StatementResponse,
    decode_rows,
)

# Maximum wait for a result in seconds. A COPY may take minutes.
_TIMEOUT_S = 3600.0
# Errors of connection attempts, after which the service has not received the statement.
_NOT_SENT_ERRORS = (ConnectionRefusedError, socket.gaierror)


class StatementRows(NamedTuple):
    """Result of a statement. A statement without rows has a single column `status`."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]

    def _repr_html_(self) -> str:
        """Return the rows as a table, for notebooks."""
        return render_notebook_table(self.columns, self.rows, f"Rows: {len(self.rows):,}")


class StatementClient(ServiceConnection):
    """Runs SQL statements on a service, one at a time. Thread-safe.

    Of queries, it runs plain queries of one table only: query engines read the tables.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        private_key: str | bytes | Path | None = None,
        oauth: OAuth | str | Callable[[], str] | None = None,
        role: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """Create a client. Sends no request.

        Args:
            url: URL of the service, such as `http://127.0.0.1:8080`.
            user: User whose public key is stored in the service.
            private_key: RSA key as PEM text, base64 PKCS#8, or the path of a file. Without user and
                key, the client sends no token, which only a service with `--dev` accepts.
            oauth: As for `Client`. Replaces user and key.
            role: Role to act as. None: the user's default role.
            database: Database for names that do not include one.
            schema: Schema for names that do not include one. None: PUBLIC.
            ca_file: File with certificates to trust. None: the certificates of the system.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        self._role, self._database, self._schema = role, database, schema
        super().__init__(
            url,
            user=user,
            private_key=private_key,
            oauth=oauth,
            ca_file=ca_file,
            timeout_s=_TIMEOUT_S,
        )

    def execute(self, statement: str) -> StatementRows:
        """Run one statement and return its result.

        Raises:
            StatementError: If the statement cannot be parsed.
            StatementFailed: If the service rejects the statement. The error has the reason.
            AuthenticationFailed: If the service rejects the token.
            ServiceUnavailable: If the service cannot be reached. The statement did not run.
            UnknownOutcome: If the connection broke before the response. The statement may have run.
        """
        request = StatementRequest(statement, self._database, self._schema, self._role)
        url = self.url
        try:
            status, body = self._transport.post_once(STATEMENTS_PATH, msgspec.json.encode(request))
        except ServiceUnavailable as error:
            if isinstance(error.__cause__, _NOT_SENT_ERRORS):
                raise
            raise _unknown_outcome(url, str(error.fields["reason"])) from error
        if status == HTTPStatus.OK:
            try:
                return StatementRows(
                    *decode_rows(msgspec.json.decode(body, type=StatementResponse))
                )
            except (msgspec.DecodeError, ValueError) as error:
                raise _unknown_outcome(url, f"its response cannot be parsed ({error})") from error
        raise _make_error(url, status, body)


def _make_error(url: str, status: int, body: bytes) -> Exception:
    try:
        failure = msgspec.json.decode(body, type=StatementFailure)
    except msgspec.DecodeError:
        said = find_response_message(body) or ""
        if status == HTTPStatus.UNAUTHORIZED:
            return AuthenticationFailed(said or None, reason=f"HTTP {status}")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _unknown_outcome(url, f"HTTP {status} {said}".rstrip())
        return StatementFailed(reason=said or f"HTTP {status} from {url}", code="http_error")
    if failure.line is not None and failure.column is not None:
        return StatementError(reason=failure.reason, line=failure.line, column=failure.column)
    return StatementFailed(failure.message, reason=failure.message, code=failure.error)


def _unknown_outcome(url: str, reason: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"The outcome of the statement is unknown: {url} did not respond ({reason.rstrip('.')}). "
        "Check with SHOW before you repeat it.",
        reason=reason,
    )
