"""What portions come to together."""

from __future__ import annotations

import pytest

from snowmelt.errors import InternalError
from snowmelt.load.phase_protocols import ParseTarget
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.task import LoadStep, LoadTask, PortionCounts, StackPlan
from snowmelt.loaders.load_result_check import (
    compute_first_record_numbers,
    verify_portion_counts,
)
from snowmelt.schema.types import TableSchema

SCHEMA = TableSchema(1, ())
PLAN = StackPlan(
    source=LoadStep("source", "s"),
    filters=(),
    parser=LoadStep("parser", "p"),
    target=ParseTarget(SCHEMA),
    table=SCHEMA,
)
A, B = InputFile("a", 30), InputFile("b")


def tasks(*portions: Portion) -> list[LoadTask]:
    return [LoadTask(number, portion, PLAN) for number, portion in enumerate(portions)]


THREE = tasks(Portion(A, 20, 10), Portion(B), Portion(A, 0, 20))
COUNTS = {
    0: PortionCounts(10, 10, 5, 4, 1),
    1: PortionCounts(7, 9, 3, 3, 0),
    2: PortionCounts(20, 20, 8, 8, 0, reject_limit_reached=True),
}


def test_portions_that_add_up_pass() -> None:
    verify_portion_counts(THREE, COUNTS)


def test_records_are_numbered_through_a_file() -> None:
    assert compute_first_record_numbers(THREE, COUNTS) == {2: 1, 0: 9, 1: 1}


def test_what_follows_a_portion_that_failed_has_no_numbers() -> None:
    # Of the failed one itself what was read is known from its first record on.
    assert compute_first_record_numbers(THREE, {0: COUNTS[0], 1: COUNTS[1]}) == {2: 1, 1: 1}


@pytest.mark.parametrize(
    ("planned", "counts", "reason"),
    [
        (THREE, {0: PortionCounts(), 1: PortionCounts()}, "portion 2 is missing"),
        (
            THREE[:2],
            {0: PortionCounts(), 1: PortionCounts()},
            "a is loaded up to byte 0, and then from byte 20",
        ),
        (tasks(Portion(A, 0, 20)), {0: PortionCounts()}, "a has 30 bytes, 20 of them were loaded"),
        (
            tasks(Portion(A, 0, 20), Portion(A, 10, 20)),
            {0: PortionCounts(), 1: PortionCounts()},
            "up to byte 20",
        ),
        (
            tasks(Portion(A)),
            {0: PortionCounts(records=3, rows=1, rejects=1)},
            "3 records, 1 rows and 1",
        ),
        (
            tasks(Portion(A)),
            {0: PortionCounts(), 1: PortionCounts()},
            "portion 1 is missing or unknown",
        ),
    ],
)
def test_what_does_not_add_up_is_an_error_of_its_own(
    planned: list[LoadTask], counts: dict[int, PortionCounts], reason: str
) -> None:
    with pytest.raises(InternalError, match=reason):
        verify_portion_counts(planned, counts)
