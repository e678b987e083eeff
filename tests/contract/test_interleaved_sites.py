"""Transactions of two sites that run beside each other on PostgreSQL lose nothing."""

from __future__ import annotations

import io
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from fixtures.chunks import NUMBERS, numbers
from fixtures.replicas import TwoSites, read_reported, run
from snowmelt import failpoints
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.errors import SiteReadOnly
from snowmelt.failpoints import Failpoint
from snowmelt.replication.state_export import delete_confirmed_changes
from support.interleaving import begin_beside, run_after

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


def test_a_commit_beside_the_start_of_the_protection_is_not_reported_too_early(
    tmp_path: Path, postgres_url: str
) -> None:
    sites = TwoSites(tmp_path, postgres_url, None)
    first, second = sites.first, sites.second
    first.house.create()
    second.pull(first)
    first.house.put(numbers(0, 10), token="10")

    def read_token() -> str | None:
        reported = read_reported(first)
        if reported is not None:
            return reported.offset_token
        with first.house.database.reading() as connection:
            found = find_channel(connection, first.house.table(NUMBERS), "C")
        assert found is not None
        return found.offset_token

    seen: list[str | None] = []
    commits: list[Future[str]] = []

    def commit_meanwhile() -> None:
        put = partial(first.house.put, numbers(10, 10), token="20")
        commits.append(begin_beside(first.house.database, put))
        seen.append(read_token())

    failpoints.arm(Failpoint.REPLICA_CONFIRMED, commit_meanwhile)
    response, _ = first.respond(second.make_request())
    commits[0].result(60)
    seen.append(read_token())
    # The state that makes the second site promotable has what was reported.
    second.copy_objects(first, response, io.BytesIO(response.content))
    second.apply(response, io.BytesIO(response.content))
    second.promote()
    seen.append(str(len(second.house.read_numbers())))
    assert seen in (["10", "10", "10"], ["10", "10", "20"])
    sites.close()


def test_a_follower_lacks_no_change_that_is_recorded_while_others_are_deleted(
    tmp_path: Path, postgres_url: str
) -> None:
    sites = TwoSites(tmp_path, postgres_url, None)
    first, second = sites.first, sites.second

    def follow() -> None:
        second.pull(first)
        run(first, "CREATE ROLE later")

    following: list[Future[None]] = []
    with first.house.database.writing() as connection:
        run_after(
            connection,
            "min(replica_slots.point)",
            lambda: following.append(begin_beside(first.house.database, follow)),
        )
        delete_confirmed_changes(connection, first.clock.now())
    following[0].result(60)
    second.pull(first)
    assert second.read_catalog() == first.read_catalog()
    sites.close()


def test_services_that_start_together_fence_a_former_primary(
    tmp_path: Path, postgres_url: str
) -> None:
    sites = TwoSites(tmp_path, postgres_url, None)
    database = sites.first.house.database

    def fence() -> None:
        with database.writing() as connection:
            failover_groups.fence(connection, "http://SITE2")

    with database.writing() as connection:
        failover_groups.fence(connection, "http://SITE2")
        other = begin_beside(database, fence)
    other.result(60)
    with pytest.raises(SiteReadOnly):
        run(sites.first, "CREATE DATABASE other")
    sites.close()
