"""Delete old backup points, and objects that no point refers to.

Points are marked as expiring before the first manifest is deleted. The next expiration completes an
interrupted one. Marked points are neither restored nor used as a base for backups.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from snowmelt import failpoints
from snowmelt.backup.creation import read_inventory
from snowmelt.backup.destination import BackupDestination
from snowmelt.backup.manifests import PointManifest
from snowmelt.failpoints import Failpoint


@dataclass(frozen=True, slots=True)
class ExpirationResult:
    """The IDs of deleted points, and the number and bytes of deleted objects."""

    points: tuple[PointManifest, ...]
    objects: int
    bytes: int


def expire_points(destination: BackupDestination, before: dt.datetime) -> ExpirationResult:
    """Delete points older than a time, and the objects that only they refer to. Keeps the newest point.

    Also deletes objects that an interrupted backup has copied. A lock ensures that no backup runs
    at the same time.

    Raises:
        BackupRejected: If a backup or another expiration is running.
    """
    with destination.locked():
        points = destination.list_points()
        old = [point for point in points[:-1] if point.at < before]
        marked = [*destination.read_expiring(), *(point.point_id for point in old)]
        if marked:
            destination.write_expiring(marked)
        failpoints.hit_failpoint(Failpoint.EXPIRY_MARKED)
        for point_id in marked:
            destination.delete_point(point_id)
        kept = set[str]()
        for point in destination.list_points():
            kept.add(point.inventory.sha256)
            kept.update(table.stored.sha256 for table in point.catalog.values())
            kept.update(entry.stored.sha256 for entry in read_inventory(destination, point))
        destination.delete_journals()
        count = size = 0
        for sha256, bytes_ in destination.list_objects().items():
            if sha256 not in kept:
                destination.delete_object(sha256)
                failpoints.hit_failpoint(Failpoint.EXPIRY_DELETING)
                count += 1
                size += bytes_
        destination.write_expiring([])
    return ExpirationResult(tuple(old), count, size)
