"""SelectObjectContent of a running service, with the common S3 clients."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, EventStreamError

from fixtures.s3 import S3Process

PEOPLE = b"customer-id,age\na1,20\na2,40\na3,64\na4,65\n"
NUMBERS = b"".join(b"%d,%d\n" % (n, n * 3) for n in range(200))


@pytest.fixture
def bucket(bucket: str, s3: S3Process) -> SimpleNamespace:
    """A bucket for the test, with a client that has all privileges."""
    return SimpleNamespace(name=bucket, client=s3.client())


def put(bucket: SimpleNamespace, key: str, body: bytes) -> str:
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body)
    return key


def select(
    bucket: SimpleNamespace,
    key: str,
    sql: str,
    source: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    **more: dict[str, int],
) -> tuple[bytes, list[Any], list[Any]]:
    """Return the output, events and last counts of a response."""
    answer = bucket.client.select_object_content(
        Bucket=bucket.name,
        Key=key,
        Expression=sql,
        ExpressionType="SQL",
        InputSerialization=source or {"CSV": {}},
        OutputSerialization=target or {"CSV": {}},
        **more,
    )
    events = list(answer["Payload"])
    output = b"".join(event["Records"]["Payload"] for event in events if "Records" in event)
    return output, [next(iter(event)) for event in events], events


def run_s3select(s3: Any, bucket: str, key: str, query: str, column_delim: str=",", row_delim: str="\n", quot_char: str='"',
                 esc_char: str="\\", csv_header_info: str="NONE") -> str:  # fmt: skip
    """Run a query as scripts for Ceph do."""
    r = s3.select_object_content(
        Bucket=bucket,
        Key=key,
        ExpressionType="SQL",
        InputSerialization={
            "CSV": {
                "RecordDelimiter": row_delim,
                "FieldDelimiter": column_delim,
                "QuoteEscapeCharacter": esc_char,
                "QuoteCharacter": quot_char,
                "FileHeaderInfo": csv_header_info,
            },
            "CompressionType": "NONE",
        },
        OutputSerialization={"CSV": {}},
        Expression=query,
    )
    result = ""
    for event in r["Payload"]:
        if "Records" in event:
            result += event["Records"]["Payload"].decode("utf-8")
    return result


def test_the_overview_query_runs_as_written(bucket: SimpleNamespace) -> None:
    put(bucket, "people.csv", PEOPLE)
    output, kinds, events = select(
        bucket,
        "people.csv",
        "select customer-id from s3Object where age>30 and age<65;",
        {"CSV": {"FileHeaderInfo": "USE"}},
    )
    assert output == b"a2\na3\n"
    assert kinds[-2:] == ["Stats", "End"]
    counts = events[-2]["Stats"]["Details"]
    assert counts == {
        "BytesScanned": len(PEOPLE),
        "BytesProcessed": len(PEOPLE),
        "BytesReturned": 6,
    }


def test_a_script_written_for_ceph_runs_under_the_default(
    bucket: SimpleNamespace, s3: S3Process
) -> None:
    # A bucket name that Amazon no longer allows, and that CreateBucket rejects here.
    s3.service.sql("CREATE BUCKET my_bucket")
    bucket.client.put_object(Bucket="my_bucket", Key="my_csv_object", Body=NUMBERS)
    query = (
        "select int(_1) as a1, int(_2) as a2 , (a1+a2) as a3 from stdin where a3>100 and a3<300;"
    )
    expected = "".join(f"{n},{3 * n},{4 * n}\n" for n in range(200) if 100 < 4 * n < 300)
    assert run_s3select(bucket.client, "my_bucket", "my_csv_object", query) == expected


def test_the_command_line_of_ceph_runs_under_the_default(
    bucket: SimpleNamespace, s3: S3Process, tmp_path: Path
) -> None:
    put(bucket, "object", b"a,b\n" + NUMBERS)
    command = [
        str(Path(sys.executable).parent / "aws"), "--endpoint-url", s3.url, "s3api",
        "select-object-content", "--bucket", bucket.name, "--expression-type", "SQL",
        "--input-serialization",
        (r'{"CSV": {"FieldDelimiter": "," , "QuoteCharacter": "\"" , "RecordDelimiter" : "\n" , '
        r'"QuoteEscapeCharacter" : "\\" , "FileHeaderInfo": "USE" }, "CompressionType": "NONE"}'),
        "--output-serialization", '{"CSV": {}}', "--key", "object",
        "--expression", "select count(0) from stdin where int(_1)<10;", "output.csv",
    ]  # fmt: skip
    environment = {**os.environ, **s3.environment()}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output.csv").read_text() == "10\n"


@pytest.mark.parametrize("delimiter", ["\x01", "\x1e", "\t", "||", "þ", " "])
@pytest.mark.parametrize("record", ["\n", "\r\n", "\x1f", "##"])
def test_delimiters_mean_what_boto3_was_given(
    bucket: SimpleNamespace, delimiter: str, record: str
) -> None:
    rows = [["a", "b"], ["c", "d"]]
    body = "".join(delimiter.join(row) + record for row in rows).encode()
    put(bucket, "odd", body)
    form = {"CSV": {"FieldDelimiter": delimiter, "RecordDelimiter": record}}
    output, _, _ = select(bucket, "odd", "select _2, _1 from s3object", form, form_of_output(form))
    assert output.decode() == "".join(f"{row[1]}{delimiter}{row[0]}{record}" for row in rows)


def form_of_output(form: dict[str, Any]) -> dict[str, Any]:
    return {"CSV": dict(form["CSV"])}


def test_compressed_objects_count_both_sizes(bucket: SimpleNamespace) -> None:
    for name, packed in (("GZIP", gzip.compress(NUMBERS)), ("BZIP2", bz2.compress(NUMBERS))):
        put(bucket, name, packed)
        output, _, events = select(
            bucket, name, "select count(*) from s3object", {"CSV": {}, "CompressionType": name}
        )
        assert output == b"200\n"
        counts = events[-2]["Stats"]["Details"]
        assert (counts["BytesScanned"], counts["BytesProcessed"]) == (len(packed), len(NUMBERS))


def test_json_and_parquet_are_sources_and_json_an_answer(bucket: SimpleNamespace) -> None:
    put(bucket, "lines", b'{"n": 1, "d": {"x": [1, 2]}}\n{"n": 2}\n')
    lines = {"JSON": {"Type": "LINES"}}
    output, _, _ = select(
        bucket, "lines", "select s.n, s.d.x[1] as x from s3object s", lines, {"JSON": {}}
    )
    assert [json.loads(line) for line in output.splitlines()] == [{"n": 1, "x": 2}, {"n": 2}]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2, 3], "t": ["a", "b", None]}), sink)
    put(bucket, "parquet", sink.getvalue().to_pybytes())
    output, _, _ = select(
        bucket, "parquet", "select t from s3object where n > 1", {"Parquet": {}}, {"JSON": {}}
    )
    assert [json.loads(line) for line in output.splitlines()] == [{"t": "b"}, {"t": None}]


def test_scan_ranges_share_the_records_among_them(bucket: SimpleNamespace) -> None:
    put(bucket, "numbers", NUMBERS)
    parts = []
    for start in range(0, len(NUMBERS), 97):
        end = min(start + 96, len(NUMBERS) - 1)
        bounds = {"Start": start, "End": end}
        output, _, _ = select(bucket, "numbers", "select * from s3object", ScanRange=bounds)
        parts.append(output)
    assert b"".join(parts) == NUMBERS


def test_frames_end_where_records_end_and_progress_is_told(bucket: SimpleNamespace) -> None:
    body = b"".join(b"%d,%s\n" % (n, b"x" * (n % 300)) for n in range(20_000))
    put(bucket, "large", body)
    answer = bucket.client.select_object_content(
        Bucket=bucket.name, Key="large", Expression="select * from s3object",
        ExpressionType="SQL", InputSerialization={"CSV": {}}, OutputSerialization={"CSV": {}},
        RequestProgress={"Enabled": True},
    )  # fmt: skip
    events = list(answer["Payload"])
    payloads = [event["Records"]["Payload"] for event in events if "Records" in event]
    assert b"".join(payloads) == body
    assert len(payloads) > 10
    assert all(each.endswith(b"\n") and len(each) <= 128 * 1024 for each in payloads)
    assert any("Progress" in event for event in events)


def test_what_is_wrong_at_the_start_is_an_error_answer(bucket: SimpleNamespace) -> None:
    put(bucket, "people.csv", PEOPLE)
    for sql, code in (
        ("selec * from s3object", "ParseUnexpectedToken"),
        ("select nope from s3object", "MissingHeaders"),
    ):
        with pytest.raises(ClientError) as caught:
            select(bucket, "people.csv", sql, {"CSV": {"FileHeaderInfo": "USE"}})
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert caught.value.response["Error"]["Code"], code
    with pytest.raises(ClientError) as caught:
        select(bucket, "gone.csv", "select * from s3object")
    assert caught.value.response["Error"]["Code"] == "NoSuchKey"


def test_what_goes_wrong_in_the_middle_is_an_error_event_behind_the_records_before(
    bucket: SimpleNamespace,
) -> None:
    body = b"".join(b"%d\n" % n for n in range(300_000)) + b"oops\n" + b"7\n" * 10
    put(bucket, "late", body)
    answer = bucket.client.select_object_content(
        Bucket=bucket.name, Key="late", Expression="select cast(_1 as int) from s3object",
        ExpressionType="SQL", InputSerialization={"CSV": {}}, OutputSerialization={"CSV": {}},
    )  # fmt: skip
    output = b""
    failure = None
    try:
        for event in answer["Payload"]:
            output += event["Records"]["Payload"] if "Records" in event else b""
    except EventStreamError as error:
        failure = error
    answer["Payload"].close()
    assert "CastFailed" in str(failure)
    assert output == b"".join(b"%d\n" % n for n in range(300_000))


def signed(
    s3: S3Process, path: str, body: bytes, headers: dict[str, str]
) -> urllib.request.Request:
    key = s3.keys["admin"]
    request = AWSRequest("POST", s3.url + path, headers=headers, data=body)
    S3SigV4Auth(Credentials(key.access_key_id, key.secret), "s3", "us-east-1").add_auth(request)
    return urllib.request.Request(
        request.url, data=body, headers=dict(request.headers.items()), method="POST"
    )


ASKED = (
    b"<SelectObjectContentRequest><Expression>select _1 from s3object limit 2</Expression>"
    b"<ExpressionType>SQL</ExpressionType><InputSerialization><CSV/></InputSerialization>"
    b"<OutputSerialization><CSV/></OutputSerialization></SelectObjectContentRequest>"
)


@pytest.mark.parametrize(
    ("accept", "answer"),
    [("text/csv", b"0\n1\n"), ("application/x-ndjson", b'{"_1":"0"}\n{"_1":"1"}\n')],
)
def test_a_plain_client_gets_the_records_alone(
    bucket: SimpleNamespace, s3: S3Process, accept: str, answer: bytes
) -> None:
    put(bucket, "n", NUMBERS)
    path = f"/{bucket.name}/n?select=&select-type=2"
    with urllib.request.urlopen(signed(s3, path, ASKED, {"accept": accept})) as response:
        assert response.headers["content-type"] == accept
        assert response.read() == answer


def test_a_header_chooses_the_dialect(bucket: SimpleNamespace, s3: S3Process) -> None:
    put(bucket, "n", NUMBERS)
    path = f"/{bucket.name}/n?select=&select-type=2"
    body = ASKED.replace(
        b"select _1 from s3object limit 2", b'select count(0) from stdin where _1=="7";'
    )
    headers = {"accept": "text/csv", "x-snowmelt-select-dialect": "ceph-2020"}
    with urllib.request.urlopen(signed(s3, path, body, headers)) as response:
        assert response.read().startswith(b"1")
    headers["x-snowmelt-select-dialect"] = "klingon"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(signed(s3, path, body, headers))
    assert b"aws, ceph, ceph-2020" in caught.value.read()


def test_many_objects_answer_one_request(bucket: SimpleNamespace, s3: S3Process) -> None:
    for day in (1, 2, 3):
        put(bucket, f"logs/2026-0{day}.csv", b"%d\n" % day)
    put(bucket, "logs/deep/2026-09.csv", b"9\n")
    client = boto3.client(
        "s3", endpoint_url=s3.url, region_name="us-east-1",
        aws_access_key_id=s3.keys["admin"].access_key_id,
        aws_secret_access_key=s3.keys["admin"].secret,
    )  # fmt: skip
    client.meta.events.register(
        "before-sign.s3.SelectObjectContent",
        lambda request, **_: request.headers.add_header("x-snowmelt-select-objects", "many"),
    )
    for pattern, numbers in (
        ("logs/2026-*.csv", b"1\n2\n3\n"),
        ("logs/", b"1\n2\n3\n9\n"),
        ("logs/**9.csv", b"9\n"),
        ("logs/2026-0?.csv", b"1\n2\n3\n"),
    ):
        answer = client.select_object_content(
            Bucket=bucket.name, Key=pattern, Expression="select * from s3object",
            ExpressionType="SQL", InputSerialization={"CSV": {}}, OutputSerialization={"CSV": {}},
        )  # fmt: skip
        found = [event["Records"]["Payload"] for event in answer["Payload"] if "Records" in event]
        assert b"".join(found) == numbers


def test_the_shell_asks_the_endpoint(
    bucket: SimpleNamespace, s3: S3Process, tmp_path: Path
) -> None:
    put(bucket, "people.csv", PEOPLE)
    done = subprocess.run(
        [sys.executable, "-m", "snowmelt", "select", f"s3://{bucket.name}/people.csv",
         "select age from s3object where age > 60", "--header", "use", "--endpoint", s3.url,
         "--format", "csv"],
        cwd=tmp_path, env={**os.environ, **s3.environment()}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"64\n65\n"), done.stderr


def test_a_client_without_the_privilege_gets_nothing(
    bucket: SimpleNamespace, s3: S3Process
) -> None:
    put(bucket, "people.csv", PEOPLE)
    if "select_stranger" not in s3.keys:
        s3.add_user("select_stranger", "strangers_of_select")
    with pytest.raises(ClientError) as caught:
        s3.client("select_stranger").select_object_content(
            Bucket=bucket.name, Key="people.csv", Expression="select * from s3object",
            ExpressionType="SQL", InputSerialization={"CSV": {}}, OutputSerialization={"CSV": {}},
        )  # fmt: skip
    assert caught.value.response["Error"]["Code"] == "AccessDenied"
