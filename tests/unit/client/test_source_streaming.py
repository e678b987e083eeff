"""Positions are in the order that their reader expects, and none behind the committed one is lost."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest

from snowmelt.client.source_streaming import IterableSource, make_position_sort_key


@pytest.mark.parametrize(
    "rising",
    [
        [-5, -3, 0, 2, 10],
        [0.25, 0.3, 1.5, 1700000000.25, 1700000000.3, 1e17],
        [Decimal("1.25"), Decimal("1.3"), Decimal(2)],
        ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.75Z"],
        ["2026-01-01 00:00:00.123456+00:00", "2026-01-01 00:00:00.2+00:00"],
        ["b.log:9", "b.log:10", "c.log:1"],
        ["0:10:20:99", "0:10:20:100", "0:10:21:1"],
    ],
)
def test_numbers_and_times_are_sorted_as_such(rising: Any) -> None:
    keys = [make_position_sort_key(str(position)) for position in rising]
    for before, after in itertools.pairwise(keys):
        assert before < after


def test_rows_behind_the_committed_one_are_not_passed_over_whatever_their_order() -> None:
    source = IterableSource(
        [{"at": at} for at in ("3.8", "3.9", "3.10", "4.1")], lambda row: row["at"]
    )
    source.seek("3.9")
    # As a number 3.10 is smaller: who pumps the rows tells so, instead of never seeing it.
    assert [position for position, _ in source.positions()] == ["3.10", "4.1"]
