"""No more is asked for than one batch beyond those in flight, until somebody wants more values."""

from __future__ import annotations

from dataclasses import dataclass, field

from snowmelt.functions.caller.pipeline import Demand
from support import function_calls


@dataclass
class Connection:
    """What a reader does, one look at a time: how many bytes are unread, "closed" for none."""

    looks: list[object] = field(default_factory=list)

    def is_open(self):
        return self.looks[0] != "closed"

    def unread_bytes(self):
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def demand(*looks):
    return Demand(4, function_calls.clock(), Connection([*looks]))


def test_who_takes_values_wants_more_when_asking_for_more():
    taken = Demand(4, function_calls.clock(), None)
    assert not taken.is_sure
    taken.gave()
    assert (taken.is_sure, taken.allowed) == (True, 4)


def test_the_first_array_can_be_read_when_the_second_was_taken():
    read = demand(0)
    read.gave()
    assert not read.is_sure
    read.gave()
    assert read.allowed == 4


def test_who_has_read_much_wants_more():
    read = demand(0)
    for _ in range(65):
        assert not read.is_sure
        read.gave()
    assert (read.is_sure, read.allowed) == (True, 4)


def test_what_is_not_read_counts_as_in_flight():
    behind = demand(0, *[400] * 4, *[800] * 4, 0, *[400] * 4)
    allowed = []
    for _ in range(6):
        behind.gave()
        allowed.append(behind.allowed)
    assert allowed == [4, 4, 3, 2, 4, 3]


def test_who_reads_in_a_moment_is_waited_for():
    soon = demand(0, 400, 400, 0)
    for _ in range(3):
        soon.gave()
    assert soon.allowed == 4


def test_a_slow_reader_is_waited_for_until_it_reads_or_closes():
    for end, allowed in ((0, 4), ("closed", 1)):
        slow = demand(900, 900, 900, end)
        slow.gave()
        slow.gave()
        assert slow.allowed == allowed


def test_a_reader_that_nothing_is_known_of_is_waited_for_for_a_moment():
    unknown = demand(None, "closed")
    unknown.gave()
    unknown.gave()
    assert unknown.allowed == 4


def test_a_reader_that_is_busy_holds_calls_up_for_a_second_at_most():
    clock = function_calls.clock()
    before = clock.monotonic()
    busy = Demand(4, clock, Connection([900]))
    for _ in range(65):
        busy.gave()
    assert (busy.is_sure, busy.allowed) == (True, 4)
    assert clock.monotonic() - before < 1.1


def test_a_reader_that_goes_later_is_noticed():
    leaving = demand(0, "closed")
    for _ in range(3):
        leaving.gave()
    assert (leaving.is_sure, leaving.allowed) == (False, 1)
