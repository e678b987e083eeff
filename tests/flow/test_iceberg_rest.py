"""The Iceberg REST catalog: requests of engines, grants, tokens, and credentials for files."""

from __future__ import annotations

import base64
import datetime as dt
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from fixtures.engines import Lake
from fixtures.s3 import s3_process
from fixtures.service import KeyPair
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import (
    KeyRing,
    issue_table_credentials,
    load_master_key,
)
from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
from snowmelt.clock import SystemClock
from snowmelt.schema.types import TableName

pytestmark = pytest.mark.slow
TABLE = "DEMO/namespaces/PUBLIC/tables/T"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[Lake]:
    """A service with ten rows in DEMO.PUBLIC.T, and table OTHER without SELECT for the reader."""
    process = s3_process(tmp_path_factory.mktemp("rest"))
    found = Lake(process, key_pair)
    found.service.sql("CREATE TABLE demo.public.other (id NUMBER)", "CREATE DATABASE secret")
    with found.client() as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows([{"id": each} for each in range(10)], offset_token="1")
        channel.wait_for_commit("1")
    yield found
    process.service.kill()


def error_of(response: httpx.Response) -> tuple[int, Any]:
    """Return the status and type in the body of an error."""
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["message"].endswith(".")
    return response.status_code, error["type"]


def files_of(loaded: Any, **changes: Any) -> Any:
    """Return a client of the S3 endpoint with vended credentials."""
    given = {**loaded["config"], **changes}
    return boto3.client(
        "s3",
        endpoint_url=given["s3.endpoint"],
        region_name=given["s3.region"],
        aws_access_key_id=given["s3.access-key-id"],
        aws_secret_access_key=given["s3.secret-access-key"],
        aws_session_token=given["s3.session-token"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def place_of(address: Any) -> dict[Any, Any]:
    parts = urlsplit(address)
    return {"Bucket": parts.netloc, "Key": parts.path.lstrip("/")}


def refusal(work: Any, **arguments: Any) -> Any:
    with pytest.raises(ClientError) as raised:
        work(**arguments)
    return raised.value.response["ResponseMetadata"]["HTTPStatusCode"]


def can_read(files: Any, place: Any) -> bool:
    try:
        files.head_object(**place)
    except ClientError:
        return False
    return True


# --- Configuration, namespaces and tables


def test_the_configuration_names_prefix_and_endpoints(lake: Lake) -> None:
    answer = lake.get("config", params={"warehouse": "DEMO"})
    assert answer.json()["overrides"] == {"prefix": "DEMO"}
    # Without the list of endpoints, clients assume that all exist.
    endpoints = answer.json()["endpoints"]
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert not any(each.startswith(("DELETE", "PUT")) for each in endpoints)


def test_a_warehouse_is_a_database_in_any_case(lake: Lake) -> None:
    for name in ("demo", "DEMO"):
        answer = lake.get("config", params={"warehouse": name})
        assert answer.json()["overrides"] == {"prefix": "DEMO"}
    settled = lake.get("config", params={"warehouse": "DEMO@settled"}).json()
    assert settled["overrides"] == {"prefix": "DEMO%40settled"}


def test_a_single_database_needs_no_warehouse(lake: Lake) -> None:
    assert lake.get("config").json()["overrides"] == {"prefix": "DEMO"}


@pytest.mark.parametrize("name", ["nothing", "SECRET"])
def test_a_database_that_the_role_cannot_use_is_not_found(lake: Lake, name: str) -> None:
    answer = lake.get("config", params={"warehouse": name})
    assert error_of(answer) == (404, "NoSuchWarehouseException")


def test_schemas_are_namespaces_of_one_level(lake: Lake) -> None:
    assert lake.get("DEMO/namespaces").json() == {"namespaces": [["PUBLIC"]]}
    # A namespace must not be its own child: ClickHouse descends while there are children.
    inner = lake.get("DEMO/namespaces", params={"parent": "PUBLIC"})
    assert inner.json() == {"namespaces": []}
    assert lake.get("DEMO/namespaces/PUBLIC").json()["namespace"] == ["PUBLIC"]
    missing = lake.get("DEMO/namespaces/NOTHING")
    assert error_of(missing) == (404, "NoSuchNamespaceException")
    nested = lake.get("DEMO/namespaces/PUBLIC%1FDEEP")
    assert error_of(nested) == (404, "NoSuchNamespaceException")


def test_tables_that_the_role_may_select_from_are_listed(lake: Lake) -> None:
    listed = lake.get("DEMO/namespaces/PUBLIC/tables").json()
    assert listed == {"identifiers": [{"namespace": ["PUBLIC"], "name": "T"}]}


def test_long_lists_come_in_pages(lake: Lake) -> None:
    lake.service.sql("CREATE SCHEMA demo.extra", "GRANT USAGE ON SCHEMA demo.extra TO ROLE reading")
    first = lake.get("DEMO/namespaces", params={"pageSize": "1", "pageToken": ""}).json()
    assert first["namespaces"] == [["EXTRA"]]
    token = first["next-page-token"]
    second = lake.get("DEMO/namespaces", params={"pageSize": "1", "pageToken": token}).json()
    assert second == {"namespaces": [["PUBLIC"]]}
    assert error_of(lake.get("DEMO/namespaces", params={"pageSize": "x"}))[0] == 400


@pytest.mark.parametrize("name", ["NOTHING", "OTHER"])
def test_a_table_without_select_is_not_found(lake: Lake, name: str) -> None:
    answer = lake.get(f"DEMO/namespaces/PUBLIC/tables/{name}")
    assert error_of(answer) == (404, "NoSuchTableException")


def test_a_table_can_be_missing_in_a_schema_with_a_lower_case_name(lake: Lake) -> None:
    schema = 'demo."lower case"'
    lake.service.sql(f"CREATE SCHEMA {schema}", f"GRANT USAGE ON SCHEMA {schema} TO ROLE reading")
    missing = lake.get("DEMO/namespaces/lower%20case/tables/NOTHING")
    assert error_of(missing) == (404, "NoSuchTableException")
    lake.service.sql(f"DROP SCHEMA {schema}")


def test_a_table_exists_or_not(lake: Lake) -> None:
    headers = {"authorization": f"Bearer {lake.token}"}
    base = f"{lake.uri}/v1/DEMO/namespaces/PUBLIC"
    statuses = {
        path: httpx.head(f"{base}{path}", headers=headers, timeout=60).status_code
        for path in ("", "/tables/T", "/tables/t", "/tables/OTHER", "/tables/NOTHING")
    }
    assert statuses == {
        "": 204,
        "/tables/T": 204,
        "/tables/t": 204,
        "/tables/OTHER": 404,
        "/tables/NOTHING": 404,
    }


def test_unknown_paths_and_changes_are_refused_by_name(lake: Lake) -> None:
    assert error_of(lake.get("DEMO/views")) == (404, "NoSuchEndpointException")
    headers = {"authorization": f"Bearer {lake.token}"}
    for method, path in (
        ("POST", "DEMO/namespaces"),
        ("POST", "DEMO/namespaces/PUBLIC/tables"),
        ("DELETE", TABLE),
    ):
        answer = httpx.request(
            method, f"{lake.uri}/v1/{path}", headers=headers, json={}, timeout=60
        )
        assert error_of(answer) == (406, "UnsupportedOperationException"), (method, path)


def test_a_report_of_metrics_is_accepted(lake: Lake) -> None:
    headers = {"authorization": f"Bearer {lake.token}"}
    report = {"report-type": "scan-report", "table-name": "T"}
    answer = httpx.post(f"{lake.uri}/v1/{TABLE}/metrics", headers=headers, json=report, timeout=60)
    assert answer.status_code == 204


def test_an_oversized_body_is_refused(lake: Lake) -> None:
    headers = {"authorization": f"Bearer {lake.token}"}
    answer = httpx.post(
        f"{lake.uri}/v1/{TABLE}/metrics", headers=headers, content=b"x" * (2 << 20), timeout=60
    )
    assert error_of(answer)[0] == 413


# Loads.


def test_a_load_is_cached_by_its_etag(lake: Lake) -> None:
    first = lake.get(TABLE)
    assert first.status_code == 200
    # Java accepts only this spelling.
    assert b"ETag" in [name for name, _ in first.headers.raw]
    etag = first.headers["etag"]
    again = lake.get(TABLE, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    with lake.client() as client:
        channel = client.open_channel("etag", table="demo.public.t")
        channel.insert_rows([{"id": 100}], offset_token="1")
        channel.wait_for_commit("1")
    give_up_at = time.monotonic() + 60
    while lake.get(TABLE, headers={"if-none-match": etag}).status_code == 304:
        assert time.monotonic() < give_up_at
    assert lake.get(TABLE).headers["etag"] != etag


def test_a_load_may_list_the_current_snapshot_alone(lake: Lake) -> None:
    loaded = lake.get(TABLE, params={"snapshots": "refs"}).json()["metadata"]
    assert [each["snapshot-id"] for each in loaded["snapshots"]] == [loaded["current-snapshot-id"]]


def test_the_metadata_of_a_load_is_the_object_at_its_address(lake: Lake) -> None:
    loaded = lake.get(TABLE).json()
    body = files_of(loaded).get_object(**place_of(loaded["metadata-location"]))["Body"].read()
    assert httpx.Response(200, content=body).json() == loaded["metadata"]


def test_clickhouse_gets_no_endpoint(lake: Lake) -> None:
    loaded = lake.get(TABLE, headers={"user-agent": "ClickHouse/26.9"}).json()
    assert "s3.endpoint" not in loaded["config"]
    assert "s3.endpoint" in lake.get(TABLE).json()["config"]


def test_credentials_are_renewed_by_a_request_of_their_own(lake: Lake) -> None:
    loaded = lake.get(TABLE).json()
    path = loaded["config"]["client.refresh-credentials-endpoint"].removeprefix("v1/")
    [fresh] = lake.get(path).json()["storage-credentials"]
    assert loaded["metadata-location"].startswith(fresh["prefix"])
    files_of({"config": fresh["config"]}).head_object(**place_of(loaded["metadata-location"]))


def test_a_dropped_table_is_not_found_and_a_new_one_is_another(lake: Lake) -> None:
    lake.service.sql(
        "CREATE TABLE demo.public.again (id NUMBER)",
        "GRANT SELECT ON TABLE demo.public.again TO ROLE reading",
    )
    path = "DEMO/namespaces/PUBLIC/tables/AGAIN"
    first = lake.get(path).json()["metadata"]
    lake.service.sql("DROP TABLE demo.public.again")
    assert error_of(lake.get(path)) == (404, "NoSuchTableException")
    lake.service.sql(
        "CREATE TABLE demo.public.again (id NUMBER)",
        "GRANT SELECT ON TABLE demo.public.again TO ROLE reading",
    )
    second = lake.get(path).json()["metadata"]
    assert first["table-uuid"] != second["table-uuid"]
    assert first["location"] != second["location"]


def test_metrics_tell_how_fresh_tables_are(lake: Lake) -> None:
    lake.get(TABLE)
    page = httpx.get(f"{lake.service.url}/metrics", timeout=60).text
    found = dict(
        line.split(" ") for line in page.splitlines() if line.startswith("snowmelt_publications_")
    )
    assert float(found["snowmelt_publications_tables"]) >= 1
    assert float(found["snowmelt_publications_stalled_tables"]) == 0
    assert float(found["snowmelt_publications_oldest_seconds"]) < 60
    assert 'route="/iceberg/v1/*/namespaces/*/tables/*"' in page


# Tokens.


def request_token(
    lake: Lake, *, auth: tuple[str, str] | None = None, **form: Any
) -> httpx.Response:
    return httpx.post(f"{lake.uri}/v1/oauth/tokens", data=form, auth=auth, timeout=60)


def client_form(lake: Lake, **more: str) -> dict[Any, Any]:
    return {
        "grant_type": "client_credentials",
        "client_id": lake.key.access_key_id,
        "client_secret": lake.key.secret,
        **more,
    }


def use(lake: Lake, token: Any, path: str = TABLE) -> httpx.Response:
    return httpx.get(
        f"{lake.uri}/v1/{path}", headers={"authorization": f"Bearer {token}"}, timeout=60
    )


def test_an_access_key_is_exchanged_for_a_token(lake: Lake) -> None:
    for scope in ("catalog", "PRINCIPAL_ROLE:ALL", "", "PRINCIPAL_ROLE:reading"):
        answer = request_token(lake, **client_form(lake, scope=scope)).json()
        assert (answer["token_type"], answer["expires_in"]) == ("bearer", 3600)
        assert use(lake, answer["access_token"]).status_code == 200
    basic = request_token(
        lake,
        auth=(lake.key.access_key_id, lake.key.secret),
        grant_type="client_credentials",
        scope="PRINCIPAL_ROLE:ALL",
    )
    assert use(lake, basic.json()["access_token"]).status_code == 200


def test_a_token_is_renewed_by_an_exchange(lake: Lake) -> None:
    token = request_token(lake, **client_form(lake)).json()["access_token"]
    renewed = request_token(
        lake,
        grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
        subject_token=token,
        subject_token_type="urn:ietf:params:oauth:token-type:access_token",
    ).json()["access_token"]
    assert renewed != token
    assert use(lake, renewed).status_code == 200


def test_an_exchange_gives_no_other_role(lake: Lake) -> None:
    for scope in ("PRINCIPAL_ROLE:reading", ""):
        token = request_token(lake, **client_form(lake, scope=scope)).json()["access_token"]
        answer = request_token(
            lake,
            grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
            subject_token=token,
            scope="PRINCIPAL_ROLE:PUBLIC",
        )
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_scope")


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"client_secret": "x"}, 401, "invalid_client"),
        ({"client_id": "x"}, 401, "invalid_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"scope": "PRINCIPAL_ROLE:ACCOUNTADMIN"}, 400, "invalid_scope"),
        ({"scope": "nonsense"}, 400, "invalid_scope"),
    ],
)
def test_a_wrong_token_request_is_refused_by_name(
    lake: Lake, change: dict[str, str], status: int, error: str
) -> None:
    answer = request_token(lake, **client_form(lake, **change))
    assert (answer.status_code, answer.json()["error"]) == (status, error)


@pytest.mark.parametrize("token", ["None", "nonsense", "SMAKAAAAAAAAAAAAAAAA.secret"])
def test_a_request_without_a_valid_token_is_unauthorized(lake: Lake, token: str) -> None:
    assert error_of(use(lake, token)) == (401, "NotAuthorizedException")


def test_a_token_ends_with_its_access_key(lake: Lake) -> None:
    key = lake.process.add_key("reader")
    lake_token = request_token(
        lake,
        grant_type="client_credentials",
        client_id=key.access_key_id,
        client_secret=key.secret,
    ).json()["access_token"]
    assert use(lake, lake_token).status_code == 200
    lake.service.sql(f"ALTER USER reader DROP ACCESS KEY '{key.access_key_id}'")
    give_up_at = time.monotonic() + 60
    while use(lake, lake_token).status_code == 200:
        assert time.monotonic() < give_up_at
        time.sleep(0.2)
    assert error_of(use(lake, lake_token)) == (401, "NotAuthorizedException")


def test_key_pair_tokens_are_accepted_with_the_grants_of_the_role(
    lake: Lake, key_pair: KeyPair
) -> None:
    provider = KeyPairTokenProvider(
        "LOCAL", "LOADER", load_private_key(key_pair.private_pem), SystemClock()
    )
    # LOADER has INSERT, but not SELECT.
    assert error_of(use(lake, provider.get_token())) == (404, "NoSuchTableException")
    lake.service.sql("GRANT SELECT ON TABLE demo.public.t TO ROLE loading")
    assert use(lake, provider.get_token()).status_code == 200


# Files.


def test_vended_credentials_read_files_of_their_table_only(lake: Lake) -> None:
    loaded = lake.get(TABLE).json()
    files, place = files_of(loaded), place_of(loaded["metadata-location"])
    files.head_object(**place)
    bucket, folder = place["Bucket"], place["Key"].partition("/metadata/")[0]
    other = f"{folder.rpartition('/')[0]}/0000/metadata/x.json"
    for key in (
        other,
        f"{folder}/elsewhere/x",
        f"{folder}x/metadata/x.json",
        f"{folder}/metadata/../../x",
        "x",
    ):
        assert refusal(files.get_object, Bucket=bucket, Key=key) in {400, 403}, key
    for name in ("snowmelt-stage", "another"):
        assert refusal(files.get_object, Bucket=name, Key=place["Key"]) == 403
    assert refusal(files.get_object, Bucket=bucket, Key=f"{folder}/metadata/x.json") == 404


def test_vended_credentials_neither_list_nor_write_nor_delete(lake: Lake) -> None:
    loaded = lake.get(TABLE).json()
    files, place = files_of(loaded), place_of(loaded["metadata-location"])
    assert refusal(files.list_objects_v2, Bucket=place["Bucket"]) == 403
    assert refusal(files.list_buckets) == 403
    assert refusal(files.delete_object, **place) == 403
    assert refusal(files.put_object, **place, Body=b"x") == 403
    new = {**place, "Key": f"{place['Key']}.new"}
    assert refusal(files.put_object, **new, Body=b"x") == 403
    assert refusal(files.create_multipart_upload, **new) == 403
    assert refusal(files.copy_object, **new, CopySource=place) == 403
    files.head_object(**place)


def test_changed_credentials_are_refused(lake: Lake) -> None:
    loaded = lake.get(TABLE).json()
    place, token = place_of(loaded["metadata-location"]), loaded["config"]["s3.session-token"]
    sealed = bytearray(base64.urlsafe_b64decode(token))
    sealed[-1] ^= 1
    changed = base64.urlsafe_b64encode(sealed).decode()
    forged = files_of(loaded, **{"s3.session-token": changed})
    assert refusal(forged.head_object, **place) in {400, 403}
    wrong = files_of(loaded, **{"s3.secret-access-key": "x" * 40})
    assert refusal(wrong.head_object, **place) == 403


def test_a_read_outlives_its_credentials_and_the_next_one_needs_new_ones(lake: Lake) -> None:
    loaded = lake.get(TABLE).json()
    place, settings = place_of(loaded["metadata-location"]), lake.service.settings
    database = open_and_upgrade_database(settings.catalog_url)
    with database.reading() as connection:
        table = find_table(connection, TableName("DEMO", "PUBLIC", "T"))
    database.close()
    brief = issue_table_credentials(
        KeyRing(load_master_key(settings.keys_dir)),
        "READER",
        "READING",
        table.table_id,
        place["Key"].partition("/metadata/")[0],
        expires_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=3),
    )
    ending = files_of(
        loaded,
        **{
            "s3.access-key-id": brief.access_key_id,
            "s3.secret-access-key": brief.secret,
            "s3.session-token": brief.token,
        },
    )
    body = ending.get_object(**place)["Body"]
    first = body.read(1)
    while can_read(ending, place):
        time.sleep(0.1)
    with pytest.raises(ClientError, match="ExpiredToken"):
        ending.get_object(**place)
    path = loaded["config"]["client.refresh-credentials-endpoint"].removeprefix("v1/")
    [renewed] = lake.get(path).json()["storage-credentials"]
    whole = files_of({"config": renewed["config"]}).get_object(**place)["Body"].read()
    assert first + body.read() == whole


def test_a_withdrawn_grant_ends_loads_and_reads(lake: Lake) -> None:
    key = lake.process.add_user("leaving", "leaver")
    for statement in (
        "GRANT USAGE ON DATABASE demo TO ROLE leaver",
        "GRANT USAGE ON SCHEMA demo.public TO ROLE leaver",
        "GRANT SELECT ON TABLE demo.public.t TO ROLE leaver",
    ):
        lake.service.sql(statement)
    token = f"{key.access_key_id}.{key.secret}"
    loaded = use(lake, token).json()
    files, place = files_of(loaded), place_of(loaded["metadata-location"])
    files.head_object(**place)
    lake.service.sql("REVOKE SELECT ON TABLE demo.public.t FROM ROLE leaver")
    assert error_of(use(lake, token)) == (404, "NoSuchTableException")
    give_up_at = time.monotonic() + 60
    while can_read(files, place):
        assert time.monotonic() < give_up_at
        time.sleep(0.2)
    assert refusal(files.head_object, **place) == 403
