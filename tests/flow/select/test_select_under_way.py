"""What a client sees of a query that takes its time, and what the service does when one leaves."""

from __future__ import annotations

import re
import time
from contextlib import closing

import pytest

from fixtures.s3 import S3Process
from support.select_wire import ask, begin, memory_of, request_body, threads_of, understood, until

MIB = 1024 * 1024
ROWS = b"".join(b"%d,%d\n" % (n, n * 7) for n in range(200_000))
# Evaluated row by row, since no kernel knows the pattern; nothing comes of it.
SLOW = "select _1 from s3object where to_string(to_timestamp('2020T'), 'yyyyMMdd') = _1"
WHOLE = request_body("select * from s3object")
# Long records: a query is stopped between blocks of a mebibyte, and what is slow is a record.
WIDE = b"".join(b"%d,%0100d\n" % (n, n) for n in range(200_000))


@pytest.fixture
def lonely(own_s3: S3Process) -> S3Process:
    """An endpoint that runs one query at a time, with an object of 25 MiB."""
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
    # So long that the silent one is far from its end when it is seen that the client has gone.
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
        # A machine that stands still may be late with one of the two.
        assert min((size for size in scanned if size > 100), default=0) < len(body), "it went on"


def test_a_silent_query_shows_each_second_that_it_lives(s3: S3Process, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="object", Body=ROWS)
    began = time.monotonic()
    found = ask(s3, bucket, "object", request_body(SLOW))
    took = time.monotonic() - began
    signs = found.kinds.count("Cont")
    print(f"{signs} signs of life in {took:.1f} s")
    assert found.kinds == ["Cont"] * signs + ["Stats", "End"]
    # A machine that is busy may be late with some.
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
