"""What follows each reply: the table of the published protocol, and pauses that never run wild."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.attempts import RetryState, parse_retry_after
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.functions.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectTimeout,
    ResponseInvalid,
    TlsUntrusted,
    TransportFailed,
)
from support import call_plans

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GONE = TransportFailed(host="h:1", reason="Connection refused")
UNREACHABLE = ConnectFailed(host="h:1", reason="Connection refused")
PASSING = (408, 429, 500, 502, 503, 504, 599)
FINAL = (201, 204, 206, 301, 302, 304, 400, 401, 403, 404, 409, 422)


class Walk:
    """A course, walked by replies; the clock moves by each pause."""

    def __init__(self, options=None, *, was_connected=False, **clauses):
        self.clock = ManualClock(NOW)
        plan = call_plans.plan(options, **clauses)
        self.course = RetryState(plan, self.clock, was_connected=was_connected)

    def step(self, said, asked_s=None):
        if isinstance(said, int):
            pause_s = self.course.compute_pause_after_status(said, asked_s)
        else:
            pause_s = self.course.compute_pause_after_failure(said)
        self.clock.advance(pause_s)
        return pause_s

    def until_end(self, said, most=10_000):
        """Return the pauses until the course ends, and why it did."""
        pauses = []
        for _ in range(most):
            try:
                pauses.append(self.step(said))
            except ResponseInvalid as error:
                return pauses, str(error)
        raise AssertionError("the course does not end")


@pytest.mark.parametrize("status", PASSING)
def test_what_passes_is_posted_again(status):
    walk = Walk()
    walk.step(status)
    assert walk.course.method == "POST"


@pytest.mark.parametrize("status", FINAL)
def test_what_does_not_pass_ends_the_course(status):
    with pytest.raises(ResponseInvalid, match=f"function f with remote service error: {status}"):
        Walk().step(status)


def test_a_202_is_followed_by_gets_until_another_status_comes():
    walk = Walk()
    pauses = [walk.step(202) for _ in range(12)]
    assert walk.course.method == "GET"
    assert pauses[:4] == pytest.approx([0.2, 0.3, 0.45, 0.675])
    assert max(pauses) == pauses[-1] == 5.0


@pytest.mark.parametrize("status", [500, 503, *FINAL])
def test_while_polling_a_failure_of_the_service_ends_the_course(status):
    walk = Walk()
    walk.step(202)
    if status == 404:
        assert walk.step(404) == 0.0
        walk.step(202)
    with pytest.raises(ResponseInvalid, match=f"error: {status}"):
        walk.step(status)


@pytest.mark.parametrize("said", [429, 408, GONE])
def test_while_polling_what_says_nothing_about_the_batch_is_polled_again(said):
    walk = Walk(max_batch_retries=0)
    walk.step(202)
    for _ in range(5):
        walk.step(said)
    assert walk.course.method == "GET"


def test_a_service_that_lost_a_batch_gets_it_again_once():
    walk = Walk()
    walk.step(202)
    assert walk.step(404) == 0.0
    assert walk.course.method == "POST"
    walk.step(202)
    assert walk.course.method == "GET"


@pytest.mark.parametrize(
    ("retries", "posts"),
    [(0, 1), (1, 2), (3, 4)],
)
def test_max_batch_retries_counts_what_comes_after_the_first_post(retries, posts):
    pauses, reason = Walk(max_batch_retries=retries).until_end(503)
    assert len(pauses) == posts - 1
    assert f"503; after {retries} retries" in reason


@pytest.mark.parametrize("said", [503, GONE])
def test_pauses_grow_to_twenty_seconds_and_end_with_the_time(said):
    walk = Walk(CallerOptions(retry_timeout_s=600))
    pauses, reason = walk.until_end(said)
    assert all(pause <= min(0.2 * 2**at, 20.0) for at, pause in enumerate(pauses))
    assert 550 < walk.clock.monotonic() <= 600
    assert "no answer in time" in reason


def test_a_service_that_was_never_connected_is_given_up_after_a_minute():
    for error in (UNREACHABLE, ConnectTimeout(host="h:1", reason="Timeout was reached")):
        walk = Walk()
        _, reason = walk.until_end(error)
        assert 50 < walk.clock.monotonic() <= 60
        assert "no answer in time" in reason


@pytest.mark.parametrize("earlier", [503, GONE])
def test_a_service_that_was_connected_has_the_whole_time_to_come_back(earlier):
    walk = Walk()
    walk.step(earlier)
    walk.until_end(UNREACHABLE)
    assert walk.clock.monotonic() > 550
    walk = Walk(was_connected=True)
    walk.until_end(UNREACHABLE)
    assert walk.clock.monotonic() > 550
    walk = Walk(batch_timeout_s=300)
    walk.until_end(UNREACHABLE)
    assert walk.clock.monotonic() > 250


def test_pauses_of_many_callers_differ():
    pauses = {Walk().step(503) for _ in range(50)}
    assert len(pauses) > 40
    assert max(pauses) <= 0.2


@pytest.mark.parametrize("seconds", [0.1, 1.0, 7.0, 60.0])
def test_the_time_of_the_clause_covers_retries_and_polls(seconds):
    for said in (503, 202):
        walk = Walk(batch_timeout_s=seconds)
        walk.until_end(said)
        assert walk.clock.monotonic() <= seconds
    walk = Walk(batch_timeout_s=seconds)
    walk.step(503)
    walk.until_end(202)
    assert walk.clock.monotonic() <= seconds


def test_without_the_clause_polls_have_a_time_of_their_own():
    walk = Walk(CallerOptions(retry_timeout_s=10, poll_timeout_s=100))
    walk.clock.advance(9)
    walk.until_end(202)
    assert 100 < walk.clock.monotonic() <= 109


def test_a_batch_that_is_sent_again_has_no_more_time_to_be_polled():
    walk = Walk(CallerOptions(poll_timeout_s=100))
    walk.step(202)
    walk.clock.advance(90)
    walk.step(404)
    walk.until_end(202)
    assert walk.clock.monotonic() <= 101


def test_what_the_service_asks_for_is_waited():
    walk = Walk()
    assert walk.step(429, 7.0) == 7.0
    assert walk.step(503, 45.0) == 45.0
    assert walk.step(202, 9.0) == 9.0


def test_zero_seconds_are_no_wish():
    assert Walk().step(202, 0.0) == 0.2


def test_more_than_is_left_is_not_waited_for():
    walk = Walk(batch_timeout_s=30.0)
    with pytest.raises(
        ResponseInvalid, match="its Retry-After of 60 s exceeds the 30 s that are left"
    ):
        walk.step(429, 60.0)


def test_time_given_back_counts_for_nothing():
    walk = Walk(batch_timeout_s=10.0)
    walk.step(202)
    walk.clock.advance(100)
    walk.course.extend_deadline(100)
    assert walk.step(202) > 0


def test_time_left_is_that_of_the_batch_or_of_its_polls():
    walk = Walk(CallerOptions(retry_timeout_s=10, poll_timeout_s=100))
    assert walk.course.remaining_s == 10
    walk.step(202)
    assert walk.course.remaining_s == pytest.approx(99.8)
    walk.clock.advance(1000)
    assert 0 < walk.course.remaining_s < 1


def test_what_is_not_trusted_is_not_asked_again():
    error = TlsUntrusted(host="h:1", reason="its certificate is not trusted: expired")
    with pytest.raises(ResponseInvalid, match="not trusted"):
        Walk().step(error)


def test_a_last_attempt_without_time_does_not_hide_what_the_service_said():
    late = CallTimeout(host="h:1", reason="Timeout was reached")
    walk = Walk(batch_timeout_s=10.0)
    walk.step(503)
    walk.clock.advance(9.99)
    with pytest.raises(ResponseInvalid, match="remote service error: 503; no answer in time"):
        walk.step(late)
    walk = Walk(batch_timeout_s=10.0)
    walk.step(503)
    assert "Timeout was reached" in walk.until_end(late)[1]


def test_errors_are_worded_as_people_know_them():
    known = [
        (GONE, "Error: Remote service cannot be reached. Check the endpoint URL and try again"),
        (CallTimeout(host="h:1", reason="Timeout was reached"), "Error: Timeout was reached"),
        (503, "with remote service error: 503"),
        (202, "Error: Timeout was reached"),
    ]
    for said, text in known:
        _, reason = Walk(batch_timeout_s=1.0).until_end(said)
        assert reason.startswith("Request failed for external function f")
        assert text in reason


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("", None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 2026 00:00:20 GMT", 20.0),
        ("Thu, 01 Jan 2026 01:00:20 +0100", 20.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("Thursday, 01-Jan-26 00:00:20 GMT", 20.0),
        ("Thu Jan  1 00:00:20 2026", 20.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e9999", None),
        ("Thu, 99 Jan 2026 00:00:20 GMT", None),
    ],
)
def test_a_wish_is_seconds_or_a_date(said, seconds):
    assert parse_retry_after({"retry-after": said} if said else {}, NOW) == seconds
