"""`snowmelt replica`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished

PRIMARY = ("replica", "create", "sites", "--site", "site1", "--allow", "site2")
SECONDARY = ("--of", "site1", "--primary-url", "https://one.example:8080")


def read_status(snowmelt: Callable[..., Finished]) -> dict[str, object]:
    (found,) = json.loads(snowmelt("replica", "status", "--format", "json").stdout)
    return dict(found)


def test_a_primary_is_created_changed_and_dropped(snowmelt: Callable[..., Finished]) -> None:
    snowmelt("sql", "CREATE DATABASE demo")
    given = ("--address", "https://one.example", "--replica-user", "o'neill", "--replica-key", "/k")
    created = snowmelt(*PRIMARY, *given)
    assert created.stdout == "Failover group SITES created.\n", created.stderr
    status = read_status(snowmelt)
    names = ("name", "site", "role", "allowed_accounts", "addresses", "replicas")
    expected = ["SITES", "SITE1", "primary", "SITE2", "https://one.example", []]
    assert [status[name] for name in names] == expected
    snowmelt("replica", "allow", "site3")
    snowmelt("replica", "forbid", "site2")
    assert read_status(snowmelt)["allowed_accounts"] == "SITE3"
    # A statement whose answer was lost may be repeated.
    promoted = snowmelt("replica", "promote", "--planned")
    assert promoted.stdout == "Site SITE1 is already the primary of group SITES, epoch 0.\n"
    assert snowmelt("replica", "diverged", "--format", "csv").stdout.count("\n") == 1
    assert snowmelt("replica", "drop").returncode == 0
    missing = snowmelt("replica", "status")
    assert missing.returncode == 1
    assert "no failover group" in missing.stderr


def test_a_secondary_is_created_suspended_and_promoted(snowmelt: Callable[..., Finished]) -> None:
    created = snowmelt("replica", "create", "sites", "--site", "site2", *SECONDARY)
    assert "follows https://one.example:8080" in created.stdout, created.stderr
    snowmelt("replica", "suspend")
    assert read_status(snowmelt)["suspended"] is True
    snowmelt("replica", "resume")
    status = read_status(snowmelt)
    assert (status["role"], status["suspended"]) == ("secondary", False)
    assert status["primary_url"] == "https://one.example:8080"
    promoted = snowmelt("replica", "promote")
    assert promoted.returncode == 1
    assert "may lack rows" in promoted.stderr
    assert "no state of the primary" in snowmelt("replica", "promote", "--force").stderr


def test_a_replication_group_has_no_promotion(snowmelt: Callable[..., Finished]) -> None:
    snowmelt("replica", "create", "sites", "--site", "site2", "--read-only", *SECONDARY)
    assert read_status(snowmelt)["kind"] == "REPLICATION"
    assert "replication group" in snowmelt("replica", "promote", "--force").stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--of", "site1"), "needs --primary-url"),
        (("--of", "site1", "--allow", "site3", "--primary-url", "https://x"), "takes no --allow"),
        ((), "needs --allow"),
        (("--allow", "site2", "--primary-url", "https://x"), "takes no --primary-url"),
    ],
)
def test_options_of_both_roles_are_rejected(
    snowmelt: Callable[..., Finished], options: tuple[str, ...], message: str
) -> None:
    created = snowmelt("replica", "create", "sites", "--site", "site2", *options)
    assert created.returncode == 1
    assert message in created.stderr
