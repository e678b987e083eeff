"""Clients upload to the bucket itself, with credentials of a role that STS narrows to their prefix."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

from snowmelt.config import read_environment_variable
from snowmelt.errors import ConfigurationError, ServiceBusy
from snowmelt.ingest.stage_locations import StageGrant
from snowmelt.wire.streaming import StageLocation

if TYPE_CHECKING:
    from snowmelt.config import Settings
    from snowmelt.ingest.stage_locations import StageLocator, StageRequester

_log = logging.getLogger("snowmelt.server")

_SETTING = "stage_role"
_ROLE = re.compile(r"arn:(aws[a-z-]*):iam::.*role/.+")
# The bounds of AssumeRole; a service that has a role itself gets an hour at most.
_SHORTEST_S, _LONGEST_S = 900.0, 43_200.0
_PATIENCE_S = 5.0
# What a policy reads as a wildcard or a variable.
_MEANS_MORE = re.compile(r"[*?$]")


@dataclass(frozen=True, slots=True)
class RoleHanding:
    """Hands out `role` to clients that say their prefix when they renew; the others get `others`.

    The official client names its blobs by a prefix for which it has no credentials any more once
    it has renewed, so it cannot do with those for one prefix.
    """

    sts: Any
    role: str
    bucket: str
    folder: str
    region: str
    endpoint: str
    lifetime_s: float
    others: StageLocator

    def issue_location(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Return the bucket's part for the prefix, with new credentials.

        Raises:
            ServiceBusy: STS does not answer, or refuses; the log says why.
        """
        if not requester.renews_by_prefix:
            return self.others.issue_location(requester, prefix)
        place = "/".join(filter(None, (self.bucket, self.folder, prefix))) + "/"
        given = self._assumed(requester.user, place)
        creds = {
            "AWS_KEY_ID": given["AccessKeyId"],
            "AWS_SECRET_KEY": given["SecretAccessKey"],
            "AWS_TOKEN": given["SessionToken"],
        }
        location = StageLocation(
            locationType="S3",
            location=place,
            creds=creds,
            region=self.region,
            endPoint=self.endpoint,
        )
        return StageGrant(location, self.lifetime_s)

    def _assumed(self, user: str, place: str) -> dict[str, str]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self.sts.assume_role(
                RoleArn=self.role,
                # What the bucket's own log calls whoever uploads.
                RoleSessionName=re.sub(r"[^A-Za-z0-9_+=,.@-]", "-", f"snowmelt-{user}")[:64],
                Policy=_policy(self.role, place),
                DurationSeconds=int(self.lifetime_s),
            )
        except (BotoCoreError, ClientError) as error:
            _log.error("no credentials for clients: %s: %s", self.role, error)
            reason = "credentials for the bucket cannot be had; the service's log says why"
            raise ServiceBusy(reason=reason) from error
        found: dict[str, str] = answer["Credentials"]
        return found


def role_handing(settings: Settings, others: StageLocator) -> RoleHanding:
    """Return how clients are let into the bucket of `stage_url`.

    Raises:
        ConfigurationError: The stage is no bucket of S3, or a setting does not fit.
    """
    parts = urlsplit(settings.stage_url)
    folder = unquote(parts.path).strip("/")
    region = read_environment_variable("AWS_REGION") or read_environment_variable(
        "AWS_DEFAULT_REGION"
    )
    if parts.scheme != "s3" or not _ROLE.match(settings.stage_role):
        _refuse("it is the ARN of a role, for a stage_url that begins with s3://")
    if _MEANS_MORE.search(folder):
        _refuse("the path of stage_url may have no *, ? or $ in it")
    if not region:
        _refuse("AWS_REGION is not set")
    if not _SHORTEST_S <= settings.stage_credentials_s <= _LONGEST_S:
        _refuse("stage_credentials_s lies between 900 and 43,200 then, as AWS has it")
    store = read_environment_variable("AWS_ENDPOINT") or read_environment_variable(
        "AWS_ENDPOINT_URL"
    )
    amazon = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return RoleHanding(
        sts=_sts(region, read_environment_variable("AWS_ENDPOINT_URL_STS") or store),
        role=settings.stage_role,
        bucket=parts.netloc,
        folder=folder,
        region=region,
        endpoint=store or f"https://s3.{region}.{amazon}",
        lifetime_s=settings.stage_credentials_s,
        others=others,
    )


def over_tls(handing: StageLocator) -> tuple[StageLocator, str]:
    """Return how clients that upload by TLS alone are let in, and to which bucket and folder.

    Without TLS before the bucket they go through the service, and that is empty.
    """
    if not isinstance(handing, RoleHanding):
        return handing, ""
    if not handing.endpoint.startswith("https://"):
        _log.warning("%s has no TLS: files of rows go through the service", handing.endpoint)
        return handing.others, ""
    return handing, "/".join(filter(None, (handing.bucket, handing.folder)))


def _sts(region: str, endpoint: str | None) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError:
        _refuse("it needs boto3; pip install 'snowmelt[aws]'")
    waiting = Config(
        connect_timeout=_PATIENCE_S, read_timeout=_PATIENCE_S, retries={"total_max_attempts": 2}
    )
    # With whatever credentials AWS's own tools find for the service, renewed by them.
    return boto3.client("sts", region_name=region, endpoint_url=endpoint, config=waiting)


def _policy(role: str, place: str) -> str:
    """Return what is left of the role: uploading beneath a place, a bucket and a path."""
    partition = role.split(":", 2)[1]
    statement = {
        "Effect": "Allow",
        "Action": ["s3:PutObject"],
        "Resource": [f"arn:{partition}:s3:::{place}*"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _refuse(reason: str) -> NoReturn:
    raise ConfigurationError(setting=_SETTING, reason=reason)
