"""Main module of the replication process, which follows a primary or monitors its followers."""

from __future__ import annotations

import logging

from snowmelt.backup.creation import BackupSource
from snowmelt.catalog.db.database import open_and_upgrade_database, open_catalog_clock
from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError
from snowmelt.replication.follower import SiteWorker
from snowmelt.server.child_process import install_lease_releasing_shutdown
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store_factory import open_store
from snowmelt.table.warehouse_paths import open_warehouse

_log = logging.getLogger("snowmelt.replication")

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0


def open_source(settings: Settings) -> BackupSource:
    """Open the catalog and the stores in the settings.

    Raises:
        ConfigurationError: If settings are invalid.
        CatalogUnavailable: If the catalog cannot be reached.
    """
    database = open_and_upgrade_database(settings.catalog_url)
    return BackupSource(
        database,
        open_store(settings.stage_url),
        open_warehouse(settings.warehouse_url),
        LocalStore(settings.objects_dir),
        open_or_create_keyring(database, settings.keys_dir),
        open_catalog_clock(database),
    )


def run_site(source: BackupSource) -> None:
    """Run replication rounds until the process ends. Retries after errors."""
    worker = SiteWorker(source)
    pause_s = _MIN_PAUSE_S
    while True:
        try:
            wait_s = worker.run_round()
        except SnowmeltError as error:
            _log.warning("replication: %s", error)
            worker.record_error(error)
            wait_s, pause_s = pause_s, min(pause_s * 2, _MAX_PAUSE_S)
        except Exception:  # noqa: BLE001 - the next round may work
            _log.exception("replication failed; trying again")
            wait_s, pause_s = pause_s, min(pause_s * 2, _MAX_PAUSE_S)
        else:
            pause_s = _MIN_PAUSE_S
        if wait_s:
            source.clock.sleep(wait_s)


if __name__ == "__main__":
    from snowmelt.server.logs import configure_logging

    _settings = Settings.load()
    configure_logging(_settings)
    _source = open_source(_settings)
    install_lease_releasing_shutdown(_source.database)
    run_site(_source)
