"""What is accepted comes back equal from every reader; what is rejected has a column and a reason."""

from __future__ import annotations

import pytest

from snowmelt.testing import LocalService
from support import value_round_trips


@pytest.fixture
def service():
    with LocalService(dev=True) as started:
        yield started


@pytest.mark.slow
def test_edge_values_come_back_equal_from_chunks_and_files_or_are_rejected(service):
    site = value_round_trips.run(service, 400, seed=20_26)
    assert site.failures == []
    assert len(site.accepted) > 700


@pytest.mark.slow
@pytest.mark.spark
def test_edge_values_come_back_equal_from_every_reader_of_spark(service, spark):
    ways = ["insert_rows", "insert_arrow"]
    site = value_round_trips.run(service, 250, 15, spark, ways=ways, at_once=True)
    assert site.failures == []
    assert len(site.accepted) > 700
