"""Find the primary among the addresses of a failover group, and detect when it changes."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from snowmelt.client.settings import ClientSettings
from snowmelt.client.transport import Transport, parse_service_url
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError
from snowmelt.wire.sites import PRIMARY_ROLE, STATE_PATH, SiteState

_log = logging.getLogger("snowmelt.client")

_REQUEST_TIMEOUT_S = 2.0
_INTERVAL_S = 0.5
# Failures for a shorter time do not start a search, because requests are retried.
_TROUBLE_S = 1.0
# A search without a result is logged this long after the first failure.
_REPORTED_AFTER_S = 10.0


def split_addresses(url: str) -> list[str]:
    """Return the addresses in a text, which are separated by commas."""
    return [each.strip() for each in url.split(",") if each.strip()] or [url]


def request_site_state(
    url: str, *, ca_file: str | None = None, timeout_s: float = _REQUEST_TIMEOUT_S
) -> SiteState | None:
    """Return the role and epoch of the site at an address, or None if it does not respond."""
    with contextlib.suppress(SnowmeltError, msgspec.DecodeError, OSError):
        settings = ClientSettings(ca_file=ca_file)
        transport = Transport(
            parse_service_url(url), None, settings.clock, timeout_s=timeout_s, ca_file=ca_file
        )
        try:
            return msgspec.json.decode(transport.post_idempotent(STATE_PATH, b"{}"), type=SiteState)
        finally:
            transport.stop()
    return None


class Primary(NamedTuple):
    """A site that reports the role of primary, and its epoch."""

    epoch: int
    url: str


def find_primary(urls: Sequence[str], *, ca_file: str | None = None) -> Primary | None:
    """Return the primary with the highest epoch, or None if no primary responds."""
    return _choose_primary(_request_states(urls, ca_file))


def _request_states(urls: Sequence[str], ca_file: str | None) -> dict[str, SiteState | None]:
    return {url: request_site_state(url, ca_file=ca_file) for url in urls}


def _choose_primary(states: Mapping[str, SiteState | None]) -> Primary | None:
    found = (
        Primary(state.epoch, url)
        for url, state in states.items()
        if state is not None and state.role in {PRIMARY_ROLE, None}
    )
    return max(found, default=None)


def _describe_states(states: Mapping[str, SiteState | None]) -> str:
    return ", ".join(
        f"{url} does not respond"
        if state is None
        else f"{url} is {state.role or 'not in a group'} in epoch {state.epoch}"
        for url, state in states.items()
    )


class SiteWatch:
    """Thread that searches for another primary while requests fail. `stop` ends the thread."""

    def __init__(
        self,
        urls: Sequence[str],
        epoch: int,
        *,
        find_trouble: weakref.WeakMethod[Callable[[], str | None]],
        move: weakref.WeakMethod[Callable[[str], None]],
        clock: Clock,
        ca_file: str | None,
    ) -> None:
        """Create the thread.

        `epoch` is the highest epoch that the client has received. A primary with a lower epoch was
        replaced, so it may lack rows that its successor has reported as committed. `find_trouble`
        returns the address of the current site if requests to it fail, else None. `move` is called
        with the address of another primary. The thread ends when the object of these two methods is
        garbage collected.
        """
        self._urls = urls
        self._epoch = epoch
        self._find_trouble = find_trouble
        self._move = move
        self._clock = clock
        self._ca_file = ca_file
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sites", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current request. Does not wait for it."""
        self._stopping.set()

    def _run(self) -> None:
        since: float | None = None
        reported = False
        while not self._stopping.wait(_INTERVAL_S):
            find_trouble, move = self._find_trouble(), self._move()
            if find_trouble is None or move is None:
                return
            now = self._clock.monotonic()
            address = find_trouble()
            if address is None:
                since, reported = None, False
                continue
            since = now if since is None else since
            if now - since < _TROUBLE_S:
                continue
            states = _request_states(self._urls, self._ca_file)
            if self._stopping.is_set():
                return
            primary = _choose_primary(states)
            is_outdated = primary is None or primary.epoch < self._epoch
            if primary is not None and not is_outdated:
                self._epoch = primary.epoch
            if primary is None or is_outdated or primary.url == address:
                if not reported and now - since > _REPORTED_AFTER_S:
                    reported = True
                    _log.warning(
                        "Requests to %s have failed for %.0f s, and no other site is a newer primary: %s",
                        *(address, now - since, _describe_states(states)),
                    )
                continue
            try:
                move(primary.url)
            except SnowmeltError as error:
                _log.warning("Cannot move to %s yet: %s", primary.url, error)
            else:
                _log.info("Moved from %s to %s", address, primary.url)
                since, reported = None, False
            del find_trouble, move
