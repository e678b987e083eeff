"""Sources with positions into a channel, each row exactly once.

The position of a row is its offset token. The channel therefore stores how far the source was read,
whichever process is killed, and no other state is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from snowmelt.errors import BufferFull, ConfigurationError, SourceWentBackwards

if TYPE_CHECKING:
    import threading

    from snowmelt.client.channel import Channel
    from snowmelt.schema.conversion.row_converter import RowError

_log = logging.getLogger(__name__)

SourceRow: TypeAlias = Mapping[str, object]
OnBackwards: TypeAlias = Literal["raise", "skip", "restart"]
# Positions in the order that a reader expects: `b.log:9` before `b.log:10`.
PositionSortKey: TypeAlias = tuple[tuple[int, int | Decimal, str], ...]

_ON_BACKWARDS_CHOICES = ("raise", "skip", "restart")
_DIGITS_PATTERN = re.compile(r"(\d+)")
# As `str` writes numbers; more digits behind a point do not make one larger.
_NUMBER_PATTERN = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?", re.ASCII)
_TIME_PATTERN = re.compile(r"(?<!\d)(\d\d:\d\d:\d\d)(?:[.,](\d+))?(?!\d)", re.ASCII)
_FRACTION_DIGITS = 18


@runtime_checkable
class PositionedSource(Protocol):
    """What `stream` reads; with a method `order(position)` it says how its positions are sorted."""

    def seek(self, token: str | None) -> None:
        """Go on behind a position; None is the beginning.

        Raises:
            SourceWentBackwards: The source ends before it.
        """

    def positions(self) -> Iterator[tuple[str, SourceRow]]:
        """Yield what there is by now: rows with their positions, which rise.

        Raises:
            SourceWentBackwards: The source ends before the position that was sought.
        """


@dataclass(slots=True)
class StreamResult:
    """What came of it: rows inserted and refused, rows skipped behind `token`, the last position.

    Where a channel skips batches, all rows of one with a bad row count as refused.
    """

    inserted: int = 0
    refused: int = 0
    skipped: int = 0
    token: str | None = None


class IterableSource:
    """An iterable of rows, each with a position of its own: a number, a name with numbers, a time.

    Seeking passes over rows: give a part that begins later where that is cheaper.
    """

    def __init__(
        self, rows: Iterable[SourceRow], get_position: Callable[[SourceRow], object]
    ) -> None:
        self._rows = rows
        self._get_position = get_position
        self._sought_position: str | None = None
        self._iterator: Iterator[SourceRow] | None = None

    def seek(self, token: str | None) -> None:
        """Pass over rows up to a position when they are read."""
        if self._iterator is not None and isinstance(self._rows, Iterator):
            raise ConfigurationError(
                setting="source", reason="an iterator cannot be read again; give a list"
            )
        self._sought_position, self._iterator = token, None

    def positions(self) -> Iterator[tuple[str, SourceRow]]:
        """Yield the rows behind the position that was sought."""
        behind = (
            None if self._sought_position is None else make_position_sort_key(self._sought_position)
        )
        passing = behind is not None
        if self._iterator is None:
            self._iterator = iter(self._rows)
        last: str | None = None
        for row in self._iterator:
            last = str(self._get_position(row))
            # Behind the very row that was committed nothing is passed over: what is smaller there is told.
            if behind is None or not passing or make_position_sort_key(last) > behind:
                passing = False
                yield last, row
            else:
                passing = last != self._sought_position
        if (
            behind is not None
            and passing
            and last is not None
            and make_position_sort_key(last) < behind
        ):
            raise SourceWentBackwards(position=last, committed=self._sought_position)


class StreamPump:
    """Moves what a source has into a channel, a batch at a time; for one thread."""

    def __init__(
        self,
        source: PositionedSource,
        channel: Channel,
        *,
        batch_rows: int = 1_000,
        on_backwards: OnBackwards = "raise",
        on_refused: Callable[[str, RowError], None] | None = None,
    ) -> None:
        if on_backwards not in _ON_BACKWARDS_CHOICES:
            reason = f"{on_backwards!r} is none of {', '.join(_ON_BACKWARDS_CHOICES)}"
            raise ConfigurationError(setting="on_backwards", reason=reason)
        self._source = source
        self._channel = channel
        self._batch_rows = batch_rows
        self._on_backwards = on_backwards
        self._on_refused = on_refused
        self._positions: Iterator[tuple[str, SourceRow]] | None = None
        self._make_sort_key: Callable[[str], PositionSortKey] = getattr(
            source, "order", make_position_sort_key
        )
        self.result = StreamResult(token=channel.resume())
        self._last_sort_key = (
            None if self.result.token is None else self._make_sort_key(self.result.token)
        )
        self._seek_source(self.result.token)

    def insert_next_batch(self) -> bool:
        """Insert the next batch; False when the source has nothing more by now.

        Raises:
            SourceWentBackwards: It has, and that is the choice.
            InvalidRow: A row was refused, and the channel aborts on errors.
            ChannelInvalid: Rows cannot be committed any more (ChannelFenced: likewise).
        """
        batch: list[tuple[str, SourceRow]] = []
        while len(batch) < self._batch_rows and (each := self._read_next_row()) is not None:
            batch.append(each)
        if not batch:
            return False
        self._insert_batch(batch)
        return True

    def wait_for_commit(self) -> StreamResult:
        """Wait until all that was inserted is committed."""
        self._channel.flush()
        return self.result

    def _read_next_row(self) -> tuple[str, SourceRow] | None:
        while True:
            if self._positions is None:
                self._positions = self._source.positions()
            try:
                each = next(self._positions, None)
            except SourceWentBackwards as error:
                self._positions = None
                if not self._handle_backwards_source(error):
                    return None
                continue
            if each is None:
                self._positions = None
                return None
            if self._accept_position(each[0]):
                return each

    def _accept_position(self, position: str) -> bool:
        key = self._make_sort_key(position)
        if self._last_sort_key is not None and key <= self._last_sort_key:
            if self._on_backwards == "raise":
                raise SourceWentBackwards(position=position, committed=self.result.token)
            if self._on_backwards == "skip":
                self.result.skipped += 1
                return False
        self._last_sort_key = key
        return True

    def _seek_source(self, token: str | None) -> None:
        try:
            self._source.seek(token)
        except SourceWentBackwards as error:
            self._handle_backwards_source(error)

    def _handle_backwards_source(self, error: SourceWentBackwards) -> bool:
        """Go by the choice: begin anew, or tell that there is nothing to read."""
        if self._on_backwards == "raise":
            raise error
        _log.warning("%s", error)
        if self._on_backwards == "skip":
            return False
        self._last_sort_key = None
        self._source.seek(None)
        return True

    def _insert_batch(self, batch: list[tuple[str, SourceRow]]) -> None:
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
        self.result.refused += refused
        self.result.inserted += len(rows) - refused
        self.result.token = last


def stream(
    source: PositionedSource | Iterable[SourceRow],
    channel: Channel,
    *,
    position: Callable[[SourceRow], object] | None = None,
    batch_rows: int = 1_000,
    on_backwards: OnBackwards = "raise",
    on_refused: Callable[[str, RowError], None] | None = None,
    stop: threading.Event | None = None,
) -> StreamResult:
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
    if not isinstance(source, PositionedSource):
        if position is None:
            reason = "an iterable needs position=, which tells where each row is"
            raise ConfigurationError(setting="position", reason=reason)
        source = IterableSource(source, position)
    pump = StreamPump(
        source, channel, batch_rows=batch_rows, on_backwards=on_backwards, on_refused=on_refused
    )
    while not (stop is not None and stop.is_set()) and pump.insert_next_batch():
        pass
    return pump.wait_for_commit()


def make_position_sort_key(position: str) -> PositionSortKey:
    """Return what positions are sorted by: numbers and times as such, others part by part."""
    if _NUMBER_PATTERN.fullmatch(position):
        return ((0, Decimal(position), ""),)
    parts = _DIGITS_PATTERN.split(_TIME_PATTERN.sub(_pad_fraction, position))
    return tuple(
        (0, int(part), "") if number % 2 else (1, 0, part) for number, part in enumerate(parts)
    )


def _pad_fraction(time_match: re.Match[str]) -> str:
    return f"{time_match[1]}.{time_match[2] or '':0<{_FRACTION_DIGITS}}"
