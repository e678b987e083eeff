"""Offsets of a time zone by whole days, so that clock times convert a column at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from zoneinfo import ZoneInfo

    from snowmelt.schema.arrow import Int64s

DAY_US = 86_400_000_000
_DAY_S = 86_400
_HOUR_S = 3_600
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_MAX_DAYS = 50_000


class DayOffsets:
    """Remembers, per day, the offset of a zone if it is the same all day long."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._known: dict[int, int | None] = {}
        self._known_instants: dict[int, int | None] = {}

    def of_local(self, local_us: Int64s) -> Int64s | None:
        """Return offsets (seconds) of local clock times (µs since 1970).

        None when some day has a gap or an overlap, or lies at the calendar's ends.
        """
        return _by_day(local_us, self._known, self._probe_local)

    def of_instant(self, us: Int64s) -> Int64s | None:
        """Return offsets (seconds) at instants (µs since 1970).

        None when the offset changes on some day, or it lies at the calendar's ends.
        """
        return _by_day(us, self._known_instants, self._probe_instant)

    def _probe_instant(self, day: int) -> int | None:
        start = _EPOCH.replace(tzinfo=UTC) + timedelta(days=day)
        return _single(
            {
                (start + timedelta(seconds=second)).astimezone(self._zone).utcoffset()
                for second in range(0, _DAY_S + 1, _HOUR_S)
            }
        )

    def _probe_local(self, day: int) -> int | None:
        start = _EPOCH.replace(tzinfo=self._zone)
        offsets = {
            (start + timedelta(seconds=day * _DAY_S + second)).replace(fold=fold).utcoffset()
            for second in range(0, _DAY_S + 1, _HOUR_S)
            for fold in (0, 1)
        }
        return _single(offsets)


def _single(offsets: set[timedelta | None]) -> int | None:
    if len(offsets) > 1:
        return None
    offset = offsets.pop()
    return None if offset is None else offset // timedelta(seconds=1)


def _by_day(
    us: Int64s, known: dict[int, int | None], probe: Callable[[int], int | None]
) -> Int64s | None:
    first, last = int(us.min()) // DAY_US, int(us.max()) // DAY_US
    if first <= _FIRST_DAY or last >= _LAST_DAY:
        return None
    if first == last:
        # One number serves all rows: numpy stretches it.
        wanted, places = [first], None
    else:
        unique, places = np.unique(us // DAY_US, return_inverse=True)
        wanted = unique.tolist()
    if len(known) + len(wanted) > _MAX_DAYS:
        known.clear()
    offsets = []
    for day in wanted:
        if day not in known:
            known[day] = probe(day)
        offset = known[day]
        if offset is None:
            return None
        offsets.append(offset)
    found = np.array(offsets, dtype=np.int64)
    return found if places is None else found[places]
