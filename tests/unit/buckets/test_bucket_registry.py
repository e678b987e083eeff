"""Buckets of existing locations at the sites of a failover group."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fixtures.catalog import World
from fixtures.replicas import Site, TwoSites
from snowmelt.buckets.bucket_registry import (
    NO_BUCKET_ID,
    BucketRegistry,
    mount_backends,
    register_mount,
)
from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.objects import failover_groups, s3_buckets
from snowmelt.catalog.objects.failover_groups import GroupSettings
from snowmelt.clock import SystemClock
from snowmelt.storage.local_store import LocalStore
from support.interleaving import begin_beside


def open_registry(site: Site, urls: str) -> BucketRegistry:
    """Open the buckets of a service at a site."""
    mounts = mount_backends(site.house.database, site.clock, urls)
    return BucketRegistry(
        site.house.database, LocalStore(site.folder / "objects"), site.clock, mounts=mounts
    )


def test_a_promoted_site_registers_its_own_locations(two_sites: TwoSites, tmp_path: Path) -> None:
    first, second = two_sites.first, two_sites.second
    urls = {each.name: f"shared={tmp_path / each.name}" for each in (first, second)}
    open_registry(first, urls[first.name])
    two_sites.synchronize()
    # The location `own` is unknown to the primary.
    registry = open_registry(second, f"{urls[second.name]},own={tmp_path / 'own'}")
    unstored = register_mount(second.house.database, second.clock, "own", str(tmp_path / "own"))
    assert unstored.bucket_id == NO_BUCKET_ID
    two_sites.synchronize()
    two_sites.assert_equal()
    second.promote()
    registry.register_mounts()
    with second.house.database.reading() as connection:
        found = {each.name: each.backend for each in s3_buckets.list_buckets(connection)}
    assert found == {"shared": str(tmp_path / second.name), "own": str(tmp_path / "own")}


def test_a_location_is_found_right_after_the_promotion(two_sites: TwoSites, tmp_path: Path) -> None:
    second = two_sites.second
    two_sites.synchronize()
    registry = open_registry(second, f"own={tmp_path / 'own'}")
    second.promote()
    assert registry.access_bucket("NOBODY", "own").record.bucket_id != NO_BUCKET_ID
    with pytest.raises(S3Error, match="does not exist"):
        registry.access_bucket("NOBODY", "other")


def test_a_site_with_locations_only_may_follow(tmp_path: Path) -> None:
    site = Site("SITE3", tmp_path / "site3", None, SystemClock())
    open_registry(site, f"own={tmp_path / 'own'}")
    with site.house.database.writing() as connection:
        failover_groups.create_group(
            connection,
            "G",
            "FAILOVER",
            GroupSettings(),
            site="SITE3",
            primary_url="http://SITE1",
            owner="ACCOUNTADMIN",
            now=site.clock.now(),
        )
    site.house.close()


@pytest.mark.postgres
def test_services_that_start_together_register_the_same_mount(postgres_world: World) -> None:
    world = postgres_world
    register = partial(register_mount, world.database, world.clock, "stage", "file:///stage")
    with world.database.writing() as connection:
        created = s3_buckets.create_bucket(
            connection, "stage", owner="ACCOUNTADMIN", now=world.now, backend="file:///stage"
        )
        other = begin_beside(world.database, register)
    assert other.result(60) == created
