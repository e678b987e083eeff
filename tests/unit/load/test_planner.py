"""From a statement to tasks, and the tasks through the built-in steps."""

from __future__ import annotations

import gzip
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.errors import LoadFailed, LoadRefused, StatementError
from snowmelt.load.copy_ast import InputCompression
from snowmelt.load.copy_parser import parse_copy
from snowmelt.load.phase_registry import LoadFunctions
from snowmelt.load.planner import LoadPlan, plan_load
from snowmelt.load.stack import run_portion
from snowmelt.loaders.load_result_check import (
    compute_first_record_numbers,
    verify_portion_counts,
)
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.load.phase_protocols import ParseReject

TABLE = TableSchema(
    3,
    (
        Column("ID", LogicalType.FIXED, 1, nullable=False, precision=38, scale=0),
        Column("NAME", LogicalType.TEXT, 2, length=10, byte_length=40),
        Column("SEEN", LogicalType.TIMESTAMP_NTZ, 4, scale=9),
    ),
)


def planned(text: str, **options: Any) -> LoadPlan:
    return plan_load(parse_copy(text), TABLE, LoadFunctions(), **{"parallelism": 2, **options})


def loaded(plan: LoadPlan) -> tuple[list[dict[str, Any]], list[tuple[int, ParseReject]]]:
    """Run all tasks as other processes would; rejects come with their number in the file."""
    rows: list[dict[str, Any]] = []
    rejects: list[tuple[int, ParseReject]] = []
    counts = {}
    for task in sorted(plan.tasks, key=lambda each: each.portion.offset):
        run = run_portion(pickle.loads(pickle.dumps(task)))
        for block in run:
            rows.extend(block.rows.to_pylist())
            rejects.extend((task.number, reject) for reject in block.rejects)
        counts[task.number] = run.counts
    verify_portion_counts(plan.tasks, counts)
    assert sum(each.rows for each in counts.values()) == len(rows)
    first = compute_first_record_numbers(plan.tasks, counts)
    return rows, [(first[number] + each.record - 1, each) for number, each in rejects]


def test_files_become_rows_and_rejects(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1|one|2024-01-05 10:00:00.123456789\nx|two|\n3||\n|four|\n5\n")
    rows, rejects = loaded(planned(f"COPY t FROM '{file}'"))
    assert [(row["ID"], row["NAME"], row["SEEN$ns"]) for row in rows] == [
        (1, "one", 789),
        (3, None, None),
    ]
    assert [(number, each.data, each.column) for number, each in rejects] == [
        (2, b"x|two|", "ID"),
        (4, b"|four|", "ID"),
        (5, b"5", None),
    ]


def test_columns_are_listed_renamed_computed_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,first,last\n7,ada,lovelace\n8,alan,turing\n")
    text = (
        "COPY t (id, first FILLER VARCHAR(20), last FILLER VARCHAR(20), "
        f"name AS left(first, 1) || '. ' || last) FROM '{file}' DELIMITER ',' SKIP 1"
    )
    rows, rejects = loaded(planned(text))
    assert [(row["ID"], row["NAME"], row["SEEN"]) for row in rows] == [
        (7, "a. lovelac", None),
        (8, "a. turing", None),
    ]
    assert not rejects
    rows, rejects = loaded(planned(text + " ENFORCELENGTH"))
    assert [(number, each.column) for number, each in rejects] == [(1, "NAME")]


def test_an_expression_that_is_a_column_keeps_its_nanoseconds(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1|2024-01-05 10:00:00.123456789\n")
    text = f"COPY t (id, at FILLER TIMESTAMP_NTZ(9), seen AS at) FROM '{file}'"
    rows, _ = loaded(planned(text))
    assert rows[0]["SEEN$ns"] == 789


@pytest.mark.parametrize("cuts", [1, 3, 7])
def test_portions_load_what_the_whole_file_does(tmp_path: Path, cuts: int) -> None:
    file = tmp_path / "a.csv"
    file.write_text("".join(f"{n if n % 7 else 'x'}|{'n' * (n % 11)}|\n" for n in range(200)))
    plan = planned(f"COPY t FROM '{file}'", parallelism=cuts, min_portion_bytes=1)
    assert len(plan.tasks) == cuts
    rows, rejects = loaded(plan)
    assert [row["ID"] for row in rows] == [n for n in range(200) if n % 7]
    assert [number for number, _ in rejects] == [n + 1 for n in range(200) if n % 7 == 0]


def test_what_is_compressed_is_one_portion_each(tmp_path: Path) -> None:
    data = b"".join(b"%d||\n" % n for n in range(1000))
    for name in ("a.csv.gz", "b.gz", "c.other"):
        (tmp_path / name).write_bytes(gzip.compress(data))
    (tmp_path / "d.gz").write_bytes(data)
    plan = planned(
        f"COPY t FROM '{tmp_path}/[ab]*', '{tmp_path}/c.other' GZIP, "
        f"'{tmp_path}/d.gz' UNCOMPRESSED",
        parallelism=2,
        min_portion_bytes=100,
    )
    by_file = [(task.portion.file.path[-5:], task.compression) for task in plan.tasks]
    assert by_file.count(("sv.gz", InputCompression.GZIP)) == 1
    assert {each for name, each in by_file if name == "/d.gz"} == {None}
    rows, _ = loaded(plan)
    assert len(rows) == 4000


def test_filters_of_the_statement_get_the_bytes_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b"1-a-\n"))
    rows, _ = loaded(
        planned(
            f"COPY t FROM '{file}' FILTER GZip() "
            "FILTER SearchAndReplace(pattern='-', replace_with='|')"
        )
    )
    assert rows[0]["NAME"] == "a"


def test_what_was_loaded_before_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"1|{name}|\n")
    plan = planned(f"COPY t FROM '{tmp_path}/*'")
    first = plan.tasks[0].portion.file
    left = plan.without_loaded_files({(first.path, first.size, first.tag)})
    assert [file.path for file in left.skipped_files] == [first.path]
    assert [task.number for task in left.tasks] == [0]
    rows, _ = loaded(left)
    assert [row["NAME"] for row in rows] == ["b"]


def test_a_path_without_files_fails_or_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1||\n")
    with pytest.raises(LoadFailed, match="no file matches"):
        planned(f"COPY t FROM '{tmp_path}/a', '{tmp_path}/none*'")
    plan = planned(f"COPY t FROM '{tmp_path}/a', '{tmp_path}/none*' ERROR TOLERANCE")
    assert len(plan.tasks) == 1
    assert plan.failed_inputs[0][0].endswith("none*")


@pytest.mark.parametrize(
    ("text", "reason", "column"),
    [
        (
            "COPY t (id, other) FROM 'x'",
            "Unknown column OTHER. Columns of the table: ID, NAME, SEEN",
            13,
        ),
        ("COPY t (name) FROM 'x'", "Column ID is NOT NULL and receives no value", 6),
        ("COPY t (id, name FILLER INT) FROM 'x'", "FILLER NAME has the name of a column", 13),
        (
            "COPY t (id) COLUMN OPTION (name NULL 'x') FROM 'x'",
            "names NAME, which is not a parsed column",
            6,
        ),
    ],
)
def test_columns_that_do_not_fit_the_table_are_shown(text: str, reason: str, column: int) -> None:
    with pytest.raises(StatementError, match=reason) as refused:
        planned(text)
    assert refused.value.fields["column"] == column


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("COPY t FROM 'x' PARSER nothing()", "Parser nothing: not found. Valid parsers: "),
        ("COPY t FROM 'x' FILTER nothing()", "Filter nothing: not found. Valid filters: "),
        ("COPY t SOURCE nothing()", "Source nothing: not found. Valid sources: "),
        ("COPY t FROM 'x' FILTER gzip(level=1)", "unknown parameter level"),
        ("COPY t FROM 'x' PARSER fcsvparser() SKIP BYTES 2", "SKIP BYTES: parser fcsvparser"),
        ("COPY t FROM 'x' PARSER fcsvparser(skip=1) SKIP 2", "given as parameter skip"),
        ("COPY t FROM 'x' FILTER KafkaInsertDelimiters(delimiter=';')", "not from Kafka source"),
        ("COPY t (id, name AS nothing) FROM 'x'", "column NAME AS nothing: unknown parsed column"),
    ],
)
def test_steps_that_cannot_be_are_refused_before_anything_is_read(text: str, reason: str) -> None:
    with pytest.raises(LoadRefused, match=reason):
        planned(text)
