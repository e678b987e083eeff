"""VALIDATION_MODE of COPY INTO: errors or rows of files are returned, and nothing is loaded."""

from __future__ import annotations

import gzip
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.errors import LoadFailed, LoadRefused, StatementError
from snowmelt.loaders import copy_validation
from snowmelt.loaders.file_pipe_check import parse_watched_copy
from snowmelt.loaders.file_statements import run_file_statement
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from fixtures.copy import Copying


def validate(copying: Copying, text: str) -> StatementResult:
    result = run_file_statement(copying.context, text, LocalTaskRunner())
    assert isinstance(result, StatementResult)
    return result


def test_errors_of_all_files_are_returned_with_record_and_column(copying: Copying) -> None:
    copying.file("1.csv", "1,a\nx,b\n2,c,d\n")
    copying.file("2.csv.gz", gzip.compress(b"3,d\n,e\n"))
    copying.file("3.csv", "4,f\n")
    (copying.folder / "4.csv.gz").write_bytes(b"no gzip")
    text = (
        f"COPY INTO numbers FROM '{copying.folder}/' PURGE = TRUE VALIDATION_MODE = RETURN_ERRORS"
    )
    found = validate(copying, text)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert [
        (str(row["file"]).rpartition("/")[2], row["row_number"], row["byte_offset"], row["column_name"])
        for row in rows
    ] == [("1.csv", 2, 4, "N"), ("1.csv", 3, 8, None), ("2.csv.gz", 2, 4, "N"), ("4.csv.gz", None, None, None)]  # fmt: skip
    assert rows[0]["rejected_record"] == "x,b"
    assert "N" in str(rows[0]["error"])
    assert "gzip" in str(rows[3]["error"]).lower()
    table = TableName("DEMO", "PUBLIC", "NUMBERS")
    assert copying.house.read(table).num_rows == 0
    assert (copying.states(), copying.history()) == ([], [])
    assert (copying.folder / "3.csv").exists()


def test_loaded_files_are_left_out_unless_all_errors_are_wanted(copying: Copying) -> None:
    copying.file("1.csv", "1,a\nx,b\n")
    copying.file("2.csv", "2,c\n")
    text = f"COPY INTO numbers FROM '{copying.folder}/'"
    copying.copy(f"{text} ON_ERROR = CONTINUE")
    copying.file("3.csv", "y,d\n")
    for mode, count in (("RETURN_ERRORS", 1), ("RETURN_ALL_ERRORS", 2)):
        assert len(validate(copying, f"{text} VALIDATION_MODE = {mode}").rows) == count
    assert len(validate(copying, f"{text} FORCE = TRUE VALIDATION_MODE = RETURN_ERRORS").rows) == 2


def test_the_first_rows_are_returned_unless_one_of_them_is_an_error(copying: Copying) -> None:
    copying.file("1.csv", "1,a\n2,\\N\n")
    copying.file("2.csv", "3,c\nx,d\n")
    text = f"COPY INTO numbers FROM '{copying.folder}/' VALIDATION_MODE = "
    found = validate(copying, f"{text}RETURN_3_ROWS")
    assert found.columns == ("N", "WORD")
    assert found.rows == ((Decimal(1), "a"), (Decimal(2), None), (Decimal(3), "c"))
    with pytest.raises(LoadFailed, match=r"record 2: .*N"):
        validate(copying, f"{text}RETURN_4_ROWS")
    selected = (
        f"COPY INTO numbers FROM (SELECT $1::INT + 10, UPPER($2) FROM '{copying.folder}/1.csv')"
    )
    assert validate(copying, f"{selected} VALIDATION_MODE = 'RETURN_1_ROWS'").rows == (
        (Decimal(11), "A"),
    )
    nothing = f"COPY INTO numbers FROM '{copying.folder}/none' VALIDATION_MODE = RETURN_1_ROWS"
    assert validate(copying, nothing).message == "The files have no rows."


def test_errors_beyond_the_limit_are_reported_as_such(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_validation, "_MAX_ERRORS", 2)
    copying.file("1.csv", "x,b\n")
    copying.file("2.csv", "y,b\nz,b\n")
    text = f"COPY INTO numbers FROM '{copying.folder}/' VALIDATION_MODE = RETURN_ERRORS"
    found = validate(copying, text)
    assert [row[2] for row in found.rows] == [1, 1, None]
    assert found.rows[2][0] == "More than 2 errors: the rest was not validated."


def test_a_validation_is_no_load(copying: Copying) -> None:
    text = f"COPY INTO numbers FROM '{copying.folder}/' VALIDATION_MODE = RETURN_ERRORS"
    with pytest.raises(LoadRefused, match="VALIDATION_MODE"):
        copying.copy(text)
    with pytest.raises(StatementError, match="VALIDATION_MODE is not supported"):
        parse_watched_copy(text)
    for mode in ("RETURN_0_ROWS", "RETURN_99999_ROWS", "NOTHING"):
        with pytest.raises(StatementError, match=r"Expected RETURN_<n>_ROWS"):
            validate(copying, text.replace("RETURN_ERRORS", mode))
