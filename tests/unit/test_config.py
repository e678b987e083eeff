from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from snowmelt.config import Settings, set_numba_cache_dir
from snowmelt.errors import ConfigurationError
from snowmelt.schema.types import DEFAULT_ZONE, Compatibility


def test_everything_lies_in_the_data_folder_by_default(tmp_path: Path) -> None:
    settings = Settings.from_environment({}, data_dir=tmp_path)
    assert settings.catalog_url == f"sqlite:///{tmp_path / 'catalog.db'}"
    assert settings.stage_url == str(tmp_path / "stage")
    assert settings.keys_dir == tmp_path / "keys"
    assert settings.listens_on_loopback


def test_the_caller_wins_over_the_environment_and_none_counts_as_not_given() -> None:
    environment = {"SNOWMELT_PORT": "9000", "SNOWMELT_DEV": "yes", "SNOWMELT_VERIFY": "full"}
    settings = Settings.from_environment(environment, port=9001, verify=None)
    assert (settings.port, settings.dev, settings.verify) == (9001, True, "full")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "http"),
        ("port", 70000),
        ("verify", "sometimes"),
        ("dev", "perhaps"),
        ("retention_s", -1),
        ("retention_s", "nan"),
        ("retention_s", "inf"),
        ("group_limit", 0),
        ("lease_s", 0),
        ("cleanup_interval_s", "0.0"),
        ("log_level", "loud"),
        ("no_such_setting", 1),
    ],
)
def test_a_value_that_does_not_fit_is_one_sentence_naming_the_setting(
    name: str, value: object
) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError, match=name):
        Settings.from_environment({}, **given)


def test_a_child_gets_the_same_settings_through_its_environment(tmp_path: Path) -> None:
    settings = Settings.from_environment({}, data_dir=tmp_path, dev=True, migrate_interval_s=0.5)
    assert Settings.from_environment(settings.to_environment()) == settings


def test_compiled_code_goes_elsewhere_only_where_the_package_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    set_numba_cache_dir(tmp_path / "compiled", package=tmp_path)
    assert os.environ == {}
    set_numba_cache_dir(tmp_path / "compiled", package=Path("/proc/self"))
    assert os.environ == {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    set_numba_cache_dir(tmp_path / "another", package=Path("/proc/self"))
    assert os.environ == {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}


def test_the_default_zone_of_the_row_api_is_that_of_the_rules() -> None:
    zones = {
        Settings().rows_timezone,
        Compatibility.STRICT.default_zone.key,
        Compatibility.COPY.default_zone.key,
    }
    assert zones == {DEFAULT_ZONE}
