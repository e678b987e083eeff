"""Files of rejects never replace inputs, files of Snowmelt or other existing files."""

from __future__ import annotations

import os

import pytest

from fixtures.copy import Copying
from snowmelt.errors import OutputRefused

ROWS = b"1|one\nx|two\n"


@pytest.fixture
def path(copying: Copying) -> str:
    return copying.file("a.csv", ROWS).strip("'")


@pytest.mark.parametrize("clause", ["REJECTED DATA", "EXCEPTIONS"])
@pytest.mark.parametrize("way", ["itself", "glob", "link", "hard link", "dots", "url"])
def test_a_file_that_is_loaded_is_never_replaced(
    clause: str, way: str, copying: Copying, path: str
) -> None:
    other, source = copying.folder / "other", f"'{path}'"
    if way == "link":
        other.symlink_to(path)
    elif way == "hard link":
        os.link(path, other)
    elif way == "glob":
        source = f"'{copying.folder}/*.csv'"
    output = {
        "link": other,
        "hard link": other,
        "dots": f"{copying.folder}/../{copying.folder.name}/./a.csv",
        "url": f"file://{path}",
    }.get(way, path)
    with pytest.raises(OutputRefused, match="it is an input"):
        copying.copy(f"COPY numbers FROM {source} {clause} '{output}' OVERWRITE")
    assert (copying.folder / "a.csv").read_bytes() == ROWS
    assert copying.house.read_numbers() == []
    assert copying.states() == []


def test_a_file_that_was_loaded_before_is_an_input_as_well(copying: Copying, path: str) -> None:
    copying.copy(f"COPY numbers FROM '{path}'")
    with pytest.raises(OutputRefused, match="it is an input"):
        copying.copy(f"COPY numbers FROM '{path}' REJECTED DATA '{path}' OVERWRITE")


def test_an_existing_file_is_replaced_only_with_overwrite(copying: Copying, path: str) -> None:
    kept = copying.folder / "kept"
    kept.write_text("of somebody")
    statement = f"COPY numbers FROM '{path}' FORCE REJECTED DATA '{kept}'"
    with pytest.raises(OutputRefused, match=r"already exists.*OVERWRITE"):
        copying.copy(statement)
    assert kept.read_text() == "of somebody"
    copying.copy(f"{statement} OVERWRITE")
    assert kept.read_text() == "x|two\n"


def test_an_overwritten_file_holds_the_rejects_of_this_load_alone(
    copying: Copying, path: str
) -> None:
    kept = copying.folder / "kept"
    kept.write_text("of an earlier load")
    good = copying.file("good.csv", "7|seven\n")
    copying.copy(f"COPY numbers FROM {good} REJECTED DATA '{kept}' OVERWRITE")
    assert kept.read_bytes() == b""


def test_the_warehouse_is_closed_to_rejects(copying: Copying, path: str) -> None:
    warehouse = copying.house.warehouse.url
    with pytest.raises(OutputRefused, match=r"data folder of Snowmelt\. Name a file outside"):
        copying.copy(f"COPY numbers FROM '{path}' REJECTED DATA '{warehouse}/rejects'")


def test_both_kinds_of_rejects_need_files_of_their_own(copying: Copying, path: str) -> None:
    both = copying.folder / "both"
    with pytest.raises(OutputRefused, match="same file"):
        copying.copy(f"COPY numbers FROM '{path}' REJECTED DATA '{both}' EXCEPTIONS '{both}'")
    assert not both.exists()
