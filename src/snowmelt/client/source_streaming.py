"""Stream rows of sources with positions into a channel, each exactly once.

The position of a row is its offset token. So the channel stores how far the source was read, and no
other state is needed after a crash.
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
# Matches the parts of positions, which sort in natural order: `b.log:9` before `b.log:10`.
PositionSortKey: TypeAlias = tuple[tuple[int, int | Decimal, str], ...]

_ON_BACKWARDS_CHOICES = ("raise", "skip", "restart")
_DIGITS_PATTERN = re.compile(r"(\d+)")
# Numbers in the form that `str` returns.
_NUMBER_PATTERN = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?", re.ASCII)
_TIME_PATTERN = re.compile(r"(?<!\d)(\d\d:\d\d:\d\d)(?:[.,](\d+))?(?!\d)", re.ASCII)
_FRACTION_DIGITS = 18


@runtime_checkable
class PositionedSource(Protocol):
    """Interface of sources. An optional method `order(position)` returns the sort key of a position."""

    def seek(self, token: str | None) -> None:
        """Continue after a position. None: at the beginning.

        Raises:
            SourceWentBackwards: If the source ends before the position.
        """

    def positions(self) -> Iterator[tuple[str, SourceRow]]:
        """Yield the available rows with their positions, in ascending order.

        Raises:
            SourceWentBackwards: If the source ends before the position of `seek`.
        """


@dataclass(slots=True)
class StreamResult:
    """Counts of inserted, rejected and skipped rows, and the last position in `token`.

    With `on_error="skip_batch"`, all rows of a batch with an invalid row count as rejected.
    """

    inserted: int = 0
    refused: int = 0
    skipped: int = 0
    token: str | None = None


class IterableSource:
    """Source from an iterable of rows. Positions are numbers, names with numbers, or times.

    Seeking reads and discards rows. Pass an iterable that begins later if that is cheaper.
    """

    def __init__(
        self, rows: Iterable[SourceRow], get_position: Callable[[SourceRow], object]
    ) -> None:
        self._rows = rows
        self._get_position = get_position
        self._sought_position: str | None = None
        self._iterator: Iterator[SourceRow] | None = None

    def seek(self, token: str | None) -> None:
        """Skip the rows up to a position when they are read."""
        if self._iterator is not None and isinstance(self._rows, Iterator):
            raise ConfigurationError(
                setting="source", reason="an iterator cannot be read twice. Pass a list"
            )
        self._sought_position, self._iterator = token, None

    def positions(self) -> Iterator[tuple[str, SourceRow]]:
        """Yield the rows after the position of `seek`."""
        behind = (
            None if self._sought_position is None else make_position_sort_key(self._sought_position)
        )
        passing = behind is not None
        if self._iterator is None:
            self._iterator = iter(self._rows)
        last: str | None = None
        for row in self._iterator:
            last = str(self._get_position(row))
            # Stop skipping after the committed row, so that a smaller position is detected as an
            # error.
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
    """Moves rows from a source into a channel in batches. Not thread-safe."""

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
            reason = f"expected one of {', '.join(_ON_BACKWARDS_CHOICES)}, got {on_backwards!r}"
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
        """Insert the next batch. Return False if the source has no more rows at present.

        Raises:
            SourceWentBackwards: If the source is behind the committed position and `on_backwards` is "raise".
            InvalidRow: If a row is invalid and `on_error` is `abort`.
            ChannelInvalid: If rows cannot be committed.
            ChannelFenced: If another client has opened the channel.
        """
        batch: list[tuple[str, SourceRow]] = []
        while len(batch) < self._batch_rows and (each := self._read_next_row()) is not None:
            batch.append(each)
        if not batch:
            return False
        self._insert_batch(batch)
        return True

    def wait_for_commit(self) -> StreamResult:
        """Wait until all inserted rows are committed, and return the counts."""
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
        """Apply `on_backwards`. Return False if there is nothing to read."""
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
                # Nothing of the batch was buffered. Wait until the buffered rows are committed,
                # then retry.
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
    """Stream a source into a channel, each row exactly once, and wait until all rows are committed.

    Reading begins after the channel's committed offset token, so call this function again after a
    crash.

    Args:
        source: An object with `positions()` and `seek(token)`, or an iterable of rows with `position`.
        channel: The channel. No other source may insert into it.
        position: Function that returns the position of a row of an iterable, such as `lambda row:
            row["id"]`. Positions must ascend. Numbers in texts are compared as numbers.
        batch_rows: Rows per insert and offset token.
        on_backwards: Action if the source has smaller positions than the committed one: "raise",
            "skip" them, or "restart" from the beginning of the source.
        on_refused: Called with position and error of each rejected row, if `on_error` is not `abort`.
        stop: Set it to stop after the current batch.

    Raises:
        SourceWentBackwards: If the source has smaller positions than the committed one, or ends before it.
        InvalidRow: If a row is invalid and `on_error` is `abort`.
        ChannelFenced: If another client has opened the channel.
        ChannelInvalid: If rows cannot be committed.
        CommitTimeout: If the last rows were not committed in time.
    """
    if not isinstance(source, PositionedSource):
        if position is None:
            reason = "an iterable requires position=, a function that returns the position of a row"
            raise ConfigurationError(setting="position", reason=reason)
        source = IterableSource(source, position)
    pump = StreamPump(
        source, channel, batch_rows=batch_rows, on_backwards=on_backwards, on_refused=on_refused
    )
    while not (stop is not None and stop.is_set()) and pump.insert_next_batch():
        pass
    return pump.wait_for_commit()


def make_position_sort_key(position: str) -> PositionSortKey:
    """Return the sort key of a position. Numbers and times sort by value, other texts by their parts."""
    if _NUMBER_PATTERN.fullmatch(position):
        return ((0, Decimal(position), ""),)
    parts = _DIGITS_PATTERN.split(_TIME_PATTERN.sub(_pad_fraction, position))
    return tuple(
        (0, int(part), "") if number % 2 else (1, 0, part) for number, part in enumerate(parts)
    )


def _pad_fraction(time_match: re.Match[str]) -> str:
    return f"{time_match[1]}.{time_match[2] or '':0<{_FRACTION_DIGITS}}"
