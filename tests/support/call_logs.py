"""A call log in memory."""

from __future__ import annotations


class InMemoryCallLog:
    """Keeps records in memory."""

    def __init__(self):
        self.records = []

    def add_record(self, record):
        self.records.append(record)
