"""Random statements on JSON and Parquet have the answer of a model in Python."""

from __future__ import annotations

import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import JsonInput, JsonOutput, ParquetInput, SelectRequest
from support.select_model import Row, StatementGenerator

SEEDS = range(int(os.environ.get("SNOWMELT_TEST_SELECT_SEEDS", "4")))
STATEMENTS = 25


def write_json(rows: list[Row], path: Path) -> None:
    """Write JSON lines. A NULL is null, or missing in every second row."""
    lines = []
    for number, row in enumerate(rows):
        fields = [
            f"{json.dumps(name)}:{value if isinstance(value, Decimal) else json.dumps(value)}"
            for name, value in row.items()
            if value is not None or number % 2
        ]
        lines.append("{" + ",".join(fields) + "}\n")
    path.write_text("".join(lines))


def write_parquet(rows: list[Row], path: Path) -> None:
    columns: dict[str, Any] = {
        name: pa.array([row[name] for row in rows], kind).cast(stored)
        for name, kind, stored in (
            ("i", pa.decimal128(19), pa.int64()),
            ("j", pa.decimal128(19), pa.int32()),
            ("f", pa.decimal128(20, 4), pa.decimal128(20, 4)),
            ("s", pa.string(), pa.string()),
            ("t", pa.string(), pa.large_string()),
        )
    }
    pq.write_table(pa.table(columns), path, row_group_size=50)


def select(statement: str, path: Path) -> list[Any]:
    given = JsonInput(lines=True) if path.suffix == ".json" else ParquetInput()
    request = SelectRequest(statement, input=given, output=JsonOutput())
    data = b"".join(open_local_select(request, path).stream_payloads())
    numbers: Any = Decimal
    lines = io.StringIO(data.decode(), newline="\n")
    return [json.loads(line, parse_float=numbers, parse_int=numbers).get("x") for line in lines]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_statement_has_the_answer_of_the_model(seed: int, tmp_path: Path) -> None:
    generator = StatementGenerator(seed)
    rows = generator.rows((1, 7, 120)[seed % 3])
    write_json(rows, tmp_path / "rows.json")
    write_parquet(rows, tmp_path / "rows.parquet")
    for _ in range(STATEMENTS):
        statement, expected = generator.statement(rows)
        for name in ("rows.json", "rows.parquet"):
            assert select(statement, tmp_path / name) == expected, (name, statement)
