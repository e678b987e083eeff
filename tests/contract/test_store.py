"""Every store behaves the same: local folders and whatever obstore speaks to."""

from __future__ import annotations

import datetime as dt

import obstore.store
import pytest

from snowmelt.errors import AlreadyExists, ObjectMissing, PathRefused
from snowmelt.storage.local import LocalStore
from snowmelt.storage.remote import RemoteStore

ODD_NAME = "a b/ü+%20#?&=é~[1]{x}.b'd\"c"


@pytest.fixture(params=["local", "memory", "obstore-file"])
def store(request, tmp_path):
    match request.param:
        case "local":
            return LocalStore(tmp_path / "stage")
        case "memory":
            return RemoteStore("memory:///", obstore.store.MemoryStore())
        case _:
            return RemoteStore("x:///", obstore.store.LocalStore(tmp_path / "s", mkdir=True))


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_what_was_put_is_got_back(store, data, form):
    store.put("2026/1/a.bdec", form(data))
    assert store.get("2026/1/a.bdec") == data
    assert store.head("2026/1/a.bdec").size == len(data)


def test_put_replaces_the_whole_object(store):
    store.put("a", b"a longer text")
    before = store.head("a")
    store.put("a", b"short")
    assert store.get("a") == b"short"
    assert store.head("a").etag != before.etag


def test_create_only_keeps_the_older_object(store):
    store.put("a/b", b"first", create_only=True)
    with pytest.raises(AlreadyExists):
        store.put("a/b", b"second", create_only=True)
    assert store.get("a/b") == b"first"
    assert [info.path for info in store.list()] == ["a/b"]


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 10, b"0123456789"),
        (3, 4, b"3456"),
        (8, 10, b"89"),
        (10, 1, b""),
        (99, 5, b""),
        (2, 0, b""),
        (0, 2**60, b"0123456789"),
    ],
)
def test_a_range_ends_where_the_object_ends(store, offset, length, expected):
    store.put("a", b"0123456789")
    assert store.get_range("a", offset, length) == expected


def test_a_negative_range_is_refused(store):
    store.put("a", b"0123456789")
    with pytest.raises(ValueError, match="negative"):
        store.get_range("a", -1, 4)


def test_a_missing_object_is_named(store):
    with pytest.raises(ObjectMissing, match="no/such"):
        store.get("no/such")
    for length in (0, 4):
        with pytest.raises(ObjectMissing, match="no/such"):
            store.get_range("no/such", 0, length)
    assert store.head("no/such") is None


def test_deleting_twice_is_fine(store):
    store.put("a/b/c", b"x")
    store.delete("a/b/c")
    store.delete("a/b/c")
    assert store.head("a/b/c") is None
    assert list(store.list()) == []


def test_list_goes_by_folders(store):
    for path in ("ab/1", "a/2", "a/b/3", "4"):
        store.put(path, path.encode())
    assert {info.path for info in store.list()} == {"ab/1", "a/2", "a/b/3", "4"}
    assert {info.path for info in store.list("a")} == {"a/2", "a/b/3"}
    assert {info.path for info in store.list("a/")} == {"a/2", "a/b/3"}
    assert list(store.list("nothing")) == []
    assert {info.size for info in store.list("a/b")} == {5}


def test_times_are_aware_and_recent(store):
    store.put("a", b"x")
    changed = store.head("a").modified_at
    assert abs(changed - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert changed.utcoffset() == dt.timedelta(0)


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\\b", "\ud800", "a/.put-1"],
)
def test_a_path_that_leads_elsewhere_is_refused(store, path):
    for operation in (
        store.get,
        store.head,
        store.delete,
        lambda path: store.put(path, b"x"),
        lambda path: store.get_range(path, 0, 1),
    ):
        with pytest.raises(PathRefused):
            operation(path)


@pytest.mark.parametrize("path", ["x" * 256, "a/" * 600 + "b"])
def test_a_path_that_is_too_long_is_refused(store, path):
    with pytest.raises(PathRefused):
        store.put(path, b"x")


def test_odd_names_survive(store):
    if "x:///" in store.url:
        pytest.skip("obstore's local store encodes some characters in file names")
    store.put(ODD_NAME, b"x")
    assert [info.path for info in store.list()] == [ODD_NAME]
    assert store.get(ODD_NAME) == b"x"


def test_sync_and_sweep_leave_objects_alone(store):
    store.put("a", b"x")
    store.sync()
    assert store.sweep(dt.datetime.now(dt.UTC) + dt.timedelta(days=1)) == 0
    assert store.get("a") == b"x"
