from __future__ import annotations

import base64
import contextlib
import secrets
import threading
from pathlib import Path

import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import (
    MASTER_KEY_FILE,
    is_catalog_master_key,
    load_master_key,
    open_or_create_keyring,
)
from snowmelt.errors import ConfigurationError


def test_the_master_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "keys"
    key = load_master_key(folder)
    assert len(key) == 32
    assert load_master_key(folder) == key
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / MASTER_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == [MASTER_KEY_FILE]


def test_all_that_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    keys = []
    threads = [
        threading.Thread(target=lambda: keys.append(load_master_key(tmp_path / "keys")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.parametrize("which", [".", MASTER_KEY_FILE])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "keys"
    load_master_key(folder)
    (folder / which).chmod(0o755)
    with pytest.raises(ConfigurationError, match="other users can access"):
        load_master_key(folder)


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    load_master_key(folder)
    (folder / MASTER_KEY_FILE).write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="5 bytes"):
        load_master_key(folder)


def test_a_key_may_be_a_file_of_its_own_in_bytes_or_base64(tmp_path: Path) -> None:
    key = secrets.token_bytes(32)
    for number, content in enumerate((key, base64.b64encode(key) + b"\n")):
        path = tmp_path / f"secret{number}"
        path.write_bytes(content)
        path.chmod(0o440)
        assert load_master_key(path) == key


def test_a_catalog_has_one_master_key(tmp_path: Path) -> None:
    with contextlib.closing(open_and_upgrade_database(str(tmp_path / "catalog.db"))) as database:
        open_or_create_keyring(database, tmp_path / "keys")
        open_or_create_keyring(database, tmp_path / "keys")
        with pytest.raises(ConfigurationError, match="copy it from where another service"):
            open_or_create_keyring(database, tmp_path / "other")
        assert not (tmp_path / "other").exists()
        load_master_key(tmp_path / "other")
        with pytest.raises(ConfigurationError, match="another master key"):
            open_or_create_keyring(database, tmp_path / "other")
        assert not is_catalog_master_key(database, tmp_path / "other")
        assert is_catalog_master_key(database, tmp_path / "keys")
