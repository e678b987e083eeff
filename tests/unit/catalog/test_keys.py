from __future__ import annotations

import threading

import pytest

from snowmelt.catalog.keys import MASTER_KEY_FILE, load_master_key
from snowmelt.errors import ConfigurationError


def test_the_master_key_is_made_once_and_only_for_its_owner(tmp_path):
    folder = tmp_path / "deep" / "keys"
    key = load_master_key(folder)
    assert len(key) == 32
    assert load_master_key(folder) == key
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / MASTER_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == [MASTER_KEY_FILE]


def test_all_that_make_it_at_once_get_the_same(tmp_path):
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
def test_a_key_that_others_may_read_is_refused(tmp_path, which):
    folder = tmp_path / "keys"
    load_master_key(folder)
    (folder / which).chmod(0o755)
    with pytest.raises(ConfigurationError, match="others may read"):
        load_master_key(folder)


def test_a_damaged_key_is_refused(tmp_path):
    folder = tmp_path / "keys"
    load_master_key(folder)
    (folder / MASTER_KEY_FILE).write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="5 bytes"):
        load_master_key(folder)
