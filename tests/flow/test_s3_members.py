"""Each member of each S3 operation is supported, ignored for a stated reason, or rejected by name.

The members of operations come from botocore's service model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process
from snowmelt.server.s3 import endpoint, supported_parameters

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "s3.md").read_text()
MODEL = botocore.session.get_session().get_service_model("s3")
# boto3's names of the operations that the endpoint supports.
SERVED = {
    "list_buckets": "ListBuckets",
    "create_bucket": "CreateBucket",
    "head_bucket": "HeadBucket",
    "delete_bucket": "DeleteBucket",
    "get_location": "GetBucketLocation",
    "get_versioning": "GetBucketVersioning",
    "list_objects": "ListObjects",
    "list_objects_v2": "ListObjectsV2",
    "list_versions": "ListObjectVersions",
    "list_uploads": "ListMultipartUploads",
    "delete_objects": "DeleteObjects",
    "get_object": "GetObject",
    "head_object": "HeadObject",
    "put_object": "PutObject",
    "copy_object": "CopyObject",
    "upload_part": "UploadPart",
    "upload_part_copy": "UploadPartCopy",
    "delete_object": "DeleteObject",
    "create_upload": "CreateMultipartUpload",
    "complete_upload": "CompleteMultipartUpload",
    "abort_upload": "AbortMultipartUpload",
    "list_parts": "ListParts",
    "selected": "SelectObjectContent",
}
# Members that HTTP implements, and members that identify the object.
OF_HTTP = {
    *("ContentLength", "ContentMD5", "ContentType", "ContentEncoding", "ContentLanguage"),
    *("ContentDisposition", "CacheControl", "Expires", "Body", "Bucket", "Key", "Metadata"),
}
DOCUMENTS = {"Delete": "Delete", "MultipartUpload": "CompleteMultipartUpload"}


def members_of(operation: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the members of an operation that are in headers or in the address."""
    shape = MODEL.operation_model(operation).input_shape
    for name, member in shape.members.items():
        place = member.serialization.get("location")
        if name not in OF_HTTP and place in {"header", "querystring"}:
            wire = member.serialization["name"]
            yield name, wire if place == "querystring" else wire.lower(), member


def is_understood(handler: str, wire: Any) -> bool:
    return (
        wire in supported_parameters.SUPPORTED_PARAMETERS[handler]
        or wire in supported_parameters.IGNORED_HEADERS
        or wire in {"x-amz-expected-bucket-owner", "x-amz-sdk-checksum-algorithm"}
    )


REFUSED = [
    (operation, name, wire)
    for handler, operation in SERVED.items()
    for name, wire, _ in members_of(operation)
    if not is_understood(handler, wire)
]


def test_every_served_operation_has_its_members_listed() -> None:
    tables = (
        endpoint._SERVICE_OPERATIONS,
        endpoint._BUCKET_OPERATIONS,
        endpoint._OBJECT_OPERATIONS,
    )
    served = {each.name for table in tables for each in table.values()} | {"selected"}
    assert served == supported_parameters.SUPPORTED_PARAMETERS.keys() == SERVED.keys()
    known = {wire for operation in SERVED.values() for _, wire, _ in members_of(operation)} | {
        "select",
        "select-type",
        "list-type",
        "location",
        "versioning",
        "versions",
        "uploads",
        "delete",
    }
    claimed = frozenset().union(*supported_parameters.SUPPORTED_PARAMETERS.values())
    # HTTP and the AWS CLI have these two, but botocore's model does not.
    assert claimed - known <= {"if-range"} | supported_parameters._CHECKSUM_HEADERS


def test_every_harmless_member_is_on_the_page() -> None:
    for wire in (
        *supported_parameters.IGNORED_HEADERS,
        *supported_parameters.NEUTRAL_HEADER_VALUES,
    ):
        assert f"`{wire}`" in PAGE, wire


@pytest.fixture(scope="module")
def arguments(s3: S3Process) -> dict[Any, Any]:
    client = s3.client()
    bucket = "members"
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    upload = client.create_multipart_upload(Bucket=bucket, Key="u")["UploadId"]
    return {
        "Bucket": bucket,
        "Key": "k",
        "UploadId": upload,
        "PartNumber": 1,
        "CopySource": f"{bucket}/k",
        "Delete": {"Objects": [{"Key": "k"}]},
        "Expression": "select 1 from s3object",
        "ExpressionType": "SQL",
        "InputSerialization": {"CSV": {}},
        "OutputSerialization": {"CSV": {}},
    }


def value_of(member: Any) -> Any:
    if member.type_name in {"integer", "long"}:
        return 1
    if member.type_name == "boolean":
        return True
    if member.type_name == "timestamp":
        return "2030-01-01"
    # Use the last choice, because the first may be the default.
    return member.enum[-1] if getattr(member, "enum", ()) else "a=b"


@pytest.mark.parametrize(("operation", "name", "wire"), REFUSED)
def test_a_member_that_is_not_carried_out_is_refused_by_name(
    s3: S3Process, arguments: Any, operation: str, name: Any, wire: Any
) -> None:
    client = s3.client()
    shape = MODEL.operation_model(operation).input_shape
    given = {each: arguments[each] for each in shape.required_members}
    method = botocore.xform_name(operation)
    with pytest.raises(ClientError) as refused:
        getattr(client, method)(**given | {name: value_of(shape.members[name])})
    error = refused.value.response["Error"]
    status = refused.value.response["ResponseMetadata"]["HTTPStatusCode"]
    if "SSECustomer" in name and status == 400:
        # S3 returns this for an object that was stored without a key of the caller.
        assert MODEL.operation_model(operation).http["method"] == "HEAD" or (
            error["Code"] == "InvalidRequest"
        )
        return
    assert status == 501
    if MODEL.operation_model(operation).http["method"] != "HEAD":
        assert error["Code"] == "NotImplemented"
        assert re.search(rf"\b{re.escape(wire)}\b", error["Message"])
    client.head_object(Bucket=arguments["Bucket"], Key="k")


def test_every_element_of_a_document_is_understood_or_refused_by_name(
    s3: S3Process, arguments: Any
) -> None:
    client = s3.client()
    for operation, member in (
        ("DeleteObjects", "Delete"),
        ("CompleteMultipartUpload", "MultipartUpload"),
    ):
        shape = MODEL.operation_model(operation).input_shape.members[member]
        root = DOCUMENTS[member]
        for name, child in shape.members.items():
            wire = child.serialization.get("name", name)
            if child.type_name == "list":
                wire = child.member.serialization.get("name", wire)
                inner = supported_parameters.SUPPORTED_XML_ELEMENTS[wire]
                unknown = {each for each in child.member.members if each not in inner}
                assert all(each.startswith("Checksum") for each in unknown)
            assert wire in supported_parameters.SUPPORTED_XML_ELEMENTS[root]
    for configuration, wire in (
        ({"Location": {"Type": "AvailabilityZone", "Name": "x"}}, "Location"),
        ({"Bucket": {"Type": "Directory"}}, "Bucket"),
        ({"Tags": [{"Key": "a", "Value": "b"}]}, "Tags"),
    ):
        with pytest.raises(ClientError, match=f"<{wire}>") as refused:
            client.create_bucket(Bucket="never-created", CreateBucketConfiguration=configuration)
        assert refused.value.response["Error"]["Code"] == "NotImplemented"
    with pytest.raises(ClientError) as refused:
        client.complete_multipart_upload(
            Bucket=arguments["Bucket"],
            Key="u",
            UploadId=arguments["UploadId"],
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": "x", "ChecksumSHA512": "x"}]},
        )
    assert refused.value.response["Error"]["Code"] == "NotImplemented"
