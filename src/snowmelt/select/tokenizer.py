"""Finds records and fields in a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.select import state_machine
from snowmelt.select.tokens import Tokens, tokenize_plainly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.select.csv_rules import CsvRules
    from snowmelt.select.vectors import Bytes


def tokenize(
    data: Bytes, start: int, end: int, rules: CsvRules, places: Sequence[int] | None
) -> Tokens:
    """Find the records in data[start:end] and the fields with these places; None: all."""
    return tokenize_plainly(data, start, end, rules, places)


def first_bad_byte(data: Bytes, start: int, end: int) -> int:
    """Return the place of the first byte that breaks UTF-8, -1 if there is none."""
    try:
        data[start:end].tobytes().decode()
    except UnicodeDecodeError as error:
        return start + error.start
    return -1


class RecordCutter:
    """Finds the end of the last whole record where quotes decide where records end."""

    def __init__(self, rules: CsvRules) -> None:
        self._rules = rules

    def __call__(self, memory: bytearray, start: int, end: int) -> int:
        """Return the place behind the last whole record of [start, end), `start` if none."""
        text = bytes(memoryview(memory)[start:end])
        last = 0
        for record in state_machine.records(text, self._rules):
            if record.closed:
                last = record.next
        return start + last
