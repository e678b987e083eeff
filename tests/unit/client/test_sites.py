"""A client whose requests fail says once what each of its addresses has answered."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from snowmelt.client.sites import SiteWatch
from snowmelt.clock import ManualClock
from support.ports import free_port

if TYPE_CHECKING:
    import pytest


class Owner:
    """Object whose requests to its address fail."""

    def __init__(self, address: str) -> None:
        self.address = address

    def find_trouble(self) -> str | None:
        return self.address

    def move(self, url: str) -> None:
        raise AssertionError(url)


def test_a_search_without_a_primary_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    owner, clock = Owner(urls[0]), ManualClock(dt.datetime.now(dt.UTC))
    watch = SiteWatch(
        urls,
        0,
        find_trouble=weakref.WeakMethod(owner.find_trouble),
        move=weakref.WeakMethod(owner.move),
        clock=clock,
        ca_file=None,
    )
    watch.start()
    waiting = threading.Event()
    while not caplog.messages:
        clock.advance(6)
        waiting.wait(0.05)
    waiting.wait(1)
    watch.stop()
    [message] = caplog.messages
    assert f"Requests to {urls[0]} have failed for" in message
    assert f"{urls[0]} does not respond, {urls[1]} does not respond" in message
