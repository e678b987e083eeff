"""Operations on buckets themselves."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from snowmelt.buckets.refusals import S3Refusal
from snowmelt.server.s3 import markup
from snowmelt.server.s3.answers import Answer, xml_answer
from snowmelt.server.s3.listings import number_of
from snowmelt.server.s3.receiving import checked_body, receive_whole

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive

    from snowmelt.server.s3.calls import AuthorisedRequest

REGION = "us-east-1"
_MOST_BUCKETS = 10_000
_MOST_CONFIGURATION_BYTES = 64 * 1024


async def list_buckets(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListBuckets: those in which the user may do anything."""
    del receive
    prefix = call.query.get("prefix")
    after = call.query.get("continuation-token", "")
    most = number_of(call.query, "max-buckets", _MOST_BUCKETS, _MOST_BUCKETS)
    visible = await call.run(call.parts.directory.visible, call.user)
    found = sorted(
        (each for each in visible if each.name > after and each.name.startswith(prefix or "")),
        key=lambda each: each.name,
    )
    page = found[:most]
    listed: list[markup.Element] = [
        ("Bucket", [("Name", each.name), ("CreationDate", markup.instant(each.created_at))])
        for each in page
    ]
    owner: list[markup.Element] = [("ID", call.user), ("DisplayName", call.user)]
    answer: list[markup.Element] = [
        ("Owner", owner),
        ("Buckets", listed),
        ("ContinuationToken", page[-1].name if page and len(found) > most else None),
        ("Prefix", prefix),
    ]
    return xml_answer("ListAllMyBucketsResult", answer)


async def create_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """CreateBucket; again by the owner is fine, as in us-east-1."""
    body = await receive_whole(receive, most=_MOST_CONFIGURATION_BYTES)
    content = checked_body(call, body)
    if content.strip():
        # Any region will do: there is one place only.
        markup.parse(content, "CreateBucketConfiguration")
    name = call.request.bucket
    try:
        await call.run(call.parts.directory.create, call.user, name)
    except S3Refusal as error:
        if error.s3_code != "BucketAlreadyOwnedByYou":
            raise
    return Answer(headers={"location": f"/{name}"})


async def head_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """HeadBucket."""
    del call, receive
    return Answer(headers={"x-amz-bucket-region": REGION, "content-type": "application/xml"})


async def delete_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteBucket."""
    del receive
    await call.run(call.parts.directory.drop, call.visit)
    return Answer(HTTPStatus.NO_CONTENT)


async def get_location(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetBucketLocation: the region without a name, which is us-east-1."""
    del call, receive
    return xml_answer("LocationConstraint", "")


async def get_versioning(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetBucketVersioning: it was never enabled."""
    del call, receive
    return xml_answer("VersioningConfiguration", "")
