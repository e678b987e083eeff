"""Operations on buckets themselves."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from snowmelt.buckets.refusals import S3Refusal
from snowmelt.server.s3 import markup
from snowmelt.server.s3.answers import Answer, xml_answer
from snowmelt.server.s3.listings import number_of
from snowmelt.server.s3.members import check_document
from snowmelt.server.s3.receiving import checked_body, receive_whole

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive

    from snowmelt.server.s3.calls import AuthorisedRequest

# What S3 calls the region that its answers leave without a name.
_UNNAMED_REGION = "us-east-1"
_MOST_BUCKETS = 10_000
_MOST_CONFIGURATION_BYTES = 64 * 1024


async def list_buckets(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListBuckets: those in which the user may do anything."""
    del receive
    prefix = call.query.get("prefix")
    after = call.query.get("continuation-token", "")
    most = number_of(call.query, "max-buckets", _MOST_BUCKETS, _MOST_BUCKETS)
    visible = await call.run(call.parts.directory.visible, call.user)
    region = call.query.get("bucket-region", region_of(call))
    if region != region_of(call):
        visible = []
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
        root = markup.parse(content, "CreateBucketConfiguration")
        check_document(root)
        _check_location(call, (root.findtext("LocationConstraint") or "").strip())
    name = call.request.bucket
    try:
        await call.run(call.parts.directory.create, call.user, name)
    except S3Refusal as error:
        if error.s3_code != "BucketAlreadyOwnedByYou":
            raise
    return Answer(headers={"location": f"/{name}"})


async def head_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """HeadBucket."""
    del receive
    region = region_of(call)
    return Answer(headers={"x-amz-bucket-region": region, "content-type": "application/xml"})


async def delete_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteBucket."""
    del receive
    await call.run(call.parts.directory.drop, call.visit)
    return Answer(HTTPStatus.NO_CONTENT)


async def get_location(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetBucketLocation: the region of all buckets; us-east-1 is the one without a name."""
    del receive
    region = region_of(call)
    return xml_answer("LocationConstraint", "" if region == _UNNAMED_REGION else region)


async def get_versioning(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetBucketVersioning: it was never enabled."""
    del call, receive
    return xml_answer("VersioningConfiguration", "")


def region_of(call: AuthorisedRequest) -> str:
    """Return the region of all buckets."""
    return call.parts.settings.s3_region or _UNNAMED_REGION


def _check_location(call: AuthorisedRequest, wanted: str) -> None:
    region = region_of(call)
    known = {"", region} | ({"EU"} if region == "eu-west-1" else set())
    if call.parts.settings.s3_region and wanted not in known:
        raise S3Refusal(
            "IllegalLocationConstraintException",
            f"The {wanted[:60]} location constraint is incompatible for the region specific "
            f"endpoint this request was sent to; this one is {region}.",
        )
