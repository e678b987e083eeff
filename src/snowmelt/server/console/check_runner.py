"""Run `snowmelt doctor` and `snowmelt check` in child processes, and cache their last results.

Each service has its own results, in memory. The first automatic run is due a minute after the service starts.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.server.child_process import start_child

_log = logging.getLogger("snowmelt.server")

_FIRST_RUN_S = 60.0
_TIMEOUT_S = 1800.0
_NICE = 19
_MAX_FINDINGS = 1_000


class CheckFinding(msgspec.Struct, frozen=True):
    """A finding of `snowmelt check`."""

    finding: str
    severity: str
    table: str
    detail: str
    meaning: str
    remedy: str


class InstallationCheck(msgspec.Struct, frozen=True):
    """A line of `snowmelt doctor`. Its `finding` is `ok`, `note` or `wrong`."""

    finding: str
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class CheckResults:
    """Results of the last run. `checked_at` is None until the first run ends.

    `failures` has a sentence for each command that did not finish.
    """

    is_running: bool = False
    checked_at: dt.datetime | None = None
    tables: int = 0
    rows: int = 0
    findings: tuple[CheckFinding, ...] = ()
    installation: tuple[InstallationCheck, ...] = ()
    failures: tuple[str, ...] = ()


class CheckRunner:
    """Runner of the checks of this service, one run at a time. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._results = CheckResults()
        self._due_at = clock.monotonic() + _FIRST_RUN_S
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def read(self) -> CheckResults:
        """Return the last results."""
        with self._lock:
            return self._results

    def start(self) -> None:
        """Start a run, unless one is running."""
        with self._lock:
            if self._is_closed or self._results.is_running:
                return
            self._results = replace(self._results, is_running=True)
            self._thread = threading.Thread(target=self._run, name="console-checks", daemon=True)
            self._thread.start()

    def start_if_due(self) -> None:
        """Start a run if the last one is older than `console_check_interval_s`."""
        if self._settings.console_check_interval_s and self._clock.monotonic() >= self._due_at:
            self.start()

    def close(self) -> None:
        """Kill the child process of a run, and wait for its thread."""
        with self._lock:
            self._is_closed = True
            child, thread = self._child, self._thread
        if child is not None:
            child.kill()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        results = CheckResults()
        try:
            results = self._check()
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("the checks of the console failed", exc_info=error)
            results = CheckResults(failures=(f"The checks failed: {error}.",))
        finally:
            self._due_at = self._clock.monotonic() + self._settings.console_check_interval_s
            with self._lock:
                self._results = replace(results, checked_at=self._clock.now())

    def _check(self) -> CheckResults:
        installation = [
            msgspec.convert(each, InstallationCheck) for each in self._read_lines("doctor")
        ]
        findings: list[CheckFinding] = []
        summary: dict[str, Any] = {}
        for each in self._read_lines("check", "--quiet"):
            if "summary" in each:
                summary = each["summary"]
            elif len(findings) < _MAX_FINDINGS:
                findings.append(msgspec.convert(each, CheckFinding))
        failures = []
        if not installation:
            failures.append(
                "`snowmelt doctor` did not finish. The log of the service has the reason."
            )
        if not summary:
            failures.append(
                "`snowmelt check` did not finish. The log of the service has the reason."
            )
        return CheckResults(
            tables=summary.get("tables", 0),
            rows=summary.get("rows", 0),
            findings=tuple(findings),
            installation=tuple(installation),
            failures=tuple(failures),
        )

    def _read_lines(self, *command: str) -> Iterator[dict[str, Any]]:
        """Run a command with `--format json`, and yield its lines."""
        with self._lock:
            if self._is_closed:
                return
            child = start_child(
                self._settings, "snowmelt", *command, "--format", "json", reads_output=True
            )
            self._child = child
        try:
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
            output, _ = child.communicate(timeout=_TIMEOUT_S)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            child.kill()
            output, _ = child.communicate()
        for line in output.splitlines():
            yield msgspec.json.decode(line, type=dict[str, Any])
