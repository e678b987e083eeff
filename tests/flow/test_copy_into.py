"""Snowflake's COPY INTO: the same rows as COPY. Each option is exact or rejected by name."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snowmelt.catalog.sql.lexer import split_script
from snowmelt.errors import LoadFailed, OutputRefused, StatementError
from snowmelt.load.copy_into_parser import parse_copy_into
from snowmelt.load.expressions import evaluator
from snowmelt.loaders.file_pipe_check import parse_watched_copy
from snowmelt.loaders.file_watch import BatchLimits, FileWatch
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from fixtures.copy import Copying


def read(copying: Copying, table: str = "NUMBERS") -> list[tuple[int, Any]]:
    rows = copying.house.read(TableName("DEMO", "PUBLIC", table)).to_pylist()
    return sorted(((int(row["N"]), row["WORD"]) for row in rows), key=repr)


def test_a_location_is_a_prefix_and_a_pattern_chooses(copying: Copying) -> None:
    (copying.folder / "in" / "deep").mkdir(parents=True)
    copying.file("in/a.csv", "1,a\n")
    copying.file("in/deep/b.csv.gz", gzip.compress(b"2,b\n"))
    copying.file("in/c.txt", "3,c\n")
    copying.file("in/.hidden.csv", "4,d\n")
    copying.file("into.csv", "5,e\n")
    found = copying.copy(
        f"COPY INTO numbers FROM '{copying.folder}/in/' PATTERN = '.*[.]csv([.]gz)?'"
    )
    assert (found.totals.files, read(copying)) == (2, [(1, "a"), (2, "b")])
    found = copying.copy(f"COPY INTO numbers FROM '{copying.folder}/in'")
    assert (found.totals.files, found.skipped_files) == (2, 2)
    files = "FILES = ('a.csv', 'c.txt')"
    assert copying.copy(f"COPY INTO numbers FROM '{copying.folder}/in' {files}").skipped_files == 2
    forced = copying.copy(f"COPY INTO numbers FROM '{copying.folder}/in/' {files} FORCE = TRUE;")
    assert forced.totals.rows == 2
    nothing = copying.copy(f"COPY INTO numbers FROM '{copying.folder}/none/'")
    assert nothing.load_id is None


def test_fields_are_those_of_the_original(copying: Copying) -> None:
    copying.file("plain.csv", '1,\\N\n2,\n3, a \n4,a\\,b\n5,"q"\n')
    copying.copy(f"COPY INTO numbers FROM '{copying.folder}/plain.csv'")
    assert read(copying) == [(1, None), (2, None), (3, " a "), (4, "a,b"), (5, '"q"')]
    copying.sql("TRUNCATE TABLE numbers")
    copying.file("quoted.csv", 'n,w\n1;"a;""b"\n2;""\n3;NA\n4;-\n5;\n')
    copying.copy(
        f"COPY INTO numbers FROM '{copying.folder}/quoted.csv' FILE_FORMAT = (TYPE = CSV, "
        "FIELD_DELIMITER = ';' SKIP_HEADER = 1 FIELD_OPTIONALLY_ENCLOSED_BY = '\"' "
        "ESCAPE_UNENCLOSED_FIELD = NONE NULL_IF = ('NA', '-') EMPTY_FIELD_AS_NULL = FALSE)"
    )
    assert read(copying) == [(1, 'a;"b'), (2, ""), (3, None), (4, None), (5, "")]


def test_null_texts_are_the_same_for_the_scanner_and_the_exact_reader(copying: Copying) -> None:
    rows = "".join(f"{n},{('NA', '-', '', 'x')[n % 4]}\n" for n in range(20_000))
    copying.file("large.csv", rows)
    copying.copy(
        f"COPY INTO numbers FROM '{copying.folder}/large.csv' FILE_FORMAT = (NULL_IF = ('NA', '-'))"
    )
    assert dict(read(copying)) == {n: "x" if n % 4 == 3 else None for n in range(20_000)}


def test_columns_match_by_name_in_every_format(copying: Copying) -> None:
    copying.file("a.csv", "word,N,more\na,1,x\n")
    copying.file("b.json", json.dumps([{"WORD": "b", "n": 2}, {"n": 3, "x": {"word": "c"}}]))
    table = pa.table({"Word": ["d"], "N": [4]})
    pq.write_table(table, copying.folder / "c.parquet")
    by_name = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    for name, file_format in (
        ("a.csv", "(TYPE = CSV PARSE_HEADER = TRUE)"),
        ("b.json", "(TYPE = 'JSON' STRIP_OUTER_ARRAY = TRUE)"),
        ("c.parquet", "(TYPE = PARQUET)"),
    ):
        copying.copy(
            f"COPY INTO numbers FROM '{copying.folder}/{name}' FILE_FORMAT = {file_format} {by_name}"
        )
    assert read(copying) == [(1, "a"), (2, "b"), (3, None), (4, "d")]


def test_allow_duplicate_decides_about_duplicate_keys(copying: Copying) -> None:
    deep = '{"n":4,"x":' + '{"a":' * 900 + "1" + "}" * 902
    lines = ['{"n":1,"n":2}', '{"n":3,"x":[{"a":1,"a":1}]}', deep.removesuffix("}"), '{"n":5}']
    copying.file("a.json", "\n".join(lines))
    for option, expected in (("", [2, 3, 4, 5]), ("TRUE", [2, 3, 4, 5]), ("FALSE", [4, 5])):
        allow = f"ALLOW_DUPLICATE = {option}" if option else ""
        for source in ("'{}/a.json'", "(SELECT $1:n, NULL FROM '{}/a.json')"):
            copying.sql("TRUNCATE TABLE numbers")
            by_name = "" if "SELECT" in source else "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
            copying.copy(
                f"COPY INTO numbers FROM {source.format(copying.folder)} "
                f"FILE_FORMAT = (TYPE = JSON {allow}) ON_ERROR = CONTINUE {by_name}"
            )
            assert [n for n, _ in read(copying)] == expected


@pytest.mark.parametrize("size", [1, 5000])
def test_a_path_is_not_a_key_with_dots(copying: Copying, size: int) -> None:
    copying.sql("CREATE TABLE paths (n NUMBER(18,0) NOT NULL, path VARCHAR, key VARCHAR)")
    records: list[dict[str, Any]] = [
        {"a": {"b": 1}, "a.b": 2},
        {"a.b": 3, "a": {"b": 4}},
        {"a.b": 5},
        {"a": {"b": 6}},
        {"a": {"b.c": 7}},
    ]
    lines = [json.dumps({"n": number, **records[number % 5]}) for number in range(5 * size)]
    copying.file("a.json", "\n".join(lines))
    copying.copy(
        f"COPY INTO paths FROM (SELECT $1:n, $1:a.b, $1:\"a.b\" FROM '{copying.folder}/a.json') "
        "FILE_FORMAT = (TYPE = JSON)"
    )
    rows = copying.house.read(TableName("DEMO", "PUBLIC", "PATHS")).to_pylist()
    found = {int(row["N"]): (row["PATH"], row["KEY"]) for row in rows}
    expected = [("1", "2"), ("4", "3"), (None, "5"), ("6", None), (None, None)]
    assert found == {number: expected[number % 5] for number in range(5 * size)}


@pytest.mark.parametrize("cast", ["", "::VARIANT"])
def test_a_field_is_stored_in_a_variant_as_it_is(copying: Copying, cast: str) -> None:
    copying.sql("CREATE TABLE documents (n NUMBER, v VARIANT, a ARRAY)")
    lines = [
        '{"n":1,"d":{"v":"1"},"a":[1.0]}',
        '{"n":2,"d":{"v":1.50}}',
        '{"n":3,"d":{"v":"x"},"a":[]}',
        '{"n":4,"d":{"v":{"k":-0.0}}}',
        '{"n":5,"d":{"v":"[true]"}}',
        '{"n":6,"d":{"v":null}}',
    ]
    copying.file("a.json", "\n".join(lines))
    copying.copy(
        f"COPY INTO documents FROM (SELECT $1:n{cast} AS n, t.$1:d.v{cast} AS v, $1:a FROM '{copying.folder}/a.json' t) "
        "FILE_FORMAT = (TYPE = JSON)"
    )
    rows = copying.house.read(TableName("DEMO", "PUBLIC", "DOCUMENTS")).to_pylist()
    assert [(int(row["N"]), row["V"], row["A"]) for row in rows] == [
        (1, '"1"', "[1.0]"),
        (2, "1.50", None),
        (3, '"x"', "[]"),
        (4, '{"k":-0.0}', None),
        (5, '"[true]"', None),
        (6, None, None),
    ]
    with pytest.raises(StatementError, match="cannot be used in other expressions"):
        copying.copy(
            f"COPY INTO documents FROM (SELECT $1:n, $1:d.v, length($1:d.v) FROM '{copying.folder}/a.json') "
            "FILE_FORMAT = (TYPE = JSON)"
        )


def test_fields_within_a_column_of_parquet_are_refused() -> None:
    text = "COPY INTO t FROM (SELECT $1:m.a FROM '/a/') FILE_FORMAT = (TYPE = PARQUET)"
    with pytest.raises(StatementError, match=r"\$1:m.a is not supported"):
        parse_copy_into(text)


def test_on_error_decides_for_records_whose_selected_value_fails(copying: Copying) -> None:
    copying.file("1.csv", "1,a\nx,b\n3,-\n")
    copying.file("2.csv", "4,1\n5,z\n99999999999999999999,2\n")
    for word in (
        "$2",
        "$2::INT",
        "CASE WHEN $2 = '-' THEN TO_DATE($2, 'YYYY')::VARCHAR ELSE $2 END",
    ):
        copying.sql("TRUNCATE TABLE numbers")
        text = (
            f"COPY INTO numbers FROM (SELECT $1, {word} FROM '{copying.folder}/') FORCE = TRUE "
            "ON_ERROR = "
        )
        result = copying.copy(text + "CONTINUE")
        expected = {
            "$2": [(1, "a"), (3, "-"), (4, "1"), (5, "z")],
            "$2::INT": [(4, "1")],
        }.get(word, [(1, "a"), (4, "1"), (5, "z")])
        assert read(copying) == expected
        assert (result.totals.rejects, result.failed_files) == (6 - len(expected), ())
        with pytest.raises(LoadFailed, match=r"record [123]\b"):
            copying.copy(text + "ABORT_STATEMENT")
    copying.file("3.csv", "7,7\n")
    result = copying.copy(
        f"COPY INTO numbers FROM (SELECT $1, $2::INT FROM '{copying.folder}/') FORCE = TRUE ON_ERROR = SKIP_FILE"
    )
    assert [path.rpartition("/")[2] for path, _ in result.failed_files] == ["1.csv", "2.csv"]


def test_expressions_of_many_records_fail_the_load(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "MAX_FAILED_ROWS", 3)
    copying.file("1.csv", "1,1\n2,x\n3,x\n4,x\n5,5\n")
    text = (
        f"COPY INTO numbers FROM (SELECT $1, $2::INT FROM '{copying.folder}/') ON_ERROR = CONTINUE"
    )
    copying.copy(text)
    assert read(copying) == [(1, "1"), (5, "5")]
    copying.file("2.csv", "2,x\n3,x\n4,x\n5,x\n")
    with pytest.raises(LoadFailed, match="record 4"):
        copying.copy(text)


def test_on_error_decides_for_records_and_files(copying: Copying) -> None:
    copying.file("1.csv", "1,a\nx,b\n")
    copying.file("2.csv", "2,c\n")
    copying.file("3.csv", "x,a\ny,b\n3,d\n")
    text = f"COPY INTO numbers FROM '{copying.folder}/' ON_ERROR = "
    with pytest.raises(LoadFailed, match="record"):
        copying.copy(text.removesuffix("ON_ERROR = "))
    with pytest.raises(LoadFailed, match="record"):
        copying.copy(text + "ABORT_STATEMENT")
    assert read(copying) == []
    result = copying.copy(text + "SKIP_FILE_2")
    assert [path.rpartition("/")[2] for path, _ in result.failed_files] == ["3.csv"]
    assert read(copying) == [(1, "a"), (2, "c")]
    copying.sql("TRUNCATE TABLE numbers")
    result = copying.copy(text + "'SKIP_FILE' FORCE = TRUE")
    assert (len(result.failed_files), read(copying)) == (2, [(2, "c")])
    copying.copy(text + "CONTINUE FORCE = TRUE")
    assert read(copying) == [(1, "a"), (2, "c"), (2, "c"), (3, "d")]


def test_texts_that_are_too_long_are_errors_or_cut(copying: Copying) -> None:
    copying.sql("CREATE TABLE short (n NUMBER(18,0) NOT NULL, word VARCHAR(2))")
    copying.file("1.csv", "1,abc\n")
    with pytest.raises(LoadFailed, match="WORD"):
        copying.copy(f"COPY INTO short FROM '{copying.folder}/'")
    copying.copy(f"COPY INTO short FROM '{copying.folder}/' TRUNCATECOLUMNS = TRUE")
    assert read(copying, "SHORT") == [(1, "ab")]


def test_bytes_are_hexadecimal(copying: Copying) -> None:
    copying.sql("CREATE TABLE bytes (n NUMBER(18,0) NOT NULL, word BINARY)")
    copying.file("1.csv", "1,0aFF\n2,\\N\n")
    copying.copy(f"COPY INTO bytes FROM '{copying.folder}/'")
    assert read(copying, "BYTES") == [(1, b"\x0a\xff"), (2, None)]


def test_purge_deletes_what_was_loaded_and_nothing_else(copying: Copying) -> None:
    copying.file("1.csv", "1,a\n")
    copying.file("2.csv", "x,a\n")
    copying.copy(f"COPY INTO numbers FROM '{copying.folder}/' PURGE = TRUE ON_ERROR = SKIP_FILE")
    assert [each.name for each in copying.folder.iterdir()] == ["2.csv"]
    copying.file("2.csv", "2,a\nx,b\n")
    copying.copy(f"COPY INTO numbers FROM '{copying.folder}/' PURGE = TRUE ON_ERROR = CONTINUE")
    assert read(copying) == [(1, "a"), (2, "a")]
    assert [each.name for each in copying.folder.iterdir()] == ["2.csv"], "with a rejected record"
    own = Path(copying.house.warehouse.url.removeprefix("file://")) / "own.csv"
    own.write_text("9,z\n")
    with pytest.raises(OutputRefused, match="PURGE"):
        copying.copy(f"COPY INTO numbers FROM '{own}' PURGE = TRUE")
    assert own.exists()


def test_a_watch_takes_the_same_statement(copying: Copying) -> None:
    text = f"COPY INTO numbers FROM '{copying.folder}/' PATTERN = '.*csv'"
    limits = BatchLimits(age_s=0, stable_s=0)
    watch = FileWatch(copying.context, text, LocalTaskRunner(), limits=limits)
    copying.file("1.csv", "1,a\n")
    copying.file("2.csv", "2,a\nx,b\n")
    copying.file("3.txt", "3,a\n")
    watch.run_round()
    # Skip a file with an error, as Snowpipe does by default.
    assert read(copying) == [(1, "a")]
    with pytest.raises(StatementError, match="PURGE is not supported"):
        parse_watched_copy(f"{text} PURGE = TRUE")


@pytest.mark.parametrize("seed", range(8))
def test_random_files_give_the_rows_of_copy_and_of_a_csv_reader(
    copying: Copying, seed: int
) -> None:
    chance = random.Random(seed)
    letters = "ab \"'|;,\n\r\\N\té"
    rows = [(n, "".join(chance.choices(letters, k=chance.randrange(6)))) for n in range(300)]
    delimiter, end = chance.choice(",;|"), chance.choice(["\n", "\r\n"])
    written = chance.choice([delimiter, f"0x{ord(delimiter):02X}"])
    text = io.StringIO()
    csv.writer(
        text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC
    ).writerows(rows)
    copying.file("rows.csv", text.getvalue())
    copying.sql("CREATE TABLE others (n NUMBER(18,0) NOT NULL, word VARCHAR(100))")
    copying.copy(
        f"COPY INTO numbers FROM '{copying.folder}/rows.csv' FILE_FORMAT = (TYPE = CSV "
        f"FIELD_DELIMITER = '{written}' FIELD_OPTIONALLY_ENCLOSED_BY = '0x22' "
        "ESCAPE_UNENCLOSED_FIELD = NONE)"
    )
    copying.copy(
        f"COPY others FROM '{copying.folder}/rows.csv' DELIMITER '{delimiter}' ENCLOSED BY '\"' "
        "NO ESCAPE ABORT ON ERROR"
    )
    assert read(copying) == read(copying, "OTHERS") == sorted(rows, key=repr)


def test_strings_have_the_rules_of_other_statements_in_scripts(copying: Copying) -> None:
    script = (
        "SHOW TABLES; COPY INTO t FROM '/a;b/' FILE_FORMAT = (FIELD_DELIMITER = '\\'' ESCAPE = '\\\\'); "
        "COPY t FROM '/a' ESCAPE AS '\\'; SHOW TABLES"
    )
    pieces = [each.text for each in split_script(script)]
    assert len(pieces) == 4
    parser = parse_copy_into(pieces[1]).parser
    assert parser is not None
    assert (parser.parameters["delimiter"], parser.parameters["escape"]) == ("'", "\\")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM @stage", "Stages are not supported"),
        ("FROM (SELECT DISTINCT $1 FROM '/a/')", "SELECT DISTINCT is not supported"),
        ("FROM (SELECT * FROM '/a/')", "List the expressions to load"),
        ("FROM 'a/'", "absolute path"),
        ("FROM 'ftp://a/'", "ftp:// is not supported"),
        ("FROM '/a/' SIZE_LIMIT = 3", "SIZE_LIMIT is not supported"),
        ("FROM 's3://a/' CREDENTIALS = (AWS_KEY_ID = 'x')", "CREDENTIALS is not supported"),
        ("FROM '/a/' ON_ERROR = SKIP_FILE_5%", "SKIP_FILE_5% is not supported"),
        ("FROM '/a/' FILE_FORMAT = (FIELD_DELIMITER = '||')", "Invalid character '||'"),
        ("FROM '/a/' FILE_FORMAT = (FIELD_DELIMITER = NONE)", "FIELD_DELIMITER = NONE is not"),
        ("FROM '/a/' ON_ERROR = SKIP", "Expected CONTINUE"),
        ("FROM '/a/' PATTERN = '('", "not a regular expression"),
        ("FROM '/a/' MATCH_BY_COLUMN_NAME = CASE_SENSITIVE", "CASE_SENSITIVE is not supported"),
        ("FROM '/a/' MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE", "requires PARSE_HEADER = TRUE"),
        ("FROM '/a/' FILE_FORMAT = (TYPE = JSON)", "needs MATCH_BY_COLUMN_NAME"),
        ("FROM '/a/' FILE_FORMAT = (TYPE = XML)", "TYPE = XML is not supported"),
        ("FROM '/a/' FILE_FORMAT = (FORMAT_NAME = 'f')", "Named file formats"),
        ("FROM '/a/' FILE_FORMAT = (TRIM_SPACE = TRUE)", "TRIM_SPACE = TRUE is not supported"),
        ("FROM '/a/' FILE_FORMAT = (COMPRESSION = BROTLI)", "COMPRESSION = BROTLI is not supported"),
        ("FROM '/a/' FILE_FORMAT = (FIELD_OPTIONALLY_ENCLOSED_BY = '\"')", "ESCAPE_UNENCLOSED_FIELD = NONE"),
        ("FROM '/a/' FILE_FORMAT = (RECORD_DELIMITER = NONE)", "the record delimiter"),
        ("FROM '/a/' FILE_FORMAT = (NOTHING = 1)", "Unknown option NOTHING of TYPE = CSV"),
        ("FROM '/a/' LOAD_MODE = ADD_FILES_COPY", "only valid value is FULL_INGEST"),
        ("FROM '/a/' PURGE = TRUE PURGE = TRUE", "PURGE is given twice"),
        ("FROM '/a/' NOTHING = 1", "Unknown option NOTHING of COPY INTO"),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_copy_into(f"COPY INTO t {text}")
    assert message in str(caught.value)
