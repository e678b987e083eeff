"""The database of the catalog."""

from __future__ import annotations

from snowmelt.errors.tree import ConflictError, RemoteError


class CatalogBusy(RemoteError):
    """The catalog has been locked by another transaction for {seconds} s; try again."""

    code = "catalog_busy"
    status = 503
    response_code = 10


class CatalogUnavailable(RemoteError):
    """The catalog does not answer: {reason}."""

    code = "catalog_unavailable"
    status = 503
    response_code = 10


class TransactionConflict(ConflictError):
    """Two transactions of the catalog met and this one was undone; run it again."""

    code = "transaction_conflict"
    status = 503
    response_code = 10
    retryable = True
