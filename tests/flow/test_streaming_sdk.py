"""The SDK against a real service: rows go in, are committed once and in order, and tokens are true."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import subprocess
import sys
import threading

import pytest

import snowmelt
from fix_proxy import Proxy
from fix_sdk import QUICK
from fix_service import KeyPair, prepare_loading
from snowmelt import faults
from snowmelt.catalog.database import open_database
from snowmelt.catalog.keys import KeyRing, load_master_key
from snowmelt.clock import SystemClock
from snowmelt.errors import (
    AuthenticationFailed,
    BufferFull,
    ChannelClosed,
    ChannelFenced,
    ChannelInvalid,
    ChannelNotFound,
    ClientClosed,
    CommitTimeout,
    ConfigurationError,
    DatabaseNotFound,
    InvalidRow,
    InvalidValue,
    RequestRefused,
    RoleNotGranted,
    SchemaNotFound,
    TableNotFound,
    TokenNotInserted,
)
from snowmelt.schema.types import TableName
from snowmelt.storage.opening import open_store
from snowmelt.table.reading import read_table

T = "sdk.public.t"
DDL = "CREATE TABLE sdk.public.t (id NUMBER(10,0) NOT NULL, name VARCHAR, at TIMESTAMP_NTZ)"
GRANT = "GRANT INSERT ON TABLE sdk.public.t TO ROLE loading"
LATE = dt.timedelta(minutes=10)
SOON = dt.timedelta(seconds=20)


@pytest.fixture(scope="module")
def loaded_database(shared_service, key_pair):
    prepare_loading(shared_service, key_pair, "sdk")
    return "SDK"


@pytest.fixture
def service(shared_service, loaded_database):
    """The service that the run's tests share, with a new table for each test here."""
    shared_service.sql(DDL.replace("CREATE", "CREATE OR REPLACE"), GRANT)
    return shared_service


def blobs(service):
    return list((service.data_dir / "stage").rglob("*.bdec"))


def rows(first, last):
    return [{"id": n, "name": f"row {n}", "at": "2026-11-21T10:00:00"} for n in range(first, last)]


BAD = {"id": "nonsense"}


def test_inserted_rows_are_committed_with_their_token(connect, ids):
    channel = connect().open_channel("c", table=T)
    assert channel.latest_committed_offset_token() is None
    assert not channel.insert_rows(rows(0, 1000), offset_token="999").has_errors
    channel.insert_row({"ID": 1000, "name": None}, offset_token="1000")
    channel.wait_for_commit("1000", timeout=SOON)
    assert channel.latest_committed_offset_token() == "1000"
    assert ids() == list(range(1001))


def test_rows_are_copied_by_the_insert(connect, ids):
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    row = {"id": 1}
    channel.insert_row(row)
    batch = [row]
    channel.insert_rows(batch)
    row["id"] = 2
    batch.clear()
    channel.flush()
    assert ids() == [1, 1]


def test_abort_raises_the_first_error_and_keeps_nothing(connect, ids):
    channel = connect().open_channel("c", table=T)
    channel.insert_rows(rows(0, 2), "1")
    with pytest.raises(InvalidValue, match=r"column ID of type NUMBER.*rowIndex:1"):
        channel.insert_rows([{"id": 2}, BAD, {"id": None}], "4")
    with pytest.raises(InvalidRow, match=r"Extra columns: \[no\]"):
        channel.insert_row({"id": 5, "no": 1}, "5")
    channel.flush()
    assert ids() == [0, 1]
    assert channel.latest_committed_offset_token() == "1"


def test_continue_keeps_good_rows_and_moves_the_token(connect, ids):
    channel = connect().open_channel("c", table=T, on_error="continue")
    result = channel.insert_rows([{"id": 0}, BAD, {"id": 2}, {}], "3")
    assert [error.row_index for error in result.errors] == [1, 3]
    assert result.errors[1].missing_not_null == ("ID",)
    assert channel.insert_row(BAD, "4").has_errors
    channel.flush()
    assert ids() == [0, 2]
    assert channel.latest_committed_offset_token() == "4"


def test_a_token_without_good_rows_is_committed_with_the_next_good_row(connect, ids):
    channel = connect().open_channel("c", table=T, on_error="continue")
    assert channel.insert_rows([BAD], "1").has_errors
    channel.flush()
    assert channel.latest_committed_offset_token() is None
    with pytest.raises(CommitTimeout):
        channel.wait_for_commit("1", timeout=QUICK)
    channel.insert_rows([{"id": 2}], "2")
    channel.wait_for_commit("1", timeout=SOON)
    assert channel.latest_committed_offset_token() == "2"
    assert ids() == [2]


def test_skip_batch_keeps_none_of_a_batch_with_errors(connect, ids):
    channel = connect().open_channel("c", table=T, on_error="skip_batch")
    channel.insert_rows(rows(0, 2), "1")
    assert len(channel.insert_rows([{"id": 2}, BAD, BAD], "4").errors) == 2
    channel.flush()
    assert channel.latest_committed_offset_token() == "1"
    assert ids() == [0, 1]


def test_threads_keep_their_batches_whole_and_in_order(connect, ids):
    channel = connect().open_channel("c", table=T)

    def insert(thread):
        for batch in range(20):
            first = thread * 100_000 + batch * 50
            if batch % 2:
                channel.insert_rows(rows(first, first + 50))
            else:
                for row in rows(first, first + 50):
                    channel.insert_row(row)

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.close()
    seen = ids()
    assert len(seen) == len(set(seen)) == 4000
    for number in range(4):
        mine = [value for value in seen if value // 100_000 == number]
        assert mine == sorted(mine)
    batches = [value for value in seen if (value % 100_000) // 50 % 2]
    assert all(
        batches[at : at + 50] == list(range(batches[at], batches[at] + 50))
        for at in range(0, len(batches), 50)
    )


def test_channels_of_a_table_share_a_chunk(connect, service, ids):
    before = len(blobs(service))
    client = connect(max_client_lag=LATE)
    channels = [client.open_channel(f"c{n}", table=T) for n in range(5)]
    for number, channel in enumerate(channels):
        channel.insert_row({"id": number}, str(number))
    client.flush()
    assert ids() == [0, 1, 2, 3, 4]
    tokens = client.latest_committed_offset_tokens(channels)
    assert [tokens[channel] for channel in channels] == ["0", "1", "2", "3", "4"]
    assert len(blobs(service)) == before + 1


def test_reopening_returns_the_token_and_fences_the_old_object(connect, ids):
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


def test_another_client_fences_and_siblings_live_on(connect, ids):
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


def test_asking_for_the_token_notices_the_new_owner(connect):
    old = connect().open_channel("c", table=T)
    connect().open_channel("c", table=T)
    with pytest.raises(ChannelFenced):
        old.latest_committed_offset_token()
    assert old.invalidation_reason
    with pytest.raises(ChannelFenced):
        old.insert_row({"id": 1})


def test_opening_with_a_token_sets_it(connect):
    client = connect()
    assert (
        client.open_channel("c", table=T, offset_token="7").latest_committed_offset_token() == "7"
    )
    assert client.open_channel("c", table=T).latest_committed_offset_token() == "7"


def test_close_commits_and_drop_forgets(connect, ids):
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


def test_dropping_blind_discards_what_is_not_committed(connect, ids):
    client = connect(max_client_lag=LATE)
    channel = client.open_channel("c", table=T)
    channel.insert_rows(rows(0, 3), "2")
    client.drop_channel("c", table=T)
    with pytest.raises(ChannelInvalid, match="dropped by this client"):
        channel.insert_row({"id": 4})
    with pytest.raises(ChannelNotFound):
        client.drop_channel("never", table=T)
    assert ids() == []


def test_closing_the_client_closes_its_channels(connect, ids):
    with connect(max_client_lag=LATE) as client:
        channels = [client.open_channel(f"c{n}", table=T) for n in range(3)]
        for number, channel in enumerate(channels):
            channel.insert_row({"id": number}, "t")
    assert ids() == [0, 1, 2]
    with pytest.raises(ChannelClosed):
        channels[0].insert_row({"id": 1})
    with pytest.raises(ClientClosed):
        client.open_channel("d", table=T)


def test_waiting_for_a_token_that_never_came_is_refused(connect):
    channel = connect().open_channel("c", table=T)
    with pytest.raises(TokenNotInserted, match="'nowhere'"):
        channel.wait_for_commit("nowhere")


def test_a_token_is_not_committed_before_its_rows(connect, ids):
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    channel.insert_rows(rows(0, 2), "1")
    with pytest.raises(CommitTimeout, match=r"'1'.*not committed within 0\.1 s.*None"):
        channel.wait_for_commit("1", timeout=QUICK)
    assert ids() == []
    channel.flush()
    channel.wait_for_commit("1", timeout=QUICK)


def test_a_dropped_table_invalidates_with_the_reason(connect, service, ids):
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


@pytest.mark.parametrize("step", ["lose request", "lose answer", 503, 429, "garbage"])
def test_an_unknown_outcome_is_asked_again_with_the_same_bytes(step, connect, service, ids):
    with Proxy(service.port, only="write/blobs", plan=[step, step]) as proxy:
        channel = connect(proxy.url).open_channel("c", table=T)
        channel.insert_rows(rows(0, 10), "9")
        channel.insert_rows(rows(10, 20), "19")
        channel.flush()
        channel.insert_rows(rows(20, 30), "29")
        channel.close()
        bodies = [body for _, body in proxy.seen]
    assert len(bodies) >= 4
    assert bodies[0] == bodies[1] == bodies[2]
    assert ids() == list(range(30))


def test_giving_up_makes_channels_invalid_and_says_why(connect, service, ids):
    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        client = connect(proxy.url, give_up_after=dt.timedelta(seconds=0.5))
        channel = client.open_channel("c", table=T)
        channel.insert_rows(rows(0, 10), "9")
        with pytest.raises(ChannelInvalid, match=r"HTTP 503.*is not known.*token is None"):
            channel.flush()
        with pytest.raises(ChannelInvalid):
            channel.insert_row({"id": 10})
        proxy.always = None
        again = client.open_channel("c", table=T)
        again.insert_rows(rows(0, 10), "9")
        again.flush()
    assert ids() == list(range(10))


def test_a_request_refused_as_a_whole_is_not_lost_silently(connect, service):
    with Proxy(service.port, only="write/blobs", plan=[307]) as proxy:
        channel = connect(proxy.url).open_channel("c", table=T)
        channel.insert_rows(rows(0, 10), "9")
        with pytest.raises(ChannelInvalid, match="HTTP 307") as invalid:
            channel.flush()
        assert isinstance(invalid.value.__cause__, RequestRefused)


def test_a_refused_token_is_replaced_once(connect, service, ids):
    with Proxy(service.port, plan=[401]) as proxy:
        client = connect(proxy.url)
        assert len(proxy.seen) == 2
        proxy.plan = [401, 401]
        with pytest.raises(AuthenticationFailed):
            client.open_channel("c", table=T)


def test_a_lost_answer_to_open_costs_no_epoch(connect, service):
    with Proxy(service.port, only="channels/open", plan=["lose answer"]) as proxy:
        first = connect(proxy.url).open_channel("epoch", table=T)
        assert len(proxy.seen) == 2
        assert (
            connect().open_channel("epoch", table=T).client_sequencer == first.client_sequencer + 1
        )


def test_a_lost_answer_to_drop_is_no_error(connect, service):
    with Proxy(service.port, only="channels/drop", plan=["lose answer"]) as proxy:
        client = connect(proxy.url)
        client.open_channel("c", table=T).close(drop=True)
        assert client.open_channel("c", table=T).latest_committed_offset_token() is None


def test_inserts_wait_while_too_much_is_uncommitted(connect, service, ids):
    with Proxy(service.port, only="write/blobs", always=503) as proxy:
        client = connect(
            proxy.url, max_buffered_bytes=4000, insert_timeout=dt.timedelta(seconds=0.5)
        )
        channel = client.open_channel("c", table=T)
        channel.insert_rows(rows(0, 60), "59")
        with pytest.raises(BufferFull, match="HTTP 503"):
            channel.insert_rows(rows(60, 120), "119")
        proxy.always = None
        channel.wait_for_commit("59", timeout=SOON)
        channel.insert_rows(rows(60, 120), "119")
        channel.flush()
    assert ids() == list(range(120))


def test_a_full_stage_is_tried_again(connect, ids):
    def full():
        faults.arm(faults.Point.STAGE_WRITE, lambda: None)
        raise OSError(28, "No space left on device")

    faults.arm(faults.Point.STAGE_WRITE, full)
    channel = connect().open_channel("c", table=T)
    channel.insert_rows(rows(0, 10), "9")
    channel.flush()
    assert ids() == list(range(10))


def test_a_stage_that_stays_full_makes_the_channel_invalid(connect, service):
    client = connect(give_up_after=dt.timedelta(seconds=0.3))
    channel = client.open_channel("c", table=T)

    def full():
        faults.arm(faults.Point.STAGE_WRITE, full)
        raise OSError(28, "No space left on device")

    faults.arm(faults.Point.STAGE_WRITE, full)
    channel.insert_rows(rows(0, 10), "9")
    with pytest.raises(ChannelInvalid, match="stage cannot be written: No space left"):
        channel.flush()


def test_a_blob_changed_on_the_stage_is_refused_and_named(connect, service):
    channel = connect().open_channel("c", table=T)

    def damage():
        blob = max(blobs(service), key=lambda path: path.stat().st_mtime_ns)
        blob.write_bytes(blob.read_bytes()[:-100])

    faults.arm(faults.Point.BLOB_STAGED, damage)
    channel.insert_rows(rows(0, 10), "9")
    with pytest.raises(ChannelInvalid, match=r"\.bdec"):
        channel.flush()
    assert channel.invalidation_reason


def test_missing_tables_and_wrong_keys_are_told_at_once(connect, service):
    client = connect()
    with pytest.raises(TableNotFound):
        client.open_channel("c", table="sdk.public.absent")
    other = KeyPair.generate().private_pem
    with pytest.raises(AuthenticationFailed):
        snowmelt.Client(service.url, user="loader", private_key=other)


def test_what_a_role_may_not_use_is_named(connect, service):
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


def test_naive_times_take_the_channels_zone(connect, service):
    service.sql("CREATE OR REPLACE TABLE sdk.public.t (id NUMBER(10,0), at TIMESTAMP_TZ(0))", GRANT)
    client = connect()
    zones = ["Asia/Kathmandu", "America/New_York", None]
    for number, zone in enumerate(zones):
        options = {} if zone is None else {"default_timezone": zone}
        with client.open_channel(f"c{number}", table=T, **options) as channel:
            channel.insert_row({"id": number, "at": "2026-11-21T12:00:00"})
    settings = service.settings
    with contextlib.closing(open_database(settings.catalog_url)) as catalog:
        keyring, stage = KeyRing(load_master_key(settings.keys_dir)), open_store(settings.stage_url)
        seen = read_table(catalog, keyring, stage, TableName("SDK", "PUBLIC", "T")).to_pylist()
    assert [row["AT$tz"] for row in seen] == [345, -300, -480]
    assert [row["AT"].strftime("%H:%M") for row in seen] == ["06:15", "17:00", "20:00"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"on_error": "ignore"}, "on_error: 'ignore' is none of"),
        ({"default_timezone": "Mars/Base"}, "default_timezone: 'Mars/Base' is not a time zone"),
    ],
)
def test_an_option_that_does_not_exist_is_named(connect, option, reason):
    with pytest.raises(ConfigurationError, match=reason):
        connect().open_channel("c", table=T, **option)


class ShiftedClock(SystemClock):
    """The machine's clock, set wrong by `shift`."""

    def __init__(self, shift):
        self.shift = shift

    def now(self):
        return super().now() + self.shift


@pytest.mark.parametrize(
    ("hours", "reason"), [(-2, "it has expired"), (2, "issued in the future; compare the clocks")]
)
def test_a_token_out_of_its_time_is_refused_with_the_reason(connect, hours, reason):
    with pytest.raises(AuthenticationFailed, match=reason):
        connect(clock=ShiftedClock(dt.timedelta(hours=hours)))


def test_a_clients_clock_that_goes_back_costs_no_row(connect, service, ids):
    before = len(blobs(service))
    clock = ShiftedClock(dt.timedelta(0))
    channel = connect(clock=clock).open_channel("c", table=T)
    for batch in range(3):
        channel.insert_rows(rows(batch * 10, batch * 10 + 10), str(batch))
        channel.flush()
        clock.shift -= dt.timedelta(days=1)
    channel.close()
    assert channel.latest_committed_offset_token() == "2"
    assert ids() == list(range(30))
    assert len(blobs(service)) == before + 3, "no name was used twice"


def test_a_channel_that_another_client_dropped_says_so(connect, ids):
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    channel.insert_rows(rows(0, 3), "2")
    channel.flush()
    connect().drop_channel("c", table=T)
    channel.insert_rows(rows(3, 6), "5")
    with pytest.raises(ChannelInvalid, match=r"does not exist.*last committed offset token is '2'"):
        channel.flush()
    assert ids() == [0, 1, 2], "what was committed stays"


def test_rows_wait_while_the_catalog_is_locked(connect, service, ids):
    channel = connect().open_channel("c", table=T)
    with contextlib.closing(open_database(service.settings.catalog_url)) as catalog:
        with catalog.writing() as connection:
            connection.exec_driver_sql("SELECT 1")
            channel.insert_rows(rows(0, 10), "9")
            with pytest.raises(CommitTimeout, match="the last one committed is None"):
                channel.wait_for_commit("9", timeout=5 * QUICK)
        channel.wait_for_commit("9", timeout=SOON)
    assert ids() == list(range(10))


SCRIPT = """
import datetime as dt, os, sys
import snowmelt
url, key, way = sys.argv[1:]
client = snowmelt.Client(url, user="loader", private_key=key, max_client_lag=dt.timedelta(minutes=10))
channel = client.open_channel("c", table="sdk.public.t")
channel.insert_row({"id": 1}, "1")
if way == "fork":
    child = os.fork()
    if not child:
        try:
            channel.insert_row({"id": 2}, "2")
        except snowmelt.errors.ChannelInvalid as error:
            assert "forked" in str(error)
            sys.exit(0)
        sys.exit(1)
    assert os.waitpid(child, 0)[1] == 0
    channel.close()
"""


@pytest.mark.parametrize("way", ["exit", "fork"])
def test_a_process_may_end_or_fork_with_rows_in_memory(way, service, key_pair, tmp_path, ids):
    key = tmp_path / "key.pem"
    key.write_text(key_pair.private_pem)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, service.url, str(key), way],
        check=True,
        timeout=30,
        env=os.environ,
    )
    assert ids() == [1]
