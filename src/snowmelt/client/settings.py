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
    """Types of the optional arguments of `Client`, which `ClientSettings` describes."""

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
    """Optional arguments of `Client` with their defaults.

    Attributes:
        max_client_lag: Maximum time from the insert of a row to its flush, 100 ms to 10 minutes.
        name: Name of the client in the log of the service.
        account: Account in tokens. None: the first label of the service's host name.
        request_timeout: Time for which requests to open, query and drop channels are retried.
        give_up_after: Time for which uncommitted rows are retried. None: no limit.
        insert_timeout: Time for which an insert waits if the buffer is full.
        max_memory: Memory for rows in bytes: half for uncommitted rows, half for their encoding.
        when_full: "wait" for `insert_timeout`, or "raise" BufferFull immediately.
        on_problem: Function that a background thread calls with the error if a channel becomes
            invalid, or if the service or stage becomes unreachable.
        ca_file: File with certificates to trust. None: the certificates of the system.
        compatibility: Interpretation of ambiguous values: `snowflake` or `strict`.
        clock: Clock, for tests.
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
            _require_duration(setting, given)
        if not _MIN_CLIENT_LAG <= self.max_client_lag <= _MAX_CLIENT_LAG:
            reason = f"expected 100 ms to 10 minutes, got {self.max_client_lag}"
            raise ConfigurationError(setting="max_client_lag", reason=reason)
        parse_compatibility(self.compatibility)
        for setting in ("request_timeout", "give_up_after", "insert_timeout"):
            given = getattr(self, setting)
            if given is not None and given < dt.timedelta(0):
                raise ConfigurationError(setting=setting, reason="expected 0 or more")
        if self.max_memory <= 0:
            raise ConfigurationError(setting="max_memory", reason="expected more than 0")
        if self.when_full not in {"wait", "raise"}:
            reason = f"expected 'wait' or 'raise', got {self.when_full!r}"
            raise ConfigurationError(setting="when_full", reason=reason)

    def report_problem(self, error: SnowmeltError) -> None:
        """Call `on_problem`. An exception in it is logged and has no other effect."""
        if self.on_problem is None:
            return
        try:
            self.on_problem(error)
        except Exception:  # noqa: BLE001 - it would end the thread that delivers rows
            _log.exception("on_problem failed.")

    @property
    def give_up_after_s(self) -> float:
        """Time in seconds for which uncommitted rows are retried."""
        return math.inf if self.give_up_after is None else self.give_up_after.total_seconds()

    @property
    def commit_timeout_s(self) -> float:
        """Timeout in seconds of calls that do not specify one.

        It covers a wait for the stage followed by a wait for the service.
        """
        give_up_s = _DEFAULT_GIVE_UP_AFTER_S if self.give_up_after is None else self.give_up_after_s
        return self.max_client_lag.total_seconds() + 2 * give_up_s + 60

    @property
    def max_waiting_bytes(self) -> int:
        """Limit of uncommitted rows in bytes. Half of `max_memory`: encoding the rows may need the other half."""
        return max(self.max_memory // 2, 1)


def to_timeout_s(timeout: dt.timedelta | None, default_s: float) -> float:
    """Return a timeout in seconds. None: the default.

    Raises:
        ConfigurationError: If the timeout is not a timedelta.
    """
    _require_duration("timeout", timeout)
    return default_s if timeout is None else timeout.total_seconds()


def _require_duration(setting: str, given: object) -> None:
    if given is not None and not isinstance(given, dt.timedelta):
        reason = f"expected a datetime.timedelta, such as timedelta(seconds=1), got {given!r}"
        raise ConfigurationError(setting=setting, reason=reason)


def parse_compatibility(mode: Compatibility | str) -> Compatibility:
    """Parse the name of a set of rules.

    Raises:
        ConfigurationError: If the name is unknown.
    """
    for each in _COMPATIBILITY_MODES:
        if mode == each:
            return each
    reason = f"expected {' or '.join(_COMPATIBILITY_MODES)}, got {mode!r}"
    raise ConfigurationError(setting="compatibility", reason=reason)
