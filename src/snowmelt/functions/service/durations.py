"""Lengths of time as people write them."""

from __future__ import annotations

import datetime as dt
import re

from snowmelt.functions.refusals import DeclarationInvalid

_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(duration: str | float | dt.timedelta) -> float:
    """Return seconds of `"25s"`, `"10m"`, `"12h"`, a number of seconds, or a timedelta.

    Raises:
        DeclarationInvalid: It is none of these, or negative.
    """
    if isinstance(duration, dt.timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, str):
        match = _TEXT.match(duration)
        if match is None:
            raise DeclarationInvalid(reason=f"{duration!r} is no duration; 25s, 10m and 12h are")
        return float(match[1]) * _SECONDS[match[2]]
    if duration < 0:
        raise DeclarationInvalid(reason="a duration is negative")
    return float(duration)
