"""Rows of one channel between insert and flush."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.client.status import Counts
from snowmelt.schema.later import LaterRows
from snowmelt.schema.quick import QuickRows

if TYPE_CHECKING:
    import pyarrow as pa

    from snowmelt.schema.quick import QuickForm, Values
    from snowmelt.schema.types import TableSchema

    Part: TypeAlias = pa.Table | list["Stored"] | QuickRows | LaterRows

# After so many rows, or with one of so many bytes, clock and limits are looked at.
_ROWS_PER_LOOK = 256
LARGE = 16 * 1024

Stored: TypeAlias = tuple[int | float | bool | str | bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """The good rows of one insert call: in chunk form, now or later, or one row as stored values.

    Without rows it only moves the offset token. `schema` is what one row's values are for.
    """

    part: pa.Table | LaterRows | Stored | None
    rows: int
    size_bytes: int
    start_token: str | None = None
    end_token: str | None = None
    schema: TableSchema | None = None


@dataclass(slots=True)
class Portion:
    """What one flush takes from one channel, in the order of insertion.

    `tokens` are all offset tokens that are committed by it; the last given is `end_token`. One
    that `goes_alone` is sent even if it has no rows, for its token.
    """

    parts: list[Part] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    start_token: str | None = None
    end_token: str | None = None
    tokens: list[str] = field(default_factory=list)
    first_insert_ms: int = 0
    last_insert_ms: int = 0
    goes_alone: bool = False


class Buffer:
    """Rows that no flush has taken yet; whoever shares it holds a lock.

    `token` is the offset token last known for the channel: a call without one leaves it. What comes in is
    added to `counts`.

    Rows that were only checked are kept in `run` and counted later, many at a time. While it is
    there, and has fewer than `look_at` items, whoever holds the lock may put rows of its form
    there, which else are for `add_quick`.
    """

    __slots__ = ("_counted", "_counts", "_portion", "look_at", "run")

    def __init__(self, token: str | None, counts: Counts | None = None) -> None:
        self._portion = Portion(end_token=token)
        self._counts = Counts() if counts is None else counts
        self._counted = 0
        self.run: QuickRows | None = None
        self.look_at = 0

    @property
    def rows(self) -> int:
        """Rows held."""
        return self._settled().rows

    @property
    def is_due(self) -> bool:
        """Whether a flush takes something from here."""
        return self._settled().rows > 0 or self._portion.goes_alone

    @property
    def size_bytes(self) -> int:
        """Estimated bytes held."""
        return self._settled().size_bytes

    @property
    def first_insert_ms(self) -> int:
        """When the first of its rows was inserted, ms since 1970."""
        return self._portion.first_insert_ms

    def add(self, batch: Batch, at_ms: int) -> None:
        """Append a batch and move the offset token.

        The token of a batch without rows waits for the next row (specification of v1, §7.4), or
        for `send`.
        """
        self.rest()
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
        self._count(batch.rows, batch.size_bytes)
        parts = portion.parts
        last = parts[-1] if parts else None
        if isinstance(batch.part, LaterRows) and isinstance(last, LaterRows):
            if last.form is batch.part.form:
                last.extend(batch.part)
            else:
                parts.append(batch.part)
        elif not isinstance(batch.part, tuple):
            parts.append(batch.part)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(batch.part)
        else:
            parts.append([batch.part])

    def send(self, at_ms: int) -> None:
        """Let the next flush commit the offset token, whether a row comes or not."""
        self._portion.goes_alone = True
        self._portion.last_insert_ms = at_ms

    def add_quick(self, form: QuickForm, values: Values, token: str | None, at_ms: int) -> None:
        """Append a row that was only checked, and let those that follow go into `run`."""
        portion = self._settled()
        if self.run is None or self.run.form is not form:
            self.rest()
            self.run = QuickRows(form)
            portion.parts.append(self.run)
        if portion.rows == 0:
            portion.start_token = token
            portion.first_insert_ms = at_ms
        portion.last_insert_ms = at_ms
        self.run.items.extend(values)
        if token is not None:
            self.run.tokens.append(token)
        self._settled()
        self.look_at = len(self.run.items) + _ROWS_PER_LOOK * form.width

    def rest(self) -> None:
        """See that no row goes into `run` before the next look."""
        self._settled()
        self.run = None
        self._counted = 0

    def brings(self, token: str) -> bool:
        """Tell whether the next portion commits this offset token."""
        return token in self._settled().tokens

    def parts(self) -> list[Part]:
        """Return what is held, to be changed in place."""
        self.rest()
        return self._portion.parts

    def take(self) -> Portion:
        """Return what is held, and hold nothing."""
        self.rest()
        taken = self._portion
        self._portion = Portion(end_token=taken.end_token)
        return taken

    def _settled(self) -> Portion:
        """Count what has come into `run` since the last time."""
        portion, run = self._portion, self.run
        if run is None or (rows := run.rows) == self._counted:
            return portion
        self._count(rows - self._counted, run.bytes_from(self._counted))
        self._counted = rows
        if run.tokens:
            portion.end_token = run.tokens[-1]
            portion.tokens += run.tokens
            run.tokens.clear()
        return portion

    def _count(self, rows: int, size_bytes: int) -> None:
        self._portion.rows += rows
        self._portion.size_bytes += size_bytes
        self._counts.inserted_rows += rows
        self._counts.inserted_bytes += size_bytes
