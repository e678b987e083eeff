"""Users without verification of chunks: false claims in their chunks do not change query results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fixtures.service import KeyPair, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.streaming.chunks import list_chunks
from snowmelt.schema.types import TableName
from snowmelt.wire.column_statistics import NO_STORED_STATISTICS
from support.streaming_wire import Conversation, rows

if TYPE_CHECKING:
    from fixtures.service import ServiceProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def clients(service_process: ServiceProcess, key_pair: KeyPair) -> Iterator[list[Conversation]]:
    """A service that does not verify chunks of LOADER, and clients of LOADER and OTHER."""
    service_process.start(unverified_users="loader, someone")
    prepare_loading(service_process, key_pair)
    service_process.sql(
        f"CREATE USER other RSA_PUBLIC_KEY = '{key_pair.public_base64}' DEFAULT_ROLE = loading",
        "GRANT ROLE loading TO USER other",
    )
    with contextlib.ExitStack() as stack:
        found = []
        for user in ("LOADER", "OTHER"):
            client = Conversation(service_process.url, key_pair.private_pem, user)
            stack.callback(client.http.close)
            # This claim has no effect.
            client.http.headers["X-Snowmelt-Client"] = "1.0"
            found.append(client.configure())
        yield found


def stored_statistics(service: ServiceProcess) -> list[bytes]:
    database = open_and_upgrade_database(service.settings.catalog_url)
    with contextlib.closing(database), database.reading() as connection:
        table = find_table(connection, TableName("DEMO", "PUBLIC", "T"))
        found = list_chunks(connection, table.table_id, 0, table.last_seq)
    return [chunk.statistics for chunk in found]


def lie(client: Conversation, channel: str) -> tuple[int, str | None]:
    """Register rows 7, 8 and 9 with the maximum ID 7. Return code and message."""
    blob = client.blob([(client.open(channel), 1, "1")], rows(7))
    blob["chunks"][0]["eps"]["columns"]["ID"]["maxIntValue"] = 7
    [chunk] = client.register(blob)["blobs"][0]["chunks"]
    [verdict] = chunk["channels"]
    return verdict["status_code"], verdict["message"]


def test_only_who_is_named_is_not_decoded_and_no_bounds_of_theirs_are_kept(
    clients: list[Conversation], service_process: ServiceProcess
) -> None:
    named, other = clients
    assert lie(named, "one") == (0, None)
    assert stored_statistics(service_process) == [NO_STORED_STATISTICS]
    code, message = lie(other, "two")
    assert code == 48
    assert message is not None
    assert "column ID has values outside of its statistics" in message
    assert (
        "chunks of LOADER, SOMEONE are committed without decoding their rows" in service_process.log
    )


def test_what_the_footer_shows_is_refused_even_then(clients: list[Conversation]) -> None:
    named, _ = clients
    blob = named.blob([(named.open("one"), 1, "1")], rows(7))
    blob["chunks"][0]["eps"]["rows"] = 4
    assert named.codes(blob) == [31]
