"""The root of the error tree, and its five branches."""

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
        # A reason may be a sentence of its own.
        super().__init__(text[:-1] if text.endswith("..") and not text.endswith("...") else text)


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
