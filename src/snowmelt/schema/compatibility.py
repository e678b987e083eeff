"""Whose habits decide where a value has no one obvious meaning (specification of v1, §5.4)."""

from __future__ import annotations

from enum import StrEnum
from zoneinfo import ZoneInfo


class Compatibility(StrEnum):
    """How naive times, numbers as moments and several JSON values in one text are taken.

    SNOWFLAKE does what the official clients do with the same value. STRICT keeps the clock time
    of a naive TIMESTAMP_NTZ even where the default zone skips it, refuses a text with several
    JSON values, refuses integers as dates and times (`20130428` is no second of 1970), and takes
    clock times without a zone as UTC unless a channel says otherwise.
    """

    SNOWFLAKE = "snowflake"
    STRICT = "strict"

    @property
    def default_zone(self) -> ZoneInfo:
        """The zone of clock times that name none, where the channel sets no other."""
        return ZoneInfo("America/Los_Angeles" if self is Compatibility.SNOWFLAKE else "UTC")
