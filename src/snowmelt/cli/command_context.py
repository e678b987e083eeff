"""Settings, catalog, client and signal handling for commands, from command-line options."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.config import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from snowmelt.catalog.db.database import Database
    from snowmelt.client.client import Client


def load_settings(options: argparse.Namespace, **overrides: object) -> Settings:
    """Settle the settings of a command; `overrides` are its own options, None for not given.

    Raises:
        ConfigurationError: A value does not fit.
    """
    return Settings.load(options.data_dir, catalog_url=options.catalog, **overrides)


@contextlib.contextmanager
def opening_catalog(settings: Settings, *, create: bool = False) -> Iterator[Database]:
    """Open the catalog for a command; only with `create` a missing data folder is made.

    Raises:
        ConfigurationError: There is no catalog.
        CatalogUnavailable: The database cannot be reached.
    """
    from snowmelt.catalog.db.database import open_and_upgrade_database

    is_new = not may_have_catalog(settings)
    if create and is_new:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(
        open_and_upgrade_database(settings.catalog_url, create=create)
    ) as database:
        if is_new:
            print(f"snowmelt: created a new catalog in {settings.data_dir}", file=sys.stderr)
        yield database


def may_have_catalog(settings: Settings) -> bool:
    """Tell whether the catalog may be there: of SQLite its file is looked for.

    Raises:
        ConfigurationError: `catalog_url` is the URL of no catalog.
        MissingExtra: The URL needs a package that is not installed.
    """
    from snowmelt.catalog.db.database import find_sqlite_path

    file = find_sqlite_path(settings.catalog_url)
    return file is None or file.exists()


# --- The options by which a command finds the service that it writes to, and the client for it.


def add_service_options(group: argparse._ArgumentGroup) -> None:
    """Describe where the service is, and as whom it is written to."""
    group.add_argument(
        "--url", default="http://127.0.0.1:8080", help="its streaming API (default: %(default)s)"
    )
    group.add_argument("--user", help="needed unless it was started with --dev")
    group.add_argument(
        "--private-key", type=Path, metavar="FILE", help="the user's, as `snowmelt user add` writes"
    )
    group.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="authority of its certificate, if not known"
    )


def create_client(options: argparse.Namespace) -> Client:
    """Return a client by these options and `--role`.

    Raises:
        ConfigurationError: The URL, the key or the file of certificates is none.
    """
    from snowmelt.client.client import Client

    return Client(
        options.url,
        user=options.user,
        private_key=options.private_key,
        role=options.role,
        ca_file=options.ca_file,
    )


# --- Commands that run until they are told to end.


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """Let SIGTERM and the first Ctrl-C end what runs in good order; the second ends it at once."""
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    # Signals come to the main thread only, and only that may say what is to be done.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
