"""Concurrent COPY, migration, compaction and streaming on one table, all killed: no row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.testing.soak import SoakHarness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_loads_migrations_compactions_and_a_stream_lose_and_double_nothing(tmp_path: Path) -> None:
    with SoakHarness(tmp_path) as site:
        counted = site.run_for(8, min_kills=5, min_compactions=1)
    assert counted.is_exact, counted
    assert counted.queries > 0
    assert counted.copied_rows > 0
    assert counted.streamed_rows > 0
