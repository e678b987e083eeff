"""Checks of the places where a service keeps things, and of the certificate that it shows."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.checks.finding import Check, Finding, clock_check, fine, note, wrong
from snowmelt.errors import ConfigurationError, SnowmeltError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.storage.store import Store

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
        from snowmelt.cli.checks.roles import check_stage_role

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
    from snowmelt.catalog.keys import load_master_key

    try:
        load_master_key(file)
    except (SnowmeltError, OSError) as error:
        return wrong("keys", f"{file} is a file, and no master key: {error}")
    return fine("keys", f"{file}, a file")


def _store(what: str, url: str, clock: Clock) -> Iterator[Check]:
    from snowmelt.storage.disk import sync_limit
    from snowmelt.storage.opening import open_store

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
        limit = sync_limit(Path(url))
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

    from snowmelt.server.tls import certificate_of

    try:
        certificate_of(settings)
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
