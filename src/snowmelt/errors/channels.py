"""Channels and the client that holds them."""

from __future__ import annotations

from snowmelt.errors.tree import ConflictError, RemoteError, UserError


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
