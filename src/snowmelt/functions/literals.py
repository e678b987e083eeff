"""Constants as SQL text."""

from __future__ import annotations


def quoted(text: str) -> str:
    """Return a string as a literal that reads the same here, in Snowflake and in Spark."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"
