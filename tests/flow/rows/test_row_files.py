"""Files of rows in an S3 bucket, uploaded through the service's endpoint or directly."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.rows import RowService, row_service_in
from fixtures.s3 import ROLE, Seaweed
from fixtures.service import KeyPair
from snowmelt.storage.store_factory import open_store
from support.tcp_relay import Relay

PIPE_INFO = "/v2/streaming/databases/demo/schemas/public/pipes/t-STREAMING:pipe-info"


@pytest.fixture
def front(
    seaweed: Seaweed, tmp_path: Path, key_pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RowService]:
    """The bucket's server behind TLS, which the SDK requires, and a service with a role."""
    service = row_service_in(tmp_path, key_pair)
    service.service.stop()
    certs = tmp_path / "certs"
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certs / "server.pem", certs / "server.key")
    relay = Relay(seaweed.port, tls)
    given = seaweed.environment | {
        "AWS_ENDPOINT": f"https://127.0.0.1:{relay.port}",
        "AWS_ENDPOINT_URL_STS": seaweed.url,
        "SSL_CERT_FILE": str(certs / "ca.pem"),
    }
    service.service.environment.update(given)
    service.settings["stage_url"] = f"s3://behind/stage-{uuid.uuid4().hex[:8]}"
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    yield service
    service.close()
    relay.close()


def asked(service: RowService) -> tuple[dict[str, Any], str]:
    """Return the upload location for the SDK, and the counters of the service."""
    trust = ssl.create_default_context(cafile=service.service.ca_file)
    with httpx.Client(base_url=service.service.url, verify=trust, timeout=60) as http:
        answer = http.post(PIPE_INFO, headers=service.authorization(), content=b"{}")
        return answer.json()["rowset_stage_location"], http.get("/metrics").text


@pytest.mark.slow
def test_the_sdk_uploads_into_the_bucket_itself_and_through_the_service(front: RowService) -> None:
    places = []
    for number, role in enumerate((ROLE, "")):
        front.start(stage_role=role)
        writer = front.writer()
        writer.tell("open", "c")
        writer.tell("append_range", "c", number * 20_000, (number + 1) * 20_000, 1_000)
        writer.tell("commit", "c", str((number + 1) * 20_000 - 1))
        writer.tell("close")
        place, counted = asked(front)
        places.append(place)
        assert 'route="filebuffer",status="200"' in counted
        front.service.stop()
    past, through = places
    stage_url = front.settings["stage_url"]
    assert f"s3://{past['location']}".startswith(f"{stage_url}/")
    assert past["storage_endpoint"] in front.service.environment["AWS_ENDPOINT"]
    assert through["location"].startswith("snowmelt-stage/")
    assert front.ids() == list(range(40_000))
    # Files are deleted when their rows are committed.
    assert not [each.path for each in open_store(stage_url).list() if each.path.endswith(".ndjson")]
