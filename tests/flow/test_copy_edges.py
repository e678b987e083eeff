"""Edge cases of files, columns and install scripts that COPY accepts or rejects by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import select

from fixtures.copy import Copying
from snowmelt.backup.catalog_tables import stored_form
from snowmelt.catalog.jobs.load_history import list_loads
from snowmelt.catalog.model import list_portable_tables
from snowmelt.errors import LoadFailed, StatementError, UserError
from snowmelt.load.phase_protocols import HeaderMismatch
from snowmelt.load.task import LoadTask
from snowmelt.loaders.load_task_execution import LoadTaskPlan, LocalTaskRunner, PortionResult
from snowmelt.schema.types import TableName

REJECTS = "REJECTED DATA AS TABLE demo.public.rejects"
SINK = TableName("DEMO", "PUBLIC", "REJECTS")


@pytest.mark.parametrize("limit", ["REJECTMAX 2", "ABORT ON ERROR"])
def test_rejects_of_a_load_that_was_given_up_have_their_row_numbers(
    limit: str, copying: Copying
) -> None:
    path = copying.file("a.csv", "1|a\nx|b\n2|c\ny|d\nz|e\n")
    with pytest.raises(LoadFailed):
        copying.copy(f"COPY numbers FROM {path} {limit} {REJECTS}")
    rows = copying.house.read(SINK)
    numbers = [int(each) for each in rows["ROW_NUMBER"].to_pylist()]
    assert numbers == ([2, 4, 5] if limit == "REJECTMAX 2" else numbers)
    assert numbers[0] == 2


def test_a_file_and_a_link_to_it_are_loaded_once_and_that_is_said(copying: Copying) -> None:
    copying.file("b.csv", "1|one\n")
    (copying.folder / "a.csv").symlink_to(copying.folder / "b.csv")
    os.link(copying.folder / "b.csv", copying.folder / "c.csv")
    copied = copying.copy(f"COPY numbers FROM '{copying.folder}/*.csv'")
    assert copying.house.read_numbers() == [1]
    assert copied.totals.files == 1
    real = str(copying.folder / "b.csv")
    assert copied.duplicate_paths == (
        (str(copying.folder / "a.csv"), real),
        (str(copying.folder / "c.csv"), real),
    )
    # Loaded files are recorded by the path of the file itself.
    assert copying.copy(f"COPY numbers FROM '{real}'").skipped_files == 1


def test_a_number_with_a_fraction_is_no_whole_number(copying: Copying) -> None:
    path = copying.file("a.csv", "1.5|a\n2.0|b\n1e1|c\n-0.1|d\n")
    copied = copying.copy(f"COPY numbers FROM {path}")
    assert sorted(copying.house.read_numbers()) == [2, 10]
    assert copied.totals.rejects == 2
    assert all("Not an integer" in reason for reason, _ in copied.reject_reasons)
    path = copying.file("b.json", '{"n": 1.5, "word": "a"}\n{"n": 3.0, "word": "b"}\n')
    assert copying.copy(f"COPY numbers FROM {path} PARSER json()").totals.rows == 1
    # A computed value is rounded, as by a cast.
    path = copying.file("c.csv", "9\n")
    copying.copy(f"COPY numbers (x FILLER INT, n AS x / 2) FROM {path}")
    assert sorted(copying.house.read_numbers()) == [2, 3, 5, 10]


def test_a_date_in_another_form_is_rejected_with_the_word_format(copying: Copying) -> None:
    copying.sql("CREATE TABLE demo.public.days (d DATE, t TIME, s TIMESTAMP)")
    path = copying.file("a.csv", "31.12.2020||\n|3 pm|\n||31.12.2020 15:00\n")
    copied = copying.copy(f"COPY days FROM {path}")
    reasons = " ".join(reason for reason, _ in copied.reject_reasons)
    assert "for another format, specify D FORMAT 'DD.MM.YYYY'" in reasons
    assert "T FORMAT 'HH24:MI:SS'" in reasons
    assert "S FORMAT 'DD.MM.YYYY HH24:MI:SS'" in reasons
    copied = copying.copy(f"COPY days (d FORMAT 'DD.MM.YYYY', t, s) FROM {path} FORCE")
    assert copied.totals.rows == 1


def test_hexadecimal_bytes_may_have_their_usual_prefix(copying: Copying) -> None:
    copying.sql("CREATE TABLE demo.public.bytes (b BINARY(8))")
    path = copying.file("a.csv", "0x6162\n6364\n0X65\n")
    copying.copy(f"COPY bytes FROM {path}")
    table = copying.house.read(TableName("DEMO", "PUBLIC", "BYTES"))
    assert sorted(table["B"].to_pylist()) == [b"ab", b"cd", b"e"]


def test_a_field_of_fixed_width_is_null_where_it_is_filled_with_the_null_character(
    copying: Copying,
) -> None:
    path = copying.file("a.txt", "12 abc\n34    \n56 ***\n")
    copying.copy(f"COPY numbers FROM {path} FIXEDWIDTH COLSIZES (3, 3) FORCE")
    assert words(copying) == ["abc", None, "***"]
    copying.sql("TRUNCATE TABLE demo.public.numbers")
    copying.copy(f"COPY numbers FROM {path} FIXEDWIDTH COLSIZES (3, 3) NULL '*' FORCE")
    assert words(copying) == ["abc", "", None]
    copying.sql("TRUNCATE TABLE demo.public.numbers")
    own = "COLUMN OPTION (word NULL 'abc')"
    copying.copy(f"COPY numbers {own} FROM {path} FIXEDWIDTH COLSIZES (3, 3) FORCE")
    assert words(copying) == [None, "", "***"]
    for bad, told in (("NULL '**'", "one character"), ("", "has 2 bytes")):
        option = "" if bad else "COLUMN OPTION (word NULL 'ab')"
        with pytest.raises(UserError, match=told):
            copying.copy(
                f"COPY numbers {option} FROM {path} FIXEDWIDTH COLSIZES (3, 3) {bad} FORCE"
            )


@pytest.mark.parametrize("option", ["NULL 'x'", "DELIMITER ';'", "ENCLOSED BY '\"'", "NO ESCAPE"])
def test_an_option_of_a_column_that_its_parser_would_ignore_is_refused(
    option: str, copying: Copying
) -> None:
    path = copying.file("a.json", '{"n": 1, "word": "x"}\n')
    with pytest.raises(UserError, match=r"of column WORD: parser .* does not support this option"):
        copying.copy(f"COPY numbers (n, word {option}) FROM {path} PARSER fjsonparser()")


def words(copying: Copying) -> list[Any]:
    rows = copying.house.read(columns=["N", "WORD"]).to_pylist()
    return [row["WORD"] for row in sorted(rows, key=lambda row: row["N"])]


def test_a_source_of_a_part_of_a_file_is_refused(copying: Copying) -> None:
    (copying.folder / "own.py").write_text(
        "import vertica_sdk\n"
        "class Part:\n    offset, size, is_first_portion = 5, 10, False\n"
        "class Source:\n"
        "    def getPortion(self):\n        return Part()\n"
        "    def process(self, srv, output):\n        output.write(b'1|one\\n')\n"
        "        return vertica_sdk.StreamState.DONE\n"
        "class Factory:\n    def prepareUDSources(self, srv, context):\n        return [Source()]\n"
    )
    copying.sql(f"CREATE LIBRARY own AS '{copying.folder / 'own.py'}'")
    copying.sql("CREATE SOURCE parts AS NAME 'Factory' LIBRARY own")
    with pytest.raises(UserError, match=r"getPortion\(\) returned offset 5"):
        copying.copy("COPY numbers SOURCE parts()")
    assert copying.house.read_numbers() == []


LIBRARY = """
import os
if os.name:
    class Inner: ...
def passed(reader):
    yield from reader
made = passed
"""


def test_a_factory_that_is_not_there_is_refused_when_the_filter_is_created(
    copying: Copying,
) -> None:
    (copying.folder / "own.py").write_text(LIBRARY)
    copying.sql(f"CREATE LIBRARY own AS '{copying.folder / 'own.py'}'")
    with pytest.raises(UserError, match=r"OWN has no Missing; it has os, Inner, passed, made"):
        copying.sql("CREATE FILTER f AS NAME 'Missing' LIBRARY own")
    for name in ("passed", "PASSED", "made", "Inner"):
        copying.sql(f"CREATE OR REPLACE FILTER f AS NAME '{name}' LIBRARY own")
    (copying.folder / "own.py").write_text("from somewhere import *\n")
    copying.sql(f"CREATE OR REPLACE LIBRARY own AS '{copying.folder / 'own.py'}'")
    copying.sql("CREATE OR REPLACE FILTER f AS NAME 'Missing' LIBRARY own")
    (copying.folder / "own.py").write_text("def broken(:\n")
    copying.sql(f"CREATE OR REPLACE LIBRARY own AS '{copying.folder / 'own.py'}'")
    with pytest.raises(UserError, match=r"own\.py is not valid Python"):
        copying.sql("CREATE OR REPLACE FILTER f AS NAME 'broken' LIBRARY own")


def test_functions_for_queries_of_an_install_script_are_skipped_with_a_reason(
    copying: Copying,
) -> None:
    (copying.folder / "own.py").write_text(LIBRARY)
    copying.sql(f"CREATE LIBRARY own AS '{copying.folder / 'own.py'}' LANGUAGE 'Python'")
    for kind in ("FUNCTION", "TRANSFORM FUNCTION", "OR REPLACE ANALYTIC FUNCTION"):
        done = copying.sql(
            f"CREATE {kind} public.add2 AS LANGUAGE 'Python' NAME 'AddFactory' LIBRARY own FENCED"
        )
        assert "add2 was skipped" in done.message
    with pytest.raises(StatementError):
        copying.sql("CREATE FUNCTION f AS NAME 'x'")


def test_a_load_takes_along_the_libraries_that_its_statement_names_and_no_others(
    copying: Copying,
) -> None:
    for name in ("own", "huge"):
        (copying.folder / f"{name}.py").write_text(LIBRARY + "#" * 1_000_000)
        copying.sql(f"CREATE LIBRARY {name} AS '{copying.folder / f'{name}.py'}'")
        copying.sql(f"CREATE FILTER {name} AS NAME 'passed' LIBRARY {name}")
    plans = []

    class Noting(LocalTaskRunner):
        def __call__(
            self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]
        ) -> Iterator[PortionResult]:
            plans.append(plan)
            return super().__call__(plan, tasks)

    path = copying.file("a.csv", "1|one\n")
    copying.copy(f"COPY numbers FROM {path}", run=Noting())
    copying.copy(f"COPY numbers FROM {path} FILTER own() FORCE", run=Noting())
    assert [list(plan.functions.libraries) for plan in plans] == [[], ["OWN"]]
    assert [len(pickle.dumps(plan)) // 1_000_000 for plan in plans] == [0, 1]


def test_truncated_values_are_counted_by_every_parser(copying: Copying) -> None:
    copying.sql("CREATE TABLE demo.public.short (word VARCHAR(3), data BINARY(1))")
    small = copying.file("small.csv", "abcd|0102\nabc|01\nabcde|\n")
    large = copying.file("large.csv", "abc|\n" * 10_000 + "äöüß|\n")
    json = copying.file("a.json", '{"word": "abcd"}\n{"word": [1, 2]}\n{"word": "abc"}\n')
    computed = "short (raw FILLER VARCHAR(9), word AS raw || 'xyz')"
    counts = [
        copying.copy(statement).truncated_values
        for statement in (
            f"COPY short FROM {small}",
            f"COPY short FROM {large}",
            f"COPY short FROM {json} PARSER fjsonparser()",
            f"COPY {computed} FROM {copying.file('b.csv', 'a' + chr(10) + chr(10))}",
            f"COPY short FROM {small} ENFORCELENGTH FORCE",
        )
    ]
    assert counts == [3, 1, 2, 1, 0]
    with copying.house.database.reading() as connection:
        messages = [load.message for load in list_loads(connection)]
    assert (
        "3 values were truncated to the length of the column; ENFORCELENGTH rejects such records"
        in messages
    )


def test_a_header_that_differs_from_the_columns_is_reported(copying: Copying) -> None:
    for number in (1, 2):
        copying.file(f"h{number}.csv", f"n,title,more\n{number},a,b\n")
    copying.file("h3.csv", "word,N\nc,3\n")
    copied = copying.copy(f"COPY numbers FROM '{copying.folder}/h*.csv' PARSER CSV()")
    assert copied.totals.rows == 3
    assert list(map(str, copied.header_differences)) == [
        (
            f"header of {copying.folder}/h1.csv, the first of 2 such files: "
            "no column is named title, more; WORD gets NULL"
        )
    ]
    listed = copying.copy(
        f"COPY numbers (n) FROM {copying.file('h4.csv', 'n,word' + chr(10) + '4,d' + chr(10))} "
        "PARSER CSV()"
    )
    assert [each.mismatch for each in listed.header_differences] == [HeaderMismatch(("word",))]


def test_the_catalog_stores_no_nul_because_postgresql_has_none(copying: Copying) -> None:
    pipe = "CREATE PIPE demo.public.p {}AS COPY INTO numbers FROM (SELECT $1:n, {} FROM {})"
    streaming = "TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"
    for statement in (
        r"COMMENT ON TABLE demo.public.numbers IS 'C:\0001'",
        pipe.format("COMMENT = '\0' ", "$1:word", streaming),
        pipe.format("", "'\0'", streaming),
    ):
        with pytest.raises(StatementError, match="NUL"):
            copying.sql(statement)
    path = copying.file("a.csv", "1|\0\n2|b\n")
    copied = copying.copy(f"COPY numbers FROM {path} NULL '\0'")
    assert copied.totals.rows == 2
    assert copying.house.read(columns=["WORD"])["WORD"].to_pylist() == [None, "b"]
    with copying.house.database.reading() as connection:
        for table in list_portable_tables():
            for row in connection.execute(select(stored_form(table))):
                assert not any("\0" in each for each in row if isinstance(each, str))
