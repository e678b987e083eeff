"""Errors of the catalog's database, of names and privileges, and of tables and migration."""

from __future__ import annotations

from snowmelt.errors.base import ConflictError, InternalError, RemoteError, UserError


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


# --- Names that are not there or are taken, and what a role may not do.


class TableNotFound(UserError):
    """Table {table} does not exist, or this role may not use it."""

    code = "table_not_found"
    status = 404
    response_code = 4


class DatabaseNotFound(UserError):
    """Database {database} does not exist, or this role may not use it."""

    code = "database_not_found"
    status = 404
    response_code = 8


class SchemaNotFound(UserError):
    """Schema {schema} does not exist, or this role may not use it."""

    code = "schema_not_found"
    status = 404
    response_code = 9


class ColumnNotFound(UserError):
    """Column {column} does not exist; there are {columns}."""

    code = "column_not_found"
    status = 404


class AlreadyExists(UserError):
    """{kind} {name} exists already."""

    code = "already_exists"
    status = 409


class NotRestorable(UserError):
    """No {kind} {name} can be restored: none of that name was dropped, or the time for which it was kept has passed (DATA_RETENTION_TIME_IN_DAYS)."""

    code = "not_restorable"
    status = 404


class EvolutionRefused(UserError):
    """Table {table} got no new columns: {reason}."""

    code = "evolution_refused"
    status = 409


class NotEmpty(UserError):
    """{kind} {name} still holds {tables} tables; drop them first, or leave RESTRICT out."""

    code = "not_empty"
    status = 409


class NotFound(UserError):
    """{kind} {name} does not exist."""

    code = "not_found"
    status = 404


class RoleNotGranted(UserError):
    """Role {role} is not granted to user {user}."""

    code = "role_not_granted"
    status = 403
    response_code = 37


class PrivilegeMissing(UserError):
    """Role {role} lacks {privilege} on {object}."""

    code = "privilege_missing"
    status = 403
    response_code = 4


class AuthenticationFailed(UserError):
    """The token was not accepted: {reason}."""

    code = "authentication_failed"
    status = 401


class InvalidPublicKey(UserError):
    """The public key cannot be used: {reason}."""

    code = "invalid_public_key"


# --- Tables, reading and migration.


class LeaseLost(ConflictError):
    """Another process has taken over {name}."""

    code = "lease_lost"


class CommitLost(ConflictError):
    """The commit to {table} was lost to another: {reason}."""

    code = "commit_lost"


class PlanExpired(ConflictError):
    """This query of {table} is older than its files are kept; run it again."""

    code = "plan_expired"


class TableInconsistent(InternalError):
    """Table {table} does not add up: {reason}."""

    code = "table_inconsistent"
