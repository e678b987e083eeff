from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import snowmelt.select
from snowmelt.errors import UserError
from snowmelt.select.errors import ALL_CODES, ErrorBudget, SelectError, make_skippable_row_error
from support.reference_select import AWS, CEPH, CEPH_2020

SOURCES = sorted(Path(snowmelt.select.__file__).parent.rglob("*.py"))


def codes_of(path: Path) -> Iterator[str]:
    """Yield the texts given as a code in calls of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        code = getattr(node.args[0], "value", None)
        if name in {"SelectError", "row_error", "syntax_error", "error"} and isinstance(code, str):
            yield code


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_code_that_is_raised_is_known(path: Path) -> None:
    assert set(codes_of(path)) <= ALL_CODES


def test_refusal_carries_code_and_status() -> None:
    error = SelectError("CastFailed", "no")
    assert isinstance(error, UserError)
    assert (error.s3_code, error.status_code, error.fatal, str(error)) == (
        "CastFailed",
        400,
        True,
        "no",
    )
    assert SelectError("UnauthorizedAccess", "no").status_code == 401
    assert SelectError("Busy", "no").status_code == 503
    assert SelectError("InternalError", "no").status_code == 500


def test_ceph_has_two_codes_for_all_of_sql() -> None:
    assert SelectError("ParseUnexpectedToken", "").wire_code(CEPH) == "UnsupportedSyntax"
    assert SelectError("CastFailed", "").wire_code(CEPH_2020) == "ProcessingTimeError"
    assert SelectError("CastFailed", "").wire_code(AWS) == "CastFailed"
    assert SelectError("NoSuchKey", "").wire_code(CEPH) == "NoSuchKey"


def test_hundredth_dropped_row_ends_the_query() -> None:
    budget = ErrorBudget()
    for _ in range(99):
        budget.count_dropped_row(make_skippable_row_error("CastFailed", "row", CEPH_2020))
    assert budget.dropped == 99
    with pytest.raises(
        SelectError, match="100 rows could not be evaluated; the last: row"
    ) as ended:
        budget.count_dropped_row(make_skippable_row_error("CastFailed", "row", CEPH_2020))
    assert ended.value.fatal


def test_fatal_error_ends_the_query_at_once() -> None:
    with pytest.raises(SelectError, match="at once"):
        ErrorBudget().count_dropped_row(SelectError("CastFailed", "at once"))
    assert make_skippable_row_error("CastFailed", "x", AWS).fatal
    assert make_skippable_row_error("CastFailed", "x", CEPH).fatal
