"""The wire protocol of streaming v1, as the official client uses it, with a service process."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects import tables
from snowmelt.catalog.streaming import channels, chunks
from snowmelt.schema.types import TableName
from support.streaming_wire import Conversation, rows, verdicts

if TYPE_CHECKING:
    from sqlalchemy import Connection


pytestmark = pytest.mark.slow

_databases = itertools.count(1)


@pytest.fixture
def connect() -> Iterator[Callable[..., Conversation]]:
    """Return a factory of conversations. They end with the test."""
    with contextlib.ExitStack() as conversations:

        def begin(
            service: ServiceProcess, key: KeyPair, user: str = "LOADER", database: str = "demo"
        ) -> Conversation:
            conversation = Conversation(service.url, key.private_pem, user, database=database)
            conversations.callback(conversation.http.close)
            return conversation

        yield begin


@pytest.fixture
def client(
    connect: Callable[..., Conversation], shared_service: ServiceProcess, key_pair: KeyPair
) -> Conversation:
    """A configured client with a database of its own."""
    database = f"d{next(_databases)}"
    prepare_loading(shared_service, key_pair, database)
    return connect(shared_service, key_pair, database=database).configure()


@contextlib.contextmanager
def catalog_of(service: ServiceProcess) -> Iterator[Connection]:
    """A read transaction on the service's catalog."""
    database = open_and_upgrade_database(service.settings.catalog_url)
    try:
        with database.reading() as connection:
            yield connection
    finally:
        database.close()


def stored_rows(service: ServiceProcess, database: str = "demo") -> list[int]:
    """Return the rows per registered chunk of the database's table T, in commit order."""
    with catalog_of(service) as connection:
        table = tables.find_table(connection, TableName(database.upper(), "PUBLIC", "T"))
        found = chunks.list_chunks(connection, table.table_id, 0, table.last_seq)
    assert [chunk.seq for chunk in found] == list(range(1, table.last_seq + 1))
    return [chunk.rows for chunk in found]


def test_a_client_configures_opens_registers_asks_and_drops(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    assert client.configured["stage_location"]["locationType"] == "LOCAL_FS"
    opened = client.open("ch1")
    assert opened.answer["channel"] == "CH1"
    assert (opened.answer["client_sequencer"], opened.answer["row_sequencer"]) == (0, 0)
    assert opened.answer["offset_token"] is None
    assert [column["name"] for column in opened.answer["table_columns"]] == ["ID", "NAME", "AT"]
    answer = client.register(client.blob([(opened, 1, "off3")], rows(0)))
    assert verdicts(answer) == [
        {"status_code": 0, "channel": "CH1", "client_sequencer": 0, "message": None}
    ]
    assert answer["encryption_keys"] == []
    assert client.status(opened)["channels"] == [
        {
            "status_code": 0,
            "persisted_offset_token": "off3",
            "persisted_client_sequencer": 0,
            "persisted_row_sequencer": 1,
            "message": None,
        }
    ]
    assert client.drop(opened, client_sequencer=0)["status_code"] == 0
    assert client.drop(opened, client_sequencer=0)["status_code"] == 0, "a drop may come twice"
    assert client.drop(opened)["status_code"] == 25
    assert client.status(opened)["channels"][0]["status_code"] == 25
    assert stored_rows(shared_service, client.database) == [3]


def test_both_slash_forms_and_telemetry_and_health_are_answered(client: Conversation) -> None:
    assert client.say("client/configure", {"role": None}, slash="")["status_code"] == 0
    told = client.http.post("/telemetry/send/sessionless?request_guid=1", json={})
    assert (told.status_code, told.json()["success"]) == (200, True)
    assert client.http.get("/healthz").json()["status"] == "ok"
    missing = client.http.post("/v1/streaming/presignedurls/generate/", json={})
    assert missing.status_code == 404
    assert missing.json()["error"] == "route_not_found"


def test_a_second_open_fences_the_first_owner(client: Conversation) -> None:
    first = client.open()
    assert client.codes(client.blob([(first, 1, "a")], rows(0))) == [0]
    second = client.open()
    assert second.answer["client_sequencer"] == 1
    assert second.answer["row_sequencer"] == 1
    assert second.answer["offset_token"] == "a"
    assert second.answer["previous_owner"] == client.client_prefix
    assert client.codes(client.blob([(first, 2, "b")], rows(3))) == [20]
    assert client.status(first)["channels"][0]["status_code"] == 20
    assert client.codes(client.blob([(second, 2, "b")], rows(3))) == [0]


def test_an_open_that_comes_twice_is_answered_once(client: Conversation) -> None:
    request_id = client.request_id()
    first = client.open(request_id=request_id)
    again = client.open(request_id=request_id)
    assert first.answer == again.answer
    assert client.open().answer["client_sequencer"] == 1


def test_a_registration_that_comes_twice_is_answered_the_same_and_stored_once(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    opened = client.open()
    blob = client.blob([(opened, 1, "a")], rows(0))
    registration = client.registration(blob)
    first = client.say("channels/write/blobs", registration)
    assert client.say("channels/write/blobs", registration) == first
    client.staged(blob).unlink()
    assert client.say("channels/write/blobs", registration) == first, "even without its file"
    assert stored_rows(shared_service, client.database) == [3]


def test_another_content_under_a_registered_path_is_no_repetition(client: Conversation) -> None:
    opened = client.open()
    blob = client.blob([(opened, 1, "a")], rows(0))
    assert client.codes(blob) == [0]
    other = client.blob([(opened, 1, "a")], rows(100), path=blob["path"])
    assert client.codes(other) != [0]
    other = client.blob([(opened, 2, "b")], rows(100), path=blob["path"])
    assert client.codes(other) != [0]


def test_row_sequencers_out_of_order_are_21_and_leave_no_gap(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    opened = client.open()
    assert client.codes(client.blob([(opened, 2, "b")], rows(3))) == [21]
    assert client.codes(client.blob([(opened, 1, "a")], rows(0))) == [0]
    assert client.codes(client.blob([(opened, 2, "b")], rows(3))) == [0]
    assert stored_rows(shared_service, client.database) == [3, 3]


def test_several_channels_share_a_chunk_and_its_fate(client: Conversation) -> None:
    one, two = client.open("one"), client.open("two")
    assert client.codes(client.blob([(one, 1, "a"), (two, 1, "b")], rows(0))) == [0, 0]
    assert client.codes(client.blob([(one, 2, "a"), (two, 3, "b")], rows(0))) == [22, 21]
    answers = client.status(two, one)["channels"]
    assert [answer["persisted_offset_token"] for answer in answers] == ["b", "a"]


def test_a_blob_that_is_not_as_described_is_refused_by_name(client: Conversation) -> None:
    opened = client.open()

    def refused(blob: dict[str, Any], **chunk_changes: object) -> int:
        changed = copy.deepcopy(blob)
        changed["chunks"][0].update(chunk_changes)
        verdict = verdicts(client.register(changed))[0]
        assert blob["path"] in verdict["message"]
        return cast("int", verdict["status_code"])

    blob = client.blob([(opened, 1, "a")], rows(0))
    file = client.staged(blob)
    whole = file.read_bytes()
    chunk = blob["chunks"][0]
    file.unlink()
    assert refused(blob) == 38, "missing"
    file.write_bytes(whole[:100])
    assert refused(blob) == 39, "cut off"
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert refused(blob) == 39, "changed"
    file.write_bytes(whole)
    assert refused(blob, chunk_length=len(whole) + 1) == 30
    assert refused(blob, chunk_md5="0" * 32) == 28
    assert refused(blob, chunk_start_offset=16, chunk_length=chunk["chunk_length"] - 16) == 28
    assert refused(blob, eps=chunk["eps"] | {"rows": 4}) == 31
    columns = {name: each for name, each in chunk["eps"]["columns"].items() if name != "ID"}
    assert refused(blob, eps=chunk["eps"] | {"columns": columns}) == 40
    identity = chunk["eps"]["columns"]["ID"] | {"minIntValue": 1}
    lying = chunk["eps"] | {"columns": chunk["eps"]["columns"] | {"ID": identity}}
    assert refused(blob, eps=lying) == 48, "a bound that would hide a row"
    assert client.codes(blob) == [0], "nothing of all this has harmed the channel"


def test_a_key_of_another_incarnation_or_user_asks_to_reopen(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    opened = client.open()
    blob = client.blob([(opened, 1, "a")], rows(0))
    shared_service.sql(
        f"CREATE OR REPLACE TABLE {client.database}.public.t"
        " (id NUMBER(10,0) NOT NULL, name VARCHAR, at TIMESTAMP_NTZ)",
        f"GRANT INSERT ON TABLE {client.database}.public.t TO ROLE loading",
    )
    assert client.codes(blob)[0] in {25, 36}
    again = client.open()
    assert again.answer["client_sequencer"] == 1, "it goes on counting"
    assert (again.answer["row_sequencer"], again.answer["offset_token"]) == (0, None)
    wrong_key = client.blob([(again, 1, "a")], rows(0))
    wrong_key["chunks"][0]["encryption_key_id"] = opened.answer["encryption_key_id"]
    assert client.codes(wrong_key) == [36]
    wrong_key["chunks"][0]["encryption_key_id"] = 999_999
    assert client.codes(wrong_key) == [36]


def test_path_tricks_are_refused_logged_and_write_nothing(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    opened = client.open()
    before = {str(path) for path in shared_service.data_dir.rglob("*") if "stage" in path.parts}
    blob = client.blob([(opened, 1, "a")], rows(0), put=False)
    good = blob["path"]
    for path, code in [
        ("../../catalog.db", 38),
        ("/etc/passwd", 38),
        ("/" + good, 34),
        ("../" + good, 34),
        (good.replace("/", "//", 1), 34),
        (good.replace("/", "/../", 1), 34),
        (good.replace("/", "\\"), 34),
        (good + "\0.bdec", 34),
        (good.replace(client.client_prefix, "stranger_1"), 34),
        (good.removesuffix(".bdec") + ".parquet", 38),
    ]:
        assert client.codes(blob | {"path": path}) == [code], path
    after = {str(path) for path in shared_service.data_dir.rglob("*") if "stage" in path.parts}
    assert after == before
    assert "bad name" in shared_service.log
    assert "foreign prefix" in shared_service.log


def test_links_on_the_stage_are_not_followed(client: Conversation, tmp_path: Path) -> None:
    opened = client.open()
    blob = client.blob([(opened, 1, "a")], rows(0))
    file = client.staged(blob)
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    assert client.codes(blob) == [38]
    file.unlink()
    os.mkfifo(file)
    assert client.codes(blob) == [38]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"blobs": 5}', 400),
        (b'{"blobs": [{"path": 7}]}', 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
    ],
)
def test_what_is_no_registration_is_400_with_a_sentence(
    client: Conversation, shared_service: ServiceProcess, body: bytes, status: int
) -> None:
    answer = client.http.post("/v1/streaming/channels/write/blobs/", content=body)
    assert answer.status_code == status
    assert answer.json()["error"] == "request_malformed"
    assert "request_malformed" in shared_service.log or "Invalid request" in shared_service.log


def test_a_huge_body_is_413_and_the_service_goes_on(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    pieces = (b" " * 1_048_576 for _ in range(65))
    answer = client.http.post("/v1/streaming/channels/open/", content=pieces)
    assert answer.status_code == 413
    assert client.open().answer["status_code"] == 0


def test_names_roles_and_privileges_are_checked(
    client: Conversation, shared_service: ServiceProcess
) -> None:
    assert client.try_open(table="missing")["status_code"] == 4
    assert client.try_open(schema="missing")["status_code"] == 9
    assert client.try_open(database="missing")["status_code"] == 8
    assert client.try_open(role="ACCOUNTADMIN")["status_code"] == 37
    assert client.try_open(is_iceberg=True)["status_code"] == 6
    assert client.try_open(table=cast("str", None))["status_code"] == 17
    opened = client.open()
    blob = client.blob([(opened, 1, "a")], rows(0))
    assert client.codes(blob, role="ACCOUNTADMIN") == [37]
    shared_service.sql(f"REVOKE INSERT ON TABLE {client.database}.public.t FROM ROLE loading")
    assert client.codes(blob) == [4]
    assert client.status(opened)["channels"][0]["status_code"] == 4
    assert client.drop(opened)["status_code"] == 4
    shared_service.sql(f"GRANT INSERT ON TABLE {client.database}.public.t TO ROLE loading")
    assert client.codes(blob) == [0]


def test_tokens_of_strangers_and_oauth_are_401(
    connect: Callable[..., Conversation], client: Conversation, shared_service: ServiceProcess
) -> None:
    stranger = connect(shared_service, KeyPair.generate())
    answer = stranger.http.post("/v1/streaming/client/configure/", json={})
    assert answer.status_code == 401
    oauth = {"X-Snowflake-Authorization-Token-Type": "OAUTH"}
    answer = stranger.http.post("/v1/streaming/client/configure/", json={}, headers=oauth)
    assert answer.status_code == 401
    assert "security integration" in answer.json()["message"]
    host = {"Host": "evil.example"}
    assert client.http.get("/healthz", headers=host).status_code == 403


def test_a_second_service_on_the_same_folder_says_one_sentence(
    shared_service: ServiceProcess,
) -> None:
    second = ServiceProcess(shared_service.data_dir, 0)
    with pytest.raises(AssertionError, match="is in use by another service"):
        second.start()


def test_sigterm_drains_and_stops(
    connect: Callable[..., Conversation], loading_service: ServiceProcess, key_pair: KeyPair
) -> None:
    connect(loading_service, key_pair).configure().open()
    assert loading_service.stop() == 0
    assert "has stopped" in loading_service.log


@pytest.mark.parametrize(
    ("point", "stored"),
    [
        ("service.before_registration", False),
        ("service.inside_registration", False),
        ("service.after_registration", True),
        ("service.answering", True),
    ],
)
def test_killed_around_a_registration_nothing_is_lost_or_doubled(
    connect: Callable[..., Conversation],
    service_on_each_catalog: ServiceProcess,
    key_pair: KeyPair,
    point: str,
    stored: bool,
) -> None:
    service_on_each_catalog.stop()
    service_on_each_catalog.start(fault=f"{point}=kill:2")
    client = connect(service_on_each_catalog, key_pair).configure()
    opened = client.open()
    assert client.codes(client.blob([(opened, 1, "a")], rows(0))) == [0]
    blob = client.blob([(opened, 2, "b")], rows(3))
    with pytest.raises(httpx.HTTPError):
        client.register(blob)
    assert service_on_each_catalog.wait_for_death() == -9
    service_on_each_catalog.start()
    assert len(stored_rows(service_on_each_catalog)) == (2 if stored else 1)
    persisted = client.status(opened)["channels"][0]
    assert persisted["persisted_offset_token"] == ("b" if stored else "a")
    assert client.codes(blob) == [0], "sent again, the same bytes"
    assert client.codes(blob) == [0]
    assert stored_rows(service_on_each_catalog) == [3, 3]
    reopened = client.open()
    assert reopened.answer["offset_token"] == "b"
    assert client.codes(client.blob([(reopened, 3, "c")], rows(6))) == [0]
    assert stored_rows(service_on_each_catalog) == [3, 3, 3]


def test_an_open_by_another_user_is_in_the_channels_history(
    connect: Callable[..., Conversation], client: Conversation, shared_service: ServiceProcess
) -> None:
    client.open()
    other = KeyPair.generate()
    shared_service.sql(
        f"CREATE USER other RSA_PUBLIC_KEY = '{other.public_base64}' DEFAULT_ROLE = loading",
        "GRANT ROLE loading TO USER other",
    )
    second = connect(shared_service, other, "OTHER", client.database).configure()
    opened = second.open()
    assert opened.answer["client_sequencer"] == 1
    with catalog_of(shared_service) as connection:
        table = tables.find_table(connection, TableName(client.database.upper(), "PUBLIC", "T"))
        last, first = channels.list_channel_history(connection, table.table_id, "CH1")
    assert (first.user, first.previous_user) == ("LOADER", None)
    assert (last.user, last.previous_user) == ("OTHER", "LOADER")
    assert last.previous_owner == client.client_prefix


def test_bodies_of_answers_are_json_with_a_status_code(client: Conversation) -> None:
    answer = client.http.post("/v1/streaming/channels/write/blobs/", json={"blobs": []})
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content)["status_code"] == 11
