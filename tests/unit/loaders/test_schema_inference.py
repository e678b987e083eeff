"""Columns of files are inferred by libraries; what has none is refused by name."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest

from snowmelt.catalog.sql.lexer import is_infer_schema, is_query
from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.errors import LoadFailed, LoadRefused, StatementError
from snowmelt.load.copy_into_parser import parse_copy_into
from snowmelt.loaders.schema_inference import build_create_table, infer_copy_columns, infer_schema

CSV = "id,name,born,at\n1,Ada,1815-12-10,2026-01-31 08:00:00\n2,Grace,1906-12-09,2026-02-01 09:30:00\n"
TABLE = pa.table(
    {
        "id": [1, 2],
        "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "ok": [True, None],
        "day": [dt.date(2026, 1, 31), None],
        "mixed Name": ["a", "b"],
        "list": [[1], [2, 3]],
    }
)


def infer(text: str) -> list[tuple[str, str]]:
    return [(each.name, each.sql_type) for each in infer_copy_columns(text)]


def test_delimited_text_has_the_names_of_the_skipped_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    wanted = [
        ("ID", "NUMBER(38,0)"),
        ("NAME", "VARCHAR"),
        ("BORN", "DATE"),
        ("AT", "TIMESTAMP_NTZ(6)"),
    ]
    assert infer(f"COPY t FROM '{tmp_path}/a.csv' DELIMITER ',' SKIP 1") == wanted
    assert infer(f"COPY t FROM '{tmp_path}/b.csv.gz' PARSER CSV()") == wanted
    into = f"COPY INTO d.s.t FROM '{tmp_path}/a' FILE_FORMAT = (TYPE = CSV SKIP_HEADER = 1)"
    assert infer(into) == wanted
    (tmp_path / "c.csv").write_text("1|x\n")
    assert infer(f"COPY t FROM '{tmp_path}/c.csv'") == [
        ("COLUMN0", "NUMBER(38,0)"),
        ("COLUMN1", "VARCHAR"),
    ]


def test_parquet_and_orc_have_their_own_types(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    po.write_table(TABLE, tmp_path / "a.orc")
    wanted = [
        ("ID", "NUMBER(38,0)"),
        ("PRICE", "NUMBER(10,2)"),
        ("OK", "BOOLEAN"),
        ("DAY", "DATE"),
        ('"MIXED NAME"', "VARCHAR"),
        ("LIST", "ARRAY"),
    ]
    assert infer(f"COPY t FROM '{tmp_path}/*.parquet' PARQUET") == wanted
    assert infer(f"COPY t FROM '{tmp_path}/*.orc' ORC") == wanted
    text = f"COPY demo.public.t FROM '{tmp_path}/*.orc' ORC"
    statement = build_create_table(text, infer_copy_columns(text))
    assert statement.startswith("CREATE TABLE DEMO.PUBLIC.T (ID NUMBER(38,0), PRICE NUMBER(10,2)")
    parse_statement(statement)


def test_json_has_documents_and_lists(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1, "d": {"k": 1}, "l": [1]}\n{"n": 2.5, "x": "y"}\n')
    assert infer(f"COPY t FROM '{tmp_path}/a.json' PARSER JSON()") == [
        ("N", "FLOAT"),
        ("D", "OBJECT"),
        ("L", "ARRAY"),
        ("X", "VARCHAR"),
    ]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("19.99", "FLOAT"),
        ("0.30000000000000004", "FLOAT"),
        ("12345678901234567890.12", "VARCHAR"),
        ("0.1234567890123456789", "VARCHAR"),
        ("1234567890123456789012345678901234567890", "VARCHAR"),
        ("9007199254740993.5", "VARCHAR"),
        ("1e300", "FLOAT"),
        ("1e-400", "VARCHAR"),
    ],
)
def test_a_column_has_the_digits_of_its_numbers(tmp_path: Path, value: str, kind: str) -> None:
    (tmp_path / "a.csv").write_text(f"n,m\n{value},1\n1.5,2\n")
    assert infer(f"COPY t FROM '{tmp_path}/a.csv' DELIMITER ',' SKIP 1")[0] == ("N", kind)
    (tmp_path / "a.json").write_text(f'{{"n": {value}, "m": 1}}\n{{"n": 1.5}}\n')
    assert infer(f"COPY t FROM '{tmp_path}/a.json' PARSER JSON()")[0] == ("N", kind)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2026-01-31", "2026-02-01"], "DATE"),
        # COPY reads the first one as a day of January.
        (["01/02/2026", "25/12/2026"], "VARCHAR"),
        (["01/02/2026 10:00:00", "25/12/2026 11:00:00"], "VARCHAR"),
        (["31.01.2026"], "VARCHAR"),
        (["2026-01-31 10:00:00.123456000"], "TIMESTAMP_NTZ(6)"),
        (["2026-01-31 10:00:00.123456789"], "TIMESTAMP_NTZ(9)"),
        (["2026-01-31T10:00:00.0000001Z"], "TIMESTAMP_LTZ(9)"),
        (["10:00:00.5", "10:00:00.1234567"], "TIME(9)"),
    ],
)
def test_a_column_has_the_dates_and_times_of_its_texts(
    tmp_path: Path, values: list[str], kind: str
) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{each},1\n" for each in ["d", *values]))
    assert infer(f"COPY t FROM '{tmp_path}/a.csv' DELIMITER ',' SKIP 1")[0] == ("D", kind)
    (tmp_path / "a.json").write_text("".join(f'{{"d": "{each}"}}\n' for each in values))
    # DuckDB reads fewer forms of times in JSON; other forms stay texts.
    assert infer(f"COPY t FROM '{tmp_path}/a.json' PARSER JSON()")[0][1] in {kind, "VARCHAR"}


def test_nanoseconds_of_parquet_have_their_scale(tmp_path: Path) -> None:
    counts = pa.array([1], pa.int64())
    kinds = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("ns"))
    table = pa.table({f"c{n}": counts.cast(kind) for n, kind in enumerate(kinds)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert infer(f"COPY t FROM '{tmp_path}/a.parquet' PARQUET") == [
        ("C0", "TIMESTAMP_NTZ(9)"),
        ("C1", "TIMESTAMP_LTZ(9)"),
        ("C2", "TIME(9)"),
    ]


def test_types_of_parquet_change_no_value(tmp_path: Path) -> None:
    table = pa.table(
        {
            "list": pa.array([[Decimal("1.25")]], pa.list_(pa.decimal128(10, 2))),
            "fraction": pa.array([Decimal("0.5")], pa.decimal128(38, 38)),
            "long": pa.array([Decimal("9" * 50)], pa.decimal256(50, 0)),
            "at": pa.array([1], pa.timestamp("ns")),
        }
    )
    (tmp_path / "day=5").mkdir()
    path = tmp_path / "day=5" / "a.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert infer(f"COPY t FROM '{path}' PARQUET") == [
        ("LIST", "ARRAY"),
        ("FRACTION", "VARCHAR"),
        ("LONG", "VARCHAR"),
        ("AT", "TIMESTAMP_NTZ(9)"),
    ]


def test_columns_come_from_all_records_of_the_named_file(tmp_path: Path) -> None:
    numbers = "".join(f"{each}\n" for each in range(30_000))
    (tmp_path / "w1.csv").write_text("other\n1\n")
    (tmp_path / "w[1].csv").write_text(f"n\n{numbers}007\n")
    assert infer(f"COPY t FROM '{tmp_path}/w?1?.csv' DELIMITER ',' SKIP 1") == [("N", "VARCHAR")]
    keys = [{"n": each} for each in range(30_000)]
    for name, records in (
        ("late", [*keys, {"n": 1, "late": 2}]),
        ("wide", [{f"k{each}": each for each in range(300)}] * 3),
        ("sparse", [{f"k{each}": each} for each in range(60)]),
        ("case", [{"a": 1}, {"A": 2}, {"b": 3, "b_1": 4}]),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
        wanted = {key.upper(): "NUMBER(38,0)" for each in records for key in each}
        assert dict(infer(f"COPY t FROM '{path}' PARSER JSON()")) == wanted
    path = tmp_path / "unnamed.json"
    path.write_text('{"": 1, "b": 2}\n')
    with pytest.raises(LoadFailed, match="non-record JSON"):
        infer(f"COPY t FROM '{path}' PARSER JSON()")


def test_what_cannot_be_inferred_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    path = f"FROM '{tmp_path}/a.csv'"
    for text, message in (
        ("COPY t FROM STDIN", "it needs FROM with paths"),
        (f"COPY t (a) {path}", "column lists"),
        (f"COPY t {path} PARSER REGEX(pattern = 'x')", "parser REGEX"),
        (f"COPY t {path} RECORD TERMINATOR ';'", "a record delimiter other than a line end"),
    ):
        with pytest.raises(LoadRefused, match=message):
            infer(text)
    with pytest.raises(LoadFailed, match="no file matches"):
        infer(f"COPY t FROM '{tmp_path}/none.csv'")
    with pytest.raises(LoadFailed, match="cannot be inferred"):
        infer(f"COPY t {path} PARQUET")


def infer_all(arguments: str) -> list[dict[str, object]]:
    found = infer_schema(f"SELECT * FROM TABLE(INFER_SCHEMA({arguments}));")
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_infer_schema_combines_the_columns_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,day,x\n1,2026-01-31,1\n")
    (tmp_path / "b.csv").write_text("id,day,y z\n1.25,2026-02-01 10:00:00,a\n")
    given = f"LOCATION => '{tmp_path}/', FILE_FORMAT => (TYPE = CSV PARSE_HEADER = TRUE)"
    rows = infer_all(given)
    assert [(row["column_name"], row["type"], row["order_id"]) for row in rows] == [
        # As a FLOAT, long numbers of the first file would lose digits.
        ("ID", "VARCHAR", 0),
        ("DAY", "TIMESTAMP_NTZ(6)", 1),
        ("X", "NUMBER(38,0)", 2),
        ("Y Z", "VARCHAR", 3),
    ]
    both = f"{tmp_path}/a.csv, {tmp_path}/b.csv"
    assert [row["filenames"] for row in rows] == [both, both, *both.split(", ")]
    for limit in ("MAX_FILE_COUNT => 1", "FILES => ('a.csv')"):
        assert [row["type"] for row in infer_all(f"{given}, {limit}, IGNORE_CASE => TRUE")] == [
            "NUMBER(38,0)",
            "DATE",
            "NUMBER(38,0)",
        ]


def test_numbers_that_no_number_type_holds_together_become_text(tmp_path: Path) -> None:
    for name, digits, scale in (("a", 38, 0), ("b", 20, 18), ("c", 20, 0)):
        column = pa.array([None], pa.decimal128(digits, scale))
        pq.write_table(pa.table({"x": column, name: column}), tmp_path / f"{name}.parquet")
    given = f"LOCATION => '{tmp_path}/', FILE_FORMAT => (TYPE = PARQUET)"
    assert infer_all(given)[0]["type"] == "VARCHAR"
    both = f"{given}, FILES => ('b.parquet', 'c.parquet')"
    assert infer_all(both)[0]["type"] == "NUMBER(38,18)"


def test_expressions_of_infer_schema_load_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,a\n")
    pq.write_table(TABLE, tmp_path / "a.parquet")
    found = infer_all(f"LOCATION => '{tmp_path}/a.csv', FILE_FORMAT => (TYPE = CSV)")
    assert [row["expression"] for row in found] == ["$1::NUMBER(38,0)", "$2::VARCHAR"]
    found = infer_all(f"FILE_FORMAT => (TYPE = PARQUET), LOCATION => '{tmp_path}/a.parquet'")
    assert [row["expression"] for row in found][:2] == ["$1:ID::NUMBER(38,0)", "$1:PRICE::NUMBER(10,2)"]  # fmt: skip
    statement = parse_copy_into(
        "COPY INTO t FROM (SELECT "
        + ", ".join(str(row["expression"]) for row in found[:2])
        + f" FROM '{tmp_path}/a.parquet') FILE_FORMAT = (TYPE = PARQUET)"
    )
    assert statement.selection is not None
    assert statement.selection.fields == ("ID", "PRICE")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT column_name FROM TABLE(INFER_SCHEMA(LOCATION => '/a'))", "only supported as SELECT"),
        ("SELECT * FROM TABLE(INFER_SCHEMA(LOCATION => '/a')) WHERE 1 = 1", "INFER_SCHEMA needs FILE_FORMAT"),
        ("SELECT * FROM TABLE(INFER_SCHEMA(LOCATION => '@stage'))", "absolute path"),
        ("SELECT * FROM TABLE(INFER_SCHEMA(LOCATION => '/a', FILE_FORMAT => 'f'))", "Named file formats"),
        ("SELECT * FROM TABLE(INFER_SCHEMA(KIND => 'ICEBERG'))", "LOCATION"),
        ("SELECT * FROM TABLE(INFER_SCHEMA(IGNORE_CASE => FALSE))", "IGNORE_CASE => FALSE is not supported"),
        ("SELECT * FROM TABLE(INFER_SCHEMA(LOCATION => '/a', FILE_FORMAT => (TYPE = CSV))) LIMIT 1", "LIMIT"),
    ],
)  # fmt: skip
def test_other_forms_of_infer_schema_are_refused_by_name(text: str, message: str) -> None:
    assert is_infer_schema(text)
    with pytest.raises(StatementError) as caught:
        infer_schema(text)
    assert message in str(caught.value)


def test_a_text_about_infer_schema_is_a_query() -> None:
    assert is_query("SELECT 'TABLE(INFER_SCHEMA(' FROM t")
    assert is_query("SELECT infer_schema FROM t")
