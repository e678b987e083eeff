"""Credentials and commits of engines are checked, affect one table, and cannot replace files."""

from __future__ import annotations

import copy
import io
import json
import uuid
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import boto3
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from fixtures.engine_writes import insert, recording_commits, rows_of, seen_by_snowmelt
from fixtures.engines import Lake
from fixtures.s3 import s3_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog

    from fixtures.service import KeyPair


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[Any]:
    process = s3_process(tmp_path_factory.mktemp("hostile"))
    found = Lake(process, key_pair)
    for name in ("w", "other"):
        found.service.sql(
            f"CREATE TABLE demo.public.{name} (id NUMBER(9,0) NOT NULL, name VARCHAR(5))",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE demo.public.{name} TO ROLE reading",
            f"GRANT INSERT ON TABLE demo.public.{name} TO ROLE loading",
        )
        insert(found, name, 0, 3)
        found.migrate()
    yield found
    process.service.kill()


@pytest.fixture
def catalog(lake: Any) -> Any:
    return load_catalog("lake", type="rest", uri=lake.uri, warehouse="DEMO", token=lake.token)


def files_of(table: Any) -> Any:
    given = table.io.properties
    return boto3.client(
        "s3",
        endpoint_url=given["s3.endpoint"],
        region_name=given["s3.region"],
        aws_access_key_id=given["s3.access-key-id"],
        aws_secret_access_key=given["s3.secret-access-key"],
        aws_session_token=given["s3.session-token"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def place_of(address: str) -> Any:
    parts = urlsplit(address)
    return {"Bucket": parts.netloc, "Key": parts.path.lstrip("/")}


def refusal(work: Any, **arguments: Any) -> Any:
    with pytest.raises(ClientError) as raised:
        work(**arguments)
    return raised.value.response["ResponseMetadata"]["HTTPStatusCode"]


def post(lake: Any, url: str, body: Any) -> Any:
    headers = {"authorization": f"Bearer {lake.token}"}
    answer = httpx.post(url, content=body, headers=headers, timeout=60)
    message = answer.json().get("error", {}).get("message", "")
    return answer.status_code, message


def test_a_writer_creates_files_and_replaces_none(catalog: Catalog) -> None:
    table = catalog.load_table("PUBLIC.W")
    files = files_of(table)
    [native, *_] = [task.file.file_path for task in table.scan().plan_files()]
    place = place_of(native)
    before = files.get_object(**place)["Body"].read()
    assert refusal(files.put_object, **place, Body=b"x") == 412
    files.delete_object(**place)
    assert files.get_object(**place)["Body"].read() == before
    folder = place["Key"].partition("/data/")[0]
    new = {"Bucket": place["Bucket"], "Key": f"{folder}/data/{uuid.uuid4()}.parquet"}
    files.put_object(**new, Body=b"one")
    files.put_object(**new, Body=b"one")
    assert refusal(files.put_object, **new, Body=b"two") == 412
    large = io.BytesIO(bytes(20 << 20))
    files.upload_fileobj(large, new["Bucket"], f"{folder}/data/{uuid.uuid4()}.parquet")


def test_a_writer_reaches_neither_other_tables_nor_folders_of_the_service(catalog: Catalog) -> None:
    files = files_of(catalog.load_table("PUBLIC.W"))
    other = place_of(catalog.load_table("PUBLIC.OTHER").location())
    own = place_of(catalog.load_table("PUBLIC.W").location())
    for folder in (
        f"{other['Key']}/data",
        f"{own['Key']}/data/fresh",
        f"{own['Key']}/metadata/published",
        f"{own['Key']}/elsewhere",
        "data",
    ):
        place = {"Bucket": own["Bucket"], "Key": f"{folder}/x.parquet"}
        assert refusal(files.put_object, **place, Body=b"x") == 403, folder
        assert refusal(files.create_multipart_upload, **place) == 403, folder
    for work in (files.list_objects_v2, files.list_multipart_uploads):
        assert refusal(work, Bucket=own["Bucket"]) == 403


def test_a_reader_creates_nothing(lake: Any) -> None:
    key = lake.process.add_user("onlooker", "looking")
    lake.service.sql(
        "GRANT USAGE ON DATABASE demo TO ROLE looking",
        "GRANT USAGE ON SCHEMA demo.public TO ROLE looking",
        "GRANT SELECT ON TABLE demo.public.w TO ROLE looking",
    )
    token = f"{key.access_key_id}.{key.secret}"
    reader = load_catalog("lake", type="rest", uri=lake.uri, warehouse="DEMO", token=token)
    table = reader.load_table("PUBLIC.W")
    place = place_of(f"{table.location()}/data/x.parquet")
    assert refusal(files_of(table).put_object, **place, Body=b"x") == 403
    assert table.scan().count() == 3


@pytest.fixture
def recorded(lake: Any, catalog: Catalog) -> Any:
    """A rejected commit, with its address. One value is too long."""
    sent: list[Any] = []
    table = catalog.load_table("PUBLIC.W")
    with recording_commits(catalog, sent), pytest.raises(Exception, match="Column NAME"):
        table.append(rows_of([9], text="too long "))
    [(url, body)] = sent
    return url, json.loads(body)


def change(body: Any, **fields: Any) -> Any:
    changed = copy.deepcopy(body)
    [snapshot] = [each["snapshot"] for each in changed["updates"] if "snapshot" in each]
    snapshot |= fields
    return json.dumps(changed)


def test_a_list_elsewhere_is_refused(lake: Any, catalog: Catalog, recorded: Any) -> None:
    url, body = recorded
    location = catalog.load_table("PUBLIC.W").location()
    other = catalog.load_table("PUBLIC.OTHER")
    for address in (
        cast("Snapshot", other.current_snapshot()).manifest_list,
        f"{location}/../x.avro",
        "file:///etc/passwd",
        "s3://another/x.avro",
    ):
        status, message = post(lake, url, change(body, **{"manifest-list": address}))
        assert (status, "is not in the folder" in message) == (400, True), (address, message)
    missing = change(body, **{"manifest-list": f"{location}/metadata/none.avro"})
    assert post(lake, url, missing)[0] == 400
    metadata = catalog.load_table("PUBLIC.W").metadata_location
    assert post(lake, url, change(body, **{"manifest-list": metadata}))[0] == 400


def test_a_commit_must_name_the_snapshot_on_which_it_is_based(lake: Any, recorded: Any) -> None:
    url, body = recorded
    without = {**body, "requirements": []}
    status, message = post(lake, url, json.dumps(without))
    assert (status, "assert-ref-snapshot-id" in message) == (400, True)
    status, message = post(lake, url, change(body, **{"parent-snapshot-id": 1}))
    assert (status, "has the parent 1" in message) == (400, True)
    unknown = change(body, **{"parent-snapshot-id": 1})
    unknown = json.loads(unknown)
    for each in unknown["requirements"]:
        if each["type"] == "assert-ref-snapshot-id":
            each["snapshot-id"] = 1
    status, message = post(lake, url, json.dumps(unknown))
    assert (status, "no longer a snapshot" in message) == (409, True)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"requirements": [], "updates": [1]}', '{"updates": []}', "x" * 100]
)
def test_a_malformed_request_is_refused(lake: Any, recorded: Any, text: str) -> None:
    status, message = post(lake, recorded[0], text)
    assert (status, message.endswith(".")) == (400, True)


def test_a_replaced_table_is_a_conflict(lake: Any, recorded: Any) -> None:
    url, body = recorded
    changed = copy.deepcopy(body)
    for each in changed["requirements"]:
        if each["type"] == "assert-table-uuid":
            each["uuid"] = str(uuid.uuid4())
    status, message = post(lake, url, json.dumps(changed))
    assert (status, "created again" in message) == (409, True)


def with_ids(**columns: Any) -> Any:
    fields = [
        pa.field(name, array.type, metadata={"PARQUET:field_id": str(number)})
        for name, (number, array) in columns.items()
    ]
    arrays = [array for _, array in columns.values()]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ID": (1, pa.array([7])), "NAME": (2, pa.array(["x"]))}, "has type int64"),
        ({"NAME": (2, pa.array(["x"]))}, "NOT NULL"),
        (
            {
                "ID": (1, pa.array([7], pa.decimal128(9, 0))),
                "MORE": (77, pa.array(["x"])),
            },
            "field ID 77",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(
    lake: Any, catalog: Catalog, columns: Any, message: str
) -> None:
    table = catalog.load_table("PUBLIC.W")
    name = f"{uuid.uuid4()}.parquet"
    sink = io.BytesIO()
    pq.write_table(with_ids(**columns), sink)
    bad = sink.getvalue()
    place = place_of(f"{table.location()}/data/{name}")
    files_of(table).put_object(**place, Body=bad)
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{name}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=len(bad),
        spec_id=0,
    )
    changing = table.transaction()
    with changing.update_snapshot().fast_append() as producer:
        producer.append_data_file(entry)
    with pytest.raises(Exception, match=message):
        changing.commit_transaction()
    assert [each for each, _ in seen_by_snowmelt(lake, "w")] == [0, 1, 2]
