"""Long queries: the events that a client receives, and the service's reaction to a disconnect."""

from __future__ import annotations

import re
import time
from contextlib import closing

import pytest

from fixtures.s3 import S3Process
from support.select_wire import ask, begin, memory_of, request_body, threads_of, understood, until

MIB = 1024 * 1024
ROWS = b"".join(b"%d,%d\n" % (n, n * 7) for n in range(200_000))
# Evaluated row by row, because no kernel supports the pattern. Has no output.
SLOW = "select _1 from s3object where to_string(to_timestamp('2020T'), 'yyyyMMdd') = _1"
WHOLE = request_body("select * from s3object")
# Long records: a query stops only between blocks of 1 MiB, and each record takes long.
WIDE = b"".join(b"%d,%0100d\n" % (n, n) for n in range(200_000))


@pytest.fixture
def lonely(own_s3: S3Process) -> S3Process:
    """An endpoint that runs one query at a time, and an object of 25 MiB."""
    own_s3.start(select_queries=1, log_level="debug")
    own_s3.add_user("admin", "accountadmin")
    client = own_s3.client()
    client.create_bucket(Bucket="data")
    client.put_object(Bucket="data", Key="large", Body=ROWS * 10)
    client.put_object(Bucket="data", Key="small", Body=b"1,2\n")
    return own_s3


def is_free(s3: S3Process) -> bool:
    found = ask(s3, "data", "small", WHOLE)
    assert found.whole or found.code == "Busy"
    return found.whole


def test_beyond_the_limit_a_query_is_told_to_come_again(lonely: S3Process) -> None:
    connection, answer = begin(lonely, "data", "large", WHOLE)
    with closing(connection):
        head = answer.read(100)
        refused = ask(lonely, "data", "small", WHOLE)
        assert (refused.status, refused.code) == (503, "Busy")
        assert understood(answer.status, head + answer.read()).output == ROWS * 10
    assert until(lambda: is_free(lonely))


@pytest.mark.parametrize("sql", ["select * from s3object", SLOW], ids=["output", "silent"])
def test_a_client_that_goes_away_stops_its_query_and_frees_what_it_held(
    lonely: S3Process, sql: str
) -> None:
    # Long enough that the query is far from its end when the service notices the disconnect.
    body = WIDE * (6 if sql == SLOW else 1)
    lonely.client().put_object(Bucket="data", Key="wide", Body=body)
    assert until(lambda: is_free(lonely))
    assert until(lambda: "the kernels are compiled" in lonely.service.log, 200)
    threads, memory = threads_of(lonely.pid), memory_of(lonely.pid)
    for _ in range(2):
        connection, answer = begin(lonely, "data", "wide", request_body(sql))
        answer.read(50)
        connection.sock.close()
        answer.close()
        connection.close()
        assert until(lambda: is_free(lonely), 200), "the query goes on"
    assert threads_of(lonely.pid) <= threads + 4
    assert memory_of(lonely.pid) - memory < 60 * MIB
    log = lonely.service.log
    assert "Traceback" not in log
    if sql == SLOW:
        scanned = map(int, re.findall(r"select scanned (\d+)", log))
        # On a stalled machine, one of the two may be late.
        assert min((size for size in scanned if size > 100), default=0) < len(body), "it went on"


def test_a_silent_query_shows_each_second_that_it_lives(s3: S3Process, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="object", Body=ROWS)
    began = time.monotonic()
    found = ask(s3, bucket, "object", request_body(SLOW))
    took = time.monotonic() - began
    signs = found.kinds.count("Cont")
    print(f"{signs} signs of life in {took:.1f} s")
    assert found.kinds == ["Cont"] * signs + ["Stats", "End"]
    # On a busy machine, some may be late.
    assert signs >= int(took / 2) - 1


def test_progress_is_told_instead_where_it_was_asked_for(s3: S3Process, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="object", Body=ROWS)
    more = "<RequestProgress><Enabled>TRUE</Enabled></RequestProgress>"
    found = ask(s3, bucket, "object", request_body(SLOW, more=more))
    assert set(found.kinds) == {"Progress", "Stats", "End"}
    quick = ask(s3, bucket, "object", request_body("select count(*) from s3object", more=more))
    assert quick.kinds == ["Records", "Progress", "Stats", "End"]
    assert quick.counts["BytesScanned"] == len(ROWS)


def test_a_service_that_stops_lets_a_short_query_end(own_s3: S3Process) -> None:
    own_s3.start()
    own_s3.add_user("admin", "accountadmin")
    client = own_s3.client()
    client.create_bucket(Bucket="data")
    client.put_object(Bucket="data", Key="object", Body=ROWS)
    connection, answer = begin(own_s3, "data", "object", WHOLE)
    with closing(connection):
        head = answer.read(100)
        assert own_s3.service.process is not None
        own_s3.service.process.terminate()
        assert understood(answer.status, head + answer.read()).output == ROWS
    assert own_s3.service.wait_for_death() == 0
