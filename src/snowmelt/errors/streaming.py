"""Errors of channels and clients, the row API, blobs and stages.

`wire` is the error code that clients of the row API receive.
"""

from __future__ import annotations

from typing import ClassVar

from snowmelt.errors.base import ConflictError, RemoteError, UserError


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
    """Channel {channel} was opened by another client since, or came back with its table (UNDROP); this opening may no longer write. Whoever is to write opens it and goes on after its committed offset token."""

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


class SourceWentBackwards(UserError):
    """The source went backwards: it is at position {position}, and {committed} is committed. Skip what it has, restart with it, or bring back what is missing."""

    code = "source_went_backwards"


# --- The row API; `wire` is the code that its clients see.


class ContinuationStale(ConflictError):
    """Continuation token {token} of channel {channel} is stale: the channel was opened again since. Open it, and send the rows since its committed offset token."""

    code = "continuation_stale"
    status = 400
    wire: ClassVar[str] = "STALE_CONTINUATION_TOKEN_SEQUENCER"


class ContinuationNotNext(ConflictError):
    """Continuation token {token} of channel {channel} is not the next one. Open the channel again, and send the rows since its committed offset token."""

    code = "continuation_not_next"
    status = 400
    wire: ClassVar[str] = "ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER"


class ChannelGone(UserError):
    """Channel {channel} of {pipe} does not exist, or this role may not use it."""

    code = "channel_gone"
    status = 404
    wire: ClassVar[str] = "ERR_CHANNEL_DOES_NOT_EXIST_OR_IS_NOT_AUTHORIZED"


class PipeNotFound(UserError):
    """Pipe {pipe} does not exist, or this role may not use it."""

    code = "pipe_not_found"
    status = 404
    wire: ClassVar[str] = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"


class BodyUnreadable(UserError):
    """The body cannot be read as {encoding}: {reason}."""

    code = "body_unreadable"
    status = 400
    wire: ClassVar[str] = "ERR_BODY_UNREADABLE"


class BodyTooLarge(UserError):
    """The rows take more than {limit:,} bytes; send them in several requests."""

    code = "body_too_large"
    status = 413
    wire: ClassVar[str] = "ERR_REQUEST_TOO_LARGE"


class RowsBusy(RemoteError):
    """The service takes no more rows now ({reason}); send the same request again in a moment."""

    code = "rows_busy"
    status = 503
    wire: ClassVar[str] = "ERR_SERVICE_BUSY"


class TooManyRequests(RemoteError):
    """Channel {channel} sends more than {limit} requests a second; send this one again in a moment."""

    code = "too_many_requests"
    status = 429
    wire: ClassVar[str] = "ERR_TOO_MANY_REQUESTS"


# --- Blobs and the stage they lie in.


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
    """Sync failed: {reason}. What was written since the last sync may be lost; check the disk."""

    code = "sync_failed"


class BlobCorrupt(RemoteError):
    """Blob {path}, chunk at {offset}: {reason}. It is not what was registered; nothing was read from it."""

    code = "blob_corrupt"
    retryable = False


class ServiceUnavailable(RemoteError):
    """The service at {url} does not answer: {reason}."""

    code = "service_unavailable"
    status = 503
