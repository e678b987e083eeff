"""Schema evolution: a client requests columns that its rows have and the table lacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from support.streaming_wire import Conversation

if TYPE_CHECKING:
    import httpx


pytestmark = pytest.mark.slow
_databases = itertools.count(1)
PATH = "/v1/snowmelt/tables/evolve"


@pytest.fixture
def client(shared_service: ServiceProcess, key_pair: KeyPair) -> Iterator[Conversation]:
    database = f"evolving{next(_databases)}"
    prepare_loading(shared_service, key_pair, database)
    client = Conversation(shared_service.url, key_pair.private_pem, "LOADER", database=database)
    yield client.configure()
    client.http.close()


def ask(client: Conversation, **more: Any) -> httpx.Response:
    place = {"database": client.database, "schema": "public", "table": "t"}
    return client.http.post(PATH, json=place | more)


def test_columns_come_once_they_may(client: Conversation, shared_service: ServiceProcess) -> None:
    table = f"{client.database}.public.t"
    wanted = {"columns": [{"name": "gate", "type": "VARCHAR"}], "drop_not_null": ["id"]}
    refused = ask(client, **wanted)
    assert refused.json()["error"] == "privilege_missing"
    assert "lacks EVOLVE SCHEMA" in refused.text
    shared_service.sql(f"GRANT EVOLVE SCHEMA ON TABLE {table} TO ROLE loading")
    refused = ask(client, **wanted)
    assert refused.json()["error"] == "evolution_refused"
    assert "SET ENABLE_SCHEMA_EVOLUTION = TRUE" in refused.text
    shared_service.sql(f"ALTER TABLE {table} SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    answer = ask(client, **wanted).json()
    assert (answer["status_code"], answer["schema_version"]) == (0, 2)
    assert (answer["added"], answer["dropped_not_null"]) == (["GATE"], ["ID"])
    again = ask(client, **wanted).json()
    assert (again["schema_version"], again["added"]) == (2, [])
    assert again["table_columns"] == answer["table_columns"]
    opened = client.try_open()
    assert opened["table_columns"] == answer["table_columns"]


@pytest.mark.parametrize(
    "request_body",
    [{"columns": [{"name": "", "type": "INT"}]}, {"columns": [{"name": "x"}]}, {"table": None}],
)
def test_what_makes_no_sense_is_refused(
    client: Conversation, request_body: dict[str, None] | dict[str, list[dict[str, str]]]
) -> None:
    answer = ask(client, **request_body)
    assert answer.status_code == 400
