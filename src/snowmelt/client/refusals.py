"""What a status code of the service means to the caller (specification of v1, §2.7)."""

from __future__ import annotations

from snowmelt import errors
from snowmelt.wire.codes import ResponseCode

TRANSIENT = frozenset({int(ResponseCode.QUEUE_FULL), int(ResponseCode.TRY_AGAIN)})

_ERRORS: dict[int, type[errors.SnowmeltError]] = {
    ResponseCode.TABLE_MISSING: errors.TableNotFound,
    ResponseCode.TOO_MANY_CHANNELS: errors.TooManyChannels,
    ResponseCode.UNSUPPORTED_COLUMN: errors.Unsupported,
    ResponseCode.DATABASE_MISSING: errors.DatabaseNotFound,
    ResponseCode.SCHEMA_MISSING: errors.SchemaNotFound,
    ResponseCode.CHANNEL_GONE: errors.ChannelNotFound,
    ResponseCode.STALE_CLIENT_SEQUENCER: errors.ChannelFenced,
    ResponseCode.CHANNEL_MISSING: errors.ChannelNotFound,
    ResponseCode.REOPEN: errors.ChannelInvalid,
    ResponseCode.ROLE_MISSING: errors.RoleNotGranted,
}

_REASONS: dict[int, str] = {
    ResponseCode.ROW_SEQUENCER_NOT_NEXT: "its rows arrived out of order",
    ResponseCode.SIBLING_REFUSED: "another channel of the same chunk was refused",
    ResponseCode.CHANNEL_GONE: "the channel does not exist any more",
    ResponseCode.CHANNEL_MISSING: "the channel does not exist, or this role may not use it",
    ResponseCode.TABLE_MISSING: "the table does not exist, or this role may not use it",
    ResponseCode.EP_COLUMN_MISSING: "the table has got other columns",
    ResponseCode.REOPEN: "the table has changed, and the channel must be opened again",
}


def error_of(code: int, message: str | None, url: str) -> errors.SnowmeltError:
    """Return the error for a top-level `status_code` that is not 0; the service's words win."""
    text = message or reason_of(code, None)
    kind = _ERRORS.get(code)
    if kind is None:
        return errors.RequestRefused(url=url, reason=f"{text} (code {code})", response_code=code)
    return kind(text, response_code=code)


def reason_of(code: int, message: str | None) -> str:
    """Return why the service refused a channel's rows, with the code."""
    text = message or _REASONS.get(code) or _word(code)
    return f"{text.rstrip('.')} (code {code})"


def _word(code: int) -> str:
    try:
        return ResponseCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "the service refused the rows"
