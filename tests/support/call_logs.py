"""A call log in memory."""

from __future__ import annotations

from typing import Any


class InMemoryCallLog:
    """Keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def add_record(self, record: Any) -> None:
        self.records.append(record)
