"""COPY from files to queried rows: loaded, rejected and skipped records, results and history."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from typing import Any

import pytest

from fixtures.copy import Copying
from snowmelt.catalog.jobs.load_history import LoadFileState
from snowmelt.errors import (
    LoadFailed,
    LoadOvertaken,
    LoadRefused,
    PrivilegeMissing,
    StatementError,
    TableNotFound,
)
from snowmelt.loaders.load_task_execution import run_load_task
from snowmelt.schema.types import TableName
from support.ports import free_port

REJECTS = TableName("DEMO", "PUBLIC", "REJECTS")


def test_rows_of_files_join_rows_that_were_streamed(copying: Copying) -> None:
    copying.house.put_numbers(0, 10)
    plain = copying.file("a.csv", "10|ten\n11|\n")
    packed = copying.file("b.csv.gz", gzip.compress(b"12|zw\xc3\xb6lf\n"))
    copied = copying.copy(f"COPY demo.public.numbers FROM {plain}, {packed}")
    assert (copied.totals.rows, copied.totals.files, copied.totals.rejects) == (3, 2, 0)
    assert sorted(copying.house.read_numbers()) == list(range(13))
    copying.house.migrate()
    rows = copying.house.read().sort_by("N")
    assert rows["WORD"].to_pylist()[-3:] == ["ten", None, "zwölf"]


def test_a_file_whose_name_is_not_utf_8_is_named_and_may_be_skipped(copying: Copying) -> None:
    copying.file("a.csv", "1|one\n")
    (copying.folder / os.fsdecode(b"b\xff.csv")).write_text("2|two\n")
    statement = f"COPY numbers FROM '{copying.folder}/*.csv'"
    with pytest.raises(LoadFailed, match=r"b\\xff\.csv: the name of the file is not UTF-8"):
        copying.copy(statement)
    copied = copying.copy(f"{statement} ERROR TOLERANCE")
    [(path, reason)] = copied.failed_files
    assert path.endswith("/b\\xff.csv")
    assert "not UTF-8" in reason
    assert list(copying.house.read_numbers()) == [1]


def test_files_that_were_loaded_are_skipped_until_they_change(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\n")
    statement = f"COPY numbers FROM {path}"
    assert copying.copy(statement).skipped_files == 0
    again = copying.copy(statement)
    assert (again.load_id, again.skipped_files, again.totals.rows) == (None, 1, 0)
    assert copying.copy(statement + " FORCE").totals.rows == 1
    copying.file("a.csv", "2|two\n3|three\n")
    copying.file("b.csv", "4|four\n")
    both = copying.copy(f"COPY numbers FROM '{copying.folder}/*.csv'")
    assert (both.skipped_files, both.totals.rows, both.totals.files) == (0, 3, 2)
    assert sorted(copying.house.read_numbers()) == [1, 1, 2, 3, 4]


def test_rejects_are_kept_in_their_table_with_place_and_reason(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\nx|two\n3|three\n4|four|five\n")
    copied = copying.copy(f"COPY numbers FROM {path} REJECTED DATA AS TABLE rejects")
    assert (copied.totals.rows, copied.totals.rejects) == (2, 2)
    assert copied.rejected_to == "DEMO.PUBLIC.REJECTS"
    assert len(copied.reject_reasons) == 2
    rows = copying.house.read(REJECTS).sort_by("ROW_NUMBER")
    assert rows["REJECTED_DATA"].to_pylist() == ["x|two", "4|four|five"]
    assert [int(n) for n in rows["ROW_NUMBER"].to_pylist()] == [2, 4]
    assert [int(n) for n in rows["BYTE_OFFSET"].to_pylist()] == [6, 20]
    assert rows["COLUMN_NAME"].to_pylist()[0] == "N"
    assert set(rows["FILE_NAME"].to_pylist()) == {path.strip("'")}
    assert set(rows["LOAD_ID"].to_pylist()) == {copied.load_id}
    [told] = copying.history()
    assert (told.file.state, told.file.rows, told.file.rejects) == (
        LoadFileState.PARTIALLY_LOADED,
        2,
        2,
    )
    assert told.file.first_error is not None
    assert "record 2: column 1" in told.file.first_error


def test_rejects_go_to_files(copying: Copying) -> None:
    path = copying.file("a.csv", b"1|one\n\xff|two\ny|three\n")
    data, reasons = copying.folder / "rejected", copying.folder / "reasons"
    copied = copying.copy(f"COPY numbers FROM {path} REJECTED DATA '{data}' EXCEPTIONS '{reasons}'")
    assert copied.rejected_to == f"{data} and {reasons}"
    assert data.read_bytes() == b"\xff|two\ny|three\n"
    first, second = reasons.read_text().splitlines()
    assert first.startswith(f"COPY: Record 2 of {path.strip(chr(39))} was rejected: column 1")
    assert "Record 3" in second
    path = copying.file("b.csv", b"1|one;x\n|two;y|three;")
    copying.copy(f"COPY numbers FROM {path} RECORD TERMINATOR ';' REJECTED DATA '{data}' OVERWRITE")
    assert data.read_bytes() == b"x\n|two;y|three;"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("ABORT ON ERROR", r"rejected, and the load allows none \(ABORT ON ERROR,"),
        ("REJECTMAX 2", r"records were rejected, and REJECTMAX is 2"),
    ],
)
def test_a_load_with_too_many_rejects_loads_nothing_and_keeps_the_rejects(
    option: str, told: str, copying: Copying
) -> None:
    good = copying.file("a.csv", "1|one\n")
    bad = copying.file("b.csv", "2|two\nx|\ny|\nz|\n")
    statement = f"COPY numbers FROM {good}, {bad} REJECTED DATA AS TABLE rejects"
    with pytest.raises(LoadFailed, match=told):
        copying.copy(f"{statement} {option}")
    assert copying.house.read_numbers() == []
    kept = copying.house.read(REJECTS).num_rows
    assert kept >= 1
    assert copying.states() == ["failed"]
    assert {each.file.state for each in copying.history()} == {LoadFileState.FAILED}
    assert copying.copy(f"{statement} REJECTMAX 4").totals.rows == 2
    assert copying.house.read(REJECTS).num_rows == kept + 3


def test_a_file_that_fails_leaves_nothing_or_only_itself_out(copying: Copying) -> None:
    good = copying.file("a.csv", "1|one\n")
    broken = copying.file("b.csv.gz", gzip.compress(b"2|two\n" * 1000)[:-20])
    with pytest.raises(LoadFailed, match=r"b\.csv\.gz.*(?i:gzip)"):
        copying.copy(f"COPY numbers FROM {good}, {broken}")
    assert copying.house.read_numbers() == []
    copied = copying.copy(f"COPY numbers FROM {good}, {broken}, '/nowhere' ERROR TOLERANCE")
    assert copying.house.read_numbers() == [1]
    assert [path.rpartition("/")[2] for path, _ in copied.failed_files] == ["b.csv.gz", "nowhere"]
    assert copied.totals.files == 1
    mended = copying.file("b.csv.gz", gzip.compress(b"2|two\n"))
    assert copying.copy(f"COPY numbers FROM {good}, {mended}").totals.rows == 1


def test_a_file_in_portions_is_as_one(copying: Copying) -> None:
    copying.context = replace(copying.context, min_portion_bytes=1)
    lines = [f"{n}|word {n}\n" if n % 100 else f"x{n}|\n" for n in range(1000)]
    path = copying.file("a.csv", "".join(lines))

    class Four:
        parallelism = 4

        def __call__(self, plan: Any, tasks: Any) -> list[Any]:
            assert len(tasks) == 4
            return [run_load_task(plan, task) for task in reversed(tasks)]

    statement = f"COPY numbers FROM {path} REJECTED DATA AS TABLE rejects"
    copied = copying.copy(statement, run=Four())
    assert (copied.totals.rows, copied.totals.rejects) == (990, 10)
    assert copied.totals.bytes == sum(map(len, lines))
    assert sorted(copying.house.read_numbers()) == [n for n in range(1000) if n % 100]
    rows = copying.house.read(REJECTS)
    numbers = [int(n) for n in rows["ROW_NUMBER"].to_pylist()]
    assert sorted(numbers) == [n + 1 for n in range(0, 1000, 100)]
    assert rows["REJECTED_DATA"].to_pylist() == [f"x{n - 1}|" for n in numbers]


def test_a_load_that_loses_a_portion_does_not_commit(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\n")

    class Nothing:
        parallelism = 1

        def __call__(self, plan: Any, tasks: Any) -> list[Any]:
            return []

    with pytest.raises(Exception, match=r"Inconsistent load|is inconsistent"):
        copying.copy(f"COPY numbers FROM {path}", run=Nothing())
    assert copying.states() == ["failed"]


def test_of_two_loads_of_a_file_at_once_one_loses(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\n")
    statement = f"COPY numbers FROM {path}"

    class Overtaken:
        parallelism = 1

        def __call__(self, plan: Any, tasks: Any) -> list[Any]:
            copying.copy(statement)
            return [run_load_task(plan, task) for task in tasks]

    with pytest.raises(LoadOvertaken, match=r"has loaded .*a\.csv meanwhile"):
        copying.copy(statement, run=Overtaken())
    assert copying.house.read_numbers() == [1]
    assert sorted(copying.states()) == ["committed", "failed"]


def test_a_clustered_table_is_sorted_within_its_files(copying: Copying) -> None:
    copying.sql("CREATE TABLE sorted (n NUMBER(9,0), t TIMESTAMP_TZ(9)) CLUSTER BY (n, t)")
    path = copying.file("a.csv", "3|\n1|2024-01-02 03:04:05.123456789 +0100\n2|\n")
    copying.copy(f"COPY sorted FROM {path}")
    rows = copying.house.read(TableName("DEMO", "PUBLIC", "SORTED"))
    assert [int(n) for n in rows["N"].to_pylist()] == [1, 2, 3]
    assert rows["T$ns"].to_pylist() == [789, None, None]
    assert rows["T$tz"].to_pylist() == [60, None, None]


def test_a_filter_of_a_user_is_called_by_its_name(copying: Copying) -> None:
    library = copying.folder / "own.py"
    library.write_text("def shout(data: bytes) -> bytes:\n    return data.upper()\n")
    copying.sql(f"CREATE LIBRARY own AS '{library}'")
    copying.sql("CREATE FILTER shout AS NAME 'shout' LIBRARY own")
    path = copying.file("a.csv", "1|one\n2|two\n")
    copying.copy(f"COPY numbers FROM {path} WITH FILTER Shout()")
    assert copying.house.read(columns=["WORD"])["WORD"].to_pylist() == ["ONE", "TWO"]


def test_what_cannot_be_is_refused_before_anything_begins(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\n")
    for text, error in {
        f"COPY numbers FROM {path} NO COMMIT": LoadRefused,
        f"COPY numbers FROM {path} WITH FILTER nothing()": LoadRefused,
        f"COPY numbers FROM {path} REJECTED DATA AS TABLE numbers": LoadRefused,
        f"COPY nowhere FROM {path}": TableNotFound,
        "COPY numbers FROM": StatementError,
        "COPY numbers FROM '/nowhere/at/all'": LoadFailed,
    }.items():
        with pytest.raises(error):
            copying.copy(text)
    assert copying.states() == []


def test_a_role_needs_insert(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\n")
    copying.sql("CREATE ROLE reader")
    copying.sql("GRANT USAGE ON DATABASE demo TO ROLE reader")
    copying.sql("GRANT USAGE ON SCHEMA demo.public TO ROLE reader")
    copying.sql("GRANT SELECT ON TABLE demo.public.numbers TO ROLE reader")
    copying.context = replace(copying.context, role="READER")
    with pytest.raises((TableNotFound, PrivilegeMissing)):
        copying.copy(f"COPY numbers FROM {path}")


def test_an_interrupted_load_is_told_and_can_be_run_again(copying: Copying) -> None:
    path = copying.file("a.csv", "1|one\n")

    class Interrupted:
        parallelism = 1

        def __call__(self, plan: Any, tasks: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copying.copy(f"COPY numbers FROM {path}", run=Interrupted())
    assert copying.states() == ["failed"]
    assert copying.copy(f"COPY numbers FROM {path}").totals.rows == 1


def test_a_source_that_does_not_answer_is_named_once(copying: Copying) -> None:
    address = f"http://127.0.0.1:{free_port()}/numbers.csv"
    with pytest.raises(LoadFailed) as failed:
        copying.copy(f"COPY numbers FROM '{address}'")
    assert str(failed.value).count(address) == 1
    assert "Connection refused" in str(failed.value)
