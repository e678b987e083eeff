"""Every reader returns accepted values unchanged. Every rejection has a column and a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from snowmelt.testing import LocalService
from support import value_round_trips

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService(dev=True) as started:
        yield started


@pytest.mark.slow
def test_edge_values_come_back_equal_from_chunks_and_files_or_are_rejected(
    service: LocalService,
) -> None:
    site = value_round_trips.run(service, 400, seed=20_26)
    assert site.failures == []
    assert len(site.accepted) > 700


@pytest.mark.slow
@pytest.mark.spark
def test_edge_values_come_back_equal_from_every_reader_of_spark(
    service: LocalService, spark: SparkSession
) -> None:
    ways = ["insert_rows", "insert_arrow"]
    site = value_round_trips.run(service, 250, 15, spark, ways=ways, at_once=True)
    assert site.failures == []
    assert len(site.accepted) > 700
