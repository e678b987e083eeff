"""COPY, migration, compaction and a stream on one table at once, all killed: no row lost or twice."""

from __future__ import annotations

import pytest

from snowmelt.testing.soak import Together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_loads_migrations_compactions_and_a_stream_lose_and_double_nothing(tmp_path):
    with Together(tmp_path) as site:
        counted = site.run_for(8, least_kills=5)
    assert counted.is_exact, counted
    assert counted.kills > 4
    assert counted.compactions > 0
    assert counted.queries > 0
    assert counted.copied > 0
    assert counted.streamed > 0
