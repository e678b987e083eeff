"""Options of a client, their defaults and validation."""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import ConfigurationError, SnowmeltError
from snowmelt.schema.types import Compatibility

_log = logging.getLogger(__name__)

_MIN_CLIENT_LAG = dt.timedelta(milliseconds=100)
_MAX_CLIENT_LAG = dt.timedelta(minutes=10)
_DEFAULT_GIVE_UP_AFTER_S = 600.0
_COMPATIBILITY_MODES = (Compatibility.SNOWFLAKE, Compatibility.STRICT)


class ClientOptions(TypedDict, total=False):
    """The optional arguments of `Client`; `ClientSettings` describes them."""

    max_client_lag: dt.timedelta
    name: str
    account: str | None
    request_timeout: dt.timedelta
    give_up_after: dt.timedelta | None
    insert_timeout: dt.timedelta
    max_memory: int
    when_full: Literal["wait", "raise"]
    on_problem: Callable[[SnowmeltError], None] | None
    ca_file: str | None
    compatibility: Compatibility | str
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The optional arguments of `Client`, with their defaults.

    `max_client_lag` is the longest time from a buffered row to its flush (100 ms to 10 minutes).
    `name` tells clients apart in the service's log. `account` replaces the account in tokens,
    by default the first label of the host. `request_timeout` is how long opening, asking and
    dropping go on when the service is away, `give_up_after` the same for rows in flight, without
    end where it is None. `max_memory` bounds what rows take, in bytes: half of it those that
    are not committed, as much again what encoding them needs. When it is used up an insert
    waits for up to `insert_timeout`, or raises BufferFull at once if `when_full` is "raise".
    `on_problem` is called, from a background thread, with the error of a channel that becomes invalid, and
    when service or stage cannot be reached any more. `ca_file`
    has the certificates that a service's is checked against, the system's where it is None. `compatibility`
    says how values without one obvious meaning are taken: `snowflake` or `strict`.
    """

    max_client_lag: dt.timedelta = dt.timedelta(seconds=1)
    name: str = "snowmelt"
    account: str | None = None
    request_timeout: dt.timedelta = dt.timedelta(seconds=30)
    give_up_after: dt.timedelta | None = None
    insert_timeout: dt.timedelta = dt.timedelta(minutes=2)
    max_memory: int = 512 * 1024 * 1024
    when_full: Literal["wait", "raise"] = "wait"
    on_problem: Callable[[SnowmeltError], None] | None = None
    ca_file: str | None = None
    compatibility: Compatibility | str = Compatibility.SNOWFLAKE
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        for setting in ("max_client_lag", "request_timeout", "give_up_after", "insert_timeout"):
            given = getattr(self, setting)
            if given is not None and not isinstance(given, dt.timedelta):
                reason = f"it is a time such as datetime.timedelta(seconds=1), not {given!r}"
                raise ConfigurationError(setting=setting, reason=reason)
        if not _MIN_CLIENT_LAG <= self.max_client_lag <= _MAX_CLIENT_LAG:
            reason = f"{self.max_client_lag} is not between 100 ms and 10 minutes"
            raise ConfigurationError(setting="max_client_lag", reason=reason)
        parse_compatibility(self.compatibility)
        for setting in ("request_timeout", "give_up_after", "insert_timeout"):
            given = getattr(self, setting)
            if given is not None and given < dt.timedelta(0):
                raise ConfigurationError(setting=setting, reason="it cannot be negative")
        if self.max_memory <= 0:
            raise ConfigurationError(setting="max_memory", reason="it must be positive")
        if self.when_full not in {"wait", "raise"}:
            reason = f"{self.when_full!r} is neither 'wait' nor 'raise'"
            raise ConfigurationError(setting="when_full", reason=reason)

    def report_problem(self, error: SnowmeltError) -> None:
        """Call `on_problem`; whatever the application does there, rows go on."""
        if self.on_problem is None:
            return
        try:
            self.on_problem(error)
        except Exception:  # noqa: BLE001 - it would end the thread that delivers rows
            _log.exception("on_problem failed.")

    @property
    def give_up_after_s(self) -> float:
        """How long rows in flight are tried to be delivered, s."""
        return math.inf if self.give_up_after is None else self.give_up_after.total_seconds()

    @property
    def commit_timeout_s(self) -> float:
        """How long calls wait that are given no time of their own, s.

        A flush may first wait for the stage, then for the service.
        """
        give_up_s = _DEFAULT_GIVE_UP_AFTER_S if self.give_up_after is None else self.give_up_after_s
        return self.max_client_lag.total_seconds() + 2 * give_up_s + 60

    @property
    def max_waiting_bytes(self) -> int:
        """How many bytes of rows may wait to be committed: encoding takes as much again."""
        return max(self.max_memory // 2, 1)


def parse_compatibility(mode: Compatibility | str) -> Compatibility:
    """Return the rules that a name stands for.

    Raises:
        ConfigurationError: There are no such rules.
    """
    for each in _COMPATIBILITY_MODES:
        if mode == each:
            return each
    reason = f"{mode!r} is none of {', '.join(_COMPATIBILITY_MODES)}"
    raise ConfigurationError(setting="compatibility", reason=reason)
