"""States of tables and channels."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.catalog.views.freshness import (
    compute_freshness_state,
    compute_usual_gap,
    is_bookkeeping_name,
)

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
CREATED = NOW - dt.timedelta(days=1)


@pytest.mark.parametrize(
    ("silent_s", "freshness_s", "usual_gap_s", "state"),
    [
        (None, None, None, "never"),
        (None, 2 * 86_400, None, "never"),
        (None, 300, None, "late"),
        (300, 300, None, "fresh"),
        (301, 300, None, "late"),
        (301, 300, 1.0, "late"),
        (290, 300, 1.0, "fresh"),
        (3600, None, None, "fresh"),
        (3601, None, None, "quiet"),
        (60, None, 0.5, "fresh"),
        (61, None, 0.5, "quiet"),
        (1200, None, 100.0, "fresh"),
        (1201, None, 100.0, "quiet"),
    ],
)
def test_a_state_follows_from_silence_expectation_and_usual_gap(
    silent_s: int | None, freshness_s: int | None, usual_gap_s: float | None, state: str
) -> None:
    last = None if silent_s is None else NOW - dt.timedelta(seconds=silent_s)
    found = compute_freshness_state(
        last_commit_at=last,
        created_at=CREATED,
        freshness_s=freshness_s,
        usual_gap_s=usual_gap_s,
        now=NOW,
    )
    assert found == state


def test_a_gap_is_usual_from_five_commits_on() -> None:
    assert compute_usual_gap(NOW - dt.timedelta(seconds=50), NOW, 5) == 10.0
    assert compute_usual_gap(NOW - dt.timedelta(seconds=50), NOW, 4) is None


@pytest.mark.parametrize(
    ("name", "is_bookkeeping"),
    [
        ("clicks:P0:end", True),
        ("clicks:source", True),
        ("clicks:connector", True),
        ("clicks:P0", False),
        ("time:end", False),
        (":source", False),
    ],
)
def test_bookkeeping_channels_of_connectors_are_known_by_their_names(
    name: str, is_bookkeeping: bool
) -> None:
    assert is_bookkeeping_name(name) == is_bookkeeping
