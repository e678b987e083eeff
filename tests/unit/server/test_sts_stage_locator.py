"""What a role for clients needs; that it works is for tests/flow/test_stage_in_a_bucket.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snowmelt.config import Settings
from snowmelt.errors import ConfigurationError, ServiceBusy
from snowmelt.ingest.stage_locations import FolderStageLocator, StageRequester
from snowmelt.server.sts_stage_locator import StsStageLocator, make_sts_stage_locator
from support.ports import free_port

ROLE = "arn:aws-cn:iam::123456789012:role/uploads"
PLACE = "s3://bucket/deep/stage"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StsStageLocator]:
    """Makes a handing in an environment with a region and keys, and nothing that answers."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name, value in {
        "AWS_REGION": "cn-north-1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{free_port()}",
    }.items():
        monkeypatch.setenv(name, value)

    def make(role: str = ROLE, **given: Any) -> StsStageLocator:
        settings = Settings.load(tmp_path, **{"stage_url": PLACE, "stage_role": role} | given)
        return make_sts_stage_locator(settings, FolderStageLocator(tmp_path / "others"))

    return make


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"role": "uploads"}, "requires the ARN of a role"),
        ({"stage_url": "gs://bucket/stage"}, "begins with s3://"),
        ({"stage_url": "s3://bucket/a*"}, r"must not contain \*, \? or \$"),
        ({"stage_credentials_s": 60}, "from 900 to 43200"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    made: Any, given: dict[str, int] | dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        made(**given)


def test_a_region_is_needed(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigurationError, match="requires the environment variable AWS_REGION"):
        made()


def test_the_role_is_narrowed_and_a_server_away_is_waited_for(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handing = made()
    assert handing.endpoint == "https://s3.cn-north-1.amazonaws.com.cn"
    asked = {}
    handing.sts_client.meta.events.register(
        "provide-client-params.sts.AssumeRole", lambda params, **_: asked.update(params)
    )
    with pytest.raises(ServiceBusy, match="the log of the service has the reason"):
        handing.issue_grant(StageRequester("Ann B", renews_by_prefix=True), "abc")
    assert asked["RoleSessionName"] == "snowmelt-Ann-B"
    [statement] = json.loads(asked["Policy"])["Statement"]
    assert statement == {
        "Effect": "Allow",
        "Action": ["s3:PutObject"],
        "Resource": ["arn:aws-cn:s3:::bucket/deep/stage/abc/*"],
    }
    assert ROLE in caplog.text
    assert handing.issue_grant(StageRequester("ann"), "abc").location.locationType == "LOCAL_FS"
