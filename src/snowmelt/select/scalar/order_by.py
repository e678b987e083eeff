"""ORDER BY: sort keys that compare across types, and a sorter that retains the output rows.

NULL and MISSING sort last in both directions, unless NULLS FIRST is given. Other values sort in
this order: false, true, numbers by value with NaN last, timestamps by instant, strings by their
bytes, other values by their text. Rows with equal keys keep the order of the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from snowmelt.select.resource_limits import MemoryBudget
from snowmelt.select.sql.ast import OrderKey
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.values import MISSING

SortKey: TypeAlias = tuple[Any, ...]

_NULL_RANK = 9
_ROW_OVERHEAD_BYTES = 240
_PRUNE_SLACK_ROWS = 4096


def make_sort_key(value: object) -> SortKey:
    """Return a tuple that sorts as the value does. Equal values have equal tuples."""
    if value is None or value is MISSING:
        return (_NULL_RANK,)
    if isinstance(value, str):
        return (4, value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bool):
        return (0, value)
    if isinstance(value, int | float | Decimal):
        return (2,) if value != value else (1, value)
    if isinstance(value, Timestamp):
        return (3, value.instant)
    return (5, repr(value))


@dataclass(frozen=True, slots=True)
class SortRow:
    """Retained row. Rows with equal keys sort by their position in the object."""

    keys: tuple[SortKey, ...]
    position: int
    output: bytes

    @property
    def size_bytes(self) -> int:
        """Estimated memory size, in bytes."""
        return len(self.output) + _ROW_OVERHEAD_BYTES * (1 + len(self.keys))


class RowSorter:
    """Sorter for all rows, or for the first `max_rows` of them. `finish` returns them in order."""

    def __init__(
        self, order_keys: Sequence[OrderKey], max_rows: int | None, memory_bytes: int
    ) -> None:
        self._order_keys = tuple(order_keys)
        self._max_rows = max_rows
        self._rows: list[SortRow] = []
        self._budget = MemoryBudget(
            memory_bytes, purpose="ORDER BY", setting_name="select_sort_memory_bytes"
        )

    def add_row(self, keys: tuple[SortKey, ...], position: int, output: bytes) -> None:
        """Add one row.

        Raises:
            SelectError: If the rows exceed the memory limit (OverMaxMemory).
        """
        if self._max_rows == 0:
            return
        row = SortRow(keys, position, output)
        if self._max_rows is not None and self._should_prune(self._max_rows, row):
            self._prune()
        self._rows.append(row)
        self._budget.reserve(row.size_bytes)

    def finish(self) -> list[bytes]:
        """Return the sorted output rows and release them."""
        self._prune()
        rows, self._rows = self._rows, []
        self._budget.release_all()
        return [row.output for row in rows]

    def _should_prune(self, max_rows: int, row: SortRow) -> bool:
        # Sort only if this discards at least `max_rows` rows, or an eighth if the memory is full.
        is_full = not self._budget.has_space(row.size_bytes)
        return len(self._rows) > (
            max_rows + max_rows // 8 if is_full else 2 * max_rows + _PRUNE_SLACK_ROWS
        )

    def _prune(self) -> None:
        self._rows.sort(key=lambda row: row.position)
        for at, order in reversed(list(enumerate(self._order_keys))):
            self._sort_by(at, order)
        if self._max_rows is not None:
            del self._rows[self._max_rows :]
        self._budget.release_all()
        for row in self._rows:
            self._budget.reserve(row.size_bytes)

    def _sort_by(self, key_index: int, order_key: OrderKey) -> None:
        rows = self._rows
        nulls = [row for row in rows if row.keys[key_index][0] == _NULL_RANK]
        if nulls:
            rows = [row for row in rows if row.keys[key_index][0] != _NULL_RANK]
        rows.sort(key=lambda row: row.keys[key_index], reverse=order_key.descending)
        self._rows = nulls + rows if order_key.nulls_first else rows + nulls
