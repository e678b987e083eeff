"""Every store behaves the same: local folders and whatever obstore speaks to."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import obstore.store
import pytest

from snowmelt.errors import AlreadyExists, ObjectChanged, ObjectMissing, PathRefused
from snowmelt.storage.local_store import LocalObject, LocalStore
from snowmelt.storage.remote_store import RemoteObject, RemoteStore
from snowmelt.storage.store import ObjectInfo

ODD_NAME = "a b/ü+%20#?&=é~[1]{x}.b'd\"c"


@pytest.fixture(params=["local", "memory", "obstore-file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore | RemoteStore:
    match request.param:
        case "local":
            return LocalStore(tmp_path / "stage")
        case "memory":
            return RemoteStore("memory:///", obstore.store.MemoryStore())
        case _:
            return RemoteStore("x:///", obstore.store.LocalStore(tmp_path / "s", mkdir=True))


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_what_was_put_is_got_back(
    store: LocalStore | RemoteStore,
    data: bytes,
    form: type[bytearray] | type[bytes] | type[memoryview[Any]],
) -> None:
    store.put("2026/1/a.bdec", form(data))
    assert store.get("2026/1/a.bdec") == data
    assert cast("ObjectInfo", store.head("2026/1/a.bdec")).size == len(data)


@pytest.mark.parametrize(
    ("most", "expected"), [(4, b"0123"), (10, b"0123456789"), (99, b"0123456789")]
)
def test_the_beginning_is_read_with_what_is_known_of_the_whole(
    store: LocalStore | RemoteStore, most: int, expected: bytes
) -> None:
    store.put("a/b", b"0123456789")
    info, beginning = store.read_prefix("a/b", most)
    assert (beginning, info) == (expected, store.head("a/b"))
    store.put("empty", b"")
    info, beginning = store.read_prefix("empty", most)
    assert (beginning, info.size) == (b"", 0)
    with pytest.raises(ObjectMissing):
        store.read_prefix("none", most)


def test_put_replaces_the_whole_object(store: LocalStore | RemoteStore) -> None:
    store.put("a", b"a longer text")
    before = store.head("a")
    store.put("a", b"short")
    assert store.get("a") == b"short"
    assert before is not None
    assert cast("ObjectInfo", store.head("a")).etag != before.etag


def test_create_only_keeps_the_older_object(store: LocalStore | RemoteStore) -> None:
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
def test_a_range_ends_where_the_object_ends(
    store: LocalStore | RemoteStore, offset: int, length: int, expected: bytes
) -> None:
    store.put("a", b"0123456789")
    assert store.get_range("a", offset, length) == expected


def test_a_negative_range_is_refused(store: LocalStore | RemoteStore) -> None:
    store.put("a", b"0123456789")
    with pytest.raises(ValueError, match="negative"):
        store.get_range("a", -1, 4)


def test_a_missing_object_is_named(store: LocalStore | RemoteStore) -> None:
    with pytest.raises(ObjectMissing, match="no/such"):
        store.get("no/such")
    for length in (0, 4):
        with pytest.raises(ObjectMissing, match="no/such"):
            store.get_range("no/such", 0, length)
    assert store.head("no/such") is None


def test_deleting_twice_is_fine(store: LocalStore | RemoteStore) -> None:
    store.put("a/b/c", b"x")
    store.delete("a/b/c")
    store.delete("a/b/c")
    assert store.head("a/b/c") is None
    assert list(store.list()) == []


def test_list_goes_by_folders(store: LocalStore | RemoteStore) -> None:
    for path in ("ab/1", "a/2", "a/b/3", "4"):
        store.put(path, path.encode())
    assert {info.path for info in store.list()} == {"ab/1", "a/2", "a/b/3", "4"}
    assert {info.path for info in store.list("a")} == {"a/2", "a/b/3"}
    assert {info.path for info in store.list("a/")} == {"a/2", "a/b/3"}
    assert list(store.list("nothing")) == []
    assert {info.size for info in store.list("a/b")} == {5}


def test_times_are_aware_and_recent(store: LocalStore | RemoteStore) -> None:
    store.put("a", b"x")
    changed = cast("ObjectInfo", store.head("a")).modified_at
    assert abs(changed - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert changed.utcoffset() == dt.timedelta(0)


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\\b", "\ud800", "a/.put-1"],
)
def test_a_path_that_leads_elsewhere_is_refused(store: LocalStore | RemoteStore, path: str) -> None:
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
def test_a_path_that_is_too_long_is_refused(store: LocalStore | RemoteStore, path: str) -> None:
    with pytest.raises(PathRefused):
        store.put(path, b"x")


def test_odd_names_survive(store: LocalStore | RemoteStore) -> None:
    if "x:///" in store.url:
        pytest.skip("obstore's local store encodes some characters in file names")
    store.put(ODD_NAME, b"x")
    assert [info.path for info in store.list()] == [ODD_NAME]
    assert store.get(ODD_NAME) == b"x"


def test_sync_and_sweep_leave_objects_alone(store: LocalStore | RemoteStore) -> None:
    store.put("a", b"x")
    store.sync()
    assert store.delete_partial_writes(dt.datetime.now(dt.UTC) + dt.timedelta(days=1)) == 0
    assert store.get("a") == b"x"


# --- open, writer, copy, scan


def read_all(opened: LocalObject | RemoteObject) -> bytes:
    return b"".join(opened.read_blocks())


def test_an_open_object_is_read_at_random(store: LocalStore | RemoteStore) -> None:
    data = bytes(range(256)) * 8000
    store.put("a/b", data)
    with contextlib.closing(store.open("a/b")) as opened:
        assert (opened.size, opened.name) == (len(data), "a/b")
        assert opened is not None
        assert opened.etag == cast("ObjectInfo", store.head("a/b")).etag
        for offset, length in [(0, 10), (700_001, 3), (len(data) - 5, 100), (len(data), 4)]:
            buffer = bytearray(length)
            count = opened.read_into(offset, memoryview(buffer))
            assert bytes(buffer[:count]) == data[offset : offset + length]
        assert read_all(opened) == data
        assert b"".join(opened.read_blocks(5, 1_000_000)) == data[5:1_000_000]
        assert list(opened.read_blocks(7, 7)) == []
    with pytest.raises(ObjectMissing):
        store.open("a/none")


def test_an_open_object_never_mixes_two_versions(store: LocalStore | RemoteStore) -> None:
    store.put("a", b"x" * 100_000)
    opened = store.open("a")
    store.put("a", b"y" * 100_001)
    buffer = bytearray(10)
    try:
        opened.read_into(99_990, memoryview(buffer))
        assert buffer == b"x" * 10
        assert read_all(opened) == b"x" * 100_000
    except ObjectChanged:
        with pytest.raises(ObjectChanged):
            read_all(opened)
    store.delete("a")
    opened.close()
    opened.close()


@pytest.mark.parametrize("size", [0, 1, 9_000_000])
def test_a_writer_shows_nothing_before_it_finishes(
    store: LocalStore | RemoteStore, size: int
) -> None:
    store.put("f/a", b"old")
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    writer = store.open_writer("f/a")
    for start in range(0, size, 1_000_000):
        writer.write(memoryview(data)[start : start + 1_000_000])
    assert store.get("f/a") == b"old"
    assert [info.path for info in store.list()] == ["f/a"]
    info = writer.finish()
    writer.abort()
    assert info is not None
    assert (info.path, info.size, info.etag) == (
        "f/a",
        size,
        cast("ObjectInfo", store.head("f/a")).etag,
    )
    assert store.get("f/a") == data


def test_an_aborted_writer_leaves_nothing(store: LocalStore | RemoteStore) -> None:
    writer = store.open_writer("new/a")
    writer.write(b"x" * 10_000_000)
    writer.abort()
    writer.abort()
    assert list(store.list()) == []


def test_a_writer_may_create_only(store: LocalStore | RemoteStore) -> None:
    first, second = store.open_writer("a"), store.open_writer("a")
    first.write(b"first")
    second.write(b"second")
    first.finish(create_only=True)
    with pytest.raises(AlreadyExists):
        second.finish(create_only=True)
    second.abort()
    assert store.get("a") == b"first"
    assert [info.path for info in store.list()] == ["a"]


def test_a_writer_takes_in_parts_of_other_objects(
    store: LocalStore | RemoteStore, tmp_path: Path
) -> None:
    store.put("one", b"0123456789" * 100_000)
    other = LocalStore(tmp_path / "other")
    other.put("two", b"abc")
    writer = store.open_writer("all")
    for opened, start, end in [
        (store.open("one"), 3, 900_000),
        (other.open("two"), 0, None),
        (store.open("one"), 999_999, None),
    ]:
        with contextlib.closing(opened):
            writer.append(opened, start, end)
    writer.finish()
    expected = (b"0123456789" * 100_000)[3:900_000] + b"abc9"
    assert store.get("all") == expected


def test_a_copy_is_of_its_own(store: LocalStore | RemoteStore) -> None:
    store.put("a/b", b"text")
    store.copy("a/b", "c/d/e")
    store.delete("a/b")
    assert store.get("c/d/e") == b"text"
    with pytest.raises(ObjectMissing):
        store.copy("a/b", "x")


def entries(found: Iterator[ObjectInfo | str]) -> list[str]:
    return [each if isinstance(each, str) else each.path for each in found]


def model_scan(keys: list[str], prefix: str, after: str, delimiter: str) -> list[str]:
    seen: list[str] = []
    for key in sorted(key for key in keys if key.startswith(prefix) and key > after):
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        entry = key if at < 0 else key[: at + len(delimiter)]
        if entry != after and entry not in seen:
            seen.append(entry)
    return seen


SCANNED = ("a", "a.b", "a/b", "a/b.c", "ab/1", "ab/2/3", "ab/2/4", "b/ä/1", "b/z", "b0", "ü/x")
PREFIXES = ("", "a", "a/", "a/b", "ab/2/", "b/", "b/ä", "c", "../", "/", "a//", "ü")
AFTERS = ("", "a", "a/", "a/b", "ab/", "ab/2/3", "ab/2/", "b", "zz", "a//b", "ü/x")


@pytest.mark.parametrize("delimiter", ["", "/", "b", "/b"])
def test_a_scan_is_in_the_order_of_bytes(store: LocalStore | RemoteStore, delimiter: str) -> None:
    keys = [key for key in SCANNED if key != "a"]  # a folder and an object cannot share a name
    for key in keys:
        store.put(key, b"x")
    for prefix in PREFIXES:
        for after in AFTERS:
            found = entries(store.list_ordered(prefix, after=after, delimiter=delimiter))
            assert found == model_scan(keys, prefix, after, delimiter), (prefix, after)


def test_attributes_come_back_where_a_store_keeps_them() -> None:
    store = RemoteStore("memory:///", obstore.store.MemoryStore())
    writer = store.open_writer("a")
    writer.write(b"x")
    writer.finish(attributes={"Content-Type": "text/csv", "color": "blue"})
    assert store.open("a").attributes == {"Content-Type": "text/csv", "color": "blue"}
