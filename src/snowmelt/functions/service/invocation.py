"""What Lambda's runtime gives a handler beside the event, and headers as an event has them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.clock import Clock

_HERE = "arn:aws:lambda:us-east-1:000000000000:function:"


class LambdaContext:
    """The second argument of a handler: attributes by the names that Lambda documents."""

    function_version = "$LATEST"
    memory_limit_in_mb = "128"
    log_stream_name = "local"
    identity = None
    client_context = None

    def __init__(self, name: str, clock: Clock, timeout_s: float) -> None:
        self.function_name = name
        self.invoked_function_arn = _HERE + name
        self.log_group_name = f"/aws/lambda/{name}"
        self.aws_request_id = str(uuid.uuid4())
        self._clock = clock
        self._until = clock.monotonic() + timeout_s

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the caller is told that it took too long."""
        return max(0, int((self._until - self._clock.monotonic()) * 1000))


class EventHeaders(dict[str, str]):
    """Headers of an event, found in whatever case they are asked for.

    Gateways differ in it: a REST API keeps what the caller wrote, the others write small letters,
    and handlers were written for one of them.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self._spelt = {name.lower(): name for name in headers}

    def __missing__(self, name: str) -> str:
        return dict.__getitem__(self, self._spelt[name.lower()])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._spelt

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return a header's value, `default` where there is none."""
        return super().get(self._spelt.get(name.lower(), name), default)
