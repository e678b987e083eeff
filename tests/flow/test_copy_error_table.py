"""Rejects of COPY are stored in the table's error table, in the commit of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fixtures.copy import Copying
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import LoadFailed
from snowmelt.schema.types import TableName

ERRORS = TableName("DEMO", "PUBLIC", "ERRORS")


@pytest.fixture
def errors(copying: Copying) -> Callable[[], Any]:
    execute_statement(
        copying.house.database,
        "ALTER TABLE demo.public.numbers SET ERROR_TABLE = demo.public.errors",
    )
    return lambda: copying.house.read(ERRORS).sort_by("ROW_NUMBER").to_pylist()


def test_rejects_come_with_the_rows(copying: Copying, errors: Any) -> None:
    path = copying.file("a.csv", "1|one\nx|two\n3|three\n4|four|five\n")
    copied = copying.copy(f"COPY numbers FROM {path}")
    assert (copied.totals.rows, copied.totals.rejects) == (2, 2)
    assert copied.rejected_to == "DEMO.PUBLIC.ERRORS"
    first, second = errors()
    assert (first["ROW_DATA"], first["COLUMN_NAME"]) == ("x|two", "N")
    assert (first["TABLE_NAME"], first["PROTOCOL"]) == ("DEMO.PUBLIC.NUMBERS", "copy")
    assert (first["SOURCE"], first["OFFSET_TOKEN"]) == (copied.load_id, path.strip("'"))
    assert [int(row["ROW_NUMBER"]) for row in (first, second)] == [2, 4]
    assert copying.copy(f"COPY numbers FROM {path}").skipped_files == 1
    only_bad = copying.file("b.csv", "y|\n")
    assert copying.copy(f"COPY numbers FROM {only_bad}").totals.rows == 0
    assert len(errors()) == 3
    assert sorted(copying.house.read_numbers()) == [1, 3]
    copying.house.migrate()
    assert sorted(copying.house.read_numbers()) == [1, 3]


def test_a_load_that_fails_leaves_nothing_and_given_places_win(
    copying: Copying, errors: Any
) -> None:
    path = copying.file("a.csv", "1|one\nx|two\n")
    with pytest.raises(LoadFailed):
        copying.copy(f"COPY numbers FROM {path} REJECTMAX 1")
    copied = copying.copy(f"COPY numbers FROM {path} REJECTED DATA AS TABLE rejects")
    assert copied.rejected_to == "DEMO.PUBLIC.REJECTS"
    assert errors() == []
    execute_statement(copying.house.database, "DROP TABLE demo.public.errors")
    again = copying.copy(f"COPY numbers FROM {path} FORCE")
    assert (again.totals.rows, again.rejected_to) == (1, None)
