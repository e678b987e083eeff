"""Who may write bytes as base64, by what clients were told and when their tokens were issued."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.catalog import World
from snowmelt.catalog import model
from snowmelt.catalog.streaming import row_request_state
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import RowsBusy
from snowmelt.ingest.rows.binary_encoding_tracker import ClientEncodingInstructions
from snowmelt.ingest.rows.targets import PipePath, SdkClient
from snowmelt.schema.types import Column, LogicalType

PATH = PipePath("db", "public", "t-STREAMING")
BINARY = SimpleNamespace(schema=SimpleNamespace(columns=[Column("B", LogicalType.BINARY, 1)]))
HOUR_S = 3600.0


class Asking:
    """Clients that ask about one path, of two services on one catalog by turns."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.services = [
            ClientEncodingInstructions(world.database, world.clock, HOUR_S) for _ in range(2)
        ]

    def token(self, name: str, born: int | None = None) -> SdkClient:
        """Return a client with a token that is issued now."""
        self.world.clock.advance(0.001)
        now = to_epoch_ms(self.world.now)
        return SdkClient(name, now, now if born is None else born)

    def target(self) -> Any:
        with self.world.database.reading() as connection:
            told = row_request_state.last_base64_client_at(connection, str(PATH.name))
        return SimpleNamespace(path=PATH, table=BINARY, base64_client_since=told)

    def ask(self, client: SdkClient) -> float | None:
        self.services.reverse()
        return self.services[0].record_hex_instruction(self.target(), client)

    def note_base64(self) -> None:
        """Note that a client was told base64, as an earlier service did."""
        with self.world.database.writing() as connection:
            clients, path = model.row_clients, str(PATH.name)
            connection.execute(
                clients.delete().where(clients.c.path == path, clients.c.token == "")
            )
            told = {"path": path, "token": "", "at": self.world.clock.now()}
            connection.execute(clients.insert().values(told))

    def may_write_base64(self, client: SdkClient | None) -> bool:
        """Return what holds in a channel opened now, and without one, which is the same."""
        self.services.reverse()
        with self.world.database.reading() as connection:
            opened = self.services[0].may_use_base64_in_new_channel(connection, PATH, client)
        assert self.services[1].may_use_base64_without_channel(self.target(), client) == opened
        return opened

    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)


@pytest.fixture
def asking(world: World) -> Asking:
    return Asking(world)


def test_nobody_is_doubted_where_nobody_was_told_base64(asking: Asking) -> None:
    client = asking.token("new")
    assert asking.ask(client) is None
    assert not asking.may_write_base64(client)
    assert not asking.may_write_base64(None)


def test_clients_from_before_are_doubted_by_whatever_token_and_those_since_are_not(
    asking: Asking,
) -> None:
    old = asking.token("old")
    asking.note_base64()
    assert asking.may_write_base64(old)
    new = asking.token("new")
    with pytest.raises(RowsBusy):
        asking.may_write_base64(new)
    asks_again_s = asking.ask(new)
    assert not asking.may_write_base64(new)
    # The SDK asks a minute before that, and has had a new token for some seconds then.
    assert asks_again_s is not None
    assert HOUR_S - 300 < asks_again_s - 60 < HOUR_S - 240
    asking.wait(HOUR_S - 300)
    renewed = asking.token("new, renewed")
    with pytest.raises(RowsBusy):
        asking.may_write_base64(renewed)
    asking.ask(renewed)
    assert not asking.may_write_base64(renewed)
    # Its first token is none of those that were issued after the note.
    assert asking.may_write_base64(asking.token("old, renewed", born=old.first_token_issued_ms))
    silent = asking.token("old, renewed, in its first request without a channel")
    asking.wait(31)
    assert asking.may_write_base64(silent)
    assert not asking.may_write_base64(None)


def test_who_asks_late_may_have_sent_something_before_the_answer(asking: Asking) -> None:
    asking.note_base64()
    old = asking.token("old, renewed")
    asking.wait(1000)
    asking.ask(old)
    with pytest.raises(RowsBusy):
        asking.may_write_base64(old)
    asking.wait(60)
    asking.ask(old)
    asking.wait(61)
    assert not asking.may_write_base64(old)


def test_tokens_are_forgotten_when_they_have_expired_and_the_note_is_not(asking: Asking) -> None:
    asking.note_base64()
    asking.ask(asking.token("first"))
    asking.wait(3 * HOUR_S)
    asking.ask(asking.token("second"))
    with asking.world.database.reading() as connection:
        assert row_request_state.hex_client_since(connection, str(PATH.name), "first") is None
        assert row_request_state.last_base64_client_at(connection, str(PATH.name)) is not None


def test_a_client_without_one_of_our_tokens_is_never_believed(asking: Asking) -> None:
    asking.note_base64()
    assert asking.ask(SdkClient()) is None
    asking.wait(1)
    assert asking.may_write_base64(SdkClient())
