"""Files that the processes of a machine share are private, and their locks die with processes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from snowmelt.errors import ConfigurationError
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    SharedFile,
    ensure_private_folder,
    make_shared_file_name,
)

_TWO = struct.Struct("=dd")
_HOLDER = """
import sys, time
from pathlib import Path
from snowmelt.functions.caller.rate_and_concurrency_limits import SharedFile
file = SharedFile(Path(sys.argv[1]))
print(file.try_lock_slot(3), flush=True)
time.sleep(60)
"""


def test_the_folder_is_made_for_its_user_alone(tmp_path):
    folder = ensure_private_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert ensure_private_folder(tmp_path) == folder


def test_a_folder_that_others_can_open_is_refused(tmp_path):
    ensure_private_folder(tmp_path).chmod(0o755)
    with pytest.raises(ConfigurationError, match="only this user"):
        ensure_private_folder(tmp_path)


def test_a_link_to_a_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"snowmelt-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="only this user"):
        ensure_private_folder(tmp_path)


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path):
    (tmp_path / "pace").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        SharedFile(tmp_path / "pace")
    assert not (tmp_path / "target").exists()


def test_names_tell_keys_apart_and_hold_nothing_of_them():
    assert make_shared_file_name("pace", "a", "b") == make_shared_file_name("pace", "a", "b")
    assert (
        len(
            {
                make_shared_file_name("pace", "a", "b"),
                make_shared_file_name("pace", "ab"),
                make_shared_file_name("pace", "a"),
            }
        )
        == 3
    )
    assert "secret" not in make_shared_file_name("pace", "secret")


def test_numbers_that_nobody_wrote_are_zeros(tmp_path):
    file = SharedFile(tmp_path / "numbers")
    assert file.read_numbers(_TWO, 64) == (0.0, 0.0)
    file.write_numbers(_TWO, 1.5, -2.0, offset_bytes=64)
    assert SharedFile(tmp_path / "numbers").read_numbers(_TWO, 64) == (1.5, -2.0)
    assert file.read_numbers(_TWO) == (0.0, 0.0)


_FORKING = """
import os, sys
from pathlib import Path
from snowmelt.functions.caller.rate_and_concurrency_limits import SharedFile
file = SharedFile(Path(sys.argv[1]))
assert file.try_lock_slot(0)
if os.fork() == 0:
    assert not file.try_lock_slot(0)  # the parent's
    assert file.try_lock_slot(1)
    os._exit(0)
assert os.wait()[1] == 0
assert file.try_lock_slot(1)  # the child's died with it
print(file.try_lock_slot(0))
"""


@pytest.mark.slow
def test_a_fork_has_no_part_in_its_parent_s_slots(tmp_path):
    command = [sys.executable, "-c", _FORKING, tmp_path / "slots"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"True\n"


@pytest.mark.slow
def test_a_slot_of_a_killed_process_is_free_at_once(tmp_path):
    path = tmp_path / "slots"
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"True\n"
        file = SharedFile(path)
        assert not file.try_lock_slot(3)
        assert file.try_lock_slot(4)
        holder.kill()
        holder.wait()
    assert file.try_lock_slot(3)
