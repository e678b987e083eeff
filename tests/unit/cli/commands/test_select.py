"""`snowmelt select` over files and pipes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from unit.cli.conftest import Finished

PEOPLE = b"customer-id,age\na1,20\na2,40\na3,64\n"


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_bytes(PEOPLE)
    return path


@pytest.mark.slow
def test_a_table_is_shown_with_its_columns(snowmelt: Callable[..., Finished], people: Path) -> None:
    done = snowmelt(
        "select", "people.csv",
        "select customer-id from s3Object where age>30 and age<65;", "--header", "use",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.split() == ["customer-id", "───────────", "a2", "a3", "2", "rows"]


@pytest.mark.slow
def test_csv_and_json_are_written_as_the_engine_makes_them(
    snowmelt: Callable[..., Finished], people: Path
) -> None:
    sql = "select age, customer-id as c from s3object where age = 40"
    csv = snowmelt("select", "people.csv", sql, "--header", "use", "--format", "csv")
    lines = snowmelt("select", "people.csv", sql, "--header", "use", "--format", "json")
    assert csv.stdout == "40,a2\n"
    assert json.loads(lines.stdout) == {"age": "40", "c": "a2"}


@pytest.mark.slow
def test_a_pipe_is_a_source_as_any_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "snowmelt", "select", "-", "select count(*) from stdin;",
         "--format", "csv"],
        input=PEOPLE * 1000, capture_output=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"4000\n"), done.stderr


def test_the_name_tells_form_and_compression(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n":1}\n{"n":2}\n'))
    (tmp_path / "a.tsv").write_bytes(b"x\t1\ny\t2\n")
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "a.parquet")
    for name, sql, answer in (
        ("a.jsonl.gz", "select s.n from s3object s where s.n > 1", "2\n"),
        ("a.tsv", "select _1 from s3object where _2 = '2'", "y\n"),
        ("a.parquet", "select sum(n) from s3object", "6\n"),
    ):
        assert snowmelt("select", name, sql, "--format", "csv").stdout == answer


def test_stars_stand_for_many_files(
    snowmelt: Callable[..., Finished], people: Path, tmp_path: Path
) -> None:
    (tmp_path / "people2.csv").write_bytes(b"customer-id,age\nb1,1\n")
    sql = "select count(*) from s3object"
    done = snowmelt("select", "people*.csv", sql, "--header", "use", "--format", "csv")
    assert done.stdout == "4\n"
    none = snowmelt("select", "nobody*.csv", sql)
    assert none.returncode != 0
    assert "No file matches nobody*.csv." in none.stderr


def test_delimiters_may_be_written_as_escapes(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "hive").write_bytes(b"a\x01b\r\nc\x01d\r\n")
    done = snowmelt(
        "select", "hive", "select _2 from s3object", "--delimiter", r"\x01",
        "--record-delimiter", r"\r\n", "--format", "csv",
    )  # fmt: skip
    assert done.stdout == "b\nd\n"


def test_a_dialect_may_be_chosen(snowmelt: Callable[..., Finished], people: Path) -> None:
    sql = 'select count(0) from stdin where substr(_1,1,1)=="a";'
    done = snowmelt("select", "people.csv", sql, "--dialect", "ceph-2020", "--format", "csv")
    assert done.returncode == 0
    assert done.stdout.startswith("3")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gone.csv", "select 1 from s3object"), "gone.csv: No such file or directory."),
        (("people.csv", "selec * from s3object"), "line 1, column 1"),
        (("people.csv", "select x from s3object", "--header", "use"), "customer-id, age"),
        (("people.csv", "select * from s3object", "--scan-range", "x"), "must be like"),
        (("s3://bucket", "select * from s3object"), "s3://bucket/key does"),
        (
            ("s3://b/k", "select * from s3object", "--endpoint", "http://127.0.0.1:9",
             "--access-key", "a", "--secret-key", "s"),
            "Cannot query http://127.0.0.1:9: ",
        ),
        (
            ("s3://b/k", "select * from s3object", "--endpoint", "http://127.0.0.1:9"),
            "snowmelt user access-key NAME",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(
    snowmelt: Callable[..., Finished],
    people: Path,
    arguments: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The machine may have credentials for S3, or be in a cloud that lends them.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(people.parent / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    done = snowmelt("select", *arguments)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
