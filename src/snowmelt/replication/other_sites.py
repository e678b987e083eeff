"""Addresses and keys of other sites. Imports no library of native tables: each service needs this."""

from __future__ import annotations

import contextlib

import msgspec

from snowmelt.client.connection import make_transport
from snowmelt.client.settings import ClientSettings
from snowmelt.errors import SnowmeltError
from snowmelt.replication.protocol import SiteState
from snowmelt.wire.replication_paths import STATE_PATH


def ask_state(url: str, *, ca_file: str | None, timeout_s: float = 2.0) -> SiteState | None:
    """Return what the site at an address is, None if it does not answer."""
    with contextlib.suppress(SnowmeltError, msgspec.DecodeError, OSError):
        transport = make_transport(
            url,
            ClientSettings(ca_file=ca_file),
            user=None,
            private_key=None,
            oauth=None,
            timeout_s=timeout_s,
        )
        try:
            return msgspec.json.decode(transport.post_idempotent(STATE_PATH, b"{}"), type=SiteState)
        finally:
            transport.stop()
    return None
