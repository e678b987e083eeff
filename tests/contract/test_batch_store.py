"""What the service kit may rely on, whichever store remembers its batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.service import Known, MemoryStore, SqliteStore

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(params=["memory", "sqlite"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[MemoryStore | SqliteStore]:
    if request.param == "memory":
        opened: MemoryStore | SqliteStore = MemoryStore(10_000, clock=clock)
    else:
        opened = SqliteStore(tmp_path / "batches.db", clock=clock, lease_s=15, max_bytes=9_000)
    yield opened
    opened.close()


def test_a_batch_is_claimed_once(store: MemoryStore) -> None:
    assert store.find("f/1") is None
    assert store.begin("f/1", b"x") is None
    assert store.begin("f/1", b"x") == Known(b"x")
    assert store.find("f/1") == Known(b"x")


def test_an_answer_is_repeated_until_its_time_is_over(
    store: MemoryStore, clock: ManualClock
) -> None:
    store.begin("f/1", b"x")
    store.finish("f/1", Known(b"x", 200, b"reply"), keep_s=60)
    assert store.begin("f/1", b"x") == Known(b"x", 200, b"reply")
    clock.advance(61)
    assert store.find("f/1") is None
    assert store.begin("f/1", b"y") is None


def test_a_refusal_is_repeated_and_a_failure_is_tried_again(store: MemoryStore) -> None:
    store.begin("f/1", b"x")
    store.finish("f/1", Known(b"x", 400, b"no"), keep_s=60)
    assert cast("Known", store.begin("f/1", b"x")).status == 400
    store.begin("f/2", b"x")
    store.finish("f/2", Known(b"x", 500, b"oh"), keep_s=60)
    assert cast("Known", store.find("f/2")).status == 500
    assert store.begin("f/2", b"x") is None


def test_a_released_batch_is_as_if_it_never_came(store: MemoryStore) -> None:
    store.begin("f/1", b"x")
    store.release("f/1")
    assert store.find("f/1") is None


def test_old_answers_make_room(store: MemoryStore) -> None:
    for at in range(600):
        store.begin(f"f/{at}", b"x")
        store.finish(f"f/{at}", Known(b"x", 200, b"r" * 1000), keep_s=60 + at)
    assert store.find("f/0") is None
    assert store.find("f/599") is not None


def test_bodies_are_told_apart(store: MemoryStore) -> None:
    assert store.fingerprint(b"a") == store.fingerprint(b"a") != store.fingerprint(b"b")


def test_work_that_a_killed_process_left_is_done_again(tmp_path: Path, clock: ManualClock) -> None:
    killed = SqliteStore(tmp_path / "batches.db", clock=clock, lease_s=15)
    assert killed.begin("f/1", b"x") is None
    assert killed.begin("f/2", b"x") is None
    other = SqliteStore(tmp_path / "batches.db", clock=clock, lease_s=15)
    clock.advance(10)
    killed.renew(["f/2"])
    clock.advance(10)
    assert other.begin("f/1", b"x") is None
    assert other.begin("f/2", b"x") == Known(b"x")
    killed.close()
    other.close()


def test_an_answer_outlives_its_process(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "batches.db")
    first.begin("f/1", b"x")
    first.finish("f/1", Known(b"x", 200, b"reply"), keep_s=60)
    first.close()
    second = SqliteStore(tmp_path / "batches.db")
    assert second.find("f/1") == Known(b"x", 200, b"reply")
    second.close()
