"""Operations that read or delete objects."""

from __future__ import annotations

import itertools
from http import HTTPStatus
from typing import TYPE_CHECKING

from snowmelt.buckets.bucket import DEFAULT_TYPE, check_key
from snowmelt.buckets.refusals import S3Refusal
from snowmelt.errors import SnowmeltError
from snowmelt.server.s3 import markup
from snowmelt.server.s3.answers import Answer, Stream, xml_answer
from snowmelt.server.s3.conditions import check_conditions, delete_condition, http_date, range_of
from snowmelt.server.s3.members import check_document
from snowmelt.server.s3.receiving import checked_body, receive_whole
from snowmelt.server.s3.writing import part_number_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive

    from snowmelt.buckets.bucket import Facts
    from snowmelt.catalog.objects import Condition
    from snowmelt.server.s3.calls import AuthorisedRequest
    from snowmelt.storage.store import OpenObject

MOST_KEYS = 1000
_MOST_DELETE_BYTES = 4 * 1024 * 1024
# What is not larger is read by the thread that opens it.
_AT_ONCE_BYTES = 256 * 1024
_OVERRIDES = (
    "content-type",
    "content-language",
    "expires",
    "cache-control",
    "content-disposition",
    "content-encoding",
)


async def get_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetObject."""
    del receive
    return await call.run(_get, call)


async def head_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """HeadObject."""
    del receive
    return await call.run(_head, call)


async def delete_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteObject."""
    del receive
    check_version(call)
    headers = call.headers
    condition = delete_condition(
        headers.get("if-match"),
        headers.get("x-amz-if-match-size"),
        headers.get("x-amz-if-match-last-modified-time"),
    )
    await call.run(call.visit.bucket.delete, call.key, condition)
    return Answer(HTTPStatus.NO_CONTENT)


async def delete_objects(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteObjects: each key is answered for by itself."""
    body = await receive_whole(receive, most=_MOST_DELETE_BYTES)
    return await call.run(_delete_many, call, body)


def _get(call: AuthorisedRequest) -> ASGIApp:
    facts, opened = _opened(call)
    try:
        start, end, status, headers = _described(call, facts)
        if end - start > _AT_ONCE_BYTES:
            chunks = opened.chunks(start, end)
            return Stream(status, headers, chunks, opened.close, call.parts.threads)
        body = b"".join(opened.chunks(start, end))
    except BaseException:
        opened.close()
        raise
    opened.close()
    return Answer(status, headers, body)


def _head(call: AuthorisedRequest) -> ASGIApp:
    check_version(call)
    facts = call.visit.bucket.facts(call.key)
    check_conditions(call.headers, facts)
    _, _, status, headers = _described(call, facts)
    return Answer(status, headers)


def _opened(call: AuthorisedRequest) -> tuple[Facts, OpenObject]:
    check_version(call)
    facts, opened = call.visit.bucket.open(call.key)
    try:
        check_conditions(call.headers, facts)
    except BaseException:
        opened.close()
        raise
    return facts, opened


def _described(call: AuthorisedRequest, facts: Facts) -> tuple[int, int, int, dict[str, str]]:
    headers = object_headers(call, facts)
    found = _part_range(call, facts) or range_of(_range_header(call, facts), facts.size)
    start, end = found or (0, facts.size)
    if facts.part_sizes and "partNumber" in call.query:
        headers["x-amz-mp-parts-count"] = str(len(facts.part_sizes))
    status = HTTPStatus.OK
    if found is not None:
        status = HTTPStatus.PARTIAL_CONTENT
        headers["content-range"] = f"bytes {start}-{end - 1}/{facts.size}"
    elif facts.checksum is not None and call.headers.get("x-amz-checksum-mode") == "ENABLED":
        headers[facts.checksum.header] = facts.checksum.value
        headers["x-amz-checksum-type"] = facts.checksum.kind
    headers["content-length"] = str(end - start)
    return start, end, status, headers


def object_headers(call: AuthorisedRequest, facts: Facts) -> dict[str, str]:
    """Return the headers that tell what an object is, as the request wants some of them."""
    headers = {
        "content-type": DEFAULT_TYPE,
        **facts.headers,
        "etag": f'"{facts.etag}"',
        "last-modified": http_date(facts.modified_at),
        "accept-ranges": "bytes",
    }
    for name in _OVERRIDES:
        value = call.query.get(f"response-{name}")
        if value is not None:
            if not call.identity.is_signed:
                raise S3Refusal("InvalidRequest", "response- parameters need a signed request.")
            if not value.isprintable():
                raise S3Refusal("InvalidArgument", f"response-{name} cannot be a header.")
            headers[name] = value
    return headers


def check_version(call: AuthorisedRequest) -> None:
    """Let pass what asks for the only version that there is.

    Raises:
        S3Refusal: It asks for another.
    """
    version = call.query.get("versionId", "null")
    if version not in {"null", ""}:
        raise S3Refusal("NoSuchVersion", Key=call.key, VersionId=version)


def _range_header(call: AuthorisedRequest, facts: Facts) -> str | None:
    """Return the range that is asked for; none if it was of another object (If-Range)."""
    only_if = call.headers.get("if-range")
    if only_if is not None and only_if.strip() not in {
        f'"{facts.etag}"',
        http_date(facts.modified_at),
    }:
        return None
    return call.headers.get("range")


def _part_range(call: AuthorisedRequest, facts: Facts) -> tuple[int, int] | None:
    """Return first byte and the one after the last of the part that is asked for."""
    text = call.query.get("partNumber")
    if text is None:
        return None
    if "range" in call.headers:
        raise S3Refusal(
            "InvalidRequest", "Cannot specify both Range header and partNumber query parameter"
        )
    number = part_number_of(text)
    if "-" in facts.etag and not facts.part_sizes:
        raise S3Refusal(
            "NotImplemented", "partNumber: the parts of this object are not known here."
        )
    sizes = facts.part_sizes or (facts.size,)
    if number > len(sizes):
        raise S3Refusal("InvalidPartNumber", ActualPartCount=len(sizes), PartNumberRequested=number)
    start = sum(sizes[: number - 1])
    return (start, start + sizes[number - 1]) if facts.size else None


def _delete_many(call: AuthorisedRequest, body: bytes) -> ASGIApp:
    root = markup.parse(checked_body(call, body), "Delete")
    check_document(root)
    wanted = root.findall("Object")
    if not 0 < len(wanted) <= MOST_KEYS:
        raise S3Refusal("MalformedXML", f"A Delete names 1 to {MOST_KEYS} objects.")
    quiet = (root.findtext("Quiet") or "").strip().lower() == "true"
    deleted: list[markup.Element] = []
    errors: list[markup.Element] = []
    for each in wanted:
        key = each.findtext("Key") or ""
        version = (each.findtext("VersionId") or "").strip()
        try:
            condition = delete_condition(
                each.findtext("ETag"), each.findtext("Size"), each.findtext("LastModifiedTime")
            )
            _delete_one(call, key, version, condition)
        except SnowmeltError as error:
            errors.append(("Error", _error_of(key, error)))
        else:
            shown = [("VersionId", version)] if version else []
            deleted.append(("Deleted", [("Key", key), *shown]))
    content = itertools.chain(() if quiet else deleted, errors)
    return xml_answer("DeleteResult", list(content))


def _delete_one(call: AuthorisedRequest, key: str, version: str, condition: Condition) -> None:
    check_key(key)
    call.visit.require("WRITE", key)
    if version not in {"", "null"}:
        raise S3Refusal("NoSuchVersion")
    call.visit.bucket.delete(key, condition)


def _error_of(key: str, error: SnowmeltError) -> list[markup.Element]:
    code = getattr(error, "s3_code", "InternalError")
    return [("Key", key), ("Code", code), ("Message", str(error))]
