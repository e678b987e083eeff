"""What the portions of a load come to."""

from __future__ import annotations

from typing import Any

import pytest

from snowmelt.catalog.jobs.load_history import LoadFileState
from snowmelt.errors import InternalError
from snowmelt.load.phase_protocols import ParseReject, ParseTarget
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.task import LoadStep, LoadTask, PortionCounts, StackPlan
from snowmelt.loaders.load_result_check import (
    CopyReconciliation,
    reconcile_load,
    to_failed_file_records,
)
from snowmelt.loaders.load_task_execution import PortionResult
from snowmelt.schema.types import Column, LogicalType, TableSchema

SCHEMA = TableSchema(1, (Column("N", LogicalType.FIXED, 1, precision=9, scale=0),))
PLAN = StackPlan(
    source=LoadStep("source", "File", {"file": "*"}),
    filters=(),
    parser=LoadStep("parser", "Delimited"),
    target=ParseTarget(SCHEMA),
    table=SCHEMA,
)
# Two halves of `a`, and `b` whole.
TASKS = (
    LoadTask(0, Portion(InputFile("a", 100, "t"), 50, 50), PLAN),
    LoadTask(1, Portion(InputFile("a", 100, "t"), 0, 50), PLAN),
    LoadTask(2, Portion(InputFile("b", 10, "u")), PLAN),
)


def done(number: int, rows: int, rejects: int = 0, **fields: Any) -> PortionResult:
    counts = PortionCounts(50 if number < 2 else 10, 50, rows + rejects, rows, rejects)
    first = ParseReject(rows + 1, 9, b"x", "bad") if rejects else None
    return PortionResult(
        number, counts, first_reject=first, reject_reasons=(("bad", rejects),), **fields
    )


def settled(
    *outcomes: PortionResult, limit: int | None = None, tolerant: bool = False, **fields: Any
) -> CopyReconciliation:
    return reconcile_load(TASKS, outcomes, reject_limit=limit, error_tolerance=tolerant, **fields)


def test_portions_of_a_file_are_added_up() -> None:
    found = settled(done(2, 1), done(1, 4, 1), done(0, 5))
    assert found.failure_reason is None
    assert (found.totals.files, found.totals.rows, found.totals.rejects) == (2, 10, 1)
    a, b = found.file_records
    assert (a.path, a.rows, a.rejects, a.bytes) == ("a", 9, 1, 100)
    assert (a.state, b.state) == (LoadFileState.PARTIALLY_LOADED, LoadFileState.LOADED)
    assert a.first_error == "a, record 5: bad"
    assert found.first_records == {1: 1, 0: 6, 2: 1}
    assert found.reject_reasons[0] == ("bad", 1)


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ((done(0, 1), done(1, 1)), "2 of 3 portions"),
        ((done(0, 1), done(1, 1), done(2, 1), done(3, 1)), "4 of 3 portions"),
        ((done(0, 1), done(0, 1), done(1, 1), done(2, 1)), "has two results"),
        (
            (PortionResult(0, PortionCounts(records=2, rows=1)), done(1, 1), done(2, 1)),
            "2 records, 1 rows",
        ),
    ],
)
def test_what_does_not_add_up_is_no_load(outcomes: tuple[PortionResult, ...], reason: str) -> None:
    with pytest.raises(InternalError, match=reason):
        settled(*outcomes)


def test_a_file_that_fails_stops_a_load_unless_it_is_tolerant() -> None:
    outcomes = (done(0, 5), done(1, 0, error="broken"), done(2, 1))
    assert settled(*outcomes).failure_reason == "broken"
    left = settled(*outcomes, tolerant=True)
    assert left.failure_reason is None
    assert (left.totals.files, left.totals.rows) == (1, 1)
    assert [each.state for each in left.file_records] == [
        LoadFileState.FAILED,
        LoadFileState.LOADED,
    ]
    assert left.file_records[0].rows == 0
    everything = settled(
        done(0, 0, error="broken"), done(1, 0), done(2, 0, error="too"), tolerant=True
    )
    assert everything.failure_reason == "broken"


def test_portions_that_were_left_let_no_load_pass() -> None:
    found = settled(PortionResult(0, was_stopped=True), done(1, 5), done(2, 1))
    assert found.failure_reason == "It was stopped"
    found = settled(PortionResult(0, was_stopped=True), done(1, 0, error="why"), done(2, 1))
    assert found.failure_reason == "why"
    # What comes behind an unknown number of records has no number.
    found = settled(done(0, 1), done(1, 0, error="why"), done(2, 1))
    assert found.first_records == {1: 1, 2: 1}


def test_limits_count_the_rejects_of_all_portions() -> None:
    outcomes = (done(0, 5, 2), done(1, 4, 2), done(2, 1))
    assert settled(*outcomes, limit=5).failure_reason is None
    assert "4 records were rejected, and REJECTMAX is 4" in (
        settled(*outcomes, limit=4).failure_reason or ""
    )
    assert "ABORT ON ERROR" in (settled(*outcomes, limit=1).failure_reason or "")


def test_what_was_never_found_is_told_with_the_rest() -> None:
    found = settled(done(0, 1), done(1, 1), done(2, 1), missing_inputs=[("c", "no such file")])
    assert found.totals.files == 2
    assert [(each.number, each.path) for each in found.file_records] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]
    assert found.file_records[2].first_error == "no such file"


def test_an_input_without_a_path_is_never_known_again() -> None:
    found = settled(done(0, 1), done(1, 1), done(2, 1), display_path="STDIN")
    assert {(each.path, each.size, each.tag) for each in found.file_records} == {
        ("STDIN", None, None)
    }


def test_files_of_a_load_that_is_given_up_say_why() -> None:
    found = settled(done(0, 5, 1), done(1, 4), done(2, 1))
    a, b = to_failed_file_records(found.file_records, "overtaken")
    assert (a.state, a.rows, b.first_error) == (LoadFileState.FAILED, 0, "overtaken")
    assert "bad" in (a.first_error or "")
