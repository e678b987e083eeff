"""Errors as answers; the only place that decides what of an error a caller may read."""

from __future__ import annotations

import logging

from snowmelt.errors import SnowmeltError
from snowmelt.functions.refusals import Overloaded
from snowmelt.functions.service.messages import Answer
from snowmelt.functions.wire import exact

_LOG = logging.getLogger("snowmelt.functions")


def problem(error: Exception, *, debug: bool = False) -> Answer:
    """Return the answer to what went wrong.

    An exception of the author's code is named by its type alone unless `debug`: its text may hold
    what a row holds.
    """
    if isinstance(error, SnowmeltError):
        retry_after_s = error.retry_after if isinstance(error, Overloaded) else None
        return answer(error.status, error.code, str(error), retry_after_s=retry_after_s)
    _LOG.error("a function failed: %s", type(error).__name__, exc_info=error if debug else None)
    text = f"The function failed with {type(error).__name__}"
    return answer(500, "failed", f"{text}: {error}" if debug else f"{text}.")


def answer(status: int, code: str, message: str, *, retry_after_s: float | None = None) -> Answer:
    """Return an error as JSON."""
    body = exact.write({"error": {"code": code, "message": message}})
    return Answer(status, body, retry_after_s)
