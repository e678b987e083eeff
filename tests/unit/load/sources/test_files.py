"""Files are found by path and glob, read from anywhere, and a changed one is noticed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.sources import definition
from snowmelt.load.sources.files import FileGlobSource, list_files
from support.phases import built

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in [
        "a.csv",
        "b.csv",
        "c.txt",
        ".hidden.csv",
        "x[1].csv",
        "deep/down/d.csv",
        "deep/e.csv",
    ]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path


def names(folder: Path, files: Iterable[InputFile]) -> list[str]:
    return [os.path.relpath(file.path, folder) for file in files]


def joined(portion: Portion) -> bytes:
    return b"".join(FileGlobSource().read(portion))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.csv", ["a.csv"]),
        ("*.csv", ["a.csv", "b.csv", "x[1].csv"]),
        ("[!a].csv", ["b.csv"]),
        ("?.???", ["a.csv", "b.csv", "c.txt"]),
        ("**/*.csv", ["a.csv", "b.csv", "deep/down/d.csv", "deep/e.csv", "x[1].csv"]),
        (".*.csv", [".hidden.csv"]),
        ("x[1].csv", ["x[1].csv"]),
        ("*/*.csv", ["deep/e.csv"]),
    ],
)
def test_paths_and_globs_lead_to_files(folder: Path, pattern: str, found: list[str]) -> None:
    assert names(folder, list_files(f"{folder}/{pattern}")) == found
    url = Path(folder).as_uri() + "/" + pattern
    if "[" not in pattern and "?" not in pattern:
        assert names(folder, list_files(url)) == found


def test_a_file_named_twice_is_there_once_and_knows_its_size(folder: Path) -> None:
    files = FileGlobSource([f"{folder}/b.csv", f"{folder}/*.csv", f"{folder}/a.csv"]).files()
    assert names(folder, files) == ["b.csv", "a.csv", "x[1].csv"]
    assert {file.size for file in files} == {5, 8}
    assert pickle.loads(pickle.dumps(files)) == files


@pytest.mark.parametrize("pattern", ["none.csv", "*.json", "none/*.csv"])
def test_what_matches_nothing_is_an_error(folder: Path, pattern: str) -> None:
    with pytest.raises(PhaseFailed, match="no file matches"):
        list_files(f"{folder}/{pattern}")


def test_folders_pipes_and_other_hosts_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(PhaseFailed, match=r"is a folder\. .*/deep/\*"):
        list_files(f"{folder}/deep")
    with pytest.raises(PhaseFailed, match="not a regular file"):
        list_files(f"{folder}/pipe")
    with pytest.raises(PhaseFailed, match="must not have a host"):
        list_files("file://elsewhere/a.csv")
    with pytest.raises(PhaseFailed, match="no path"):
        FileGlobSource().files()
    assert "pipe" not in names(folder, list_files(f"{folder}/*"))


def test_portions_are_read_from_their_offset_to_the_end(folder: Path) -> None:
    data = os.urandom(3_000_000)
    (folder / "big").write_bytes(data)
    (file,) = list_files(f"{folder}/big")
    assert joined(Portion(file)) == data
    assert joined(Portion(file, 2_000_000, 500_000)) == data[2_000_000:]
    assert joined(Portion(file, 3_000_000, 0)) == b""


def test_a_changed_file_is_noticed_before_and_while_it_is_read(folder: Path) -> None:
    big = folder / "big"
    big.write_bytes(bytes(3_000_000))
    (file,) = list_files(str(big))
    run = FileGlobSource().read(Portion(file))
    next(run)
    big.write_bytes(bytes(3_000_001))
    with pytest.raises(PhaseFailed, match="has changed since the load began"):
        list(run)
    with pytest.raises(PhaseFailed, match=r"big has changed"):
        joined(Portion(file))


def test_a_file_that_cannot_be_read_is_listed_and_named(folder: Path) -> None:
    (file,) = list_files(f"{folder}/a.csv")
    (folder / "a.csv").unlink()
    with pytest.raises(PhaseFailed, match=r"a.csv: No such file"):
        joined(Portion(file))


def test_sources_by_name(folder: Path) -> None:
    assert names(folder, built(definition("FILE"), {"File": f"{folder}/*.txt"}).files()) == [
        "c.txt"
    ]
    assert definition("none") is None
    with pytest.raises(LoadRefused, match="missing parameter url"):
        built(definition("curl"), {})
