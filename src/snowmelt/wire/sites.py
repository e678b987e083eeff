"""Paths of the requests between the sites of a failover group, and the public state of a site."""

from __future__ import annotations

import msgspec

# Folder of the stage with large states, which followers read in ranges.
STATES_FOLDER = "replica-states"
PULL_PATH = "/v1/snowmelt/replication/pull"
READ_PATH = "/v1/snowmelt/replication/read"
READ_BLOBS_PATH = "/v1/snowmelt/replication/read-blobs"
STATE_PATH = "/v1/snowmelt/replication/state"

PRIMARY_ROLE = "primary"


class SiteState(msgspec.Struct, kw_only=True):
    """State of a site in its failover group.

    Without a group, all fields except `epoch` are empty.
    """

    group: str | None = None
    site: str | None = None
    role: str | None = None
    epoch: int = 0
    addresses: tuple[str, ...] = ()
    primary_url: str | None = None
