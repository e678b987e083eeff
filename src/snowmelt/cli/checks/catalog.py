"""Checks of the catalog: reachable, of the right version, its clock, and what is set aside in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.cli.checks.finding import Check, Finding, clock_check, fine, note, wrong
from snowmelt.cli.checks.services import check_services
from snowmelt.cli.opening import has_catalog, opened_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.clock import Clock
    from snowmelt.config import Settings


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
    from snowmelt.catalog.database import catalog_version

    found = catalog_version(settings.catalog_url)
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
    from snowmelt.catalog.channels import channels_of
    from snowmelt.catalog.chunks import quarantined
    from snowmelt.catalog.database import server_time
    from snowmelt.catalog.tables import table_by_id, tables_of

    with opened_catalog(settings) as database, database.reading() as connection:
        tables = len(tables_of(connection))
        channels = len(channels_of(connection))
        yield fine("contents", f"{database.dialect}, {tables:,} tables, {channels:,} channels")
        at = server_time(connection)
        if at is not None:
            ahead_s = (at - clock.now()).total_seconds()
            yield clock_check("catalog-time", ahead_s, "the catalog's database")
        yield from check_services(database, settings, at or clock.now())
        found = [
            (table_by_id(connection, chunk.table_id), chunk) for chunk in quarantined(connection)
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
