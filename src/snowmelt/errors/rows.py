"""The row API; `wire` is the code that its clients see."""

from __future__ import annotations

from typing import ClassVar

from snowmelt.errors.tree import ConflictError, RemoteError, UserError


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
