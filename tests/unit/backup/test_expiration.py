"""Expiry deletes points and what only they name."""

from __future__ import annotations

import contextlib
import datetime as dt

from fixtures.backups import BackedUpSite
from snowmelt.backup.expiration import expire_points

HOUR = dt.timedelta(hours=1)


def test_old_points_go_with_what_only_they_name(site: BackedUpSite) -> None:
    for _ in range(3):
        site.write(10)
        site.house.migrate()
        site.clock.advance(2 * HOUR.total_seconds())
        site.house.collect(HOUR.total_seconds())
        site.write(1)
        site.back_up()
    before = site.destination.list_objects()
    points = site.destination.list_points()
    expired = expire_points(site.destination, points[1].at)
    assert expired.points == (points[0],)
    after = site.destination.list_objects()
    assert expired.objects == len(before) - len(after) > 0
    assert expired.bytes == sum(before.values()) - sum(after.values())
    for point, count in zip(points[1:], (22, 33), strict=True):
        with contextlib.closing(site.restore(point)) as house:
            assert len(house.read_numbers()) == count


def test_the_newest_point_is_kept(site: BackedUpSite) -> None:
    site.write(10)
    for _ in range(2):
        site.back_up()
        site.clock.advance(1)
    [_, newest] = site.destination.list_points()
    expire_points(site.destination, site.clock.now() + HOUR)
    assert site.destination.list_points() == [newest]
    assert expire_points(site.destination, site.clock.now() + HOUR).points == ()
