"""Secrets are read where they are used, and no error tells one."""

from __future__ import annotations

import os

import pytest

from snowmelt.functions.caller.http_request import SecretReader
from snowmelt.functions.errors import SecretMissing


def test_a_variable_is_read_each_time(monkeypatch):
    secrets = SecretReader()
    for value in ("one", "two"):
        monkeypatch.setenv("A_TEST_KEY", value)
        assert secrets.resolve("env:A_TEST_KEY") == value


def test_a_file_is_read_again_when_it_has_changed(tmp_path):
    path, secrets = tmp_path / "key", SecretReader(tmp_path)
    for number, value in enumerate(("one", "two", "one", "four")):
        path.write_text(f" {value}\n")
        os.utime(path, ns=(number, number))
        assert secrets.resolve(f"file:{path}") == value


def test_a_file_that_is_replaced_at_once_is_read_again(tmp_path):
    path, secrets = tmp_path / "key", SecretReader(tmp_path)
    for value in ("one", "two"):
        new = tmp_path / "new"
        new.write_text(value)
        os.utime(new, ns=(0, 0))
        new.rename(path)
        assert secrets.resolve(f"file:{path}") == value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b" \n", "empty"),
        (b"one\ntwo", "several lines"),
        (b"one\r\nx-admin: yes", "several lines"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"s3cret" * 20_000, "too large"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_reference_alone(tmp_path, content, reason):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretMissing, match=reason) as missing:
        SecretReader(tmp_path).resolve(f"file:{path}")
    assert str(missing.value).startswith(f"The secret file:{path} cannot be used: ")
    for part in ("one", "s3cret"):
        assert part not in str(missing.value)


def test_a_folder_is_no_secret(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SecretMissing, match="directory"):
        SecretReader(tmp_path).resolve("file:folder")


@pytest.mark.parametrize("path", ["{out}/passwd", "../out/passwd", "link", "folder/x", "..", "."])
def test_no_file_outside_the_folder_of_secrets_is_read(tmp_path, path):
    folder, out = tmp_path / "secrets", tmp_path / "out"
    for each in (folder, out):
        each.mkdir()
    (out / "passwd").write_text("root")
    (out / "x").write_text("root")
    (folder / "link").symlink_to(out / "passwd")
    (folder / "folder").symlink_to(out)
    with pytest.raises(SecretMissing, match=r"outside the folder of secrets.*SNOWMELT_SECRETS_DIR"):
        SecretReader(folder).resolve("file:" + path.format(out=out))
    with pytest.raises(SecretMissing, match="SNOWMELT_SECRETS_DIR"):
        SecretReader().resolve(f"file:{out}/passwd")


def test_a_secret_is_found_by_its_name_its_path_and_links_within_the_folder(tmp_path):
    # As mounted secrets of clusters lie.
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "key").write_text("one")
    (tmp_path / "key").symlink_to("..2026/key")
    secrets = SecretReader(tmp_path)
    assert secrets.resolve("file:key") == secrets.resolve(f"file:{tmp_path}/key") == "one"


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(SecretMissing, match="secret env:NOT_SET_ANYWHERE cannot be used"):
        SecretReader().resolve("env:NOT_SET_ANYWHERE")


@pytest.mark.parametrize("name", ["SNOWMELT_CATALOG_URL", "Snowmelt_Token"])
def test_a_setting_of_snowmelt_is_sent_to_no_service(monkeypatch, name):
    monkeypatch.setenv(name, "postgresql://user:hunter2@host/db")
    with pytest.raises(SecretMissing, match="settings of Snowmelt") as missing:
        SecretReader().resolve(f"env:{name}")
    assert "hunter2" not in str(missing.value)


@pytest.mark.parametrize("reference", ["s3cret", "vault:s3cret", "", "s3cret:env"])
def test_what_is_no_reference_may_be_the_secret_and_is_not_shown(reference):
    with pytest.raises(SecretMissing, match="begins with env: or file:") as missing:
        SecretReader().resolve(reference)
    assert "s3cret" not in str(missing.value)
