"""Whatever has rows at positions goes into a channel exactly once: seek, insert, checkpoint.

The position of a row is its offset token. So the channel knows how far the source was read, whatever is
killed; nothing else has to be kept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from snowmelt.errors import BufferFull, ConfigurationError, SourceWentBackwards

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from snowmelt.client.channel import Channel
    from snowmelt.schema.conversion.row_converter import RowError

_log = logging.getLogger(__name__)

Row: TypeAlias = Mapping[str, object]
OnBackwards: TypeAlias = Literal["raise", "skip", "restart"]
# Positions in the order that a reader expects: `b.log:9` before `b.log:10`.
Order: TypeAlias = tuple[tuple[int, int | Decimal, str], ...]

_CHOICES = ("raise", "skip", "restart")
_DIGITS = re.compile(r"(\d+)")
# As `str` writes numbers; more digits behind a point do not make one larger.
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?", re.ASCII)
_TIME = re.compile(r"(?<!\d)(\d\d:\d\d:\d\d)(?:[.,](\d+))?(?!\d)", re.ASCII)
_FRACTION_DIGITS = 18


@runtime_checkable
class Source(Protocol):
    """What `stream` reads; with a method `order(position)` it says how its positions are sorted."""

    def seek(self, token: str | None) -> None:
        """Go on behind a position; None is the beginning.

        Raises:
            SourceWentBackwards: The source ends before it.
        """

    def positions(self) -> Iterator[tuple[str, Row]]:
        """Yield what there is by now: rows with their positions, which rise.

        Raises:
            SourceWentBackwards: The source ends before the position that was sought.
        """


@dataclass(slots=True)
class Streamed:
    """What came of it: rows inserted and refused, rows skipped behind `token`, the last position.

    Where a channel skips batches, all rows of one with a bad row count as refused.
    """

    inserted: int = 0
    refused: int = 0
    skipped: int = 0
    token: str | None = None


class Rows:
    """An iterable of rows, each with a position of its own: a number, a name with numbers, a time.

    Seeking passes over rows: give a part that begins later where that is cheaper.
    """

    def __init__(self, rows: Iterable[Row], position: Callable[[Row], object]) -> None:
        self._rows = rows
        self._position = position
        self._behind: str | None = None
        self._running: Iterator[Row] | None = None

    def seek(self, token: str | None) -> None:
        """Pass over rows up to a position when they are read."""
        if self._running is not None and isinstance(self._rows, Iterator):
            raise ConfigurationError(
                setting="source", reason="an iterator cannot be read again; give a list"
            )
        self._behind, self._running = token, None

    def positions(self) -> Iterator[tuple[str, Row]]:
        """Yield the rows behind the position that was sought."""
        behind = None if self._behind is None else order_of(self._behind)
        passing = behind is not None
        if self._running is None:
            self._running = iter(self._rows)
        last: str | None = None
        for row in self._running:
            last = str(self._position(row))
            # Behind the very row that was committed nothing is passed over: what is smaller there is told.
            if behind is None or not passing or order_of(last) > behind:
                passing = False
                yield last, row
            else:
                passing = last != self._behind
        if behind is not None and passing and last is not None and order_of(last) < behind:
            raise SourceWentBackwards(position=last, committed=self._behind)


class Pump:
    """Moves what a source has into a channel, a batch at a time; for one thread."""

    def __init__(
        self,
        source: Source,
        channel: Channel,
        *,
        batch_rows: int = 1_000,
        on_backwards: OnBackwards = "raise",
        on_refused: Callable[[str, RowError], None] | None = None,
    ) -> None:
        if on_backwards not in _CHOICES:
            reason = f"{on_backwards!r} is none of {', '.join(_CHOICES)}"
            raise ConfigurationError(setting="on_backwards", reason=reason)
        self._source = source
        self._channel = channel
        self._batch_rows = batch_rows
        self._on_backwards = on_backwards
        self._on_refused = on_refused
        self._reading: Iterator[tuple[str, Row]] | None = None
        self._order: Callable[[str], Order] = getattr(source, "order", order_of)
        self.done = Streamed(token=channel.resume())
        self._last = None if self.done.token is None else self._order(self.done.token)
        self._seek(self.done.token)

    def step(self) -> bool:
        """Insert the next batch; False when the source has nothing more by now.

        Raises:
            SourceWentBackwards: It has, and that is the choice.
            InvalidRow: A row was refused, and the channel aborts on errors.
            ChannelInvalid: Rows cannot be committed any more (ChannelFenced: likewise).
        """
        batch: list[tuple[str, Row]] = []
        while len(batch) < self._batch_rows and (each := self._next()) is not None:
            batch.append(each)
        if not batch:
            return False
        self._insert(batch)
        return True

    def finish(self) -> Streamed:
        """Wait until all that was inserted is committed."""
        self._channel.flush()
        return self.done

    def _next(self) -> tuple[str, Row] | None:
        while True:
            if self._reading is None:
                self._reading = self._source.positions()
            try:
                each = next(self._reading, None)
            except SourceWentBackwards as error:
                self._reading = None
                if not self._restarted(error):
                    return None
                continue
            if each is None:
                self._reading = None
                return None
            if self._is_next(each[0]):
                return each

    def _is_next(self, position: str) -> bool:
        key = self._order(position)
        if self._last is not None and key <= self._last:
            if self._on_backwards == "raise":
                raise SourceWentBackwards(position=position, committed=self.done.token)
            if self._on_backwards == "skip":
                self.done.skipped += 1
                return False
        self._last = key
        return True

    def _seek(self, token: str | None) -> None:
        try:
            self._source.seek(token)
        except SourceWentBackwards as error:
            self._restarted(error)

    def _restarted(self, error: SourceWentBackwards) -> bool:
        """Go by the choice: begin anew, or tell that there is nothing to read."""
        if self._on_backwards == "raise":
            raise error
        _log.warning("%s", error)
        if self._on_backwards == "skip":
            return False
        self._last = None
        self._source.seek(None)
        return True

    def _insert(self, batch: list[tuple[str, Row]]) -> None:
        first, last = batch[0][0], batch[-1][0]
        rows = [row for _, row in batch]
        result = None
        while result is None:
            try:
                result = self._channel.insert_rows(rows, last, start_offset_token=first)
            except BufferFull:
                # Nothing was kept; what there is goes first.
                self._channel.wait_for_commit()
        for error in result.errors:
            if self._on_refused is not None:
                self._on_refused(batch[error.row_index][0], error)
        refused = len(result.errors)
        if refused and self._channel.on_error == "skip_batch":
            refused = len(rows)
        self.done.refused += refused
        self.done.inserted += len(rows) - refused
        self.done.token = last


def stream(  # noqa: PLR0913 - all but two have defaults
    source: Source | Iterable[Row],
    channel: Channel,
    *,
    position: Callable[[Row], object] | None = None,
    batch_rows: int = 1_000,
    on_backwards: OnBackwards = "raise",
    on_refused: Callable[[str, RowError], None] | None = None,
    stop: threading.Event | None = None,
) -> Streamed:
    """Read a source into a channel, each row exactly once, and return when all is committed.

    It goes on behind the channel's committed offset token; run it again after any crash.

    Args:
        source: Rows with `positions()` and `seek(token)`, or any iterable of rows with `position`.
        channel: Where to; nobody else should insert into it.
        position: The position of a row of an iterable, such as `lambda row: row["id"]`. Positions
            rise; numbers within them count as numbers.
        batch_rows: How many rows are inserted and checkpointed at a time.
        on_backwards: What to do when the source has smaller positions than are committed: "raise",
            "skip" them, or "restart" with whatever it has.
        on_refused: Called with position and reason of each refused row, if the channel goes on
            after errors.
        stop: Ends it early, in good order.

    Raises:
        SourceWentBackwards: The source has smaller positions than are committed, or ends before.
        InvalidRow: A row was refused, and the channel aborts on errors.
        ChannelFenced: Somebody else has opened the channel.
        ChannelInvalid: Rows cannot be committed any more.
        CommitTimeout: The last rows were not committed in time.
    """
    if not isinstance(source, Source):
        if position is None:
            reason = "an iterable needs position=, which tells where each row is"
            raise ConfigurationError(setting="position", reason=reason)
        source = Rows(source, position)
    pump = Pump(
        source, channel, batch_rows=batch_rows, on_backwards=on_backwards, on_refused=on_refused
    )
    while not (stop is not None and stop.is_set()) and pump.step():
        pass
    return pump.finish()


def order_of(position: str) -> Order:
    """Return what positions are sorted by: numbers and times as such, others part by part."""
    if _NUMBER.fullmatch(position):
        return ((0, Decimal(position), ""),)
    parts = _DIGITS.split(_TIME.sub(_with_fraction, position))
    return tuple(
        (0, int(part), "") if number % 2 else (1, 0, part) for number, part in enumerate(parts)
    )


def _with_fraction(time: re.Match[str]) -> str:
    return f"{time[1]}.{time[2] or '':0<{_FRACTION_DIGITS}}"
