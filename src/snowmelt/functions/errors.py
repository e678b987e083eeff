"""Errors of external functions, raised by the caller or the service."""

from __future__ import annotations

from snowmelt.errors import ConflictError, RemoteError, UserError


class DeclarationInvalid(UserError):
    """The function cannot be declared: {reason}."""

    code = "declaration_invalid"


class UrlRefused(UserError):
    """The URL {reason}."""

    code = "url_refused"


class IntegrationDisabled(UserError):
    """API integration {integration} is disabled. To enable it: ALTER INTEGRATION {integration} SET ENABLED = TRUE."""

    code = "integration_disabled"
    status = 403


class BatchInvalid(UserError):
    """The batch cannot be read: {reason}."""

    code = "batch_invalid"


class BatchTooLarge(UserError):
    """The {what} is larger than {limit} bytes. Send smaller batches."""

    code = "batch_too_large"
    status = 413


class BatchIdReused(ConflictError):
    """Batch ID was already used with a different body."""

    # 400, not 409, because callers of this protocol handle 400.
    code = "batch_id_reused"
    status = 400


class FunctionNotFound(UserError):
    """This service has no function of that name."""

    code = "function_not_found"
    status = 404


class ResponseInvalid(RemoteError):
    """{reason}."""

    # The decoder does not have the function and the batch. The caller adds both to the message.
    code = "reply_invalid"


class TransportFailed(RemoteError):
    """{host}: {reason}."""

    code = "transport_failed"


class CallTimeout(TransportFailed):
    """{host}: {reason}."""

    code = "timed_out"


class ConnectTimeout(CallTimeout):
    """{host}: {reason}."""

    code = "connect_timed_out"


class ConnectFailed(TransportFailed):
    """{host}: {reason}."""

    code = "connect_failed"


class ConnectionLost(TransportFailed):
    """{host}: {reason}."""

    code = "connection_gone"


class TlsUntrusted(TransportFailed):
    """{host}: {reason}."""

    # Not retryable: a retry does not make a certificate trusted.
    code = "tls_refused"
    retryable = False


class PayloadTooLarge(RemoteError):
    """{reason}."""

    # The caller splits the batch and sends the halves, if it can.
    code = "too_large"
    retryable = False


class SecretMissing(UserError):
    """The secret {reference} cannot be used: {reason}."""

    code = "secret_missing"


class CallFailed(RemoteError):
    """{function}, batch {batch}: {reason} (status {status}, {attempts} attempts, {polls} polls, {seconds:.1f} s{url})."""

    code = "call_failed"


class CircuitOpen(RemoteError):
    """Circuit breaker open for {function} since {since}: {failures} consecutive batches failed, last: {reason}. Next attempt in {seconds:.0f} s."""

    code = "circuit_open"
    status = 503
    retryable = False


class BudgetExceeded(UserError):
    """{function}: the budget {setting} = {limit}{share} does not allow for more {what}."""

    code = "budget_exceeded"


class TranslatorFailed(UserError):
    """{function}: its {which} translator {translator} failed: {reason}."""

    code = "translator_failed"


class PermanentError(UserError):
    """The function rejected this batch permanently. Do not retry."""

    code = "permanent"


class Overloaded(RemoteError):
    """The service is overloaded. Retry later."""

    code = "overloaded"
    status = 429

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
