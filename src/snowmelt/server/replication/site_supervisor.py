"""Start of the replication process, and fencing of a replaced primary at the start of a service."""

from __future__ import annotations

import logging

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import SiteRole
from snowmelt.client.sites import request_site_state
from snowmelt.server.child_process import ChildProgram

_log = logging.getLogger("snowmelt.server")

SITE_PROCESS = ChildProgram(
    "the replicator", "snowmelt.server.replication.site_process", min_delay_s=1.0
)


def has_group(database: Database) -> bool:
    """Return True if the installation belongs to a group."""
    with database.reading() as connection:
        return failover_groups.find_group(connection) is not None


def fence_if_replaced(database: Database) -> None:
    """Fence this primary if one of its followers was promoted.

    Must run before the service accepts requests. A follower that does not respond within two
    seconds is skipped. Replicas of a replication group are never promoted.
    """
    with database.reading() as connection:
        group = failover_groups.find_group(connection)
        slots = failover_groups.list_slots(connection)
    is_primary = group is not None and group.role in {SiteRole.PRIMARY, SiteRole.CLOSING}
    if group is None or not is_primary or group.kind != "FAILOVER":
        return
    for slot in slots:
        state = (
            None
            if slot.url is None
            else request_site_state(slot.url, ca_file=group.settings.ca_file)
        )
        if state is not None and state.group == group.name and state.epoch > group.epoch:
            with database.writing() as connection:
                failover_groups.fence(connection, slot.url)
            _log.warning("site %s has become the primary of group %s", state.site, group.name)
            return
