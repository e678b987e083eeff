"""Main module of the replication process, which follows a primary or monitors its followers."""

from __future__ import annotations

import logging

from snowmelt.backup.creation import BackupSource
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError
from snowmelt.replication.follower import SiteWorker
from snowmelt.server.child_process import install_lease_releasing_shutdown, run_child

_log = logging.getLogger("snowmelt.replication")

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0


def run_site(settings: Settings) -> None:
    """Run replication rounds until the process ends. Retries after errors.

    Raises:
        ConfigurationError: If settings are invalid.
        CatalogUnavailable: If the catalog cannot be reached.
    """
    source = BackupSource.open(open_and_upgrade_database(settings.catalog_url), settings)
    install_lease_releasing_shutdown(source.database)
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
    run_child(run_site)
