"""`snowmelt doctor`."""

from __future__ import annotations


def lines(output: str) -> dict[str, str]:
    """What was checked, and how it ended."""
    return {line.split()[1]: line.split()[0] for line in output.splitlines()}


def test_doctor_finds_nothing_wrong_before_the_first_start(snowmelt, tmp_path):
    ended = snowmelt("doctor", port="1")
    assert ended.returncode == 0, ended.stdout
    found = lines(ended.stdout)
    assert found["versions"] == found["java"] == found["data"] == "ok"
    assert found["catalog"] == found["keys"] == found["service"] == "note"
    assert not (tmp_path / "snowmelt-data").exists()


def test_doctor_counts_what_is_in_the_catalog(snowmelt):
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)")
    assert "ok     catalog     sqlite, 1 tables, 0 channels\n" in snowmelt("doctor").stdout


def test_doctor_finds_what_is_wrong_and_goes_on(snowmelt, tmp_path):
    keys = tmp_path / "snowmelt-data" / "keys"
    keys.mkdir(parents=True)
    keys.chmod(0o755)
    (tmp_path / "snowmelt-data" / "catalog.db").write_text("not a database" * 100)
    ended = snowmelt("doctor")
    assert ended.returncode == 1
    assert lines(ended.stdout)["keys"] == lines(ended.stdout)["catalog"] == "wrong"
    assert "service" in lines(ended.stdout)
