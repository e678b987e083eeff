"""Call log in memory."""

from __future__ import annotations

from typing import Any


class InMemoryCallLog:
    """Call log that stores records in a list."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def add_record(self, record: Any) -> None:
        self.records.append(record)
