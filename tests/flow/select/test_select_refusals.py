"""Errors of invalid requests (with a valid statement), as boto3 reports them."""

from __future__ import annotations

import http.client
import io
import json
import random
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, EventStreamError

from fixtures.s3 import S3Process
from support.select_wire import QUERY, REGION, ask, request_body

CSV = b"id,name\n1,one\n2,two\n"
COUNT = "select count(*) from s3object"


@pytest.fixture
def put(s3: S3Process, bucket: str) -> Callable[..., None]:
    client = s3.client()

    def put_object(content: bytes, key: str = "object") -> None:
        client.put_object(Bucket=bucket, Key=key, Body=content)

    return put_object


def asked(client: Any, bucket: str, key: str = "object", **changes: object) -> bytes:
    parameters: dict[str, Any] = {
        "Bucket": bucket,
        "Key": key,
        "Expression": COUNT,
        "ExpressionType": "SQL",
        "InputSerialization": {"CSV": {}},
        "OutputSerialization": {"CSV": {}},
    }
    answer = client.select_object_content(**(parameters | changes))
    with closing(answer["Payload"]) as events:
        return b"".join(event["Records"]["Payload"] for event in events if "Records" in event)


@pytest.mark.parametrize(
    ("changes", "code", "status"),
    [
        ({"ExpressionType": "XPATH"}, "InvalidExpressionType", 400),
        ({"Expression": "select '" + "x" * 300_000 + "' from s3object"}, "ExpressionTooLong", 400),
        ({"InputSerialization": {}}, "MissingRequiredParameter", 400),
        ({"OutputSerialization": {}}, "MissingRequiredParameter", 400),
        ({"InputSerialization": {"CSV": {}, "JSON": {"Type": "LINES"}}},
         "ObjectSerializationConflict", 400),
        ({"OutputSerialization": {"CSV": {}, "JSON": {}}}, "ObjectSerializationConflict", 400),
        ({"InputSerialization": {"CSV": {}, "CompressionType": "RAR"}},
         "InvalidCompressionFormat", 400),
        ({"InputSerialization": {"CSV": {}, "CompressionType": "GZIP"}},
         "InvalidCompressionFormat", 400),
        ({"InputSerialization": {"Parquet": {}, "CompressionType": "GZIP"}},
         "InvalidCompressionFormat", 400),
        ({"InputSerialization": {"CSV": {"FileHeaderInfo": "MAYBE"}}},
         "InvalidFileHeaderInfo", 400),
        ({"OutputSerialization": {"CSV": {"QuoteFields": "NEVER"}}}, "InvalidQuoteFields", 400),
        ({"InputSerialization": {"JSON": {"Type": "TEXT"}}}, "InvalidJsonType", 400),
        ({"InputSerialization": {"CSV": {"RecordDelimiter": ""}}}, "InvalidRequestParameter", 400),
        ({"ScanRange": {}}, "InvalidScanRange", 400),
        ({"ScanRange": {"Start": 9, "End": 3}}, "InvalidScanRange", 400),
        ({"ScanRange": {"Start": -1}}, "InvalidScanRange", 400),
        ({"ScanRange": {"Start": 10_000}}, "InvalidScanRange", 400),
        ({"ScanRange": {"Start": 1}, "InputSerialization": {"JSON": {"Type": "DOCUMENT"}}},
         "UnsupportedScanRangeInput", 400),
        ({"ScanRange": {"Start": 1}, "InputSerialization": {"Parquet": {}}},
         "UnsupportedScanRangeInput", 400),
        ({"ScanRange": {"Start": 1},
          "InputSerialization": {"CSV": {"AllowQuotedRecordDelimiter": True}}},
         "UnsupportedScanRangeInput", 400),
        ({"InputSerialization": {"Parquet": {}}}, "ParquetParsingError", 400),
        ({"Key": "gone"}, "NoSuchKey", 404),
        ({"Bucket": "no-such-bucket"}, "NoSuchBucket", 404),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_has_a_code_and_a_sentence(
    s3: S3Process, bucket: str, put: Callable[..., None], changes: Any, code: str, status: int
) -> None:
    put(CSV)
    with pytest.raises(ClientError) as refused:
        asked(s3.client(), bucket, **changes)
    answer = refused.value.response
    assert answer["Error"]["Code"] == code
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == status
    assert " " in answer["Error"]["Message"]


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"", {}, "EmptyRequestBody"),
        (b"<a", {}, "MalformedXML"),
        (request_body(COUNT).replace(b"Expression>", b"Query>"), {}, "MalformedXML"),
        (request_body(COUNT), {"range": "bytes=0-5"}, "UnsupportedRangeHeader"),
        (request_body(COUNT), {"x-snowmelt-select-dialect": "x"}, "InvalidRequestParameter"),
        (request_body(COUNT), {"x-snowmelt-select-objects": "all"}, "InvalidRequestParameter"),
        (request_body("select * from s3object s join s3object t on 1=1"), {}, "ParseMalformedJoin"),
    ],
)
def test_what_boto3_would_not_send_is_refused_as_well(
    s3: S3Process,
    bucket: str,
    put: Callable[..., None],
    body: bytes,
    headers: dict[str, str],
    code: str,
) -> None:
    put(CSV)
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    found = ask(s3, bucket, "object", body, **named)
    assert (found.status, found.code) == (400, code)


def test_wrong_keys_and_missing_privileges_are_refused(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(CSV)
    key = s3.keys["admin"]
    for key_id, secret, code in (
        (key.access_key_id, "wrong", "SignatureDoesNotMatch"),
        ("SMAKNOBODY", key.secret, "InvalidAccessKeyId"),
    ):
        client = boto3.client(
            "s3", endpoint_url=s3.url, region_name="us-east-1",
            aws_access_key_id=key_id, aws_secret_access_key=secret,
        )  # fmt: skip
        with pytest.raises(ClientError) as refused:
            asked(client, bucket)
        assert refused.value.response["Error"]["Code"] == code
    s3.add_user(f"u{bucket[2:]}", f"r{bucket[2:]}")
    with pytest.raises(ClientError) as refused:
        asked(s3.client(f"u{bucket[2:]}"), bucket)
    assert refused.value.response["Error"]["Code"] == "AccessDenied"


def test_a_grant_on_a_prefix_reaches_what_lies_beneath_and_no_more(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    for key in ("open/1.csv", "open/2.csv", "secret/3.csv"):
        put(CSV, key)
    user, role = f"u{bucket[2:]}", f"r{bucket[2:]}"
    s3.add_user(user, role)
    s3.service.sql(f"GRANT READ ON BUCKET '{bucket}' PREFIX 'open/' TO ROLE {role}")
    client = s3.client(user)
    assert asked(client, bucket, "open/1.csv") == b"3\n"
    with pytest.raises(ClientError) as refused:
        asked(client, bucket, "secret/3.csv")
    assert refused.value.response["Error"]["Code"] == "AccessDenied"

    def many(request: Any, **_: Any) -> None:
        request.headers.add_header("x-snowmelt-select-objects", "many")

    client.meta.events.register("before-sign.s3.SelectObjectContent", many)
    assert asked(client, bucket, "open/*.csv") == b"6\n"
    for pattern in ("*", "**", "?pen/1.csv", "open*", "secret/*"):
        with pytest.raises(ClientError) as refused:
            asked(client, bucket, pattern)
        assert refused.value.response["Error"]["Code"] == "AccessDenied"


def test_the_only_version_may_be_named(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(CSV)
    body = request_body(COUNT)
    for query, output, code in (
        ("?select=&select-type=2&versionId=null", b"3\n", ""),
        ("?select=&select-type=2&versionId=other", b"", "NoSuchVersion"),
    ):
        found = ask(s3, bucket, "object", body, query=query)
        assert (found.output, found.code) == (output, code)


def presigned_by_hand(s3: S3Process, host: str, path: str) -> str:
    """Return an address presigned with version 4. boto3 supports only version 2 for this operation."""
    key = s3.keys["admin"]
    request = AWSRequest("POST", f"http://{host}:{s3.port}{path}{QUERY}")
    credentials = Credentials(key.access_key_id, key.secret)
    S3SigV4QueryAuth(credentials, "s3", REGION, expires=600).add_auth(request)
    return cast("str", request.url)


def presigned_by_boto3(s3: S3Process, bucket: str) -> str:
    key = s3.keys["admin"]
    client = boto3.client(
        "s3", endpoint_url=f"http://localhost:{s3.port}", region_name=REGION,
        aws_access_key_id=key.access_key_id, aws_secret_access_key=key.secret,
        config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip
    return cast("str", client.generate_presigned_url(
        "select_object_content",
        {
            "Bucket": bucket, "Key": "object", "Expression": "any", "ExpressionType": "SQL",
            "InputSerialization": {"CSV": {}}, "OutputSerialization": {"CSV": {}},
        },
    ))  # fmt: skip


def test_a_presigned_address_lets_anybody_ask(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(CSV)
    for signed in (
        presigned_by_boto3(s3, bucket),
        presigned_by_hand(s3, "localhost", f"/{bucket}/object"),
        # The bucket may be part of the host name.
        presigned_by_hand(s3, f"{bucket}.localhost", "/object"),
    ):
        address = urlsplit(signed)
        with closing(http.client.HTTPConnection("127.0.0.1", s3.port)) as connection:
            for accept, output in (("text/csv", b"3\n"), ("application/x-ndjson", b'{"_1":3}\n')):
                connection.request(
                    "POST", f"{address.path}?{address.query}", body=request_body(COUNT),
                    headers={"Host": address.netloc, "Accept": accept},
                )  # fmt: skip
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (200, output)


def parquet(rows: int) -> bytes:
    buffer = io.BytesIO()
    noise = random.Random(1)
    pq.write_table(pa.table({"a": [noise.random() for _ in range(rows)]}), buffer)
    return buffer.getvalue()


def test_limits_of_memory_are_errors_that_name_their_setting(own_s3: S3Process) -> None:
    own_s3.start(
        select_group_memory_bytes=200_000,
        select_sort_memory_bytes=200_000,
        select_document_bytes=2_000_000,
        select_row_group_bytes=100_000,
        select_record_bytes=2_000_000,
    )
    own_s3.add_user("admin", "accountadmin")
    client = own_s3.client()
    client.create_bucket(Bucket="data")
    csv = b"".join(b"key%d,%d\n" % (n, n) for n in range(20_000))
    client.put_object(Bucket="data", Key="csv", Body=csv)
    document = json.dumps([{"a": n} for n in range(300_000)]).encode()
    client.put_object(Bucket="data", Key="json", Body=document)
    client.put_object(Bucket="data", Key="parquet", Body=parquet(100_000))
    client.put_object(Bucket="data", Key="long", Body=b"x" * 3_000_000)
    document_form = {"JSON": {"Type": "DOCUMENT"}}
    parquet_form: dict[str, Any] = {"Parquet": {}}
    for key, sql, form, setting in (
        ("csv", "select _1, count(*) from s3object group by _1", None, "select_group_memory_bytes"),
        ("csv", "select distinct _1 from s3object", None, "select_group_memory_bytes"),
        ("csv", "select _1 from s3object order by _1", None, "select_sort_memory_bytes"),
        ("json", "select s[0].a from s3object s", document_form, "select_document_bytes"),
        ("parquet", "select sum(a) from s3object", parquet_form, "select_row_group_bytes"),
        ("long", "select _1 from s3object", None, "select_record_bytes"),
    ):
        with pytest.raises((ClientError, EventStreamError)) as refused:
            asked(client, "data", key, Expression=sql, InputSerialization=form or {"CSV": {}})
        message = refused.value.response["Error"]["Message"]
        assert setting in message, message
    # The same requests within the limits.
    sql = "select char_length(_1), count(*) from s3object group by char_length(_1)"
    assert asked(client, "data", "csv", Expression=sql) == b"4,10\n5,90\n6,900\n7,9000\n8,10000\n"
