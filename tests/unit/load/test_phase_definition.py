"""Parameters by name: any case, right types, and a sentence for everything else."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter

DEFINITION: PhaseDefinition[dict[str, Any]] = PhaseDefinition(
    "Filter f",
    dict,
    (
        PhaseParameter("text", str, required=True),
        PhaseParameter("Count", int),
        PhaseParameter("ratio", float),
        PhaseParameter("flag", bool),
        PhaseParameter("wait", dt.timedelta),
    ),
)


def test_names_are_taken_in_any_case_and_what_is_not_given_is_left_out() -> None:
    assert DEFINITION.build_phase({"TEXT": "x", "count": 2, "flag": None}) == {
        "text": "x",
        "Count": 2,
    }


def test_truth_is_written_in_many_ways_and_whole_numbers_are_numbers() -> None:
    for word, value in (("t", True), ("TRUE", True), ("no", False), ("0", False), (1, True)):
        assert DEFINITION.build_phase({"text": "", "flag": word})["flag"] is value
    assert DEFINITION.build_phase({"text": "", "ratio": 2})["ratio"] == 2.0
    assert DEFINITION.build_phase({"text": "", "ratio": Decimal("2.5")})["ratio"] == 2.5
    wait = dt.timedelta(seconds=1)
    assert DEFINITION.build_phase({"text": "", "wait": wait})["wait"] == wait


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "Filter f: missing parameter text, expected a string"),
        ({"text": 5}, "invalid parameter text: expected a string, got 5"),
        ({"text": "x", "count": "2"}, "invalid parameter Count: expected an integer, got '2'"),
        ({"text": "x", "count": True}, "invalid parameter Count: expected an integer, got True"),
        ({"text": "x", "count": Decimal("2.50")}, "Count: expected an integer, got 2.50"),
        ({"text": "x", "ratio": Decimal("1e400")}, "ratio: expected a number, got 1E"),
        ({"text": "x", "ratio": True}, "invalid parameter ratio: expected a number, got True"),
        (
            {"text": "x", "flag": "maybe"},
            "invalid parameter flag: expected true or false, got 'maybe'",
        ),
        ({"text": "x", "wait": 5}, "invalid parameter wait: expected an interval, got 5"),
        ({"text": "x", "TEXT": "y"}, "parameter text is given twice"),
        (
            {"text": "x", "other": 1},
            "unknown parameter other. Valid parameters: text, Count, ratio, flag, wait",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(
    given: dict[str, Any] | dict[str, int] | dict[str, str], reason: str
) -> None:
    with pytest.raises(LoadRefused, match=reason.replace("(", r"\(")):
        DEFINITION.build_phase(given)


def test_what_is_built_in_plans_nothing() -> None:
    assert DEFINITION.compute_planned_values({"text": "x"}) == {}
