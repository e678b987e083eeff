"""A handover or promotion that ends at any of its steps is completed by the next request or statement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.chunks import numbers
from fixtures.replicas import TwoSites, run
from snowmelt import failpoints
from snowmelt.failpoints import Failpoint

pytestmark = pytest.mark.slow


class ProcessEnded(Exception):
    """Stands for the end of the process at a failpoint."""


def end_process() -> None:
    raise ProcessEnded


@pytest.fixture
def written_sites(two_sites: TwoSites) -> Iterator[TwoSites]:
    """Two sites; the primary has rows that the secondary lacks."""
    two_sites.first.house.create()
    two_sites.synchronize()
    two_sites.first.house.put(numbers(0, 10), token="10")
    yield two_sites
    failpoints.disarm()


@pytest.mark.parametrize(
    "point",
    [
        (Failpoint.REPLICA_CONFIRMED, 1),
        (Failpoint.REPLICA_CONFIRMED, 2),
        (Failpoint.REPLICA_CLOSED, 1),
        (Failpoint.REPLICA_RESIGNED, 1),
        (Failpoint.REPLICA_PROMOTING, 1),
    ],
    ids=str,
)
def test_a_handover_goes_on(written_sites: TwoSites, point: tuple[Failpoint, int]) -> None:
    first, second = written_sites.first, written_sites.second
    run(second, "ALTER FAILOVER GROUP g PRIMARY PLANNED")
    ends = 0
    failpoints.arm(point[0], end_process, passage=point[1])
    while second.group.role != "primary":
        try:
            second.pull(first)
        except ProcessEnded:
            ends += 1
    assert ends == 1
    assert first.group.role == "fenced"
    assert second.house.read_numbers() == list(range(10))
    epoch = second.group.epoch
    message = run(second, "ALTER FAILOVER GROUP g PRIMARY PLANNED").message
    assert message == f"Site SITE2 is already the primary of group G, epoch {epoch}."
    second.house.put(numbers(10, 10), token="20")
    while first.pull(second).has_changes:
        pass
    written_sites.assert_equal()
    assert run(first, "SHOW DIVERGED CHANGES").rows == ()


def test_a_promotion_happens_completely_or_not_at_all(written_sites: TwoSites) -> None:
    second = written_sites.second
    written_sites.synchronize()
    before = second.group
    failpoints.arm(Failpoint.REPLICA_PROMOTING, end_process)
    with pytest.raises(ProcessEnded):
        run(second, "ALTER FAILOVER GROUP g PRIMARY")
    assert second.group == before
    # It still follows.
    written_sites.first.house.put(numbers(10, 10), token="20")
    written_sites.synchronize()
    run(second, "ALTER FAILOVER GROUP g PRIMARY")
    epoch = second.group.epoch
    run(second, "ALTER FAILOVER GROUP g PRIMARY")
    assert (second.group.role, second.group.epoch) == ("primary", epoch)
    second.house.put(numbers(20, 10), token="30")
    assert second.house.read_numbers() == list(range(30))
