"""A native file is opened at each form of its address."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.table.native_file import open_native_file


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_a_local_file_is_opened_by_its_path_without_unquoting(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a%20b.parquet"
    path.write_bytes(b"rows")
    with open_native_file(form.format(path)) as file:
        assert file.read() == b"rows"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.parquet"):
        open_native_file(f"file://{tmp_path}/missing.parquet")
