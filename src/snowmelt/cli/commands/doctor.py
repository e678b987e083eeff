"""`snowmelt doctor`: checks of programs, settings, storage, catalog and service."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import load_settings
from snowmelt.cli.health_checks import (
    CheckResult,
    CheckStatus,
    make_failed_check,
    make_note_check,
    make_passed_check,
)
from snowmelt.clock import SystemClock
from snowmelt.config import Settings, find_unknown_variables, variable_for_setting
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

NAME = "doctor"
SUMMARY = "check settings, programs, places, clocks, catalog and service, a line each"
EXAMPLES = """examples:
  snowmelt doctor
  snowmelt doctor --data-dir /var/lib/snowmelt --format json

Exit code 1 if anything is wrong; what is only missing for a part of Snowmelt, or is wrong soon, is a
note. A small object is written to stage and warehouse and deleted; nothing else is changed.
"""
_HEALTH_TIMEOUT_S = 2.0
_SIMILARITY_CUTOFF = 0.85
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - asked, not bound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: an object a line"
    )


def run(options: argparse.Namespace) -> int:
    """Check everything, go on after what is wrong, and return 1 if anything is."""
    is_wrong = False
    for check in _run_checks(options):
        if options.format == "json":
            print(json.dumps(dataclasses.asdict(check), ensure_ascii=False), flush=True)
        else:
            print(f"{check.finding:<5}  {check.what:<14}  {check.detail}", flush=True)
        is_wrong |= check.finding is CheckStatus.WRONG
    return int(is_wrong)


def _run_checks(options: argparse.Namespace) -> Iterator[CheckResult]:
    from snowmelt.cli.health_checks import (
        check_catalog,
        check_runtime,
        check_server_settings,
        check_storage_locations,
    )

    clock = SystemClock()
    yield from check_runtime()
    yield from _check_variables()
    try:
        settings = load_settings(options)
    except ConfigurationError as error:
        # Without settings there is nothing to look at.
        yield make_failed_check("settings", str(error))
        return
    yield make_passed_check("settings", f"data folder {settings.data_dir}")
    yield from check_server_settings(settings)
    yield from check_storage_locations(settings, clock)
    yield from check_catalog(settings, clock)
    yield _check_service(settings)


def _check_variables() -> Iterator[CheckResult]:
    names = [variable_for_setting(field.name) for field in dataclasses.fields(Settings)]
    for name in find_unknown_variables():
        # All begin alike, which says nothing.
        near = difflib.get_close_matches(name, names, n=1, cutoff=_SIMILARITY_CUTOFF)
        hint = f"; {near[0]} is meant?" if near else ""
        yield make_note_check("settings", f"{name} is set, and there is no such setting{hint}")


def _check_service(settings: Settings) -> CheckResult:
    import httpx

    scheme = "https" if settings.tls_cert else "http"
    url = f"{scheme}://{_WILDCARD_HOSTS.get(settings.host, settings.host)}:{settings.port}"
    try:
        # Whether it answers is the question, not whether others trust its certificate.
        answer = httpx.get(f"{url}/healthz", timeout=_HEALTH_TIMEOUT_S, verify=False)  # noqa: S501
    except httpx.HTTPError:
        return make_note_check("service", f"nothing answers at {url}; `snowmelt serve` starts it")
    if answer.status_code != httpx.codes.OK:
        return make_failed_check(
            "service", f"{url} answers {answer.status_code}: {answer.text[:300]}"
        )
    return make_passed_check("service", f"answers at {url}")
