"""STS credentials for direct uploads to the stage's bucket, restricted to the client's prefix."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from snowmelt.config import Settings, read_environment_variable
from snowmelt.errors import ConfigurationError, ServiceBusy
from snowmelt.ingest.stage_locations import StageGrant, StageLocator, StageRequester
from snowmelt.wire.streaming import StageLocation

_log = logging.getLogger("snowmelt.server")

_SETTING_NAME = "stage_role"
_ROLE_ARN_PATTERN = re.compile(r"arn:(aws[a-z-]*):iam::.*role/.+")
# Limits of AssumeRole. If the service's own credentials belong to a role, the maximum is an hour.
_MIN_LIFETIME_S, _MAX_LIFETIME_S = 900.0, 43_200.0
_STS_TIMEOUT_S = 5.0
# Special characters in policies: wildcards and variables.
_POLICY_METACHARACTERS = re.compile(r"[*?$]")


@dataclass(frozen=True, slots=True)
class StsStageLocator:
    """Issues credentials of `role_arn` to clients that renew by prefix. Others use `fallback_locator`.

    The official client renews its credentials without sending its prefix, and continues to use that
    prefix. Credentials for one prefix would therefore not work.
    """

    sts_client: Any
    role_arn: str
    bucket: str
    folder: str
    region: str
    endpoint: str
    lifetime_s: float
    fallback_locator: StageLocator

    def issue_grant(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Return the location of a prefix in the bucket, with new credentials.

        Raises:
            ServiceBusy: If STS does not respond or rejects the request. The log has the reason.
        """
        if not requester.renews_by_prefix:
            return self.fallback_locator.issue_grant(requester, prefix)
        place = "/".join(filter(None, (self.bucket, self.folder, prefix))) + "/"
        given = self._assume_role(requester.user, place)
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

    def _assume_role(self, user: str, upload_path: str) -> dict[str, str]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self.sts_client.assume_role(
                RoleArn=self.role_arn,
                # The session name appears in the access log of the bucket.
                RoleSessionName=re.sub(r"[^A-Za-z0-9_+=,.@-]", "-", f"snowmelt-{user}")[:64],
                Policy=_make_upload_policy(self.role_arn, upload_path),
                DurationSeconds=int(self.lifetime_s),
            )
        except (BotoCoreError, ClientError) as error:
            _log.error("STS issued no upload credentials for the role %s: %s", self.role_arn, error)
            reason = "STS issued no credentials for the bucket of the stage; the log of the service has the reason"
            raise ServiceBusy(reason=reason) from error
        found: dict[str, str] = answer["Credentials"]
        return found


def make_sts_stage_locator(settings: Settings, fallback_locator: StageLocator) -> StsStageLocator:
    """Create the locator for direct uploads to the bucket of `stage_url`.

    Raises:
        ConfigurationError: If the stage is not an S3 bucket, or a setting does not allow direct
            uploads.
    """
    parts = urlsplit(settings.stage_url)
    folder = unquote(parts.path).strip("/")
    region = read_environment_variable("AWS_REGION") or read_environment_variable(
        "AWS_DEFAULT_REGION"
    )
    if parts.scheme != "s3" or not _ROLE_ARN_PATTERN.match(settings.stage_role):
        _reject_setting(
            "it requires the ARN of a role, such as arn:aws:iam::123456789012:role/uploads, and a stage_url that begins with s3://"
        )
    if _POLICY_METACHARACTERS.search(folder):
        _reject_setting("the path of stage_url must not contain *, ? or $")
    if not region:
        _reject_setting("it requires the environment variable AWS_REGION")
    if not _MIN_LIFETIME_S <= settings.stage_credentials_s <= _MAX_LIFETIME_S:
        _reject_setting("it requires stage_credentials_s from 900 to 43200, the limits of AWS")
    store = read_environment_variable("AWS_ENDPOINT") or read_environment_variable(
        "AWS_ENDPOINT_URL"
    )
    amazon = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return StsStageLocator(
        sts_client=_make_sts_client(
            region, read_environment_variable("AWS_ENDPOINT_URL_STS") or store
        ),
        role_arn=settings.stage_role,
        bucket=parts.netloc,
        folder=folder,
        region=region,
        endpoint=store or f"https://s3.{region}.{amazon}",
        lifetime_s=settings.stage_credentials_s,
        fallback_locator=fallback_locator,
    )


def choose_tls_upload_locator(locator: StageLocator) -> tuple[StageLocator, str]:
    """Return the locator for clients that only upload over TLS, and its bucket and folder.

    If the bucket has no TLS, it is the locator of the service's endpoint, and the text is empty.
    """
    if not isinstance(locator, StsStageLocator):
        return locator, ""
    if not locator.endpoint.startswith("https://"):
        _log.warning("%s has no TLS: files of rows go through the service", locator.endpoint)
        return locator.fallback_locator, ""
    return locator, "/".join(filter(None, (locator.bucket, locator.folder)))


def _make_sts_client(region: str, endpoint: str | None) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError:
        _reject_setting("it needs boto3; pip install 'snowmelt[aws]'")
    waiting = Config(
        connect_timeout=_STS_TIMEOUT_S,
        read_timeout=_STS_TIMEOUT_S,
        retries={"total_max_attempts": 2},
    )
    # boto3 finds and renews the credentials of the service.
    return boto3.client("sts", region_name=region, endpoint_url=endpoint, config=waiting)


def _make_upload_policy(role_arn: str, upload_path: str) -> str:
    """Return a session policy that allows only uploads below a bucket and path."""
    partition = role_arn.split(":", 2)[1]
    statement = {
        "Effect": "Allow",
        "Action": ["s3:PutObject"],
        "Resource": [f"arn:{partition}:s3:::{upload_path}*"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _reject_setting(reason: str) -> NoReturn:
    raise ConfigurationError(setting=_SETTING_NAME, reason=reason)
