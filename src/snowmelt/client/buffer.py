"""Rows of one channel between insert and flush."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.schema.quick import QuickRows

if TYPE_CHECKING:
    import pyarrow as pa

    from snowmelt.schema.quick import QuickForm, Values
    from snowmelt.schema.types import TableSchema

    Part: TypeAlias = pa.Table | list["Stored"] | QuickRows

_ROWS_PER_CLOCK = 64
_LARGE = 64 * 1024

Stored: TypeAlias = tuple[int | float | bool | str | bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """The good rows of one insert call: a table in chunk form, or one row as stored values.

    Without rows it only moves the offset token. `schema` is what one row's values are for.
    """

    part: pa.Table | Stored | None
    rows: int
    size_bytes: int
    start_token: str | None = None
    end_token: str | None = None
    schema: TableSchema | None = None


@dataclass(slots=True)
class Portion:
    """What one flush takes from one channel, in the order of insertion.

    `tokens` are all offset tokens that are committed by it; the last given is `end_token`.
    """

    parts: list[Part] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    start_token: str | None = None
    end_token: str | None = None
    tokens: list[str] = field(default_factory=list)
    first_insert_ms: int = 0
    last_insert_ms: int = 0


class Buffer:
    """Rows that no flush has taken yet; whoever shares it holds a lock.

    `token` is the offset token last known for the channel: a call without one leaves it.
    """

    def __init__(self, token: str | None) -> None:
        self._portion = Portion(end_token=token)

    @property
    def rows(self) -> int:
        """Rows held."""
        return self._portion.rows

    @property
    def size_bytes(self) -> int:
        """Estimated bytes held."""
        return self._portion.size_bytes

    @property
    def first_insert_ms(self) -> int:
        """When the first of its rows was inserted, ms since 1970."""
        return self._portion.first_insert_ms

    def add(self, batch: Batch, at_ms: int) -> None:
        """Append a batch and move the offset token.

        The token of a batch without rows waits for the next row (specification of v1, §7.4).
        """
        portion = self._portion
        if portion.rows == 0:
            portion.start_token = batch.start_token
            portion.first_insert_ms = at_ms
        if batch.end_token is not None:
            portion.end_token = batch.end_token
            portion.tokens.append(batch.end_token)
        if batch.rows == 0:
            return
        portion.last_insert_ms = at_ms
        portion.rows += batch.rows
        portion.size_bytes += batch.size_bytes
        parts = portion.parts
        if not isinstance(batch.part, tuple):
            parts.append(batch.part)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(batch.part)
        else:
            parts.append([batch.part])

    def add_quick(
        self, form: QuickForm, values: Values, size_bytes: int, token: str | None
    ) -> bool:
        """Append a row that was only checked; return whether to look at clock and limits.

        That is with the first row, with some of the next, and with large ones: it costs as much
        as the rest.
        """
        portion = self._portion
        parts = portion.parts
        last = parts[-1] if parts else None
        if type(last) is not QuickRows or last.form is not form:
            last = QuickRows(form)
            parts.append(last)
        last.rows.append(values)
        if portion.rows == 0:
            portion.start_token = token
        if token is not None:
            portion.end_token = token
            portion.tokens.append(token)
        portion.size_bytes += size_bytes
        portion.rows += 1
        return portion.rows % _ROWS_PER_CLOCK == 1 or size_bytes > _LARGE

    def note_time(self, at_ms: int) -> None:
        """Note when the last row came."""
        portion = self._portion
        if portion.rows == 1:
            portion.first_insert_ms = at_ms
        portion.last_insert_ms = at_ms

    def brings(self, token: str) -> bool:
        """Tell whether the next portion commits this offset token."""
        return token in self._portion.tokens

    def parts(self) -> list[Part]:
        """Return what is held, to be changed in place."""
        return self._portion.parts

    def take(self) -> Portion:
        """Return what is held, and hold nothing."""
        taken = self._portion
        self._portion = Portion(end_token=taken.end_token)
        return taken
