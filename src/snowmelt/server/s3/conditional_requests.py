"""Ranges and conditional headers of object requests, as in HTTP (RFC 9110) and S3."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from email.utils import format_datetime, parsedate_to_datetime

from snowmelt.buckets.bucket import ObjectMetadata
from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition

_RANGE_PATTERN = re.compile(r"bytes=(\d*)-(\d*)")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the start and the exclusive end of a range, or None for the whole object.

    A header that is not a single byte range is ignored, as HTTP specifies.

    Raises:
        S3Error: If the range is outside the object.
    """
    match = _RANGE_PATTERN.fullmatch((header or "").replace(" ", ""))
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last or size) + 1, size)
        if last and int(last) < start:
            return None
    if start >= size or start >= end:
        raise S3Error("InvalidRange", RangeRequested=header, ActualObjectSize=size)
    return start, end


def parse_copy_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse the source range of a copy, which must have a first and a last byte.

    Raises:
        S3Error: If the header is malformed, or the range is outside the object.
    """
    if header is None:
        return None
    match = _RANGE_PATTERN.fullmatch(header)
    if match is None or not all(match.groups()):
        raise S3Error("InvalidArgument", "The range of a copy's source must be bytes=a-b.")
    start, end = int(match.group(1)), int(match.group(2)) + 1
    if not start < end <= size:
        raise S3Error("InvalidRange", RangeRequested=header, ActualObjectSize=size)
    return start, end


def check_conditions(
    headers: Mapping[str, str], metadata: ObjectMetadata, *, prefix: str = ""
) -> None:
    """Check the conditional headers of a request. `prefix` is the prefix of their names.

    Raises:
        S3Error: If a condition fails: NotModified or PreconditionFailed.
    """
    match = headers.get(f"{prefix}if-match")
    none_match = headers.get(f"{prefix}if-none-match")
    if match is not None:
        if not _does_etag_match(match, metadata.etag):
            raise S3Error("PreconditionFailed", Condition="If-Match")
    elif _is_modified_after(metadata, headers.get(f"{prefix}if-unmodified-since")) is True:
        raise S3Error("PreconditionFailed", Condition="If-Unmodified-Since")
    unchanged = "NotModified" if not prefix else "PreconditionFailed"
    if none_match is not None:
        if _does_etag_match(none_match, metadata.etag):
            raise _not_modified_error(unchanged, metadata)
    elif _is_modified_after(metadata, headers.get(f"{prefix}if-modified-since")) is False:
        raise _not_modified_error(unchanged, metadata)


def parse_write_condition(headers: Mapping[str, str]) -> WritePrecondition:
    """Parse the condition that a write sets for the existing object.

    Raises:
        S3Error: If S3 does not support the condition on a write.
    """
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and none_match is not None:
        raise _unsupported_condition_error(
            "If-Match,If-None-Match", "Multiple conditional request headers present in the request"
        )
    if none_match is not None:
        if none_match.strip() != "*":
            raise _unsupported_value_error("If-None-Match")
        return WritePrecondition(must_not_exist=True)
    if match is None:
        return NO_PRECONDITION
    if match.strip() == "*":
        raise _unsupported_value_error("If-Match")
    return WritePrecondition(etag=_parse_etag(match))


def parse_delete_condition(
    etag: str | None, size: str | None = None, modified: str | None = None
) -> WritePrecondition:
    """Parse the condition that a deletion sets for the existing object.

    Raises:
        S3Error: If the size is not a number, or the time is invalid.
    """
    exists = etag is not None and etag.strip() == "*"
    return WritePrecondition(
        must_exist=exists,
        etag=None if etag is None or exists else _parse_etag(etag),
        size=None if size is None else _parse_size(size),
        modified_at=None if modified is None else parse_timestamp("last modified time", modified),
    )


def parse_timestamp(field_name: str, text: str) -> dt.datetime:
    """Parse a timestamp of a header or a document, truncated to seconds.

    Raises:
        S3Error: If the text is neither an HTTP date nor ISO 8601.
    """
    for read in (dt.datetime.fromisoformat, parsedate_to_datetime):
        try:
            found = read(text.strip())
        except ValueError:
            continue
        zoned = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
        return zoned.astimezone(dt.UTC).replace(microsecond=0)
    raise S3Error("InvalidArgument", f"The {field_name} {text[:60]!r} is not a time.")


def _parse_size(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 20:
        raise S3Error("InvalidArgument", f"The size {text[:60]!r} is not a number of bytes.")
    return int(text)


def _parse_etag(text: str) -> str:
    return text.strip().strip('"')


def _unsupported_value_error(header: str) -> S3Error:
    return _unsupported_condition_error(
        header, f"We don't accept the provided value of {header} header for this API"
    )


def _unsupported_condition_error(header: str, message: str) -> S3Error:
    return S3Error(
        "NotImplemented",
        "A header you provided implies functionality that is not implemented",
        Header=header,
        additionalMessage=message,
    )


def format_http_date(timestamp: dt.datetime) -> str:
    """Format a timestamp for HTTP headers, to the second."""
    return format_datetime(timestamp, usegmt=True)


def _does_etag_match(header: str, etag: str) -> bool:
    wanted = {each.strip().removeprefix("W/").strip('"') for each in header.split(",")}
    return bool(wanted & {"*", etag})


def _is_modified_after(metadata: ObjectMetadata, header: str | None) -> bool | None:
    """Return True if an object was modified after a date, or None if the date is invalid."""
    if header is None:
        return None
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=dt.UTC)
    return metadata.modified_at.replace(microsecond=0) > date


def _not_modified_error(code: str, metadata: ObjectMetadata) -> S3Error:
    refusal = S3Error(code)
    if code == "NotModified":
        refusal.details["etag"] = f'"{metadata.etag}"'
        refusal.details["last-modified"] = format_http_date(metadata.modified_at)
    return refusal
