"""The archive of Spark's classes is made once, and Spark's JVM takes classes from it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pyspark
import pytest

from snowmelt.spark.class_archive import make_class_archive
from snowmelt.spark.java import find_class_archive, get_archive_options, using_java

pytestmark = pytest.mark.slow


def test_a_jvm_of_spark_takes_its_classes_from_the_archive() -> None:
    make_class_archive()
    assert make_class_archive() is None, "made again"
    with using_java():
        assert make_class_archive() is None, "made again for the wrapper of the same Java"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = f"{get_archive_options()} -Xlog:class+load"
    with using_java():
        done = subprocess.run(
            [submit, "--version"],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options},
            capture_output=True,
            text=True,
            check=True,
        )
    name = " org.apache.spark.deploy.SparkSubmit "
    loaded = next(line for line in done.stdout.splitlines() if name in line)
    assert loaded.endswith("source: shared objects file (top)")


def test_the_folder_of_a_killed_process_is_deleted_although_there_is_an_archive() -> None:
    make_class_archive()
    parent = find_class_archive().parent
    abandoned, young = (Path(tempfile.mkdtemp(prefix="making-", dir=parent)) for _ in range(2))
    (abandoned / "rows").mkdir()
    (abandoned / "rows" / "part.parquet").write_bytes(b"x")
    os.utime(abandoned, (0, 0))
    assert make_class_archive() is None
    assert (abandoned.exists(), young.exists()) == (False, True), "a process may be using it"
    young.rmdir()


def test_the_archive_is_in_the_cache_folder_if_the_package_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = find_class_archive(Path("/proc/self"))
    assert archive.parent == tmp_path / "snowmelt"
    assert archive.name == f"spark-{pyspark.__version__}.jsa"
