"""No output replaces what is in use, whatever the path looks like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from snowmelt.errors import OutputRefused
from snowmelt.storage.overwrite_protection import (
    CommandOutput,
    check_output_outside_deployment,
    check_outputs,
)


def test_an_input_is_known_by_whatever_path_leads_to_it(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "folder")
    (tmp_path / "soft.csv").symlink_to(data)
    os.link(data, tmp_path / "hard.csv")
    same = ["data.csv", "soft.csv", "hard.csv", "./data.csv", "folder/../data.csv"]
    for name in same:
        for path in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
            with pytest.raises(OutputRefused, match="it is an input"):
                check_outputs([CommandOutput("OUT", path, overwrite=True)], inputs=[str(data)])
    check_outputs([CommandOutput("OUT", f"{tmp_path}/linked/new.csv")], inputs=[str(data)])


def test_an_existing_file_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("kept")
    with pytest.raises(OutputRefused, match="already exists"):
        check_outputs([CommandOutput("OUT", str(path))])
    check_outputs([CommandOutput("OUT", str(path), overwrite=True)])
    check_outputs([CommandOutput("OUT", str(path), appends=True)])
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    for bad in ("nowhere", "."):
        with pytest.raises(OutputRefused):
            check_outputs([CommandOutput("OUT", str(tmp_path / bad), overwrite=True)])
    with pytest.raises(OutputRefused, match="not a regular file"):
        check_outputs([CommandOutput("OUT", "/dev/null", overwrite=True)])


def test_a_folder_of_a_deployment_is_closed_to_outputs(tmp_path: Path) -> None:
    ours = tmp_path / "lake"
    (ours / "warehouse").mkdir(parents=True)
    (ours / "warehouse" / "part.parquet").write_bytes(b"rows")
    (tmp_path / "by-link").symlink_to(ours / "warehouse")
    (tmp_path / "to-file").symlink_to(ours / "warehouse" / "part.parquet")
    os.link(ours / "warehouse" / "part.parquet", tmp_path / "second-name")
    for name in ("lake/new", "lake/warehouse/x/new", "by-link/new", "to-file", "lake/../by-link/n"):
        with pytest.raises(OutputRefused, match="belongs to the deployment"):
            check_outputs(
                [CommandOutput("OUT", str(tmp_path / name), overwrite=True)], reserved=[str(ours)]
            )
        with pytest.raises(OutputRefused):
            check_output_outside_deployment("OUT", str(tmp_path / name), reserved=[str(ours)])
    with pytest.raises(OutputRefused, match="hard links"):
        check_outputs([CommandOutput("OUT", str(tmp_path / "second-name"), appends=True)])
    (ours / "catalog.db").touch()
    with pytest.raises(OutputRefused, match="is a data folder"):
        check_outputs([CommandOutput("OUT", str(ours / "warehouse" / "new"))])
    check_outputs([CommandOutput("OUT", str(tmp_path / "lakes"))], reserved=[str(ours)])


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    one, other = (
        CommandOutput("ONE", str(tmp_path / "a")),
        CommandOutput("OTHER", f"{tmp_path}/./a"),
    )
    with pytest.raises(OutputRefused, match="ONE writes the same file"):
        check_outputs([one, other])


def test_objects_are_known_by_their_urls() -> None:
    with pytest.raises(OutputRefused, match="it is an input"):
        check_outputs([CommandOutput("OUT", "S3://b/a%20b")], inputs=["s3://b/a b"])
    with pytest.raises(OutputRefused, match="belongs to the deployment"):
        check_outputs([CommandOutput("OUT", "s3://b/lake/x")], reserved=["s3://b/lake"])
    check_outputs([CommandOutput("OUT", "s3://b/lakes/x")], reserved=["s3://b/lake"])
