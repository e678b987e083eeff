"""The row API by plain HTTP: its OpenAPI description, limits and errors."""

from __future__ import annotations

import base64
import gzip
import json
import re
import ssl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fixtures.rows import RowService
from snowmelt.storage.local_store import LocalStore
from snowmelt.wire import row_api
from support.authorization_server import AuthorisationServer, integration
from support.authorization_server import token as idp_token
from support.streaming_wire import token

PIPE = "/v2/streaming/databases/demo/schemas/public/pipes/T-STREAMING"
ROWS = PIPE.replace("/streaming/", "/streaming/data/") + "/channels/{}/rows"
FORM = {"content-type": "application/x-www-form-urlencoded"}
DOCS = Path(__file__).parents[3] / "docs"

# Schema names in the OpenAPI description. They must stay, because clients are generated from them.
DESCRIBED = {
    "Trouble": row_api.RowApiErrorBody,
    "ChannelStatus": row_api.RowChannelStatus,
    "OpenRequest": row_api.OpenRowChannelRequest,
    "OpenAnswer": row_api.OpenRowChannelResponse,
    "DropAnswer": row_api.DropRowChannelResponse,
    "StatusRequest": row_api.RowChannelStatusRequest,
    "StatusAnswer": row_api.RowChannelStatusResponse,
    "AppendAnswer": row_api.RowAppendResponse,
    "StageLocation": row_api.RowStageLocation,
    "PipeEncryption": row_api.PipeEncryption,
    "PipeInfo": row_api.PipeInfo,
    "Fragment": row_api.RowFileFragment,
}


@pytest.fixture(scope="module")
def http(row_service: RowService) -> Iterator[httpx.Client]:
    trust = ssl.create_default_context(cafile=row_service.service.ca_file)
    with httpx.Client(
        base_url=row_service.service.url,
        verify=trust,
        timeout=60,
        headers=row_service.authorization(),
    ) as client:
        yield client


def another_user(service: RowService) -> None:
    key = service.key_pair.public_base64
    service.service.sql(f"CREATE USER other RSA_PUBLIC_KEY = '{key}' DEFAULT_ROLE = loading")
    service.service.sql("GRANT ROLE loading TO USER other")


def test_every_path_of_the_description_is_answered_as_it_says(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    assert schemas.keys() == DESCRIBED.keys()
    place = "#/components/schemas/{name}"
    made = msgspec.json.schema_components(DESCRIBED.values(), ref_template=place)[1]
    text = json.dumps(made)
    for name, kind in DESCRIBED.items():
        text = re.sub(rf'(["/]){kind.__name__}"', rf'\1{name}"', text)
    assert schemas == json.loads(text)
    values = {"database": "demo", "schema": "public", "pipe": "T-STREAMING", "channel": "described"}
    seen = set()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            for content in (b"", b"{}", b"[]", b"\xff"):
                answer = http.request(method.upper(), path.format(**values), content=content)
                assert answer.status_code not in {404, 405, 500, 503}, (path, answer.text)
                said = operation["responses"][str(answer.status_code)]["content"]
                (kind,) = said
                seen.add((operation["operationId"], answer.status_code))
                assert answer.headers["content-type"].startswith(kind)
                if "$ref" in said[kind]["schema"]:
                    schema = schemas[said[kind]["schema"]["$ref"].rpartition("/")[2]]
                    assert set(schema["required"]) <= answer.json().keys()
                    assert answer.json().keys() <= schema["properties"].keys()
        other = min({"GET", "PATCH"} - {method.upper() for method in methods})
        assert http.request(other, path.format(**values)).status_code == 405
    assert sum(status == 200 for _, status in seen) >= 6
    told = re.findall(
        r"\| (?:\d{3}, )?\d{3} \| ([A-Z_]+)", (DOCS / "how-to/use-row-api.md").read_text()
    )
    assert "STALE_CONTINUATION_TOKEN_SEQUENCER" in told


def test_a_token_is_exchanged_and_no_two_are_equal(
    http: httpx.Client, row_service: RowService
) -> None:
    tokens = {http.post("/oauth/token").text for _ in range(2)}
    assert len(tokens) == 2
    assert http.get("/v2/streaming/hostname").text == "127.0.0.1"
    token = tokens.pop()
    scoped = {
        "authorization": f"Bearer {token}",
        "x-snowflake-authorization-token-type": "OAUTH",
    }
    asked = json.dumps({"channel_names": ["elastic"]})
    path = PIPE + ":bulk-channel-status"
    answer = http.post(path, content=asked, headers=scoped)
    assert list(answer.json()["channel_statuses"]) == ["elastic"]
    header, claims, seal = token.split(".")
    forged = f"Bearer {header}.{claims[:-4]}AAAA.{seal}"
    refused = http.post(path, content=asked, headers={**scoped, "authorization": forged})
    assert (refused.status_code, refused.json()["code"]) == (401, "ERR_NOT_AUTHENTICATED")


@pytest.fixture
def idp(row_service: RowService) -> Iterator[AuthorisationServer]:
    server = AuthorisationServer()
    row_service.service.sql(integration(server))
    yield server
    row_service.service.sql("DROP SECURITY INTEGRATION idp")
    server.close()


def test_tokens_of_an_issuer_elsewhere_are_taken_and_exchanged(
    http: httpx.Client, row_service: RowService, idp: AuthorisationServer
) -> None:
    def bearer(text: str) -> dict[Any, Any]:
        return {"authorization": f"Bearer {text}", "x-snowflake-authorization-token-type": "OAUTH"}

    def ask(
        text: str, path: str = "/channels/elsewhere", method: str = "PUT", content: bytes = b"{}"
    ) -> httpx.Response:
        return http.request(method, PIPE + path, content=content, headers=bearer(text))

    scope = {"scope": "127.0.0.1 session:role:loading"}
    given = idp_token(scp="session:role:public session:role:loading")
    scoped = http.post("/oauth/token", data=scope, headers=bearer(given) | FORM)
    assert scoped.status_code == 200
    assert [ask(each).status_code for each in (scoped.text, idp_token())] == [200, 200]
    # The bearer may write only with a role in the token.
    assert ask(idp_token(scp="session:role:public")).status_code == 404
    other = {"scope": "127.0.0.1 session:role:accountadmin"}
    refused = http.post("/oauth/token", data=other, headers=bearer(given) | FORM)
    assert refused.status_code == 404
    assert "does not allow role ACCOUNTADMIN" in refused.text
    for changed, reason in (({"exp": 1_000}, "expired"), ({"iss": "https://x.example"}, "issuer")):
        answer = ask(idp_token(**changed))
        assert (answer.status_code, answer.json()["code"]) == (401, "ERR_NOT_AUTHENTICATED")
        assert reason in answer.text


def test_bodies_are_taken_as_they_are_and_packed(http: httpx.Client) -> None:
    opened = http.put(f"{PIPE}/channels/packed", content=b"{}").json()
    token = opened["next_continuation_token"]
    bodies = [
        ({}, b'{"id":1}\n\n{"id":2}\n', 200),
        ({"content-encoding": "gzip"}, gzip.compress(b'{"id":3}\nno json\n{"id":4}'), 200),
        ({"content-encoding": "gzip"}, b"no gzip", 400),
        ({"content-encoding": "br"}, b"", 400),
    ]
    for headers, body, status in bodies:
        answer = http.post(
            ROWS.format("packed"),
            params={"continuationToken": token, "requestId": str(uuid.uuid4())},
            content=body,
            headers=headers,
        )
        assert answer.status_code == status, answer.text
        token = answer.json().get("next_continuation_token", token)
    asked = http.post(PIPE + ":bulk-channel-status", content=b'{"channel_names":["packed"]}')
    status = asked.json()["channel_statuses"]["packed"]
    assert (status["rows_parsed"], status["rows_inserted"]) == (5, 4)
    assert status["last_error_message"].startswith("line 1 is no JSON")


def test_limits_are_told_by_codes_that_the_sdk_sends_again(own_row_service: RowService) -> None:
    service = own_row_service
    another_user(service)
    service.service.stop()
    service.start(rows_requests_per_s=1, rows_max_body_bytes=100, rows_max_bytes=200)
    trust = ssl.create_default_context(cafile=service.service.ca_file)
    with httpx.Client(
        base_url=service.service.url, verify=trust, timeout=60, headers=service.authorization()
    ) as http:

        def send(body: bytes, retries: int = 0, **headers: str) -> int:
            return http.post(
                ROWS.format("ELASTIC"),
                params={"retryCount": str(retries)},
                content=body,
                headers=headers,
            ).status_code

        assert send(b"x" * 101) == 413
        packed = gzip.compress(b" " * 100_000)[:100]
        assert send(packed, **cast("dict[str, Any]", {"content-encoding": "gzip"})) in {400, 413}
        for retries, busy in ((0, 429), (5, 503)):
            seen = set()
            for _ in range(5_000):
                seen.add(send(b'{"id":1}', retries))
                if len(seen) == 2:
                    break
            assert seen == {200, busy}
        # The requests of one user do not count towards the limit of another.
        bearer = f"Bearer {token(service.key_pair.private_pem, 'OTHER')}"
        assert send(b'{"id":1}', authorization=bearer) == 200


def file_of_rows(
    http: httpx.Client, service: RowService, pipe: str, body: bytes
) -> tuple[dict[str, Any], Callable[[], bool]]:
    """Upload a file of rows to the client's location. Return its name for the request."""
    info = http.post(pipe + ":pipe-info", content=b"{}").json()
    key = base64.b64decode(info["pipe_encryption_info"]["pipe_key"])
    iv = bytes(16)
    sealing = Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor()
    sealed = sealing.update(pa.compress(body, codec="zstd", asbytes=True))
    place = info["rowset_stage_location"]["location"] + "0.ndjson"
    stage = LocalStore(service.service.settings.stage_url)
    stage.put(place.partition("/")[2], sealed)
    fragment = {
        "file_path": place,
        "iv_base64": base64.b64encode(iv).decode(),
        "file_length_bytes": len(sealed),
    }
    return fragment, lambda: stage.head(place.partition("/")[2]) is not None


def test_every_client_writes_bytes_as_digits_whatever_the_columns(
    http: httpx.Client, row_service: RowService
) -> None:
    row_service.service.sql("CREATE OR REPLACE TABLE demo.public.digits (id INT)")
    row_service.service.sql("GRANT INSERT ON TABLE demo.public.digits TO ROLE loading")
    asked = PIPE.replace("T-", "DIGITS-") + ":pipe-info"
    told = [http.post(asked, content=b"{}").json()["parameter_overrides"]]
    row_service.service.sql("ALTER TABLE demo.public.digits ADD COLUMN raw BINARY")
    told.append(http.post(asked, content=b"{}").json()["parameter_overrides"])
    assert told == [{"binary_input_format": "HEX"}] * 2


def test_a_file_whose_answer_was_lost_is_answered_again(
    http: httpx.Client, row_service: RowService
) -> None:
    service = row_service
    service.service.sql("CREATE OR REPLACE TABLE demo.public.filed (id INT)")
    service.service.sql("GRANT INSERT ON TABLE demo.public.filed TO ROLE loading")
    path = ROWS.format("ELASTIC").replace("T-", "FILED-").replace("/rows", "/filebuffer")
    fragment, is_there = file_of_rows(http, service, PIPE.replace("T-", "FILED-"), b'{"id":1}')
    asked: dict[str, Any] = {"params": {"requestId": "once"}, "content": json.dumps([fragment])}
    assert http.post(path, **asked).status_code == 200
    while is_there():
        pass
    assert http.post(path, **asked).status_code == 200
    lost = http.post(path, params={"requestId": "another"}, content=json.dumps([fragment]))
    assert lost.status_code == 400
    fragment["file_length_bytes"] = -(1 << 40)
    wrong = http.post(path, params={"requestId": "third"}, content=json.dumps([fragment]))
    assert wrong.status_code == 400
    assert service.rows("FILED") == [(1,)]


def test_requests_of_two_users_are_two_whatever_their_ids(
    http: httpx.Client, row_service: RowService
) -> None:
    service = row_service
    service.service.sql("CREATE OR REPLACE TABLE demo.public.both (id INT)")
    service.service.sql("GRANT INSERT ON TABLE demo.public.both TO ROLE loading")
    another_user(service)
    path = ROWS.format("ELASTIC").replace("T-", "BOTH-")
    others = {"authorization": f"Bearer {token(service.key_pair.private_pem, 'OTHER')}"}
    for _ in range(2):
        for number, headers in ((1, {}), (2, others)):
            answer = http.post(
                path,
                params={"requestId": "1"},
                content=json.dumps({"id": number}),
                headers=headers,
            )
            assert answer.status_code == 200, answer.text
    assert service.rows("BOTH") == [(1,), (2,)]
