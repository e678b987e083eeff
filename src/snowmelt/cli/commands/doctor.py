"""`snowmelt doctor`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import TYPE_CHECKING

from snowmelt.cli.connections import settings_of
from snowmelt.cli.health_checks import Check, Finding, fine, note, wrong
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
_ANSWER_S = 2.0
_ALIKE = 0.85
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - asked, not bound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: an object a line"
    )


def run(options: argparse.Namespace) -> int:
    """Check everything, go on after what is wrong, and return 1 if anything is."""
    is_wrong = False
    for check in _checks(options):
        if options.format == "json":
            print(json.dumps(dataclasses.asdict(check), ensure_ascii=False), flush=True)
        else:
            print(f"{check.finding:<5}  {check.what:<14}  {check.detail}", flush=True)
        is_wrong |= check.finding is Finding.WRONG
    return int(is_wrong)


def _checks(options: argparse.Namespace) -> Iterator[Check]:
    from snowmelt.cli.health_checks import (
        check_catalog,
        check_places,
        check_programs,
        check_serving,
    )

    clock = SystemClock()
    yield from check_programs()
    yield from _variables()
    try:
        settings = settings_of(options)
    except ConfigurationError as error:
        # Without settings there is nothing to look at.
        yield wrong("settings", str(error))
        return
    yield fine("settings", f"data folder {settings.data_dir}")
    yield from check_serving(settings)
    yield from check_places(settings, clock)
    yield from check_catalog(settings, clock)
    yield _service(settings)


def _variables() -> Iterator[Check]:
    names = [variable_for_setting(field.name) for field in dataclasses.fields(Settings)]
    for name in find_unknown_variables():
        # All begin alike, which says nothing.
        near = difflib.get_close_matches(name, names, n=1, cutoff=_ALIKE)
        hint = f"; {near[0]} is meant?" if near else ""
        yield note("settings", f"{name} is set, and there is no such setting{hint}")


def _service(settings: Settings) -> Check:
    import httpx

    scheme = "https" if settings.tls_cert else "http"
    url = f"{scheme}://{_EVERYWHERE.get(settings.host, settings.host)}:{settings.port}"
    try:
        # Whether it answers is the question, not whether others trust its certificate.
        answer = httpx.get(f"{url}/healthz", timeout=_ANSWER_S, verify=False)  # noqa: S501
    except httpx.HTTPError:
        return note("service", f"nothing answers at {url}; `snowmelt serve` starts it")
    if answer.status_code != httpx.codes.OK:
        return wrong("service", f"{url} answers {answer.status_code}: {answer.text[:300]}")
    return fine("service", f"answers at {url}")
