"""Listings compared with a sorted list, for random keys, prefix, delimiter, marker and page size."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.s3 import S3Process

names = st.text("ab/é\x7f&<\\", min_size=1, max_size=6)
_buckets = itertools.count()


def model(
    keys: set[Any], prefix: str, after: Any, delimiter: Any, *, is_key: bool = False
) -> list[tuple[str, str]]:
    """Return the entries of a listing. `after` may be a common prefix, unless `is_key` is true."""
    entries: dict[tuple[str, str], None] = {}
    for key in sorted(keys, key=lambda key: key.encode()):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        entry = ("key", key) if at < 0 else ("group", key[: at + len(delimiter)])
        if is_key or entry != ("group", after):
            entries[entry] = None
    return list(entries)


def entries_of(pages: Any) -> list[tuple[str, str]]:
    found = []
    for page in pages:
        keys = [("key", each["Key"]) for each in page.get("Contents", page.get("Versions", []))]
        groups = [("group", each["Prefix"]) for each in page.get("CommonPrefixes", [])]
        assert len(keys) + len(groups) <= page["MaxKeys"]
        assert page.get("KeyCount", len(keys) + len(groups)) == len(keys) + len(groups)
        found += sorted(keys + groups, key=lambda entry: entry[1].encode())
    return found


@given(
    keys=st.sets(names, max_size=14),
    prefix=st.text("ab/é", max_size=2),
    delimiter=st.sampled_from(["", "/", "a", "/b"]),
    after=st.one_of(st.just(""), names),
    size=st.integers(1, 4),
)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_listing_is_the_sorted_keys_in_pages(
    s3: S3Process, keys: set[Any], prefix: str, delimiter: Any, after: Any, size: int
) -> None:
    client = s3.client()
    bucket = f"listing-{next(_buckets)}"
    client.create_bucket(Bucket=bucket)
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    given_query = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter}
    paging = {"PaginationConfig": {"PageSize": size}}
    expected = model(keys, prefix, after, delimiter)
    pages = client.get_paginator("list_objects_v2").paginate(
        **given_query, StartAfter=after, **paging
    )
    assert entries_of(pages) == model(keys, prefix, after, delimiter, is_key=True)
    pages = client.get_paginator("list_objects").paginate(**given_query, Marker=after, **paging)
    assert entries_of(pages) == expected
    pages = client.get_paginator("list_object_versions").paginate(
        **given_query, KeyMarker=after, **paging
    )
    assert entries_of(pages) == expected
    if keys:
        wanted = [{"Key": key} for key in keys]
        assert "Errors" not in client.delete_objects(Bucket=bucket, Delete={"Objects": wanted})
    client.delete_bucket(Bucket=bucket)


def test_a_listing_after_a_key_has_the_common_prefix_with_later_keys(
    s3: S3Process, bucket: str
) -> None:
    client = s3.client()
    for key in ("a/1", "a/2", "b/", "c"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")

    def list_after(after: str) -> list[tuple[str, str]]:
        return entries_of([client.list_objects_v2(Bucket=bucket, Delimiter="/", StartAfter=after)])

    assert list_after("a/") == [("group", "a/"), ("group", "b/"), ("key", "c")]
    assert list_after("a/2") == [("group", "b/"), ("key", "c")]
    assert list_after("b/") == [("key", "c")]
    page = client.list_objects_v2(Bucket=bucket, Delimiter="/", MaxKeys=1, StartAfter="a/")
    token = page["NextContinuationToken"]
    page = client.list_objects_v2(Bucket=bucket, Delimiter="/", ContinuationToken=token)
    assert entries_of([page]) == [("group", "b/"), ("key", "c")]


def test_a_thousand_and_more_keys_come_in_pages(s3: S3Process, bucket: str) -> None:
    client = s3.client()
    keys = [f"k{number:04d}" for number in range(1003)]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    first = client.list_objects_v2(Bucket=bucket)
    assert (first["KeyCount"], first["IsTruncated"], first["MaxKeys"]) == (1000, True, 1000)
    second = client.list_objects_v2(Bucket=bucket, ContinuationToken=first["NextContinuationToken"])
    assert [each["Key"] for each in first["Contents"] + second["Contents"]] == keys
    assert not second["IsTruncated"]
    deleted = client.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys[:1000]], "Quiet": True}
    )
    assert "Deleted" not in deleted
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 3


def test_owners_are_shown_on_demand(s3: S3Process, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"")
    assert "Owner" not in client.list_objects_v2(Bucket=bucket)["Contents"][0]
    shown = client.list_objects_v2(Bucket=bucket, FetchOwner=True)["Contents"][0]["Owner"]
    assert shown["ID"] == "ACCOUNTADMIN"
    assert client.list_objects(Bucket=bucket)["Contents"][0]["Owner"] == shown


def test_no_keys_at_all_may_be_asked_for(s3: S3Process, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"")
    listed = client.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert (listed["KeyCount"], listed["IsTruncated"]) == (0, False)


def test_a_wrong_token_is_refused(s3: S3Process, bucket: str) -> None:
    with pytest.raises(ClientError, match="continuation token") as refused:
        s3.client().list_objects_v2(Bucket=bucket, ContinuationToken="!!!")
    assert refused.value.response["Error"]["Code"] == "InvalidArgument"


def test_buckets_come_in_pages(s3: S3Process) -> None:
    client = s3.client()
    names = [f"paged-{number}" for number in range(5)]
    for name in names:
        client.create_bucket(Bucket=name)
    pages = client.get_paginator("list_buckets").paginate(
        Prefix="paged-", PaginationConfig={"PageSize": 2}
    )
    assert [[each["Name"] for each in page["Buckets"]] for page in pages] == [
        names[:2],
        names[2:4],
        names[4:],
    ]
    assert client.list_buckets(Prefix="paged-")["Prefix"] == "paged-"
