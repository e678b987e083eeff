"""`snowmelt.toml`: found, read, checked; its settings and profiles."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from snowmelt.config import Settings, make_config_file_schema
from snowmelt.config_file import find_config_file, find_profile, read_config_file
from snowmelt.errors import ConfigurationError, InvalidConfigFile, ProfileNotFound


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_nearest_file_is_found_and_an_empty_variable_means_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    monkeypatch.chdir(work)
    environment = {"XDG_CONFIG_HOME": str(home)}
    of_user = write(home / "snowmelt" / "snowmelt.toml", "")
    assert find_config_file(environment) == of_user
    write(work / "snowmelt.toml", "")
    assert find_config_file(environment) == Path("snowmelt.toml")
    named = environment | {"SNOWMELT_CONFIG": str(tmp_path / "named.toml")}
    assert find_config_file(named) == tmp_path / "named.toml"
    assert find_config_file(environment | {"SNOWMELT_CONFIG": ""}) is None


def test_arguments_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = read_config_file(
        write(
            tmp_path / "snowmelt.toml",
            '[settings]\nport = 1\ns3_port = 2\nlease_s = 5\ncompact = false\nselect_dialect = "ceph"\n',
        )
    )
    settings = Settings.from_environment({"SNOWMELT_S3_PORT": "3"}, file=file, port=4)
    assert (settings.port, settings.s3_port, settings.lease_s) == (4, 3, 5.0)
    assert (settings.compact, settings.select_dialect) == (False, "ceph")


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    text = '[settings]\ndata_dir = "data"\nstage_url = "s3://bucket/stage"\ntls_cert = "c.pem"\n'
    file = read_config_file(write(tmp_path / "etc" / "snowmelt.toml", text))
    settings = Settings.from_environment({}, file=file)
    assert settings.data_dir == tmp_path / "etc" / "data"
    assert settings.catalog_url == f"sqlite:///{tmp_path}/etc/data/catalog.db"
    assert settings.stage_url == "s3://bucket/stage"
    assert settings.tls_cert == str(tmp_path / "etc" / "c.pem")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[settings\n", "line 1"),
        ("[setting]", "unknown table 'setting'. Did you mean settings?"),
        ("[settings]\nprot = 1", "unknown setting 'prot'. Did you mean port?"),
        (
            '[settings]\nhost = "a"\nport = "8080"',
            ":3: setting port must be an integer, not '8080'",
        ),
        ("[settings]\nport = true", "setting port must be an integer, not True"),
        ("[settings]\ncompact = 1", "setting compact must be true or false, not 1"),
        ('[settings]\nlease_s = "1"', "setting lease_s must be a number"),
        ("[settings]\nhost = 1", "setting host must be a string, not 1"),
        ("settings = 1", r"settings must be a table, \[settings\]"),
        ("[profiles]\na = 1", r"profile a must be a table, \[profiles.a\]"),
        ('[profiles.a]\nurl = "u"\nkey = "k"', "unknown key of profile a 'key'"),
        ("[profiles.a]\nurl = 1", "url of profile a must be a string, not 1"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "snowmelt.toml", text)
    with pytest.raises(InvalidConfigFile, match=message) as raised:
        Settings.from_environment({}, file=read_config_file(path))
    assert str(raised.value).startswith(f"Invalid configuration file {path}")


def test_a_value_out_of_range_names_the_setting(tmp_path: Path) -> None:
    file = read_config_file(write(tmp_path / "snowmelt.toml", "[settings]\nport = 70000\n"))
    with pytest.raises(ConfigurationError, match="port"):
        Settings.from_environment({}, file=file)


def test_a_missing_file_that_was_named_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNOWMELT_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(InvalidConfigFile, match="No such file"):
        Settings.load(tmp_path)


def test_a_password_is_accepted_only_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    text = '[settings]\ncatalog_url = "postgresql://ann:secret@db/snowmelt"\n'
    path = write(tmp_path / "snowmelt.toml", text, 0o640)
    with pytest.raises(InvalidConfigFile, match="chmod 600") as raised:
        read_config_file(path)
    assert "secret" not in str(raised.value)
    path.chmod(0o600)
    assert "secret" in str(read_config_file(path).settings["catalog_url"])


def test_a_setting_is_located_by_its_line(tmp_path: Path) -> None:
    text = '# port = 1\n[profiles.a]\nurl = "x"\n\n[settings]\n# port = 2\nport = 3\n'
    file = read_config_file(write(tmp_path / "snowmelt.toml", text))
    assert file.locate("port") == f"{file.path}:7"
    assert file.locate("host") == str(file.path)


def test_children_of_a_process_do_not_read_the_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "snowmelt.toml", '[settings]\nport = 7\ndata_dir = "d"\n')
    monkeypatch.setenv("SNOWMELT_CONFIG", str(path))
    settings = Settings.load()
    path.write_text("broken")
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings


def test_a_profile_is_chosen_by_argument_variable_or_the_name_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        '[profiles.default]\nurl = "http://a:1"\n'
        '[profiles.far]\nurl = "https://b"\nuser = "u"\nprivate_key = "k.pem"\nrole = "r"\n'
    )
    path = write(tmp_path / "snowmelt.toml", text)
    far = find_profile("far", path)
    assert far is not None
    assert (far.url, far.user, far.role) == ("https://b", "u", "r")
    assert far.private_key == str(tmp_path / "k.pem")
    usual = find_profile(None, path)
    assert usual is not None
    assert usual.url == "http://a:1"
    monkeypatch.setenv("SNOWMELT_PROFILE", "far")
    assert find_profile(None, path) == far
    with pytest.raises(ProfileNotFound, match=r"Profile near not found in .*: default, far"):
        find_profile("near", path)


def test_without_a_file_there_is_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWMELT_CONFIG", "")
    assert find_profile(None) is None
    with pytest.raises(ProfileNotFound, match="Profile x not found"):
        find_profile("x")


def test_the_json_schema_has_every_setting_and_key_of_a_profile() -> None:
    schema: Any = make_config_file_schema()["properties"]
    assert list(schema["settings"]["properties"]) == [
        each.name for each in dataclasses.fields(Settings)
    ]
    assert schema["settings"]["properties"]["port"]["type"] == "integer"
    assert schema["settings"]["properties"]["log_format"]["enum"] == ["text", "json"]
    assert set(schema["profiles"]["additionalProperties"]["properties"]) == {
        *("url", "user", "private_key", "role", "ca_file")
    }


def test_the_test_run_reads_no_file_of_its_user() -> None:
    assert os.environ["SNOWMELT_CONFIG"] == ""
