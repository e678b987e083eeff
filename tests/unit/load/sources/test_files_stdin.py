"""Standard input becomes a file that tasks can read again."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import Portion
from snowmelt.load.sources.files import SpooledStdinSource


def test_it_is_read_once_and_can_be_read_again(tmp_path: Path) -> None:
    data = os.urandom(2_500_000)
    source = SpooledStdinSource(str(tmp_path), stream=io.BytesIO(data))
    (file,) = source.files()
    assert file.size == len(data)
    for offset in (0, 0, 2_000_000):
        found = b"".join(SpooledStdinSource().read(Portion(file, offset)))
        assert found == data[offset:]
    source.close()
    source.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PhaseFailed, match="No such file"):
        list(SpooledStdinSource().read(Portion(file)))


def test_no_room_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PhaseFailed, match="standard input: No such file"):
        SpooledStdinSource(f"{tmp_path}/none", stream=io.BytesIO(b"")).files()


def test_nothing_is_left_when_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import sys; from snowmelt.load.sources import definition\n"
        "files = definition('Stdin').build_phase({'spool': sys.argv[1]}).files(); print(files[0].size)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, input=b"some text", capture_output=True, check=True)
    assert done.stdout.strip() == b"9"
    assert list(tmp_path.iterdir()) == []
