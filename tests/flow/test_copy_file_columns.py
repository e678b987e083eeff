"""Columns about the file of a row: METADATA$…, CURRENT_LOAD_SOURCE, partition columns, SELECT in COPY INTO."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.copy import Copying
from snowmelt.errors import LoadFailed, LoadRefused, StatementError
from snowmelt.schema.types import TableName

CHANGED = dt.datetime(2026, 1, 31, 8, 0, 0, 250_000, tzinfo=dt.UTC)


SEEN = TableName("DEMO", "PUBLIC", "SEEN")


def make_table(copying: Copying, columns: str) -> None:
    copying.sql(f"CREATE OR REPLACE TABLE demo.public.seen ({columns})")


def read(copying: Copying, *names: str) -> list[tuple[Any, ...]]:
    rows = copying.house.read(SEEN).to_pylist()
    return sorted(tuple(row[name] for name in names) for row in rows)


def put(copying: Copying, name: str, data: Any) -> Path:
    path = copying.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    os.utime(path, (CHANGED.timestamp(), CHANGED.timestamp()))
    return path


def test_expressions_see_file_row_number_and_time(copying: Copying) -> None:
    make_table(
        copying, "n INT, f VARCHAR, r INT, at TIMESTAMP_NTZ(6), day INT, started TIMESTAMP_LTZ(6)"
    )
    first = put(copying, "7/a.csv", "1\nx\n3\n")
    second = put(copying, "8/b.csv", "4\n")
    part = len(first.parts) - 2
    before = copying.house.clock.now()
    copying.copy(
        "COPY seen (n, f AS CURRENT_LOAD_SOURCE(), r AS METADATA$FILE_ROW_NUMBER, "
        f"at AS METADATA$FILE_LAST_MODIFIED, day AS CURRENT_LOAD_SOURCE({part})::INT, "
        f"started AS METADATA$START_SCAN_TIME) FROM '{copying.folder}/*/*.csv'"
    )
    at = CHANGED.replace(tzinfo=None)
    assert read(copying, "N", "F", "R", "AT", "DAY") == [
        (1, str(first), 1, at, 7),
        # The second record was rejected, and keeps its number.
        (3, str(first), 3, at, 7),
        (4, str(second), 1, at, 8),
    ]
    [(started,)] = set(read(copying, "STARTED"))
    assert before <= started <= copying.house.clock.now()


def test_rows_are_numbered_in_files_that_would_be_split(copying: Copying) -> None:
    make_table(copying, "n INT, r INT")
    path = put(copying, "long.csv", "".join(f"{number}\n" for number in range(1, 5001)))
    copying.context = replace(copying.context, min_portion_bytes=1000)
    copying.copy(f"COPY seen (n, r AS METADATA$FILE_ROW_NUMBER) FROM '{path}'")
    assert all(n == r for n, r in read(copying, "N", "R"))


def test_partition_columns_come_from_folders(copying: Copying) -> None:
    make_table(copying, "n INT, day DATE, city VARCHAR")
    for folder, number in (
        ("day=2026-01-31/city=Z%C3%BCrich", 1),
        ("DAY=2026-02-01/city=__HIVE_DEFAULT_PARTITION__", 2),
    ):
        path = put(copying, f"{folder}/x.parquet", b"")
        pq.write_table(pa.table({"n": [number]}), path)
    copying.copy(f"COPY seen FROM '{copying.folder}/*/*/*' PARTITION COLUMNS day, city PARQUET")
    assert read(copying, "N", "DAY", "CITY") == [
        (1, dt.date(2026, 1, 31), "Zürich"),
        (2, dt.date(2026, 2, 1), None),
    ]
    put(copying, "elsewhere/x.csv", "3\n")
    with pytest.raises(LoadFailed, match=r"no folder of the path is named day=…"):
        copying.copy(f"COPY seen (n) FROM '{copying.folder}/elsewhere/*' PARTITION COLUMNS (day)")
    with pytest.raises(StatementError, match="Partition column DAY is also in the column list"):
        copying.copy(f"COPY seen (n, day) FROM '{copying.folder}/*/*' PARTITION COLUMNS day")


def test_copy_into_selects_fields_by_number(copying: Copying) -> None:
    make_table(copying, "f VARCHAR, n INT, w VARCHAR, r INT")
    path = put(copying, "in/a.csv", "id;first;rest\n1;a;x\n2;b;y\n")
    copying.copy(
        "COPY INTO seen (n, w, f, r) FROM (SELECT t.$1::INT * 10, upper(t.$2) || '\\'' || $3, "
        f"METADATA$FILENAME AS name, METADATA$FILE_ROW_NUMBER FROM '{copying.folder}/in/' t) "
        "FILE_FORMAT = (TYPE = CSV FIELD_DELIMITER = ';' SKIP_HEADER = 1)"
    )
    found = read(copying, "N", "W", "F")
    assert found == [(10, "A'x", str(path)), (20, "B'y", str(path))]
    numbers = [number for (number,) in read(copying, "R")]
    assert numbers[1] == numbers[0] + 1


def test_copy_into_selects_fields_by_name(copying: Copying) -> None:
    make_table(copying, "n INT, w VARCHAR, deep INT")
    rows = [{"id": 1, "word": "a", "in": {"deep": 5}}, {"id": 2, "word": None}]
    put(copying, "in/a.json", "\n".join(map(json.dumps, rows)))
    copying.copy(
        f"COPY INTO seen FROM (SELECT $1:id, $1:word::VARCHAR, $1:in.deep FROM '{copying.folder}/in/') "
        "FILE_FORMAT = (TYPE = JSON)"
    )
    assert sorted(copying.house.read(SEEN).to_pylist(), key=lambda row: row["N"]) == [
        {"N": 1, "W": "a", "DEEP": 5},
        {"N": 2, "W": None, "DEEP": None},
    ]


def test_copy_into_adds_metadata_beside_columns_by_name(copying: Copying) -> None:
    make_table(copying, "n INT, f VARCHAR, r INT")
    path = put(copying, "in/a.json", '{"n": 1, "f": "not this"}\n{"n": 2}\n')
    copying.copy(
        f"COPY INTO seen FROM '{copying.folder}/in/' FILE_FORMAT = (TYPE = JSON) "
        "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE "
        "INCLUDE_METADATA = (f = METADATA$FILENAME, r = METADATA$FILE_ROW_NUMBER)"
    )
    assert read(copying, "N", "F", "R") == [(1, str(path), 1), (2, str(path), 2)]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("(SELECT * FROM '/a/')", StatementError, r"SELECT \* is not supported"),
        ("(SELECT METADATA$FILENAME FROM '/a/')", StatementError, "Expected a field such as"),
        (
            "(SELECT METADATA$FILE_CONTENT_KEY, $1 FROM '/a/')",
            StatementError,
            "FILE_CONTENT_KEY is not",
        ),
        ("(SELECT $1, $1:a FROM '/a/')", StatementError, "cannot be combined"),
        ("(SELECT $1:a FROM '/a/')", StatementError, "selected by number"),
        ("(SELECT $1 FROM '/a/') FILE_FORMAT = (TYPE = JSON)", StatementError, "selected by name"),
        ("(SELECT $1:a[0] FROM '/a/')", StatementError, "Elements of arrays"),
        ("(SELECT $1, $2, $3 FROM '/a/')", StatementError, "3 expressions for 2 columns"),
        ("(SELECT nothing($1) FROM '/a/')", LoadRefused, "NOTHING"),
        ("'/a/' INCLUDE_METADATA = (word = METADATA$FILENAME)", StatementError, "INCLUDE_METADATA requires MATCH_BY"),
    ],
)
def test_what_a_select_cannot_have_is_refused(
    copying: Copying, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        copying.copy(f"COPY INTO numbers FROM {text}")
