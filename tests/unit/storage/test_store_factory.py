"""A URL or a path leads to its store, from another process too."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.errors import ConfigurationError, MissingExtra
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.remote_store import RemoteStore
from snowmelt.storage.store_factory import open_store


@pytest.mark.parametrize("name", ["stage", "with blank", "ü%20#x"])
def test_a_local_store_is_found_again_by_its_url(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path / name)
    assert isinstance(store, LocalStore)
    store.put("a", b"x")
    assert open_store(store.url).get("a") == b"x"
    assert open_store(str(tmp_path / name)).get("a") == b"x"


def test_remote_urls_lead_to_obstore() -> None:
    store = open_store("s3://bucket/some/prefix")
    assert isinstance(store, RemoteStore)
    assert store.url == "s3://bucket/some/prefix"


@pytest.mark.parametrize("url", ["file://elsewhere/folder", "ftp://host/x", "nonsense://x"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=url):
        open_store(url)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "snowmelt.storage.remote_store", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"snowmelt\[server\]"):
        open_store("s3://bucket/x")
