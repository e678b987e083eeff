"""Whose rules decide where a value has no one obvious meaning (Streaming v1, §5.4)."""

from __future__ import annotations

from enum import StrEnum
from zoneinfo import ZoneInfo

from snowmelt.schema.timestamp_text import TextForms

DEFAULT_ZONE = "UTC"
"""Zone of timestamps that name none, wherever no session, channel or setting names another."""


class Compatibility(StrEnum):
    """How ambiguous values are read.

    SNOWFLAKE does what Snowflake's classic Java client does with the same value, quirks included.
    STRICT reads dates and times by Snowflake's automatic detection, never moves a TIMESTAMP_NTZ,
    and rejects what it would have to guess. COPY is STRICT with Vertica's dates and times. SDK_ROWS is
    STRICT for rows of the official SDK, which writes bytes as text, and rejects text that may be bytes.
    """

    SNOWFLAKE = "snowflake"
    STRICT = "strict"
    SDK_ROWS = "sdk_rows"
    COPY = "copy"

    @property
    def default_zone(self) -> ZoneInfo:
        """The zone of timestamps that name none, if the channel sets no other."""
        # The Java client has its zone built in; it is no setting of a session.
        return ZoneInfo("America/Los_Angeles" if self is Compatibility.SNOWFLAKE else DEFAULT_ZONE)

    @property
    def text_forms(self) -> TextForms:
        """Which texts are dates and times."""
        return _TEXT_FORMS[self]

    @property
    def is_java(self) -> bool:
        """Whether the Java client's quirks are kept."""
        return self is Compatibility.SNOWFLAKE


_TEXT_FORMS = {
    Compatibility.SNOWFLAKE: TextForms.JAVA,
    Compatibility.STRICT: TextForms.AUTO,
    Compatibility.SDK_ROWS: TextForms.AUTO,
    Compatibility.COPY: TextForms.VERTICA,
}
