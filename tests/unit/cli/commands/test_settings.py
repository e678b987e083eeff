"""`snowmelt settings`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.config import Settings

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


def shown(ended: subprocess.CompletedProcess[str]) -> dict[Any, Any]:
    assert (ended.returncode, ended.stderr) == (0, "")
    return {row["setting"]: row for row in json.loads(ended.stdout)}


def test_each_setting_is_shown_with_value_default_and_where_it_is_from(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    rows = shown(
        snowmelt("settings", "--format", "json", "--data-dir", "there", port="9", compact="0")
    )
    assert list(rows) == [each.name for each in dataclasses.fields(Settings)]
    assert all(row["meaning"] for row in rows.values())
    told = {name: tuple(row.values())[1:4] for name, row in rows.items()}
    assert told["port"] == ("9", "8080", "SNOWMELT_PORT")
    assert told["compact"] == ("no", "yes", "SNOWMELT_COMPACT")
    assert told["data_dir"] == (str(tmp_path / "there"), "snowmelt-data", "--data-dir")
    stage = str(tmp_path / "there" / "stage")
    assert told["stage_url"] == (stage, stage, "default")


def test_a_word_and_what_was_changed_choose_among_them(snowmelt: Callable[..., Finished]) -> None:
    rows = shown(snowmelt("settings", "--changed", "--format", "json", catalog_url="sqlite:///a"))
    assert list(rows) == ["catalog_url"]
    rows = shown(snowmelt("settings", "SNOWMELT_MIGRATE_MAX", "--format", "json"))
    assert list(rows) == ["migrate_max_chunks", "migrate_max_age_s"]


def test_no_password_is_shown(snowmelt: Callable[..., Finished]) -> None:
    url = "postgresql://ann:hidden@db/snowmelt"
    rows = shown(snowmelt("settings", "--format", "json", catalog_url=url))
    assert rows["catalog_url"]["value"] == "postgresql://ann:***@db/snowmelt"
