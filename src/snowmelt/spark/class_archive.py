"""Archive of Spark's parsed Java classes (class data sharing), with which Spark starts sooner.

Without the archive, a session with its first query takes 17 s of processor time, and 13 s with it (two
cores, Java 17). `snowmelt warm` makes the archive. The JVM ignores it if another JVM or other jars made
it.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import pyspark

from snowmelt.clock import SystemClock
from snowmelt.errors import RemoteError
from snowmelt.spark.java import (
    QUIET_ARCHIVE_OPTIONS,
    find_class_archive,
    find_packaged_java,
    find_system_java,
)

_TIMEOUT_S = 600.0
_FOLDER_PREFIX = "making-"


def make_class_archive() -> Path | None:
    """Run queries in a Spark of its own, and archive the classes that they load.

    Takes about 40 s of processor time and 190 MB of disk. Returns the path, or None if there is an archive
    that is newer than Java and PySpark.

    Raises:
        JavaMissing: If no Java is available.
        RemoteError: If Spark failed. The error contains its last lines.
    """
    archive = find_class_archive()
    _delete_abandoned_folders(archive.parent)
    java = find_system_java() or find_packaged_java()
    # A folder tells when its files were installed. Files have times of their package, or share an inode
    # with other environments.
    folders = (java / "bin", Path(pyspark.__file__).parent)
    installed_at = max(folder.stat().st_mtime for folder in folders)
    if archive.exists() and archive.stat().st_mtime > installed_at:
        return None
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        command = [sys.executable, "-m", "snowmelt.spark.class_archive", str(made)]
        done = subprocess.run(  # noqa: S603  this module
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if not made.exists():
            last = "\n".join((done.stderr or done.stdout).splitlines()[-5:])
            raise RemoteError(f"Spark made no archive of its classes. Its last lines:\n{last}")
        made.replace(archive)
    return archive


def _delete_abandoned_folders(parent: Path) -> None:
    """Delete the folders of processes that were killed. Those of running processes are younger."""
    for folder in parent.glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            age_s = SystemClock().now().timestamp() - folder.stat().st_mtime
            if age_s > _TIMEOUT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _record(archive: Path) -> None:
    """Run queries with most of the classes that queries load, in a JVM that archives them."""
    from pyspark import SparkContext

    from snowmelt.spark.session import local_session

    recording = shlex.quote(f"-XX:ArchiveClassesAtExit={archive}")
    spark = local_session("warm", java_options=f"{recording} {QUIET_ARCHIVE_OPTIONS}")
    process = cast("Any", SparkContext._gateway).proc  # noqa: SLF001  PySpark has no public name
    rows = spark.range(1000).selectExpr(
        "id", "CAST(id AS STRING) AS name", "CAST(id AS DECIMAL(38, 2)) AS price", "now() AS sold"
    )
    stored = str(archive.parent / "rows")
    rows.write.parquet(stored)
    spark.read.parquet(stored).createOrReplaceTempView("sales")
    spark.sql(
        "SELECT a.name, count(*) AS n, sum(b.price) FROM sales a JOIN sales b ON a.id = b.id"
        " WHERE a.id > 10 AND a.name LIKE '1%' GROUP BY a.name ORDER BY n DESC LIMIT 10"
    ).collect()
    spark.table("sales").mapInArrow(lambda batches: batches, rows.schema).toArrow()
    spark.stop()
    # The JVM writes the archive when it exits, which it does when its standard input ends.
    process.communicate(timeout=_TIMEOUT_S)


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
