"""No row is lost or duplicated if client, service or migrator is killed at any failpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from snowmelt.failpoints import Failpoint
from snowmelt.testing.crash_harness import (
    CLIENT_POINTS,
    MIGRATION_POINTS,
    SERVICE_POINTS,
    CrashHarness,
)
from support import forked_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashHarness]:
    with CrashHarness(
        tmp_path_factory.mktemp("crash") / "site", popen=forked_processes.Popen
    ) as site:
        yield site


# Two kills per point, the second after recovery from the first. benchmarks/kills.py makes twenty.
@pytest.mark.parametrize("point", [*CLIENT_POINTS, *SERVICE_POINTS, *MIGRATION_POINTS])
def test_every_committed_row_is_there_once_after_kills_at(
    site: CrashHarness, point: Failpoint
) -> None:
    outcome = site.run(point, kills=2)
    assert outcome.expected_rows > 0
    assert (outcome.lost_rows, outcome.duplicate_rows) == (0, 0)


@pytest.fixture(scope="module")
def spark_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashHarness]:
    with CrashHarness(tmp_path_factory.mktemp("crash") / "spark", engine="spark") as site:
        yield site


# Each kill starts Spark, so kill only once, in the driver's commit. benchmarks/kills.py makes
# twenty kills at each of the six points.
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", [Failpoint.MIGRATION_INSIDE_COMMIT])
def test_every_committed_row_is_there_once_after_kills_of_spark_at(
    spark_site: CrashHarness, point: Failpoint
) -> None:
    outcome = spark_site.run(point, kills=1)
    assert outcome.expected_rows > 0
    assert (outcome.lost_rows, outcome.duplicate_rows) == (0, 0)
