"""Objects of a store are found as files are, and a replaced one is noticed."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from snowmelt.errors import ObjectChanged, PhaseFailed
from snowmelt.load.portion import Portion
from snowmelt.load.sources.files import (
    list_files,
    list_store_files,
    read_from_store,
)
from snowmelt.storage.remote_store import RemoteStore

ROOT = "memory://bucket"


@pytest.fixture
def store() -> RemoteStore:
    made = RemoteStore(ROOT, MemoryStore())
    for path in [
        "a.csv",
        "in/b.csv",
        "in/c.csv",
        "in/.d.csv",
        "in/deep/e.csv",
        "in/.deep/f.csv",
        "in/g.txt",
    ]:
        made.put(path, path.encode())
    return made


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a.csv", ["a.csv"]),
        ("in/*.csv", ["in/b.csv", "in/c.csv"]),
        ("in/[!b].*", ["in/c.csv", "in/g.txt"]),
        ("**/*.csv", ["a.csv", "in/b.csv", "in/c.csv", "in/deep/e.csv"]),
        ("in/**", ["in/b.csv", "in/c.csv", "in/deep/e.csv", "in/g.txt"]),
        ("in/.*", ["in/.d.csv"]),
        ("*/deep/?.csv", ["in/deep/e.csv"]),
        ("none", []),
        ("none/*", []),
    ],
)
def test_keys_and_globs_lead_to_objects(store: RemoteStore, key: str, found: list[str]) -> None:
    assert [file.path for file in list_store_files(store, ROOT, key)] == [
        f"{ROOT}/{path}" for path in found
    ]


def test_a_listing_continues_after_a_name(store: RemoteStore) -> None:
    def list_after(after: str) -> list[str]:
        found = list_store_files(store, ROOT, "in/**/*.csv", after)
        return [file.path.removeprefix(f"{ROOT}/") for file in found]

    assert list_after("") == ["in/b.csv", "in/c.csv", "in/deep/e.csv"]
    assert list_after("in/b.csv") == ["in/c.csv", "in/deep/e.csv"]
    store.put("in/d.csv", b"d")
    assert list_after("in/c.csv") == ["in/d.csv", "in/deep/e.csv"]
    assert list_after("in/z.csv") == []


def test_portions_are_read_and_replaced_objects_noticed(store: RemoteStore) -> None:
    (file,) = list_store_files(store, ROOT, "a.csv")
    assert (file.size, b"".join(read_from_store(store, "a.csv", Portion(file, 2)))) == (5, b"csv")
    store.put("a.csv", b"A.CSV")
    with pytest.raises(ObjectChanged):
        list(read_from_store(store, "a.csv", Portion(file)))


def test_a_store_that_cannot_be_is_an_error_with_its_address() -> None:
    with pytest.raises(PhaseFailed, match="unheard://of/a"):
        list_files("unheard://of/a")
    with pytest.raises(PhaseFailed, match=r"has no object key\. .* s3://bucket/\*"):
        list_files("s3://bucket")
