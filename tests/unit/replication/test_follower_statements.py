"""Statements at a site that follows another one: none of them claims an effect that it does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.replicas import TwoSites, run
from snowmelt.catalog.objects.failover_groups import GroupConflict
from snowmelt.errors import SiteReadOnly

pytestmark = pytest.mark.slow

# Statements that change nothing in the state of a follower. At the primary they may change something.
WITHOUT_EFFECT = (
    "CREATE DATABASE IF NOT EXISTS demo",
    "CREATE TABLE IF NOT EXISTS demo.public.numbers (id INT)",
    "ALTER TABLE demo.public.numbers DROP COLUMN IF EXISTS missing",
    "ALTER TABLE IF EXISTS demo.public.missing ADD COLUMN a INT",
    "TRUNCATE TABLE IF EXISTS demo.public.missing",
    "DROP TABLE IF EXISTS demo.public.missing",
    "DROP DATABASE IF EXISTS missing",
    "DROP USER IF EXISTS missing",
    "DROP BUCKET IF EXISTS missing",
    "REVOKE DELETE ON TABLE demo.public.numbers FROM ROLE public",
    "REVOKE SELECT ON FUTURE TABLES IN SCHEMA demo.public FROM ROLE public",
    "REVOKE ROLE public FROM USER ann",
    "GRANT SELECT ON ALL TABLES IN SCHEMA demo.empty TO ROLE public",
    "ALTER USER ann UNSET RSA_PUBLIC_KEY",
)


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)],
)
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoSites]:
    """Two sites with a state; the catalog of the second is on this database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = TwoSites(tmp_path, None, url)
    found.first.house.create()
    run(found.first, "CREATE USER ann")
    run(found.first, "CREATE SCHEMA demo.empty")
    found.synchronize()
    yield found
    found.close()


@pytest.mark.parametrize("text", WITHOUT_EFFECT)
def test_statements_that_would_change_nothing_are_rejected_like_others(
    two_sites: TwoSites, text: str
) -> None:
    two_sites.first.house.create()
    run(two_sites.first, "CREATE USER ann")
    run(two_sites.first, "CREATE SCHEMA demo.empty")
    two_sites.synchronize()
    with pytest.raises(SiteReadOnly):
        run(two_sites.second, text)
    run(two_sites.first, text)


def test_statements_that_only_read_run_at_a_follower(sites: TwoSites) -> None:
    for text in ("SHOW TABLES IN DATABASE demo", "DESCRIBE TABLE demo.public.numbers"):
        assert run(sites.second, text).rows == run(sites.first, text).rows
    assert run(sites.second, "SHOW FAILOVER GROUPS").rows


@pytest.mark.parametrize(
    "change",
    [
        "ADD site3 TO ALLOWED_ACCOUNTS",
        "REMOVE site2 FROM ALLOWED_ACCOUNTS",
        "SET TOKENS = COMMITTED",
        "UNSET TOKENS",
        "SET ALLOWED_ACCOUNTS = site3",
    ],
)
def test_what_the_primary_determines_is_rejected_at_a_follower(
    sites: TwoSites, change: str
) -> None:
    with pytest.raises(GroupConflict, match="must be changed at the primary"):
        run(sites.second, f"ALTER FAILOVER GROUP g {change}")
    run(sites.second, "ALTER FAILOVER GROUP g SET COMMENT = 'the second site'")
    assert sites.second.group.settings.comment == "the second site"


def test_only_a_follower_is_suspended(sites: TwoSites) -> None:
    first, second = sites.first, sites.second
    message = run(first, "ALTER FAILOVER GROUP g SUSPEND").message
    assert message is not None
    assert "SUSPEND has an effect only at a secondary" in message
    assert not first.group.suspended
    run(second, "ALTER FAILOVER GROUP g SUSPEND")
    assert second.group.suspended


def test_a_suspended_follower_that_was_promoted_follows_the_next_primary(
    sites: TwoSites,
) -> None:
    run(sites.second, "ALTER FAILOVER GROUP g SUSPEND")
    run(sites.second, "ALTER FAILOVER GROUP g PRIMARY FORCE")
    assert not sites.second.group.suspended
