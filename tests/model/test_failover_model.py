"""The protocol between two sites keeps its promise, and needs each of its rules."""

from __future__ import annotations

import os

import pytest

from support.failover_model import Protocol, count_violations

# `./run soak failover-model` runs more.
SCHEDULES = int(os.environ.get("SNOWMELT_TEST_SCHEDULES", "600"))
FIRST_SEED = int(os.environ.get("SNOWMELT_TEST_FIRST_SEED", "0"))


def test_no_schedule_loses_or_doubles_a_row() -> None:
    assert count_violations(SCHEDULES, Protocol(), first_seed=FIRST_SEED) == 0


@pytest.mark.parametrize(
    ("rule", "seed"),
    [
        ("protects_tokens", 9),
        ("raises_the_floor", 6),
        ("fences_old_states", 59),
        ("open_waits", 1),
        ("copies_objects_first", 9),
        ("is_done_when_reported", 279),
        ("requires_a_safe_state", 8),
        ("clients_remember_epochs", 74),
    ],
)
def test_schedules_find_what_a_missing_rule_breaks(rule: str, seed: int) -> None:
    assert count_violations(1, Protocol(**{rule: False}), first_seed=seed) == 1
