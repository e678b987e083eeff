"""Opening and dropping from the receiving side: what a request id is worth, and what is told."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, cast

import pytest

from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security import access_control
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import ChannelFenced, ChannelNotFound, NameMissing, RoleNotGranted
from snowmelt.ingest.stage_locations import StageRequester
from snowmelt.wire.streaming import (
    ChannelStatusQuery,
    ChannelStatusRequest,
    ConfigureClientRequest,
    DropChannelRequest,
    OpenChannelRequest,
    StageLocation,
)

if TYPE_CHECKING:
    from unit.ingest.conftest import World


NAMES: dict[str, Any] = {"channel": "ch", "table": "t", "database": "demo", "schema": "public"}
OTHER = "OTHER"


@pytest.fixture
def other(world: World) -> str:
    """Another user who may do as much as the first."""
    with world.database.writing() as connection:
        now = world.clock.now()
        access_control.create_user(connection, OTHER, default_role=ACCOUNTADMIN, now=now)
        access_control.grant_role(connection, ACCOUNTADMIN, OTHER)
    return OTHER


def request_id(world: World, number: int = 0) -> str:
    return f"{world.prefix}_{world.deployment_id}_{number}"


def drop(world: World, sequencer: int | None, **names: str) -> None:
    world.desk.drop_channel(
        DropChannelRequest(**(NAMES | names), client_sequencer=sequencer), "LOADER"
    ).result()


@pytest.mark.slow
def test_a_request_id_with_a_prefix_of_ones_own_is_answered_once(world: World) -> None:
    request = OpenChannelRequest(**NAMES, request_id=request_id(world))
    first = world.desk.open_channel(request, "LOADER").result()
    assert world.desk.open_channel(request, "LOADER").result() == first


def test_a_request_id_with_a_foreign_prefix_gets_no_foreign_answer(
    world: World, other: str
) -> None:
    request = OpenChannelRequest(**NAMES, request_id=request_id(world))
    mine = world.desk.open_channel(request, "LOADER").result()
    theirs = world.desk.open_channel(request, other).result()
    assert mine.client_sequencer is not None
    assert theirs.client_sequencer == mine.client_sequencer + 1
    assert theirs.encryption_key_id != mine.encryption_key_id
    assert (
        world.desk.open_channel(request, other).result().client_sequencer
        == theirs.client_sequencer + 1
    )


def test_no_prefix_is_given_twice(world: World) -> None:
    given = [
        world.desk.configure_client(ConfigureClientRequest(), StageRequester("LOADER"))
        for _ in range(20)
    ]
    assert len({each.prefix for each in given} | {world.prefix}) == 21
    folders = {cast("StageLocation", each.stage_location).location for each in given}
    assert folders == {str(world.stage.root / cast("str", each.prefix)) for each in given}


def test_a_clock_that_goes_back_changes_nothing_about_who_owns_a_channel(world: World) -> None:
    first = world.open()
    world.clock.set_wall(world.clock.now() - dt.timedelta(days=400))
    second = world.open()
    assert first.client_sequencer is not None
    assert second.client_sequencer == first.client_sequencer + 1
    with pytest.raises(ChannelFenced):
        drop(world, first.client_sequencer)
    drop(world, second.client_sequencer)
    assert second.client_sequencer is not None
    assert world.open().client_sequencer == second.client_sequencer + 1


def test_a_drop_comes_twice_but_a_blind_one_of_nothing_is_told(world: World) -> None:
    opened = world.open()
    drop(world, opened.client_sequencer, channel="CH")
    drop(world, opened.client_sequencer, channel="CH")
    with pytest.raises(ChannelNotFound):
        drop(world, None, channel="CH")


@pytest.mark.parametrize(
    ("missing", "code"), [("database", 15), ("schema", 16), ("table", 17), ("channel", 18)]
)
def test_a_name_that_is_missing_has_its_own_code(world: World, missing: str, code: int) -> None:
    with pytest.raises(NameMissing, match=f"the name of the {missing}") as caught:
        world.desk.open_channel(OpenChannelRequest(**(NAMES | {missing: ""})), "LOADER").result()
    assert caught.value.wire_code == code


def test_a_status_tells_each_channel_its_own_problem(world: World) -> None:
    opened = world.open()
    assert opened.client_sequencer is not None
    asked = [
        ChannelStatusQuery("demo", "public", "t", "ch", opened.client_sequencer),
        ChannelStatusQuery("demo", "public", "t", "ch", opened.client_sequencer + 1),
        ChannelStatusQuery("demo", "public", "t", "absent", 0),
        ChannelStatusQuery("demo", "public", "absent", "ch", 0),
        ChannelStatusQuery("demo", "absent", "t", "ch", 0),
        ChannelStatusQuery("absent", "public", "t", "ch", 0),
        ChannelStatusQuery("demo", "public", "t", "", 0),
    ]
    answer = world.desk.get_channel_statuses(ChannelStatusRequest(channels=asked), "LOADER")
    assert [each.status_code for each in answer.channels] == [0, 20, 25, 4, 9, 8, 18]
    with pytest.raises(RoleNotGranted, match="Role NOBODY is not granted to user LOADER"):
        world.desk.get_channel_statuses(
            ChannelStatusRequest(channels=asked, role="nobody"), "LOADER"
        )


def test_a_fenced_owner_is_told_the_committed_token_all_the_same(world: World) -> None:
    old = world.desk.open_channel(OpenChannelRequest(**NAMES, offset_token="7"), "LOADER").result()
    world.open("ch")
    asked = [ChannelStatusQuery("demo", "public", "t", "ch", old.client_sequencer)]
    (status,) = world.desk.get_channel_statuses(
        ChannelStatusRequest(channels=asked), "LOADER"
    ).channels
    assert (status.status_code, status.persisted_offset_token) == (20, "7")


def test_a_state_by_name_is_not_that_of_a_channel_that_came_by_the_name(world: World) -> None:
    execute_statement(
        world.database, "CREATE TABLE demo.public.u LIKE demo.public.t", clock=world.clock
    )
    other = world.desk.open_channel(
        OpenChannelRequest(**(NAMES | {"table": "u"}), offset_token="9"), "LOADER"
    ).result()
    mine = world.desk.open_channel(OpenChannelRequest(**NAMES), "LOADER").result()
    count = mine.client_sequencer
    assert other.client_sequencer == count
    world.clock.advance(1)
    for change in ("t RENAME TO x", "u RENAME TO t", "x RENAME TO u"):
        execute_statement(world.database, f"ALTER TABLE demo.public.{change}", clock=world.clock)
    names = ("demo", "public", "t", "ch")
    asked = [
        ChannelStatusQuery(*names, count),
        ChannelStatusQuery(*names, count, encryption_key_id=mine.encryption_key_id),
        ChannelStatusQuery(*names),
    ]
    found = world.desk.get_channel_statuses(ChannelStatusRequest(channels=asked), "LOADER").channels
    assert [(each.status_code, each.persisted_offset_token) for each in found] == [
        (25, None),
        (0, None),
        (0, "9"),
    ]
    world.clock.advance(1)
    mine = world.desk.open_channel(OpenChannelRequest(**NAMES), "LOADER").result()
    asked = [ChannelStatusQuery(*names, mine.client_sequencer)]
    assert (
        world.desk.get_channel_statuses(ChannelStatusRequest(channels=asked), "LOADER")
        .channels[0]
        .status_code
        == 0
    )
