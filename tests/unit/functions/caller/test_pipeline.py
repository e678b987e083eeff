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
    assert not taken.is_confirmed
    taken.update_after_array()
    assert (taken.is_confirmed, taken.max_batches) == (True, 4)


def test_the_first_array_can_be_read_when_the_second_was_taken():
    read = demand(0)
    read.update_after_array()
    assert not read.is_confirmed
    read.update_after_array()
    assert read.max_batches == 4


def test_who_has_read_much_wants_more():
    read = demand(0)
    for _ in range(65):
        assert not read.is_confirmed
        read.update_after_array()
    assert (read.is_confirmed, read.max_batches) == (True, 4)


def test_what_is_not_read_counts_as_in_flight():
    behind = demand(0, *[400] * 4, *[800] * 4, 0, *[400] * 4)
    allowed = []
    for _ in range(6):
        behind.update_after_array()
        allowed.append(behind.max_batches)
    assert allowed == [4, 4, 3, 2, 4, 3]


def test_who_reads_in_a_moment_is_waited_for():
    soon = demand(0, 400, 400, 0)
    for _ in range(3):
        soon.update_after_array()
    assert soon.max_batches == 4


def test_a_slow_reader_is_waited_for_until_it_reads_or_closes():
    for end, allowed in ((0, 4), ("closed", 1)):
        slow = demand(900, 900, 900, end)
        slow.update_after_array()
        slow.update_after_array()
        assert slow.max_batches == allowed


def test_a_reader_that_nothing_is_known_of_is_waited_for_for_a_moment():
    unknown = demand(None, "closed")
    unknown.update_after_array()
    unknown.update_after_array()
    assert unknown.max_batches == 4


def test_a_reader_that_is_busy_holds_calls_up_for_a_second_at_most():
    clock = function_calls.clock()
    before = clock.monotonic()
    busy = Demand(4, clock, Connection([900]))
    for _ in range(65):
        busy.update_after_array()
    assert (busy.is_confirmed, busy.max_batches) == (True, 4)
    assert clock.monotonic() - before < 1.1


def test_a_reader_that_goes_later_is_noticed():
    leaving = demand(0, "closed")
    for _ in range(3):
        leaving.update_after_array()
    assert (leaving.is_confirmed, leaving.max_batches) == (False, 1)
