from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.buckets.bucket import ObjectMetadata
from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.conditional_requests import (
    check_conditions,
    format_http_date,
    parse_copy_range,
    parse_range,
    parse_write_condition,
)

AT = dt.datetime(2026, 11, 21, 10, 0, 0, 500_000, tzinfo=dt.UTC)
FACTS = ObjectMetadata("k", 10, "abc", AT)
BEFORE, SAME, LATER = (format_http_date(AT + dt.timedelta(seconds=s)) for s in (-60, 0, 60))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=3-", (3, 10)),
        ("bytes=3-99", (3, 10)),
        ("bytes=-4", (6, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("rows=1-2", None),
        ("bytes=a-b", None),
    ],
)
def test_a_single_range_is_read_and_others_passed_over(
    header: str | None, expected: tuple[int, int] | None
) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=-1", 0)])
def test_a_range_beyond_the_object_is_refused(header: str, size: int) -> None:
    with pytest.raises(S3Error) as refused:
        parse_range(header, size)
    assert refused.value.s3_code == "InvalidRange"
    assert refused.value.details["ActualObjectSize"] == size


@pytest.mark.parametrize("header", ["bytes=1-", "bytes=-3", "bytes=0-10", "bytes=4-3"])
def test_a_copy_takes_exact_ranges_alone(header: str) -> None:
    assert parse_copy_range("bytes=0-9", 10) == (0, 10)
    with pytest.raises(S3Error):
        parse_copy_range(header, 10)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"if-match": '"abc"'}, None),
        ({"if-match": "abc"}, None),
        ({"if-match": "*"}, None),
        ({"if-match": '"x", "abc"'}, None),
        ({"if-match": '"x"'}, "PreconditionFailed"),
        ({"if-none-match": '"abc"'}, "NotModified"),
        ({"if-none-match": 'W/"abc"'}, "NotModified"),
        ({"if-none-match": "*"}, "NotModified"),
        ({"if-none-match": '"x"'}, None),
        ({"if-modified-since": BEFORE}, None),
        ({"if-modified-since": SAME}, "NotModified"),
        ({"if-modified-since": LATER}, "NotModified"),
        ({"if-modified-since": "nonsense"}, None),
        ({"if-unmodified-since": BEFORE}, "PreconditionFailed"),
        ({"if-unmodified-since": SAME}, None),
        # ETags are stronger than dates.
        ({"if-match": '"abc"', "if-unmodified-since": BEFORE}, None),
        ({"if-none-match": '"x"', "if-modified-since": LATER}, None),
    ],
)
def test_conditions_hold_as_http_says(headers: dict[str, str], code: str | None) -> None:
    if code is None:
        check_conditions(headers, FACTS)
        return
    with pytest.raises(S3Error) as refused:
        check_conditions(headers, FACTS)
    assert refused.value.s3_code == code
    copied = {f"x-amz-copy-source-{name}": value for name, value in headers.items()}
    with pytest.raises(S3Error) as refused:
        check_conditions(copied, FACTS, prefix="x-amz-copy-source-")
    assert refused.value.s3_code == "PreconditionFailed"


def test_a_write_asks_for_absence_or_one_etag() -> None:
    assert parse_write_condition({"if-none-match": "*"}).must_not_exist
    assert parse_write_condition({"if-match": '"abc"'}).etag == "abc"
    assert parse_write_condition({}) == parse_write_condition({"other": "x"})
    for headers in ({"if-none-match": '"abc"'}, {"if-none-match": "*", "if-match": "x"}):
        with pytest.raises(S3Error):
            parse_write_condition(headers)
