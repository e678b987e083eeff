"""Checks of what must be the same at all services of a catalog: key, version, clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.cli.checks.finding import Check, clock_check, fine, note, wrong

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.services import ServiceRecord
    from snowmelt.config import Settings


def check_services(database: Database, settings: Settings, now: dt.datetime) -> Iterator[Check]:
    """Check the services that share a catalog; `now` is by the catalog's clock."""
    from snowmelt.catalog.services import services_of

    with database.reading() as connection:
        services = services_of(connection)
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
    from snowmelt.catalog.master_keys import is_of_catalog

    if not place.exists():
        return note("master-key", f"{place} is not there; a service needs the catalog's master key")
    if is_of_catalog(database, place):
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
