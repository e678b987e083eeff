"""Ownership of channels: opening, fencing, closing, dropping, and errors for missing channels."""

from __future__ import annotations

from typing import Any

import pytest

import snowmelt
from fixtures.sdk import QUICK
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.errors import (
    AuthenticationFailed,
    ChannelClosed,
    ChannelFenced,
    ChannelInvalid,
    ChannelNotFound,
    ClientClosed,
    CommitTimeout,
    ConfigurationError,
    DatabaseNotFound,
    RoleNotGranted,
    SchemaNotFound,
    TableNotFound,
)
from support.faulty_proxy import Proxy
from support.sdk_table import DDL, GRANT, LATE, SOON, T, rows


def test_reopening_returns_the_token_and_fences_the_old_object(connect: Any, ids: Any) -> None:
    client = connect(max_client_lag=LATE)
    old = client.open_channel("c", table=T)
    old.insert_rows(rows(0, 3), "2")
    old.flush()
    old.insert_rows(rows(3, 6), "5")
    new = client.open_channel("c", table=T)
    assert new.latest_committed_offset_token() == "2"
    assert new.client_sequencer == old.client_sequencer + 1
    assert not old.is_valid
    for use in (lambda: old.insert_row({"id": 9}), old.flush, old.wait_for_commit):
        with pytest.raises(ChannelFenced, match="last committed offset token is '2'"):
            use()
    new.insert_rows(rows(3, 5), "4")
    new.close()
    assert ids() == [0, 1, 2, 3, 4]


def test_another_client_fences_and_siblings_live_on(connect: Any, ids: Any) -> None:
    first, second = connect(max_client_lag=LATE), connect()
    lost, kept = first.open_channel("lost", table=T), first.open_channel("kept", table=T)
    taken = second.open_channel("lost", table=T)
    lost.insert_row({"id": 1}, "1")
    kept.insert_row({"id": 2}, "2")
    with pytest.raises(ChannelFenced, match="code 20"):
        first.flush()
    kept.wait_for_commit("2", timeout=SOON)
    assert kept.is_valid
    kept.insert_row({"id": 3}, "3")
    kept.flush()
    taken.insert_row({"id": 4})
    taken.flush()
    assert ids() == [2, 3, 4]
    with pytest.raises(ChannelFenced):
        lost.insert_row({"id": 5})


def test_asking_for_the_token_notices_the_new_owner(connect: Any) -> None:
    old = connect().open_channel("c", table=T)
    connect().open_channel("c", table=T)
    with pytest.raises(ChannelFenced):
        old.latest_committed_offset_token()
    assert old.invalidation_reason
    with pytest.raises(ChannelFenced):
        old.insert_row({"id": 1})


def test_opening_with_a_token_sets_it(connect: Any) -> None:
    client = connect()
    assert (
        client.open_channel("c", table=T, offset_token="7").latest_committed_offset_token() == "7"
    )
    assert client.open_channel("c", table=T).latest_committed_offset_token() == "7"


def test_close_commits_and_drop_forgets(connect: Any, ids: Any) -> None:
    client = connect(max_client_lag=LATE)
    with client.open_channel("c", table=T) as channel:
        channel.insert_rows(rows(0, 3), "2")
    assert channel.is_closed
    assert ids() == [0, 1, 2]
    with pytest.raises(ChannelClosed):
        channel.insert_row({"id": 3})
    again = client.open_channel("c", table=T)
    assert again.latest_committed_offset_token() == "2"
    again.close(drop=True)
    fresh = client.open_channel("c", table=T)
    assert fresh.latest_committed_offset_token() is None
    fresh.insert_rows(rows(3, 4), "3")
    fresh.flush()
    assert ids() == [0, 1, 2, 3]


def test_closing_again_after_a_timeout_waits_before_it_drops(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        channel = connect(proxy.url).open_channel("c", table=T)
        channel.insert_rows(rows(0, 3), "2")
        for _ in range(2):
            with pytest.raises(CommitTimeout):
                channel.close(drop=True, timeout=QUICK)
        proxy.always = None
        channel.close(drop=True, timeout=SOON)
    assert ids() == [0, 1, 2]
    with pytest.raises(ChannelNotFound):
        connect().drop_channel("c", table=T)
    channel.close(drop=True)


def test_dropping_blind_discards_what_is_not_committed(connect: Any, ids: Any) -> None:
    client = connect(max_client_lag=LATE)
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 3), "2")
    client.drop_channel("c", table=T)
    with pytest.raises(ChannelInvalid, match="this client dropped it"):
        channel.insert_row({"id": 4})
    with pytest.raises(ChannelNotFound):
        client.drop_channel("never", table=T)
    assert ids() == []


def test_closing_the_client_closes_its_channels(connect: Any, ids: Any) -> None:
    with connect(max_client_lag=LATE) as client:
        channels = [client.open_channel(f"c{n}", table=T) for n in range(3)]
        for number, channel in enumerate(channels):
            channel.insert_row({"id": number}, "t")
    assert ids() == [0, 1, 2]
    with pytest.raises(ChannelClosed):
        channels[0].insert_row({"id": 1})
    with pytest.raises(ClientClosed):
        client.open_channel("d", table=T)


def test_a_dropped_table_invalidates_with_the_reason(
    connect: Any, service: ServiceProcess, ids: Any
) -> None:
    client = connect()
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 2), "1")
    channel.flush()
    service.sql(
        "DROP TABLE sdk.public.t",
        DDL,
        GRANT,
    )
    channel.insert_rows(rows(2, 4), "3")
    with pytest.raises(ChannelInvalid, match="last committed offset token is '1'"):
        channel.flush()
    again = client.open_channel("c", table=T)
    assert again.latest_committed_offset_token() is None
    again.insert_row({"id": 9})
    again.flush()
    assert ids() == [9]


def test_a_channel_that_another_client_dropped_says_so(connect: Any, ids: Any) -> None:
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    channel.insert_rows(rows(0, 3), "2")
    channel.flush()
    connect().drop_channel("c", table=T)
    channel.insert_rows(rows(3, 6), "5")
    with pytest.raises(ChannelInvalid, match=r"does not exist.*last committed offset token is '2'"):
        channel.flush()
    assert ids() == [0, 1, 2], "what was committed stays"


def test_a_lost_answer_to_open_costs_no_epoch(connect: Any, service: ServiceProcess) -> None:
    with Proxy(service.port, only="channels/open", plan=["lose answer"]) as proxy:
        first = connect(proxy.url).open_channel("epoch", table=T)
        assert len(proxy.seen) == 2
        assert (
            connect().open_channel("epoch", table=T).client_sequencer == first.client_sequencer + 1
        )


def test_a_lost_answer_to_drop_is_no_error(connect: Any, service: ServiceProcess) -> None:
    with Proxy(service.port, only="channels/drop", plan=["lose answer"]) as proxy:
        client = connect(proxy.url)
        client.open_channel("c", table=T).close(drop=True)
        assert client.open_channel("c", table=T).latest_committed_offset_token() is None


def test_missing_tables_and_wrong_keys_are_told_at_once(
    connect: Any, service: ServiceProcess
) -> None:
    client = connect()
    with pytest.raises(TableNotFound):
        client.open_channel("c", table="sdk.public.absent")
    other = KeyPair.generate().private_pem
    with pytest.raises(AuthenticationFailed):
        snowmelt.Client(service.url, user="loader", private_key=other)


def test_what_a_role_may_not_use_is_named(connect: Any, service: ServiceProcess) -> None:
    client = connect()
    with pytest.raises(DatabaseNotFound, match="Database ABSENT does not exist"):
        client.open_channel("c", table="absent.public.t")
    with pytest.raises(SchemaNotFound, match="ABSENT does not exist"):
        client.open_channel("c", table="sdk.absent.t")
    with pytest.raises(RoleNotGranted, match="Role ACCOUNTADMIN is not granted to user LOADER"):
        connect(role="ACCOUNTADMIN")
    service.sql("REVOKE INSERT ON TABLE sdk.public.t FROM ROLE loading")
    with pytest.raises(TableNotFound, match="or this role may not use it"):
        client.open_channel("c", table=T)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"on_error": "ignore"}, "on_error: expected one of"),
        ({"default_timezone": "Mars/Base"}, "default_timezone: 'Mars/Base' is not a time zone"),
    ],
)
def test_an_option_that_does_not_exist_is_named(
    connect: Any, option: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        connect().open_channel("c", table=T, **option)


def test_asking_for_many_tokens_names_the_channel_that_is_gone(connect: Any) -> None:
    client = connect(max_client_lag=LATE)
    channels = [client.open_channel(name, table=T) for name in ("kept", "gone")]
    kept, gone = channels
    for channel in channels:
        channel.insert_row({"id": 1}, "1")
    client.flush()
    connect().drop_channel("gone", table=T)
    with pytest.raises(ChannelInvalid, match=r"GONE of SDK.*code 25.*offset token is '1'"):
        client.latest_committed_offset_tokens(channels)
    assert (kept.is_valid, gone.is_valid) == (True, False)
    assert client.latest_committed_offset_tokens([kept]) == {kept: "1"}


def test_asking_for_many_tokens_says_that_the_table_is_gone(
    connect: Any, service: ServiceProcess
) -> None:
    client = connect()
    channels = [client.open_channel(name, table=T) for name in ("a", "b")]
    service.sql("DROP TABLE sdk.public.t")
    with pytest.raises(ChannelInvalid, match=r"Channel A of .*code 4"):
        client.latest_committed_offset_tokens(channels)
    assert [channel.is_valid for channel in channels] == [False, False]


def test_of_a_fenced_channel_the_committed_token_is_told_among_many(connect: Any) -> None:
    client = connect()
    channel = client.open_channel("c", table=T)
    channel.insert_row({"id": 1}, "1")
    channel.flush()
    connect().open_channel("c", table=T)
    assert client.latest_committed_offset_tokens([channel]) == {channel: "1"}


QUOTED = 'sdk."my schema"."My ""T"""'


def test_names_that_need_quotes_are_quoted_once(connect: Any, service: ServiceProcess) -> None:
    service.sql(
        'CREATE SCHEMA IF NOT EXISTS sdk."my schema"',
        f'CREATE OR REPLACE TABLE {QUOTED} (id NUMBER(10,0)) ERROR_TABLE = {QUOTED[:-1]}_errors"',
        'GRANT USAGE ON SCHEMA sdk."my schema" TO ROLE loading',
        f"GRANT INSERT ON TABLE {QUOTED} TO ROLE loading",
    )
    shown = QUOTED.replace("sdk", "SDK")
    client = connect(max_client_lag=LATE)
    channel = client.open_channel('"my channel"', table=QUOTED, on_error="continue")
    assert (str(channel.table), channel.name) == (shown, '"my channel"')
    channel.insert_rows([{"id": 1}, {"id": "x"}], "1")
    channel.flush(SOON)
    # Another client takes over the channel, and then this client drops its own.
    connect().open_channel('"my channel"', table=QUOTED)
    channel.insert_row({"id": 2}, "2")
    with pytest.raises(ChannelFenced) as fenced:
        channel.flush()
    assert f'Channel "my channel" of {shown} may no longer write' in str(fenced.value)
    assert "Channel my channel" not in str(fenced.value)
    mine = client.open_channel('"my channel"', table=QUOTED)
    client.drop_channel('"my channel"', table=QUOTED)
    assert not mine.is_valid
    (refused,) = service.sql(f"SHOW CHANNELS IN TABLE {QUOTED}").rows or [None]
    assert refused is None
