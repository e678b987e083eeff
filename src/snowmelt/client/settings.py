"""What can be set on a client."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TypedDict

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import ConfigurationError
from snowmelt.schema.compatibility import Compatibility

_SHORTEST_LAG = dt.timedelta(milliseconds=100)
_LONGEST_LAG = dt.timedelta(minutes=10)


class Options(TypedDict, total=False):
    """The optional arguments of `Client`; `ClientSettings` describes them."""

    max_client_lag: dt.timedelta
    name: str
    account: str | None
    request_timeout: dt.timedelta
    give_up_after: dt.timedelta
    insert_timeout: dt.timedelta
    max_buffered_bytes: int
    ca_file: str | None
    compatibility: Compatibility | str
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The optional arguments of `Client`, with their defaults.

    `max_client_lag` is the longest time from a buffered row to its flush (100 ms to 10 minutes).
    `name` tells clients apart in the service's log. `account` replaces the account in tokens,
    by default the first label of the host. `request_timeout` is how long opening, asking and
    dropping go on when the service is away, `give_up_after` the same for rows in flight,
    `insert_timeout` how long an insert waits while `max_buffered_bytes` are uncommitted. `ca_file`
    has the certificates that a service's is checked against, the system's where it is None. `compatibility`
    says how values without one obvious meaning are taken: `snowflake` or `strict`.
    """

    max_client_lag: dt.timedelta = dt.timedelta(seconds=1)
    name: str = "snowmelt"
    account: str | None = None
    request_timeout: dt.timedelta = dt.timedelta(seconds=30)
    give_up_after: dt.timedelta = dt.timedelta(minutes=10)
    insert_timeout: dt.timedelta = dt.timedelta(minutes=2)
    max_buffered_bytes: int = 256 * 1024 * 1024
    ca_file: str | None = None
    compatibility: Compatibility | str = Compatibility.SNOWFLAKE
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        if not _SHORTEST_LAG <= self.max_client_lag <= _LONGEST_LAG:
            reason = f"{self.max_client_lag} is not between 100 ms and 10 minutes"
            raise ConfigurationError(setting="max_client_lag", reason=reason)
        compatibility_named(self.compatibility)
        for setting in ("request_timeout", "give_up_after", "insert_timeout"):
            if getattr(self, setting) < dt.timedelta(0):
                raise ConfigurationError(setting=setting, reason="it cannot be negative")
        if self.max_buffered_bytes <= 0:
            raise ConfigurationError(setting="max_buffered_bytes", reason="it must be positive")


def compatibility_named(mode: Compatibility | str) -> Compatibility:
    """Return the rules that a name stands for.

    Raises:
        ConfigurationError: There are no such rules.
    """
    try:
        return Compatibility(mode)
    except ValueError as error:
        reason = f"{mode!r} is none of {', '.join(Compatibility)}"
        raise ConfigurationError(setting="compatibility", reason=reason) from error
