"""How much the row API takes: of one request, of a channel in a second, of all at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.errors import RowsBusy, TooManyRequests

if TYPE_CHECKING:
    from snowmelt.clock import Clock

_MOST_CHANNELS = 50_000


@dataclass(slots=True)
class Limits:
    """Settings of the row API; used in the event loop only.

    `body_bytes` as sent, `unpacked_bytes` without compression, `held_bytes` of all requests that
    are not answered yet; `requests_per_s` of one channel, 0 for any number.
    """

    clock: Clock
    body_bytes: int
    unpacked_bytes: int
    held_bytes: int
    requests_per_s: int
    _allowances: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def pass_channel(self, pipe: str, channel: str, *, may_refuse_softly: bool) -> None:
        """Count a request of a channel.

        Args:
            pipe: Who sends it, and where it goes: nobody uses up what is another's.
            channel: Whose it is.
            may_refuse_softly: Answer 429; else 503, which no client draws conclusions from.

        Raises:
            TooManyRequests: There were too many within a second; RowsBusy likewise.
        """
        if not self.requests_per_s:
            return
        now = self.clock.monotonic()
        left, since = self._allowances.get((pipe, channel), (float(self.requests_per_s), now))
        left = min(left + (now - since) * self.requests_per_s, float(self.requests_per_s))
        if left < 1:
            if may_refuse_softly:
                raise TooManyRequests(channel=channel, limit=self.requests_per_s)
            raise RowsBusy(reason=f"channel {channel} sends too many requests")
        if len(self._allowances) >= _MOST_CHANNELS:
            self._allowances.clear()
        self._allowances[pipe, channel] = (left - 1, now)
