"""The official Java client, unmodified: fetched by Maven, driven by a program of the tests' own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(__file__).parent / "interop" / "java"
# The newest of each generation that there is; the first that Maven finds is run.
GENERATIONS = {"4": ("4.4.4", "4.4.2-unshaded", "4.3.0"), "2": ("2.3.0", "2.1.0")}
_FETCH_S = 240
# For the older and the newer way in which Maven connects.
_GIVE_UP = ("-Dmaven.wagon.http.connectionTimeout=10000", "-Daether.connector.connectTimeout=10000")
_found: dict[str, JavaSdk | str] = {}


class JavaError(Exception):
    """What the client threw."""

    def __init__(self, thrown: dict) -> None:
        super().__init__(f"{thrown['class']} {thrown['code']}: {thrown['message']}")
        self.code = thrown["code"]
        self.message = thrown["message"] or ""


@dataclass(frozen=True)
class JavaSdk:
    """A version of the client, and how to run it with our program."""

    version: str
    class_path: str

    @contextlib.contextmanager
    def driver(self, folder: Path, *options: str) -> Iterator[Driver]:
        """Run the program; its log is in `folder`."""
        log = (folder / f"java-{self.version}.log").open("wb")
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options]
        with (
            log,
            subprocess.Popen(
                [*command, "-cp", self.class_path, "Driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            ) as process,
        ):
            try:
                yield Driver(process, Path(log.name))
            finally:
                process.kill()


class Driver:
    """A conversation with the program; every call is a command of Driver.java."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def say(self, do: str, **command: object) -> object:
        """Give a command and return its outcome; JavaError is what the client threw."""
        self.begin(do, **command)
        return self.outcome()

    def begin(self, do: str, **command: object) -> None:
        """Give a command without waiting for its outcome."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self._process.stdin.flush()

    def outcome(self) -> object:
        """Wait for the outcome of the command that was begun."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer["ok"]


def java_sdk(generation: str, cache: Path) -> JavaSdk | str:
    """Return the client of a generation, or a sentence that says why there is none."""
    if generation not in _found:
        _found[generation] = _fetched(generation, cache)
    return _found[generation]


def _fetched(generation: str, cache: Path) -> JavaSdk | str:
    if os.environ.get("SNOWMELT_TEST_JAVA") == "0":
        return "SNOWMELT_TEST_JAVA is 0"
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (a JDK and Maven are needed)"
    cache.mkdir(parents=True, exist_ok=True)
    # What was fetched before is asked for first: that takes no network.
    words = ""
    for offline in (True, False):
        for version in GENERATIONS[generation]:
            jars, words = _jars(version, cache, offline=offline)
            if jars is not None:
                return JavaSdk(version, os.pathsep.join([str(_classes(jars, cache)), jars]))
    return f"Maven found no version {', '.join(GENERATIONS[generation])}: {words}"


def _jars(version: str, cache: Path, *, offline: bool) -> tuple[str | None, str]:
    """Return the jars of a version as a class path; else None, and Maven's last words."""
    listed = cache / f"{version}.jars"
    if listed.exists():
        jars = listed.read_text().strip()
        if all(Path(jar).exists() for jar in jars.split(os.pathsep)):
            return jars, ""
    written = listed.with_suffix(f".{os.getpid()}")
    command = ["mvn", "-q", "-B", *(["-o"] if offline else _GIVE_UP), "dependency:build-classpath"]
    try:
        ran = subprocess.run(
            [*command, f"-Dsdk.version={version}", f"-Dmdep.outputFile={written}"],
            cwd=SOURCES,
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_FETCH_S} seconds"
    if ran.returncode != 0 or not written.exists():
        return None, next(iter(ran.stdout.strip().splitlines()), "")[:200]
    written.replace(listed)
    return listed.read_text().strip(), ""


def _classes(jars: str, cache: Path) -> Path:
    """Return our program, compiled against these jars."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(jars.encode() + b"".join(each.read_bytes() for each in sources))
    folder = cache / f"classes-{digest.hexdigest()[:16]}"
    if not folder.exists():
        fresh = folder.with_suffix(f".{os.getpid()}")
        command = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", fresh, "-cp", jars, *sources]
        subprocess.run(list(map(str, command)), check=True, timeout=120)
        with contextlib.suppress(OSError):
            fresh.rename(folder)
    return folder


@pytest.fixture(scope="session", params=list(GENERATIONS))
def sdk(request: pytest.FixtureRequest) -> JavaSdk:
    """The official client, once of each generation."""
    found = java_sdk(request.param, request.config.cache.mkdir("java"))
    if isinstance(found, str):
        pytest.skip(f"Java client {request.param}.x: {found}")
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which versions were run, or why none."""
    for generation, found in _found.items():
        said = f"version {found.version} was run" if isinstance(found, JavaSdk) else found
        terminalreporter.write_line(f"official Java client {generation}.x: {said}")
